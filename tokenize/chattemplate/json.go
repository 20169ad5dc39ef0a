// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"math"
	"slices"
	"strconv"
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
	// The value outlives raw.
	return new(arena).parse(string(raw), nil)
}

// parse reads a value into the arena; strings without escapes are parts of text.
// Those of known need not be read to find their ends.
func (a *arena) parse(text string, known []Span) (Value, error) {
	p := jsonParser{arena: a, text: text, known: known}
	p.space()
	if p.pos == len(text) {
		return Value{}, nil
	}
	items, keys := len(a.openItems), len(a.openKeys)
	v, reason := p.value(0)
	a.openItems, a.openKeys = a.openItems[:items], a.openKeys[:keys]
	if reason == "" {
		p.space()
		if p.pos != len(text) {
			reason = ReasonJSON
		}
	}
	if reason != "" {
		return Value{}, fail(reason, "")
	}
	return v, nil
}

// Span is a string in a text of JSON: where it begins and ends, without its
// quotes, and what it holds.
type Span struct {
	Start, End uint32 // offsets in the text
	Escaped    bool   // at least one backslash
	NonASCII   bool   // perhaps bytes above 0x7f
}

type jsonParser struct {
	arena  *arena
	text   string
	known  []Span // those not yet passed, in order
	pos    int
	values int
}

func (p *jsonParser) space() {
	for p.pos < len(p.text) {
		switch p.text[p.pos] {
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
	if p.pos == len(p.text) {
		return Value{}, ReasonJSON
	}
	switch p.text[p.pos] {
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
		if len(p.text)-p.pos >= len(l.word) && p.text[p.pos:p.pos+len(l.word)] == l.word {
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
	p.space()
	if p.next(']') {
		return Value{kind: List}, ""
	}
	a := p.arena
	first := len(a.openItems)
	for {
		p.space()
		item, reason := p.value(depth + 1)
		if reason != "" {
			return Value{}, reason
		}
		a.openItems = append(a.openItems, item)
		p.space()
		if p.next(']') {
			list := a.list(a.openItems[first:])
			a.openItems = a.openItems[:first]
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
	p.space()
	if p.next('}') {
		return Value{kind: Dict}, ""
	}
	a := p.arena
	dict := a.open()
	var seen map[string]int
	for {
		p.space()
		if p.pos == len(p.text) || p.text[p.pos] != '"' {
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
		keys, at := a.openKeys[dict.keys:], -1
		if len(keys) < manyKeys {
			at = slices.Index(keys, key)
		} else {
			if seen == nil {
				seen = make(map[string]int, 2*manyKeys)
				for i, k := range keys {
					seen[k] = i
				}
			}
			if i, ok := seen[key]; ok {
				at = i
			} else {
				seen[key] = len(keys)
			}
		}
		if at >= 0 {
			a.openItems[dict.items+at] = item
		} else {
			dict.add(key, item)
		}
		p.space()
		if p.next('}') {
			return dict.close(), ""
		}
		if !p.next(',') {
			return Value{}, ReasonJSON
		}
	}
}

func (p *jsonParser) next(c byte) bool {
	if p.pos < len(p.text) && p.text[p.pos] == c {
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
	for p.pos < len(p.text) && p.text[p.pos]-'0' <= 9 {
		p.pos++
	}
	n := p.pos - digits
	if n == 0 || n > 1 && p.text[digits] == '0' {
		return Value{}, ReasonJSON
	}
	integer := true
	if p.next('.') {
		integer = false
		first := p.pos
		for p.pos < len(p.text) && p.text[p.pos]-'0' <= 9 {
			p.pos++
		}
		if p.pos == first {
			return Value{}, ReasonJSON
		}
	}
	if p.pos < len(p.text) && p.text[p.pos]|0x20 == 'e' {
		integer = false
		p.pos++
		if !p.next('-') {
			p.next('+')
		}
		first := p.pos
		for p.pos < len(p.text) && p.text[p.pos]-'0' <= 9 {
			p.pos++
		}
		if p.pos == first {
			return Value{}, ReasonJSON
		}
	}
	text := p.text[start:p.pos]
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
	return Value{kind: Float, float: parseFloat(text)}, ""
}

func parseFloat(text string) float64 {
	f, _ := strconv.ParseFloat(text, 64)
	return f
}
