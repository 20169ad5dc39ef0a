// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What follows spells values as Python does: str, repr, and json.dumps with
// ensure_ascii=False.

// jsonStyle is how json.dumps lays a value out.
type jsonStyle struct {
	item, key string // separators
	indent    string // of one level; indented if pretty
	pretty    bool
	ascii     bool
	sorted    bool
	most      int // bytes from which on the rest is left out, as there is no use for it; 0 for none
}

var plainJSON = jsonStyle{item: ", ", key: ": "}

// appendJSON appends json.dumps(v).
func appendJSON(dst []byte, v Value, style *jsonStyle, level int) []byte {
	switch v.kind {
	case Bool:
		return strconv.AppendBool(dst, v.truth)
	case Int:
		return append(dst, v.text...)
	case Float:
		return appendFloat(dst, v.float, true)
	case String:
		return appendJSONString(dst, v.text, style.ascii)
	case List, Dict:
	default:
		return append(dst, "null"...)
	}
	open, end := byte('['), byte(']')
	order := []int(nil)
	if v.kind == Dict {
		open, end = '{', '}'
		if style.sorted {
			order = sortedKeys(v.keys)
		}
	}
	dst = append(dst, open)
	for n := range v.items {
		if style.most > 0 && len(dst) > style.most {
			return dst
		}
		i := n
		if order != nil {
			i = order[n]
		}
		if n > 0 {
			dst = append(dst, style.item...)
		}
		if style.pretty {
			dst = appendBreak(dst, style.indent, level+1)
		}
		if v.kind == Dict {
			dst = appendJSONString(dst, v.keys[i], style.ascii)
			dst = append(dst, style.key...)
		}
		dst = appendJSON(dst, v.items[i], style, level+1)
	}
	if style.pretty && len(v.items) > 0 {
		dst = appendBreak(dst, style.indent, level)
	}
	return append(dst, end)
}

func appendBreak(dst []byte, indent string, level int) []byte {
	dst = append(dst, '\n')
	for range level {
		dst = append(dst, indent...)
	}
	return dst
}

func appendJSONString(dst []byte, s string, ascii bool) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && (!ascii || c < 0x7f) {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		default:
			if c < ' ' {
				dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
				break
			}
			r, n := utf8.DecodeRuneInString(s[i:])
			dst = appendEscapedRune(dst, r)
			i += n - 1
			start = i + 1
		}
	}
	return append(append(dst, s[start:]...), '"')
}

func appendEscapedRune(dst []byte, r rune) []byte {
	units := []rune{r}
	if r > 0xffff {
		r -= 0x10000
		units = []rune{0xd800 + r>>10, 0xdc00 + r&0x3ff}
	}
	for _, u := range units {
		dst = append(dst, '\\', 'u')
		for shift := 12; shift >= 0; shift -= 4 {
			dst = append(dst, "0123456789abcdef"[u>>shift&15])
		}
	}
	return dst
}

// appendFloat appends repr(f): the shortest digits, with an exponent below
// 1e-4 and from 1e16 on.
func appendFloat(dst []byte, f float64, json bool) []byte {
	switch {
	case math.IsNaN(f):
		if json {
			return append(dst, "NaN"...)
		}
		return append(dst, "nan"...)
	case math.IsInf(f, 0):
		if f < 0 {
			dst = append(dst, '-')
		}
		if json {
			return append(dst, "Infinity"...)
		}
		return append(dst, "inf"...)
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	from := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	for _, c := range dst[from:] {
		if c == '.' {
			return dst
		}
	}
	return append(dst, ".0"...)
}

// appendStr appends str(v), which is what a template prints.
func appendStr(dst []byte, v Value) []byte {
	if v.kind == String {
		return append(dst, v.text...)
	}
	return appendRepr(dst, v)
}

func appendRepr(dst []byte, v Value) []byte {
	switch v.kind {
	case Null:
		return append(dst, "None"...)
	case Bool:
		if v.truth {
			return append(dst, "True"...)
		}
		return append(dst, "False"...)
	case Int:
		return append(dst, v.text...)
	case Float:
		return appendFloat(dst, v.float, false)
	case String:
		return appendReprString(dst, v.text)
	case List:
		dst = append(dst, '[')
		for i, item := range v.items {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = appendRepr(dst, item)
		}
		return append(dst, ']')
	case Dict:
		dst = append(dst, '{')
		for i, item := range v.items {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = appendReprString(dst, v.keys[i])
			dst = append(dst, ": "...)
			dst = appendRepr(dst, item)
		}
		return append(dst, '}')
	}
	return dst
}

func appendReprString(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	dst = append(dst, quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '\r':
			dst = append(dst, `\r`...)
		case r == '\t':
			dst = append(dst, `\t`...)
		case r < ' ' || r == 0x7f || r < 0x100 && !unicode.IsPrint(r):
			dst = append(dst, '\\', 'x', digits[r>>4], digits[r&15])
		case unicode.IsPrint(r):
			dst = utf8.AppendRune(dst, r)
		case r > 0xffff:
			dst = append(dst, '\\', 'U')
			for shift := 28; shift >= 0; shift -= 4 {
				dst = append(dst, digits[r>>shift&15])
			}
		default:
			dst = appendEscapedRune(dst, r)
		}
	}
	return append(dst, quote)
}

func sortedKeys(keys []string) []int {
	order := make([]int, len(keys))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(keys[a], keys[b]) })
	return order
}

// isSpace is str.isspace of one character, what str.strip removes.
func isSpace(r rune) bool {
	return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f
}

func trimSpace(s string) string { return strings.TrimFunc(s, isSpace) }
