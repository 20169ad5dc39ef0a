// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// A template's source is cut here as Jinja2's lexer cuts it, white space
// control (trim_blocks, lstrip_blocks, "-" and "+") included, so that the engine
// below gets each text as it is to be printed.

type segmentKind uint8

const (
	textSegment segmentKind = iota
	exprSegment
	stmtSegment
)

type segment struct {
	kind   segmentKind
	text   string  // of a text
	tokens []token // of the others
}

type tokenKind uint8

const (
	nameToken tokenKind = iota
	numberToken
	stringToken
	opToken
)

type token struct {
	kind tokenKind
	text string // a string's value
}

func (t token) is(kind tokenKind, text string) bool { return t.kind == kind && t.text == text }

// maxSource is the longest template taken, in bytes.
const maxSource = 1 << 20

// maxBrackets bounds how deep an expression may nest, as the engine's parser
// calls itself for each level.
const maxBrackets = 200

type lexer struct {
	src       string
	pos       int
	lineStart bool // what was matched last ends a line
	segments  []segment
}

// lex cuts a template into segments.
func lex(source string) ([]segment, error) {
	if len(source) > maxSource {
		return nil, fail(ReasonTooLarge, "template")
	}
	l := lexer{src: normalised(source), lineStart: true}
	for {
		open := l.nextTag()
		if open < 0 {
			l.text(l.src[l.pos:])
			return l.segments, nil
		}
		if err := l.tag(open); err != nil {
			return nil, err
		}
	}
}

func (l *lexer) nextTag() int {
	for i := l.pos; i+1 < len(l.src); i++ {
		if l.src[i] == '{' && (l.src[i+1] == '{' || l.src[i+1] == '%' || l.src[i+1] == '#') {
			return i
		}
	}
	return -1
}

func (l *lexer) text(s string) {
	if s != "" {
		l.segments = append(l.segments, segment{text: s})
	}
}

func (l *lexer) tag(open int) error {
	kind := l.src[open+1]
	text := l.src[l.pos:open]
	l.pos = open + 2
	sign := byte(0)
	if l.pos < len(l.src) && (l.src[l.pos] == '-' || l.src[l.pos] == '+') {
		sign = l.src[l.pos]
		l.pos++
	}
	l.text(l.stripLeft(text, sign, kind != '{'))
	switch kind {
	case '#':
		return l.comment()
	case '{':
		tokens, err := l.tokens("}}")
		l.segments = append(l.segments, segment{kind: exprSegment, tokens: tokens})
		return err
	}
	start := l.pos
	if end, ok := l.rawTag("raw"); ok {
		l.pos = end
		return l.raw()
	}
	l.pos = start
	tokens, err := l.tokens("%}")
	if err == nil && len(tokens) == 0 {
		err = l.bad("empty statement")
	}
	l.segments = append(l.segments, segment{kind: stmtSegment, tokens: tokens})
	return err
}

