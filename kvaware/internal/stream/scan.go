// SPDX-License-Identifier: Apache-2.0

package stream

import "bytes"

// scanState says what the JSON scanner expects next. Every state can stop at
// any byte and go on with the next piece.
type scanState uint8

const (
	atRoot scanState = iota
	inObject
	inArray
	inKey
	atColon
	atValue
	atText // first byte of a string of which only emptiness matters
	inString
	inCapture
	inNumber
	inLiteral
	inSkip
	inSkipString
	inDone // within the [DONE] that ends OpenAI streams
	complete
	broken
)

const (
	maxNodes   = 24      // deepest known path; deeper is skipped
	keyMax     = 40      // longer keys mean nothing here
	captureMax = 128     // longer strings are cut
	countMax   = 1 << 30 // a larger counter is no token count
	doneWord   = "[DONE]"
	nullWord   = "null"
)

type frame struct {
	node     node
	field    field
	array    bool
	elements int32
}

// scanner is the state of the JSON scanner. It is lenient: what is checked is
// what finding the right values needs.
type scanner struct {
	state   scanState
	inside  scanState // inObject or inArray: the state after a value
	escaped bool      // the last byte of the string so far was a backslash
	field   field     // of the value being read
	root    field     // of the value of the event object being read
	depth   int
	skip    int // open brackets within a skipped value
	done    int // matched bytes of doneWord
	nodes   [maxNodes]frame

	number         int64
	fraction, wild bool // digits no longer count; no counter at all

	held    int // bytes in the buffer below
	buffer  [captureMax]byte
	overrun bool
}

func (s *scanner) restart() {
	s.state, s.depth, s.skip, s.escaped = atRoot, 0, 0, false
}

// scan reads p until the value is complete or broken and returns how many
// bytes it took.
func (o *Observer) scan(p []byte) int {
	s := &o.scanner
	i, begin := 0, -1 // begin: where p holds an object's first bracket
	for i < len(p) {
		switch s.state {
		case atRoot:
			c := p[i]
			i++
			switch c {
			case ' ', '\t', '\n', '\r':
			case '{':
				if n := o.recall(p[i-1:]); n > 0 {
					i += n - 1
					continue
				}
				begin = i - 1
				s.field = fieldBatchItem
				o.open(false)
			case '[':
				s.field = fieldBatchItem
				o.open(true)
			default:
				s.state = broken
			}

		case inObject:
			c := p[i]
			i++
			switch c {
			case '"':
				rest := p[i:]
				j := bytes.IndexByte(rest, '"')
				if j < 0 || j > 0 && rest[j-1] == '\\' {
					s.held, s.overrun, s.escaped = 0, false, false
					s.state = inKey
					continue
				}
				o.key(rest[:j])
				i += j + 1
				s.state = atColon
				if i < len(p) && p[i] == ':' {
					if begin >= 0 && opens[s.field] != ([2]node{}) {
						o.remember(p[begin : i+1])
						begin = -1
					}
					i = o.value(p, i+1)
				}
			case ' ', ',', '\t', '\n', '\r':
			case '}':
				o.close()
			default:
				s.state = broken
			}

		case inArray:
			c := p[i]
			switch c {
			case ' ', ',', '\t', '\n', '\r':
				i++
			case ']':
				i++
				o.close()
			default:
				f := &s.nodes[s.depth-1]
				if c == 'D' && s.depth == 1 && f.elements == 0 {
					s.state, s.done = inDone, 1
					continue
				}
				if f.elements < countMax {
					f.elements++
				}
				s.field = elements[f.node]
				s.state = atValue
			}

		case inKey:
			i = o.longKey(p, i)

		case atColon:
			switch p[i] {
			case ':':
				s.state = atValue
			case ' ', '\t', '\n', '\r':
			default:
				s.state = broken
			}
			i++

		case atValue:
			i = o.value(p, i)

		case atText:
			if p[i] != '"' {
				o.text()
			}
			s.state = inString

		case inString:
			if i = s.pastString(p, i); i < 0 {
				return len(p)
			}
			s.state = s.inside

		case inCapture:
			i = o.capture(p, i)

		case inNumber:
			i = o.digits(p, i)

		case inLiteral:
			if c := p[i]; c < 'a' || c > 'z' {
				s.state = s.inside
				continue
			}
			i++

		case inSkip:
			i = o.skipValue(p, i)

		case inSkipString:
			if i = s.pastString(p, i); i < 0 {
				return len(p)
			}
			s.state = inSkip

		case inDone:
			if p[i] != doneWord[s.done] {
				s.state = broken
				continue
			}
			i++
			if s.done++; s.done == len(doneWord) {
				o.event.done = true
				s.depth, s.state = 0, complete
			}

		case complete, broken:
			return i
		}
	}
	return i
}

