// SPDX-License-Identifier: Apache-2.0

package stream

import "bytes"

// longKey reads a key that is cut by the end of a piece or has an escape. An
// escaped key means nothing here: nobody escapes these names.
func (o *Observer) longKey(p []byte, i int) int {
	s := &o.scanner
	for ; i < len(p); i++ {
		c := p[i]
		switch {
		case s.escaped:
			s.escaped = false
		case c == '\\':
			s.escaped, s.overrun = true, true
		case c == '"':
			if s.overrun {
				s.held = 0
			}
			o.key(s.buffer[:s.held])
			s.state = atColon
			return i + 1
		case s.held < keyMax:
			s.buffer[s.held] = c
			s.held++
		default:
			s.overrun = true
		}
	}
	return i
}

func (o *Observer) capture(p []byte, i int) int {
	s := &o.scanner
	for ; i < len(p); i++ {
		c := p[i]
		switch {
		case s.escaped:
			s.escaped = false
		case c == '\\':
			s.escaped = true
		case c == '"':
			o.captured(s.buffer[:s.held])
			s.state = s.inside
			return i + 1
		}
		if s.held < captureMax {
			s.buffer[s.held] = c
			s.held++
		}
	}
	return i
}

func (o *Observer) digits(p []byte, i int) int {
	s := &o.scanner
	for ; i < len(p); i++ {
		c := p[i]
		switch {
		case c >= '0' && c <= '9':
			if !s.fraction && s.number <= countMax {
				s.number = s.number*10 + int64(c-'0')
			}
		case c == '.':
			s.fraction = true
		case c == '-' || c == '+' || c == 'e' || c == 'E':
			s.wild = true
		default:
			if !s.wild && s.number <= countMax {
				o.count(int(s.number))
			}
			s.state = s.inside
			return i
		}
	}
	return i
}

// pastString returns the index after the quote that ends the string, or -1 if
// it is not in p.
func (s *scanner) pastString(p []byte, i int) int {
	if s.escaped {
		s.escaped = false
		i++
	}
	for i < len(p) {
		rest := p[i:]
		j := bytes.IndexByte(rest, '"')
		last := j
		if j < 0 {
			last = len(rest)
		}
		odd := false
		for k := last - 1; k >= 0 && rest[k] == '\\'; k-- {
			odd = !odd
		}
		switch {
		case j < 0:
			s.escaped = odd
			return -1
		case !odd:
			return i + j + 1
		}
		i += j + 1
	}
	return -1
}

// skipValue passes over a container of no interest, however deep.
func (o *Observer) skipValue(p []byte, i int) int {
	s := &o.scanner
	for i < len(p) {
		c := p[i]
		i++
		switch skipping[c] {
		case 0:
		case '"':
			s.escaped = false
			if j := s.pastString(p, i); j >= 0 {
				i = j
				continue
			}
			s.state = inSkipString
			return len(p)
		case '{':
			s.skip++
		case '}':
			if s.skip--; s.skip == 0 {
				if s.depth == 0 {
					s.state = complete
				} else {
					s.state = s.inside
				}
				return i
			}
		}
	}
	return i
}

var skipping = [256]byte{'"': '"', '{': '{', '[': '{', '}': '}', ']': '}'}
