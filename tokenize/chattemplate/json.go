// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// The bounds of a JSON input.
const (
	maxDepth  = 128
	maxValues = 1 << 19 // about 60 MB of values at most
)

// FromJSON reads a value as Python's json.loads does: NaN and Infinity are
// numbers, of duplicate keys the last value counts at the first one's place,
// and raw control characters in strings are errors. Lone surrogates and bytes
// that are no UTF-8 become U+FFFD. Empty input gives Undefined.
func FromJSON(raw []byte) (Value, error) {
	p := jsonParser{src: raw, text: string(raw)}
	p.space()
	if p.pos == len(raw) {
		return Value{}, nil
	}
	v, reason := p.value(0)
	if reason == "" {
		p.space()
		if p.pos != len(raw) {
			reason = ReasonJSON
		}
	}
	if reason != "" {
		return Value{}, fail(reason, "")
	}
	return v, nil
}

type jsonParser struct {
	src    []byte
	text   string // the same; strings without escapes are parts of it
	pos    int
	values int
}

func (p *jsonParser) space() {
	for p.pos < len(p.src) {
		switch p.src[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

func (p *jsonParser) value(depth int) (Value, Reason) {
	p.values++
	if depth > maxDepth || p.values > maxValues {
		return Value{}, ReasonTooLarge
	}
	if p.pos == len(p.src) {
		return Value{}, ReasonJSON
	}
	switch p.src[p.pos] {
	case '{':
		return p.object(depth)
	case '[':
		return p.array(depth)
	case '"':
		s, ok := p.str()
		if !ok {
			return Value{}, ReasonJSON
		}
		return Text(s), ""
	}
	for _, l := range literals {
		if len(p.src)-p.pos >= len(l.word) && string(p.src[p.pos:p.pos+len(l.word)]) == l.word {
			p.pos += len(l.word)
			return l.value, ""
		}
	}
	return p.number()
}

var literals = [...]struct {
	word  string
	value Value
}{
	{"null", Value{kind: Null}},
	{"true", Truth(true)},
	{"false", Truth(false)},
	{"NaN", Value{kind: Float, float: math.NaN()}},
	{"Infinity", Value{kind: Float, float: math.Inf(1)}},
	{"-Infinity", Value{kind: Float, float: math.Inf(-1)}},
}

func (p *jsonParser) array(depth int) (Value, Reason) {
	p.pos++
	list := Value{kind: List}
	p.space()
	if p.next(']') {
		return list, ""
	}
	for {
		p.space()
		item, reason := p.value(depth + 1)
		if reason != "" {
			return Value{}, reason
		}
		list.items = append(list.items, item)
		p.space()
		if p.next(']') {
			return list, ""
		}
		if !p.next(',') {
			return Value{}, ReasonJSON
		}
	}
}

// manyKeys is from how many keys on a map finds the duplicate ones.
const manyKeys = 24

func (p *jsonParser) object(depth int) (Value, Reason) {
	p.pos++
	dict := Value{kind: Dict}
	var seen map[string]int
	p.space()
	if p.next('}') {
		return dict, ""
	}
	dict.keys, dict.items = make([]string, 0, 2), make([]Value, 0, 2)
	for {
		p.space()
		if p.pos == len(p.src) || p.src[p.pos] != '"' {
			return Value{}, ReasonJSON
		}
		key, ok := p.str()
		if !ok {
			return Value{}, ReasonJSON
		}
		p.space()
		if !p.next(':') {
			return Value{}, ReasonJSON
		}
		p.space()
		item, reason := p.value(depth + 1)
		if reason != "" {
			return Value{}, reason
		}
		at := -1
		if len(dict.keys) < manyKeys {
			for i, k := range dict.keys {
				if k == key {
					at = i
				}
			}
		} else {
			if seen == nil {
				seen = make(map[string]int, 2*manyKeys)
				for i, k := range dict.keys {
					seen[k] = i
				}
			}
			if i, ok := seen[key]; ok {
				at = i
			} else {
				seen[key] = len(dict.keys)
			}
		}
		if at >= 0 {
			dict.items[at] = item
		} else {
			dict.set(key, item)
		}
		p.space()
		if p.next('}') {
			return dict, ""
		}
		if !p.next(',') {
			return Value{}, ReasonJSON
		}
	}
}

func (p *jsonParser) next(c byte) bool {
	if p.pos < len(p.src) && p.src[p.pos] == c {
		p.pos++
		return true
	}
	return false
}

// maxDigits is Python's limit for turning a string into an int.
const maxDigits = 4300

func (p *jsonParser) number() (Value, Reason) {
	start := p.pos
	p.next('-')
	digits := p.pos
	for p.pos < len(p.src) && p.src[p.pos]-'0' <= 9 {
		p.pos++
	}
	n := p.pos - digits
	if n == 0 || n > 1 && p.src[digits] == '0' {
		return Value{}, ReasonJSON
	}
	integer := true
	if p.next('.') {
		integer = false
		first := p.pos
		for p.pos < len(p.src) && p.src[p.pos]-'0' <= 9 {
			p.pos++
		}
		if p.pos == first {
			return Value{}, ReasonJSON
		}
	}
	if p.pos < len(p.src) && p.src[p.pos]|0x20 == 'e' {
		integer = false
		p.pos++
		if !p.next('-') {
			p.next('+')
		}
		first := p.pos
		for p.pos < len(p.src) && p.src[p.pos]-'0' <= 9 {
			p.pos++
		}
		if p.pos == first {
			return Value{}, ReasonJSON
		}
	}
	text := string(p.src[start:p.pos])
	if integer {
		if n > maxDigits {
			return Value{}, ReasonJSON
		}
		if text == "-0" {
			text = "0"
		}
		return Value{kind: Int, text: text}, ""
	}
	// Out of range gives an infinity, as in Python.
	f, _ := strconv.ParseFloat(text, 64)
	return Value{kind: Float, float: f}, ""
}

// str reads a string; pos is at its opening quote.
func (p *jsonParser) str() (string, bool) {
	p.pos++
	start := p.pos
	p.plain()
	if p.pos < len(p.src) && p.src[p.pos] == '"' {
		s := p.text[start:p.pos]
		p.pos++
		return replaceInvalid(s), true
	}
	return p.escapedString(start)
}

// plain moves to the next quote, backslash or control character, eight bytes
// at a time.
func (p *jsonParser) plain() {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for len(p.src)-p.pos >= 8 {
		x := binary.LittleEndian.Uint64(p.src[p.pos:])
		quote, backslash := x^(ones*'"'), x^(ones*'\\')
		// A byte's top bit is set where the byte is zero, or less than a space; what
		// lies above the first such byte may be wrong and is not looked at.
		found := ((quote-ones)&^quote | (backslash-ones)&^backslash | (x-ones*' ')&^x) & tops
		if found != 0 {
			p.pos += bits.TrailingZeros64(found) / 8
			return
		}
		p.pos += 8
	}
	for p.pos < len(p.src) && p.src[p.pos] >= ' ' && p.src[p.pos] != '"' && p.src[p.pos] != '\\' {
		p.pos++
	}
}

// escapedString reads the rest of a string that is not all plain.
func (p *jsonParser) escapedString(start int) (string, bool) {
	from := p.pos
	for p.pos+1 < len(p.src) && p.src[p.pos] == '\\' {
		p.pos += 2
		p.plain()
	}
	var b strings.Builder
	b.Grow(p.pos - start + 2)
	p.pos = from
	for {
		b.Write(p.src[start:p.pos])
		if p.pos == len(p.src) {
			return "", false
		}
		c := p.src[p.pos]
		p.pos++
		switch {
		case c == '"':
			return replaceInvalid(b.String()), true
		case c != '\\' || p.pos == len(p.src):
			return "", false
		}
		c = p.src[p.pos]
		p.pos++
		if c == 'u' {
			r, ok := p.unicode()
			if !ok {
				return "", false
			}
			b.WriteRune(r)
		} else if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
			b.WriteByte("\"\\/\b\f\n\r\t"[i])
		} else {
			return "", false
		}
		start = p.pos
		p.plain()
	}
}

// unicode reads what follows \u, joining a surrogate pair.
func (p *jsonParser) unicode() (rune, bool) {
	r, ok := p.hex()
	if !ok || !utf16.IsSurrogate(r) {
		return r, ok
	}
	if len(p.src)-p.pos >= 6 && p.src[p.pos] == '\\' && p.src[p.pos+1] == 'u' {
		back := p.pos
		p.pos += 2
		low, ok := p.hex()
		if joined := utf16.DecodeRune(r, low); ok && joined != utf8.RuneError {
			return joined, true
		}
		p.pos = back
	}
	return utf8.RuneError, true
}

func (p *jsonParser) hex() (r rune, ok bool) {
	if len(p.src)-p.pos < 4 {
		return 0, false
	}
	for _, c := range p.src[p.pos : p.pos+4] {
		d := strings.IndexByte("0123456789abcdef", c|0x20)
		if d < 0 || c < '0' {
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	p.pos += 4
	return r, true
}

// replaceInvalid replaces each byte that is no UTF-8, as the request reader
// does.
func replaceInvalid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	b := make([]byte, 0, len(s)+16)
	for _, r := range s {
		b = utf8.AppendRune(b, r)
	}
	return string(b)
}