// value begins a value at p[i], and ends a string or null that p holds whole.
func (o *Observer) value(p []byte, i int) int {
	s := &o.scanner
	if i == len(p) {
		s.state = atValue
		return i
	}
	c := p[i]
	switch {
	case c == '"':
		i++
		rest := p[i:]
		j := bytes.IndexByte(rest, '"')
		if j == 0 || j > 0 && rest[j-1] != '\\' {
			switch readings[s.field] {
			case readEmpty:
				if j > 0 {
					o.text()
				}
			case readWhole:
				o.captured(rest[:min(j, captureMax)])
			}
			s.state = s.inside
			return i + j + 1
		}
		s.escaped = false
		switch readings[s.field] {
		case readPast:
			s.state = inString
		case readEmpty:
			s.state = atText
		case readWhole:
			s.held, s.state = 0, inCapture
		}
	case c == 'n' && len(p)-i > len(nullWord) && string(p[i:i+len(nullWord)]) == nullWord && p[i+len(nullWord)] == ',':
		i += len(nullWord) + 1
		s.state = s.inside
	case c == '{':
		i++
		o.open(false)
	case c == '[':
		i++
		o.open(true)
	case c == 't' || c == 'f' || c == 'n':
		i++
		if c != 'n' {
			o.boolean(c == 't')
		}
		s.state = inLiteral
	case c == '-' || c >= '0' && c <= '9':
		s.number, s.fraction, s.wild = 0, false, false
		s.state = inNumber
		return o.digits(p, i)
	case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		i++
		s.state = atValue
	default:
		s.state = broken
	}
	return i
}

// open enters the container that the value at hand begins.
func (o *Observer) open(array bool) {
	s := &o.scanner
	n := opens[s.field][asObject]
	if array {
		n = opens[s.field][asArray]
	}
	if s.depth == 0 && array {
		n = nodeBatch
	}
	o.opened(s.field, array)
	if n == nodeSkip || s.depth == maxNodes {
		s.skip, s.state = 1, inSkip
		return
	}
	s.nodes[s.depth] = frame{node: n, field: s.field, array: array}
	s.depth++
	o.entered(n)
	s.inside = inObject
	if array {
		s.inside = inArray
	}
	s.state = s.inside
}

func (o *Observer) close() {
	s := &o.scanner
	s.depth--
	o.left(s.nodes[s.depth])
	if s.depth == 0 {
		s.state = complete
		return
	}
	s.inside = inObject
	if s.nodes[s.depth-1].array {
		s.inside = inArray
	}
	s.state = s.inside
}

// key notes what the value to come means.
func (o *Observer) key(k []byte) {
	s := &o.scanner
	n := s.nodes[s.depth-1].node
	s.field = fieldOf(n, k)
	if n == nodeRoot {
		s.root = s.field
	}
	switch s.field {
	case fieldVLLMMark, fieldTransfer:
		o.event.seen(EngineVLLM)
	case fieldSGLangMark:
		o.event.seen(EngineSGLang)
	}
}
