// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"slices"
	"strings"
)

// Bounds of a body. Deeper nesting than maxDepth is refused by Python's reader
// too (its recursion limit is about 1000). maxNodes bounds what is remembered
// of a body to 32 MiB: 100,000 messages of several parts fit in.
const (
	maxDepth = 1000
	maxNodes = 2 << 20
	maxBody  = 1<<31 - 1
)

type valueKind uint8

const (
	nullValue valueKind = iota
	falseValue
	trueValue
	numberValue
	numbersValue // a run of numbers in an array: one node, so that a list of ids costs nothing
	stringValue
	arrayValue
	objectValue
)

// What a string holds.
const (
	escaped  uint8 = 1 << iota // at least one backslash
	nonASCII                   // perhaps bytes above 0x7f, which may be no UTF-8
)

// node is one value of the body: the bytes [start, end) without a string's
// quotes, with a container's brackets. A container's values follow it up to
// next, which is where its next sibling is.
type node struct {
	start, end, next uint32
	key              key // of the object member it is
	kind             valueKind
	flags            uint8
}

// frame is an open container.
type frame struct {
	node   uint32 // its node, if recorded
	taped  bool   // it is recorded
	levels uint8  // how many levels below it are
	object bool
}

// inside returns how many levels below a member of f are recorded, and whether
// the member itself is.
func (f *frame) inside(k key) (levels uint8, taped bool) {
	if f.levels == 0 {
		return 0, false
	}
	levels = allLevels
	if f.object {
		if k == keyOther {
			return 0, false
		}
		levels = levelsBelow[k]
	}
	if f.levels != allLevels {
		levels = min(levels, f.levels-1)
	}
	return levels, true
}

// scanner records the values of a body. Values under keys nobody asks for are
// checked and not recorded.
type scanner struct {
	body  []byte
	nodes []node
	stack []frame
}

// scan reads the body. On a failure it returns why and where, and the nodes
// hold what came before.
func (s *scanner) scan(body []byte) (Reason, int) {
	s.body, s.nodes, s.stack = body, s.nodes[:0], s.stack[:0]
	if len(body) > maxBody {
		return ReasonTooLarge, 0
	}
	// Python's json.loads takes bytes that begin with a byte-order mark.
	i := 0
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		i = 3
	}
	i = skipSpace(body, i)
	if i == len(body) {
		return ReasonEmpty, i
	}
	if body[i] != '{' {
		return notObject(body, i), i
	}
	reason, i := s.scanRoot(i)
	if reason != "" {
		for _, f := range s.stack {
			s.close(f, i)
		}
		return reason, i
	}
	if i = skipSpace(body, i); i < len(body) {
		return ReasonTrailingData, i
	}
	return "", i
}

