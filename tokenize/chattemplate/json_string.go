// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"encoding/binary"
	"math/bits"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// str reads a string; pos is at its opening quote.
func (p *jsonParser) str() (string, bool) {
	p.pos++
	if raw, span := p.knownString(); span != nil {
		return p.arena.plainText(raw, span.Escaped, span.NonASCII)
	}
	start, escaped := p.pos, false
	p.plain()
	for p.pos+1 < len(p.text) && p.text[p.pos] == '\\' {
		escaped = true
		p.pos += 2
		p.plain()
	}
	if p.pos >= len(p.text) || p.text[p.pos] != '"' {
		return "", false
	}
	raw := p.text[start:p.pos]
	p.pos++
	return p.arena.plainText(raw, escaped, true)
}

// knownString passes over a string that is known to begin here.
func (p *jsonParser) knownString() (raw string, span *Span) {
	for len(p.known) > 0 && int(p.known[0].Start) < p.pos {
		p.known = p.known[1:]
	}
	if len(p.known) == 0 || int(p.known[0].Start) != p.pos {
		return "", nil
	}
	span = &p.known[0]
	end := int(span.End)
	if end < p.pos || end >= len(p.text) || p.text[end] != '"' {
		return "", nil
	}
	raw = p.text[p.pos:end]
	p.pos = end + 1
	return raw, span
}

const laneOnes, laneTops = 0x0101010101010101, 0x8080808080808080

// plain moves to the next quote, backslash or control character, eight bytes
// at a time.
func (p *jsonParser) plain() {
	src, i := bytesOf(p.text), p.pos
	for ; len(src)-i >= 8; i += 8 {
		x := binary.LittleEndian.Uint64(src[i:])
		quote, backslash := x^(laneOnes*'"'), x^(laneOnes*'\\')
		// A byte's top bit is set where the byte is zero, or less than a space; what
		// lies above the first such byte may be wrong and is not looked at.
		found := ((quote-laneOnes)&^quote | (backslash-laneOnes)&^backslash | (x-laneOnes*' ')&^x) & laneTops
		if found != 0 {
			p.pos = i + bits.TrailingZeros64(found)/8
			return
		}
	}
	for i < len(src) && src[i] >= ' ' && src[i] != '"' && src[i] != '\\' {
		i++
	}
	p.pos = i
}

// bytesOf views a string as bytes, to be read only.
func bytesOf(s string) []byte {
	return unsafe.Slice(unsafe.StringData(s), len(s)) //nolint:gosec // they are only read
}

// plainText returns the text of a string's raw bytes; ok is false for an escape
// that is none.
func (a *arena) plainText(raw string, escaped, nonASCII bool) (text string, ok bool) {
	text = raw
	if escaped {
		a.reserve(len(raw)) // no escape is shorter than what it stands for
		at := len(a.bytes)
		if a.bytes, ok = appendUnescaped(a.bytes, raw); !ok {
			return "", false
		}
		text = a.textFrom(at)
	}
	if nonASCII && !utf8.ValidString(text) {
		text = replaceInvalid(text)
	}
	return text, true
}

// appendUnescaped appends the text of a string's raw bytes.
func appendUnescaped(dst []byte, raw string) (_ []byte, ok bool) {
	for {
		i := strings.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...), true
		}
		dst = append(dst, raw[:i]...)
		if raw = raw[i+1:]; raw == "" {
			return dst, false
		}
		c := raw[0]
		raw = raw[1:]
		if c == 'u' {
			var r rune
			if r, raw, ok = cutUnicode(raw); !ok {
				return dst, false
			}
			dst = utf8.AppendRune(dst, r)
		} else if c = unescaped[c]; c != 0 {
			dst = append(dst, c)
		} else {
			return dst, false
		}
	}
}

// unescaped are the characters that escapes of one letter stand for.
var unescaped = [256]byte{
	'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t',
}

// cutUnicode reads what follows \u, joining a surrogate pair.
func cutUnicode(raw string) (r rune, rest string, ok bool) {
	if r, ok = hexRune(raw); !ok {
		return 0, raw, false
	}
	rest = raw[4:]
	if !utf16.IsSurrogate(r) {
		return r, rest, true
	}
	if strings.HasPrefix(rest, `\u`) {
		low, ok := hexRune(rest[2:])
		if joined := utf16.DecodeRune(r, low); ok && joined != utf8.RuneError {
			return joined, rest[6:], true
		}
	}
	return utf8.RuneError, rest, true
}

func hexRune(s string) (r rune, ok bool) {
	if len(s) < 4 {
		return 0, false
	}
	for _, c := range []byte(s[:4]) {
		d := strings.IndexByte("0123456789abcdef", c|0x20)
		if d < 0 || c < '0' {
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	return r, true
}

// replaceInvalid replaces each byte that is no UTF-8, as the request reader
// does.
func replaceInvalid(s string) string {
	b := make([]byte, 0, len(s)+16)
	for _, r := range s {
		b = utf8.AppendRune(b, r)
	}
	return string(b)
}
