// SPDX-License-Identifier: Apache-2.0

package remote

import "errors"

var (
	errNotIDs  = errors.New("remote: the answer is not JSON with lists of token ids")
	errTooMany = errors.New("remote: more token ids than the text can have")
)

// scanner takes the lists of ids out of an answer as it arrives: an object with
// such a list under key, or a list of such objects. Other members are passed over
// by their brackets and quotes alone. It keeps nothing of an answer but the ids.
type scanner struct {
	key  string
	most int // ids

	ids  []uint32
	ends []int // where each list ends in ids

	state   scanState
	list    bool // the objects are in a list
	found   bool // this object's list of ids
	matched int  // leading bytes of key that this member's name has, -1: it is another
	depth   int  // brackets open in a value that is passed over
	quoted  bool // in a string of it
	escaped bool // behind a backslash
	id      uint64
}

type scanState uint8

const (
	beforeAnswer scanState = iota
	beforeObject           // in the list
	afterObject            // in the list
	beforeFirstName
	beforeName
	inName
	beforeColon
	beforeValue
	inValue // that is passed over
	afterValue
	beforeFirstID
	beforeID
	inID
	afterID
	afterAnswer
)

// maxID is below the ids that stand for what is no text, which begin at 1<<31.
const maxID = 1<<31 - 1

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// write takes in the next part of the answer.
func (s *scanner) write(part []byte) error {
	for i := 0; i < len(part); {
		c := part[i]
		switch s.state {
		case inID:
			n, err := s.digits(part[i:])
			if err != nil {
				return err
			}
			i += n
			continue
		case inValue:
			if s.pass(c) {
				continue // c is behind the value
			}
			i++
			continue
		case inName:
			i++
			s.name(c)
			continue
		}
		i++
		if isSpace(c) {
			continue
		}
		if !s.step(c) {
			return errNotIDs
		}
	}
	return nil
}

// digits takes the rest of an id, and those behind it that follow without white
// space: the bulk of an answer. It returns how many bytes it took.
func (s *scanner) digits(part []byte) (n int, err error) {
	id := s.id
	for n < len(part) {
		if c := part[n]; c-'0' <= 9 {
			if id = id*10 + uint64(c-'0'); id > maxID {
				return n, errNotIDs
			}
			n++
			continue
		}
		if len(s.ids) == s.most {
			return n, errTooMany
		}
		s.ids = append(s.ids, uint32(id))
		if part[n] != ',' || n+1 == len(part) || part[n+1]-'0' > 9 {
			s.state = afterID
			return n, nil
		}
		id = uint64(part[n+1] - '0')
		n += 2
	}
	s.id = id
	return n, nil
}

// step takes a byte of the structure; it is false for one that does not belong.
func (s *scanner) step(c byte) bool {
	switch s.state {
	case beforeAnswer:
		if c == '[' && !s.list {
			s.list = true
			s.state = beforeObject
			return true
		}
		return s.open(c)
	case beforeObject:
		if c == ']' && len(s.ends) == 0 {
			s.state = afterAnswer
			return true
		}
		return s.open(c)
	case afterObject:
		switch c {
		case ',':
			s.state = beforeAnswer // but no list again
		case ']':
			s.state = afterAnswer
		default:
			return false
		}
	case beforeFirstName, beforeName:
		if c == '}' && s.state == beforeFirstName {
			return s.closeObject()
		}
		s.state, s.matched, s.escaped = inName, 0, false
		return c == '"'
	case beforeColon:
		s.state = beforeValue
		return c == ':'
	case beforeValue:
		return s.value(c)
	case afterValue:
		if c == '}' {
			return s.closeObject()
		}
		s.state = beforeName
		return c == ','
	case beforeFirstID, beforeID:
		if c == ']' && s.state == beforeFirstID {
			return s.closeIDs()
		}
		s.id, s.state = uint64(c-'0'), inID
		return c-'0' <= 9
	case afterID:
		if c == ']' {
			return s.closeIDs()
		}
		s.state = beforeID
		return c == ','
	default: // afterAnswer
		return false
	}
	return true
}

func (s *scanner) open(c byte) bool {
	s.found, s.state = false, beforeFirstName
	return c == '{'
}

func (s *scanner) closeObject() bool {
	s.state = afterAnswer
	if s.list {
		s.state = afterObject
	}
	return s.found
}

func (s *scanner) closeIDs() bool {
	s.ends = append(s.ends, len(s.ids))
	s.state = afterValue
	return true
}

// name takes a byte of a member's name.
func (s *scanner) name(c byte) {
	switch {
	case s.escaped:
		s.escaped = false
	case c == '\\':
		s.escaped, s.matched = true, -1
	case c == '"':
		s.state = beforeColon
	case s.matched >= 0 && s.matched < len(s.key) && s.key[s.matched] == c:
		s.matched++
	default:
		s.matched = -1
	}
}

// value takes the first byte of a member's value.
func (s *scanner) value(c byte) bool {
	if s.matched == len(s.key) {
		if c != '[' || s.found {
			return false
		}
		s.found, s.state = true, beforeFirstID
		return true
	}
	s.state, s.depth, s.quoted, s.escaped = inValue, 0, false, false
	switch c {
	case '{', '[':
		s.depth = 1
	case '"':
		s.quoted = true
	case ',', '}', ']', ':':
		return false
	}
	return true
}

// pass takes a byte of a value that is passed over, and reports whether that
// byte is behind it.
func (s *scanner) pass(c byte) (behind bool) {
	switch {
	case s.escaped:
		s.escaped = false
	case s.quoted:
		switch c {
		case '\\':
			s.escaped = true
		case '"':
			s.quoted = false
			s.ended()
		}
	case c == '"':
		s.quoted = true
	case c == '{' || c == '[':
		s.depth++
	case s.depth > 0 && (c == '}' || c == ']'):
		s.depth--
		s.ended()
	case s.depth == 0 && (c == ',' || c == '}' || isSpace(c)):
		s.state = afterValue
		return true
	}
	return false
}

func (s *scanner) ended() {
	if s.depth == 0 {
		s.state = afterValue
	}
}

// end reports whether the answer was whole.
func (s *scanner) end() error {
	if s.state != afterAnswer {
		return errNotIDs
	}
	return nil
}