// notObject tells a body that is no JSON from one that is, and no object.
func notObject(b []byte, i int) Reason {
	if strings.IndexByte(`["-0123456789`, b[i]) >= 0 {
		return ReasonNotObject
	}
	if _, _, reason := skipWord(b, i); reason != "" {
		return reason
	}
	return ReasonNotObject
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && b[i] <= ' ' && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

func (s *scanner) close(f frame, end int) {
	if f.taped {
		s.nodes[f.node].end = uint32(end)
		s.nodes[f.node].next = uint32(len(s.nodes))
	}
}

// What the scanner looks for next.
const (
	wantValue = iota
	wantFirst // a first value, or the array's end
	wantKey
	wantFirstKey // a first key, or the object's end
	wantNext     // a comma, or the end of the container
)

// scanRoot reads the object that begins at i and returns the index after it.
func (s *scanner) scanRoot(i int) (reason Reason, _ int) {
	b := s.body
	cur := frame{levels: allLevels} // the innermost open container
	var k key                       // of the value to come, in an object
	state := wantValue
	for {
		if i = skipSpace(b, i); i >= len(b) {
			return ReasonTruncated, i
		}
		c := b[i]
		switch state {
		case wantNext:
			if c == ',' {
				i++
				state = wantValue
				if cur.object {
					state = wantKey
				}
				continue
			}
			fallthrough
		case wantFirst, wantFirstKey:
			if c == ']' && !cur.object || c == '}' && cur.object {
				i++
				s.close(cur, i)
				s.stack = s.stack[:len(s.stack)-1]
				if len(s.stack) == 0 {
					return "", i
				}
				cur = s.stack[len(s.stack)-1]
				state = wantNext
				continue
			}
			if state == wantNext {
				return ReasonNotJSON, i
			}
		}
		if state == wantKey || state == wantFirstKey {
			if k, i, reason = s.scanKey(i, cur.levels > 0); reason != "" {
				return reason, i
			}
			if i = skipSpace(b, i); i >= len(b) {
				return ReasonTruncated, i
			}
			c = b[i]
		}
		if !cur.object {
			k = keyOther
		}
		levels, taped := cur.inside(k)
		if len(s.stack) == 0 {
			levels, taped = allLevels, true
		}
		if c != '{' && c != '[' {
			if i, reason = s.scanScalar(i, k, taped, !cur.object); reason != "" {
				return reason, i
			}
			state = wantNext
			if cur.object && i < len(b) && b[i] == ',' {
				i++
				state = wantKey
			}
			continue
		}
		if len(s.stack) == maxDepth {
			return ReasonTooDeep, i
		}
		cur = frame{taped: taped, levels: levels, object: c == '{', node: uint32(len(s.nodes))}
		state = wantFirst
		kind := arrayValue
		if cur.object {
			state, kind = wantFirstKey, objectValue
		}
		if taped && !s.record(uint32(i), 0, k, kind, 0) {
			return ReasonTooManyValues, i
		}
		s.stack = append(s.stack, cur)
		i++
	}
}

// record appends a node; it fails when there are too many. It is given the
// fields and no node, which would be put together elsewhere and copied.
func (s *scanner) record(start, end uint32, k key, kind valueKind, flags uint8) bool {
	at := len(s.nodes)
	if at == cap(s.nodes) && !s.grow() {
		return false
	}
	s.nodes = s.nodes[:at+1]
	n := &s.nodes[at]
	n.start, n.end, n.next = start, end, uint32(at)+1
	n.key, n.kind, n.flags = k, kind, flags
	return true
}

// grow makes room for more nodes, unless there may be none. It doubles, where
// append would grow by a quarter and copy five times as much.
func (s *scanner) grow() bool {
	n := len(s.nodes)
	if n >= maxNodes {
		return false
	}
	s.nodes = slices.Grow(s.nodes, max(64, n))
	s.nodes = s.nodes[:n:min(cap(s.nodes), maxNodes)]
	return true
}

// scanKey reads the key at i and the colon after it. The key is looked up only
// where it is asked for.
func (s *scanner) scanKey(i int, wanted bool) (k key, end int, reason Reason) {
	b := s.body
	if b[i] != '"' {
		return 0, i, ReasonNotJSON
	}
	end, flags, reason := skipString(b, i+1)
	if reason != "" {
		return 0, end, reason
	}
	if wanted {
		k = keyIn(b[i+1:end], flags)
	}
	if end = skipSpace(b, end+1); end >= len(b) {
		return 0, end, ReasonTruncated
	}
	if b[end] != ':' {
		return 0, end, ReasonNotJSON
	}
	return k, end + 1, ""
}

// keyIn looks up a key as it stands in the body, which may be escaped.
func keyIn(raw []byte, flags uint8) key {
	if flags&escaped == 0 {
		return keyOf(raw)
	}
	// The longest known key is 26 bytes, and an escape of a byte has at most 6.
	if len(raw) > 6*26 {
		return keyOther
	}
	var plain [6 * 26]byte
	return keyOf(appendUnescaped(plain[:0], raw))
}

// scanScalar reads a string, number or word.
func (s *scanner) scanScalar(i int, k key, taped, inArray bool) (end int, reason Reason) {
	b := s.body
	var kind valueKind
	switch c := b[i]; {
	case c == '"':
		end, flags, reason := skipString(b, i+1)
		if reason != "" {
			return end, reason
		}
		if taped && !s.record(uint32(i+1), uint32(end), k, stringValue, flags) {
			return i, ReasonTooManyValues
		}
		return end + 1, ""
	case c-'0' <= 9 || c == '-' && i+1 < len(b) && b[i+1] != 'I' || c == '-' && i+1 == len(b):
		kind = numberValue
		if inArray {
			kind = numbersValue
			end, reason = skipNumbers(b, i)
		} else {
			end, reason = skipNumber(b, i)
		}
	default:
		kind, end, reason = skipWord(b, i)
	}
	if reason != "" {
		return end, reason
	}
	if taped && !s.record(uint32(i), uint32(end), k, kind, 0) {
		return i, ReasonTooManyValues
	}
	return end, ""
}

// words are the literals. Python's reader takes the last three as numbers; here
// they are numbers of unknown value.
var words = [...]struct {
	text string
	kind valueKind
}{
	{"true", trueValue}, {"false", falseValue}, {"null", nullValue},
	{"NaN", numberValue}, {"Infinity", numberValue}, {"-Infinity", numberValue},
}

func skipWord(b []byte, i int) (kind valueKind, end int, reason Reason) {
	rest := b[i:]
	for _, w := range words {
		if len(rest) >= len(w.text) && string(rest[:len(w.text)]) == w.text {
			return w.kind, i + len(w.text), ""
		}
		if len(rest) < len(w.text) && string(rest) == w.text[:len(rest)] {
			return 0, len(b), ReasonTruncated
		}
	}
	return 0, i, ReasonNotJSON
}
