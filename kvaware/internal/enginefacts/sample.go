// SPDX-License-Identifier: Apache-2.0

package enginefacts

import (
	"bytes"
	"math"
	"strconv"
)

// sample is what follows a metric's name: its labels and its value.
type sample struct {
	rest  []byte
	valid bool // the value was read
}

// maxLabels bounds the labels of one sample that are looked at.
const maxLabels = 512

// labels calls f with each label, and leaves the value. Name and value live until
// the next call.
func (s *sample) labels(f func(name, value []byte)) {
	if len(s.rest) == 0 || s.rest[0] != '{' {
		return
	}
	rest := s.rest[1:]
	s.rest = nil // no value, unless the labels end well
	for range maxLabels {
		rest = bytes.TrimLeft(rest, " \t,")
		if len(rest) == 0 {
			return
		}
		if rest[0] == '}' {
			s.rest = rest[1:]
			return
		}
		n := 0
		for n < len(rest) && nameByte(rest[n]) {
			n++
		}
		name := rest[:n]
		rest = bytes.TrimLeft(rest[n:], " \t")
		if n == 0 || len(rest) < 2 || rest[0] != '=' {
			return
		}
		rest = bytes.TrimLeft(rest[1:], " \t")
		var value []byte
		var ok bool
		if value, rest, ok = quoted(rest); !ok {
			return
		}
		f(name, value)
	}
}

// quoted takes a quoted string off the front of text.
func quoted(text []byte) (value, rest []byte, ok bool) {
	if len(text) == 0 || text[0] != '"' {
		return nil, nil, false
	}
	text = text[1:]
	plain := true
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			plain = false
			i++
		case '"':
			if value = text[:i]; !plain {
				value = unescaped(value)
			}
			return value, text[i+1:], true
		}
	}
	return nil, nil, false
}

func unescaped(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		b := text[i]
		if b == '\\' && i+1 < len(text) {
			i++
			if b = text[i]; b == 'n' {
				b = '\n'
			}
		}
		out = append(out, b)
	}
	return out
}

// value reads the sample's value, which is finite. Labels that were not looked at
// are skipped.
func (s *sample) value() (float64, bool) {
	if len(s.rest) > 0 && s.rest[0] == '{' {
		s.labels(func(_, _ []byte) {})
	}
	text := bytes.TrimLeft(s.rest, " \t")
	if end := bytes.IndexAny(text, " \t"); end >= 0 {
		text = text[:end] // a time may follow
	}
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return 0, false
	}
	s.valid = true
	return v, !math.IsNaN(v) && !math.IsInf(v, 0)
}
