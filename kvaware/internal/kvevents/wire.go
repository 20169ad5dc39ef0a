// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"encoding/binary"

	"github.com/tinylib/msgp/msgp"
)

// Reason says what is wrong with a message.
type Reason uint8

const (
	// Truncated: the message ends within a value.
	Truncated Reason = iota + 1
	// TooLong: a length is greater than what is left of the message.
	TooLong
	// Invalid: a byte that begins no msgpack value.
	Invalid
	// NotBatch: msgpack, but neither an array nor a map with events in it.
	NotBatch
	// Trailing: bytes follow the batch.
	Trailing

	// reasonless says within the package that a value is whole but of another
	// type than its field's.
	reasonless Reason = 0xff
)

var reasons = [...]string{
	Truncated: "message ends within a value",
	TooLong:   "length is greater than the rest of the message",
	Invalid:   "not msgpack",
	NotBatch:  "not a batch of events",
	Trailing:  "bytes after the batch",
}

// Error is why a message cannot be decoded. It shows nothing of the message.
type Error struct {
	Reason Reason
}

func (e *Error) Error() string { return "kv events: " + reasons[e.Reason] }

// failures holds one *Error for each Reason, so that hostile messages cost no
// allocations.
var failures = func() (all [len(reasons)]*Error) {
	for r := range all {
		all[r] = &Error{Reason: Reason(r)}
	}
	return all
}()

// skip returns what follows the first value of b. Its nesting is counted, not
// followed: each value still owed takes a byte or more.
func skip(b []byte) ([]byte, Reason) {
	for owed := uint64(1); owed > 0; owed-- {
		if len(b) == 0 {
			return b, Truncated
		}
		lead, size := b[0], uint64(0)
		head, within := 1, uint64(0)
		switch {
		case lead < 0x80 || lead >= 0xe0: // fixint
		case lead < 0x90: // fixmap
			within = 2 * uint64(lead&0x0f)
		case lead < 0xa0: // fixarray
			within = uint64(lead & 0x0f)
		case lead < 0xc0: // fixstr
			size = uint64(lead & 0x1f)
		default:
			l := &layouts[lead-0xc0]
			if l.head == 0 {
				return b, Invalid
			}
			head = int(l.head)
			if len(b) < head {
				return b, Truncated
			}
			size = uint64(l.size)
			switch l.length {
			case 1:
				size += uint64(b[1])
			case 2:
				size += uint64(binary.BigEndian.Uint16(b[1:]))
			case 4:
				size += uint64(binary.BigEndian.Uint32(b[1:]))
			}
			if l.per > 0 {
				within, size = size*uint64(l.per), 0
			}
		}
		if size > uint64(len(b)-head) {
			return b, Truncated
		}
		b = b[uint64(head)+size:]
		if owed += within; owed-1 > uint64(len(b)) {
			return b, TooLong
		}
	}
	return b, 0
}

// layouts is the msgpack format's table of lead bytes 0xc0…0xdf: the bytes of
// the head with its length field, that field's bytes, bytes beyond what it
// says, and for containers the values per element.
var layouts = [32]struct{ head, length, size, per uint8 }{
	0x00: {head: 1},            // nil
	0x02: {head: 1},            // false
	0x03: {head: 1},            // true
	0x04: {head: 2, length: 1}, // bin 8, 16, 32
	0x05: {head: 3, length: 2},
	0x06: {head: 5, length: 4},
	0x07: {head: 2, length: 1, size: 1}, // ext 8, 16, 32
	0x08: {head: 3, length: 2, size: 1},
	0x09: {head: 5, length: 4, size: 1},
	0x0a: {head: 1, size: 4}, // float 32, 64
	0x0b: {head: 1, size: 8},
	0x0c: {head: 1, size: 1}, // uint 8…64
	0x0d: {head: 1, size: 2},
	0x0e: {head: 1, size: 4},
	0x0f: {head: 1, size: 8},
	0x10: {head: 1, size: 1}, // int 8…64
	0x11: {head: 1, size: 2},
	0x12: {head: 1, size: 4},
	0x13: {head: 1, size: 8},
	0x14: {head: 1, size: 2}, // fixext 1…16
	0x15: {head: 1, size: 3},
	0x16: {head: 1, size: 5},
	0x17: {head: 1, size: 9},
	0x18: {head: 1, size: 17},
	0x19: {head: 2, length: 1}, // str 8, 16, 32
	0x1a: {head: 3, length: 2},
	0x1b: {head: 5, length: 4},
	0x1c: {head: 3, length: 2, per: 1}, // array 16, 32
	0x1d: {head: 5, length: 4, per: 1},
	0x1e: {head: 3, length: 2, per: 2}, // map 16, 32
	0x1f: {head: 5, length: 4, per: 2},
}

// The readers below look at the type first, since msgp's errors of a wrong type
// cost an allocation.

// array reads the head of an array; its length is at most len(rest).
func array(b []byte) (n int, rest []byte, r Reason) {
	if msgp.NextType(b) != msgp.ArrayType {
		return 0, b, mismatch(b)
	}
	size, rest, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return 0, b, Truncated
	}
	if uint64(size) > uint64(len(rest)) {
		return 0, b, TooLong
	}
	return int(size), rest, 0
}

// pairs reads the head of a map; the number of its pairs is at most
// len(rest)/2.
func pairs(b []byte) (n int, rest []byte, r Reason) {
	if msgp.NextType(b) != msgp.MapType {
		return 0, b, mismatch(b)
	}
	size, rest, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return 0, b, Truncated
	}
	if 2*uint64(size) > uint64(len(rest)) {
		return 0, b, TooLong
	}
	return int(size), rest, 0
}

// text reads a string or a byte string; the result lies in b.
func text(b []byte) (s, rest []byte, r Reason) {
	var err error
	switch msgp.NextType(b) {
	case msgp.StrType:
		s, rest, err = msgp.ReadStringZC(b)
	case msgp.BinType:
		s, rest, err = msgp.ReadBytesZC(b)
	default:
		return nil, b, mismatch(b)
	}
	if err != nil {
		return nil, b, Truncated
	}
	return s, rest, 0
}

// integer reads an integer of any width: its 64 bits, and whether they stand
// for a negative number.
func integer(b []byte) (bits uint64, negative bool, rest []byte, r Reason) {
	var err error
	switch msgp.NextType(b) {
	case msgp.UintType:
		bits, rest, err = msgp.ReadUint64Bytes(b)
	case msgp.IntType:
		var v int64
		v, rest, err = msgp.ReadInt64Bytes(b)
		bits, negative = uint64(v), v < 0
	default:
		return 0, false, b, mismatch(b)
	}
	if err != nil {
		return 0, false, b, Truncated
	}
	return bits, negative, rest, 0
}

// number reads an integer or a float.
func number(b []byte) (float64, []byte, Reason) {
	switch msgp.NextType(b) {
	case msgp.Float64Type, msgp.Float32Type:
		v, rest, err := msgp.ReadFloat64Bytes(b)
		if err != nil {
			return 0, b, Truncated
		}
		return v, rest, 0
	}
	bits, negative, rest, r := integer(b)
	if negative {
		return float64(int64(bits)), rest, r
	}
	return float64(bits), rest, r
}

// mismatch tells a broken value from a whole one of another type.
func mismatch(b []byte) Reason {
	if _, r := skip(b); r != 0 {
		return r
	}
	return reasonless
}