// stripLeft is what is left of the text before a tag.
func (l *lexer) stripLeft(text string, sign byte, block bool) string {
	if sign == '-' {
		return strings.TrimRightFunc(text, isSpace)
	}
	if sign == '+' || !block {
		return text
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if (line > 0 || l.lineStart) && strings.TrimLeftFunc(text[line:], isSpace) == "" {
		return text[:line]
	}
	return text
}

// end consumes a tag's end at pos, with the white space that goes with it.
func (l *lexer) end(closer string) bool {
	rest := l.src[l.pos:]
	block := closer != "}}"
	switch {
	case strings.HasPrefix(rest, "-"+closer):
		trimmed := strings.TrimLeftFunc(rest[1+len(closer):], isSpace)
		l.pos = len(l.src) - len(trimmed)
	case block && strings.HasPrefix(rest, "+"+closer):
		l.pos += 1 + len(closer)
	case strings.HasPrefix(rest, closer):
		l.pos += len(closer)
		if block && l.pos < len(l.src) && l.src[l.pos] == '\n' {
			l.pos++
		}
	default:
		return false
	}
	l.lineStart = l.src[l.pos-1] == '\n'
	return true
}

func (l *lexer) comment() error {
	for ; l.pos < len(l.src); l.pos++ {
		if l.end("#}") {
			return nil
		}
	}
	return l.bad("unclosed comment")
}

// rawTag matches the rest of a raw or endraw tag up to its end.
func (l *lexer) rawTag(word string) (end int, ok bool) {
	rest := strings.TrimLeftFunc(l.src[l.pos:], isSpace)
	if !strings.HasPrefix(rest, word) {
		return 0, false
	}
	rest = strings.TrimLeftFunc(rest[len(word):], isSpace)
	l.pos = len(l.src) - len(rest)
	if word == "raw" {
		// The newline after raw is kept.
		switch {
		case strings.HasPrefix(rest, "-%}"):
			return len(l.src) - len(strings.TrimLeftFunc(rest[3:], isSpace)), true
		case strings.HasPrefix(rest, "%}"):
			return l.pos + 2, true
		}
		return 0, false
	}
	return 0, l.end("%}")
}

func (l *lexer) raw() error {
	start := l.pos
	for i := start; i+1 < len(l.src); i++ {
		if l.src[i] != '{' || l.src[i+1] != '%' {
			continue
		}
		l.pos = i + 2
		sign := byte(0)
		if l.pos < len(l.src) && (l.src[l.pos] == '-' || l.src[l.pos] == '+') {
			sign = l.src[l.pos]
			l.pos++
		}
		if _, ok := l.rawTag("endraw"); ok {
			l.lineStart = false
			l.text(l.stripLeft(l.src[start:i], sign, true))
			l.lineStart = l.src[l.pos-1] == '\n'
			return nil
		}
	}
	return l.bad("unclosed raw block")
}

// operators, the longer ones first.
var operators = []string{
	"//", "**", "==", "!=", ">=", "<=",
	"+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",",
}

// tokens reads a tag's tokens and its end.
func (l *lexer) tokens(closer string) ([]token, error) {
	var out []token
	depth := 0
	for {
		l.pos = len(l.src) - len(strings.TrimLeftFunc(l.src[l.pos:], isSpace))
		if l.pos == len(l.src) {
			return nil, l.bad("unclosed tag")
		}
		if depth == 0 && l.end(closer) {
			return out, nil
		}
		t, err := l.token()
		if err != nil {
			return nil, err
		}
		if t.kind == opToken {
			switch t.text {
			case "(", "[", "{":
				if depth++; depth > maxBrackets {
					return nil, l.bad("brackets too deep")
				}
			case ")", "]", "}":
				if depth--; depth < 0 {
					return nil, l.bad("unbalanced brackets")
				}
			}
		}
		if t.kind == stringToken && len(out) > 0 && out[len(out)-1].kind == stringToken {
			out[len(out)-1].text += t.text
			continue
		}
		out = append(out, t)
	}
}

func (l *lexer) token() (token, error) {
	rest := l.src[l.pos:]
	switch c := rest[0]; {
	case c == '\'' || c == '"':
		for i := 1; i < len(rest); i++ {
			switch rest[i] {
			case '\\':
				i++
			case c:
				l.pos += i + 1
				s, ok := unescape(rest[1:i])
				if !ok {
					return token{}, l.bad("escape in a string")
				}
				return token{kind: stringToken, text: s}, nil
			}
		}
		return token{}, l.bad("unclosed string")
	case c-'0' <= 9:
		i := 1
		for i < len(rest) && (rest[i]-'0' <= 9 || rest[i] == '.' && i+1 < len(rest) && rest[i+1]-'0' <= 9) {
			i++
		}
		if i < len(rest) && isNameByte(rest[i]) {
			return token{}, l.bad("form of a number")
		}
		l.pos += i
		return token{kind: numberToken, text: rest[:i]}, nil
	case isNameByte(c):
		i := 1
		for i < len(rest) && isNameByte(rest[i]) {
			i++
		}
		l.pos += i
		return token{kind: nameToken, text: rest[:i]}, nil
	}
	for _, op := range operators {
		if strings.HasPrefix(rest, op) {
			l.pos += len(op)
			return token{kind: opToken, text: op}, nil
		}
	}
	return token{}, l.bad("unexpected character")
}

func isNameByte(c byte) bool {
	return c == '_' || c-'0' <= 9 || c|0x20-'a' <= 'z'-'a' && c|0x20 >= 'a'
}

func (l *lexer) bad(what string) error {
	line := 1 + strings.Count(l.src[:min(l.pos, len(l.src))], "\n")
	return fail(ReasonUnsupported, what+" in line "+strconv.Itoa(line)+" of the template")
}

// unescape decodes a string literal as Python does.
func unescape(s string) (string, bool) {
	if !strings.Contains(s, `\`) {
		return s, true
	}
	var b []byte
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b = append(b, s[i])
			continue
		}
		i++
		var digits int
		switch c := s[i]; c {
		case '\n':
			continue
		case 'x':
			digits = 2
		case 'u':
			digits = 4
		case 'U':
			digits = 8
		case 'N', '0', '1', '2', '3', '4', '5', '6', '7':
			return "", false
		default:
			if at := strings.IndexByte(`\'"abfnrtv`, c); at >= 0 {
				b = append(b, "\\'\"\a\b\f\n\r\t\v"[at])
			} else {
				b = append(b, '\\', c)
			}
			continue
		}
		if i+digits >= len(s) {
			return "", false
		}
		r, err := strconv.ParseUint(s[i+1:i+1+digits], 16, 32)
		if err != nil || !utf8.ValidRune(rune(r)) {
			return "", false
		}
		b = utf8.AppendRune(b, rune(r))
		i += digits
	}
	return string(b), true
}
