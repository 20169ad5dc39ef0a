// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// appendUnescaped appends the text of a string's raw bytes, which the scanner
// has checked. Surrogate pairs are joined; a lone surrogate becomes U+FFFD.
func appendUnescaped(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		c := raw[i+1]
		raw = raw[i+2:]
		switch c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			var r rune
			r, raw = cutUnicode(raw)
			dst = utf8.AppendRune(dst, r)
		default: // quote, backslash, slash
			dst = append(dst, c)
		}
	}
}

// cutUnicode reads what follows a \u: four digits and, for a first surrogate,
// the escape of its second if that is next.
func cutUnicode(raw []byte) (r rune, rest []byte) {
	r, rest = hexRune(raw), raw[4:]
	if !utf16.IsSurrogate(r) {
		return r, rest
	}
	if len(rest) >= 6 && rest[0] == '\\' && rest[1] == 'u' {
		if joined := utf16.DecodeRune(r, hexRune(rest[2:])); joined != utf8.RuneError {
			return joined, rest[6:]
		}
	}
	return utf8.RuneError, rest
}

func hexRune(digits []byte) rune {
	return rune(hexValue(digits[0])<<12 | hexValue(digits[1])<<8 | hexValue(digits[2])<<4 | hexValue(digits[3]))
}

// appendValid appends text with each invalid byte replaced by U+FFFD, as
// encoding/json does. Engines refuse such bodies, so any choice would serve.
func appendValid(dst, text []byte) []byte {
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		if r == utf8.RuneError && n == 1 {
			dst = utf8.AppendRune(dst, utf8.RuneError)
		} else {
			dst = append(dst, text[:n]...)
		}
		text = text[n:]
	}
	return dst
}

// appendCompact appends a JSON value without white space outside strings, and
// with each character in strings spelt in one way, so that clients which escape
// differently agree. Numbers stay as they are spelt. The value has been checked
// by the scanner.
func appendCompact(dst, value []byte) []byte {
	for i := 0; i < len(value); {
		c := value[i]
		switch {
		case c == '"':
			end, flags, _ := skipString(value, i+1)
			end = min(end+1, len(value))
			if flags&escaped == 0 {
				dst = append(dst, value[i:end]...)
			} else {
				dst = append(dst, '"')
				dst = appendRespelt(dst, value[i+1:end-1])
				dst = append(dst, '"')
			}
			i = end
		case c <= ' ':
			i++
		default:
			dst = append(dst, c)
			i++
		}
	}
	return dst
}

// appendRespelt appends the raw bytes of a string with the escapes that JSON
// requires and no others.
func appendRespelt(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		c := raw[i+1]
		raw = raw[i+2:]
		switch c {
		case '/':
			dst = append(dst, '/')
		case 'u':
			var r rune
			r, raw = cutUnicode(raw)
			dst = appendEscapedRune(dst, r)
		default:
			dst = append(dst, '\\', c)
		}
	}
}

func appendEscapedRune(dst []byte, r rune) []byte {
	switch {
	case r == '"' || r == '\\':
		return append(dst, '\\', byte(r))
	case r == '\b':
		return append(dst, `\b`...)
	case r == '\f':
		return append(dst, `\f`...)
	case r == '\n':
		return append(dst, `\n`...)
	case r == '\r':
		return append(dst, `\r`...)
	case r == '\t':
		return append(dst, `\t`...)
	case r < ' ':
		const digits = "0123456789abcdef"
		return append(dst, '\\', 'u', '0', '0', digits[r>>4], digits[r&15])
	}
	return utf8.AppendRune(dst, r)
}
