// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/binary"
	"math/bits"
)

// Eight bytes are tested at once (Mycroft's zero-byte test, see Hacker's
// Delight, section 6-1): a set high bit in the result marks a byte that is no
// plain part of a string. Borrows make marks above the lowest one unreliable,
// so only that is used.
const (
	laneOnes    = 0x0101010101010101
	laneTops    = 0x80 * laneOnes
	laneQuotes  = '"' * laneOnes
	laneSlashes = '\\' * laneOnes
	laneSpaces  = 0x20 * laneOnes // bytes below are control characters
)

func marks(x uint64) uint64 {
	quote := (x ^ laneQuotes) - laneOnes
	slash := (x ^ laneSlashes) - laneOnes
	control := x - laneSpaces
	return (quote | slash | control) & ^x & laneTops
}

// skipPlain returns the index of the first quote, backslash or control
// character at or after i, or len(b), and all bits that are set in the bytes it
// looked at.
func skipPlain(b []byte, i int) (end int, seen uint64) {
	for ; i+32 <= len(b); i += 32 {
		w := b[i : i+32 : i+32]
		x0 := binary.LittleEndian.Uint64(w)
		x1 := binary.LittleEndian.Uint64(w[8:])
		x2 := binary.LittleEndian.Uint64(w[16:])
		x3 := binary.LittleEndian.Uint64(w[24:])
		m0, m1, m2, m3 := marks(x0), marks(x1), marks(x2), marks(x3)
		seen |= x0 | x1 | x2 | x3
		if m0|m1|m2|m3 == 0 {
			continue
		}
		switch {
		case m0 != 0:
			return i + bits.TrailingZeros64(m0)/8, seen
		case m1 != 0:
			return i + 8 + bits.TrailingZeros64(m1)/8, seen
		case m2 != 0:
			return i + 16 + bits.TrailingZeros64(m2)/8, seen
		}
		return i + 24 + bits.TrailingZeros64(m3)/8, seen
	}
	for ; i < len(b); i++ {
		c := b[i]
		if c == '"' || c == '\\' || c < 0x20 {
			break
		}
		seen |= uint64(c)
	}
	return i, seen
}

// skipString reads a string whose opening quote is before i. It returns the
// index of the closing quote.
func skipString(b []byte, i int) (end int, flags uint8, reason Reason) {
	var seen uint64
	for {
		i, seen = skipPlain(b, i)
		if seen&laneTops != 0 {
			flags |= nonASCII
		}
		if i >= len(b) {
			return i, flags, ReasonTruncated
		}
		switch b[i] {
		case '"':
			return i, flags, ""
		case '\\':
			flags |= escaped
			if i+1 < len(b) && b[i+1]>>6 == 1 && simpleEscapes>>(b[i+1]&63)&1 != 0 {
				i += 2
				continue
			}
			if i, reason = skipEscape(b, i); reason != "" {
				return i, flags, reason
			}
		default:
			// A raw control character: Python, Go and nlohmann/json all refuse it.
			return i, flags, ReasonNotJSON
		}
	}
}

// simpleEscapes are the letters from 64 up that form an escape of two bytes.
const simpleEscapes = 1<<('\\'-64) | 1<<('b'-64) | 1<<('f'-64) | 1<<('n'-64) | 1<<('r'-64) | 1<<('t'-64)

// skipEscape reads the escape that begins with the laneSlashes at i.
func skipEscape(b []byte, i int) (end int, reason Reason) {
	if i+1 >= len(b) {
		return len(b), ReasonTruncated
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2, ""
	case 'u':
		for j := i + 2; j < i+6; j++ {
			if j >= len(b) {
				return j, ReasonTruncated
			}
			if hexValue(b[j]) < 0 {
				return j, ReasonNotJSON
			}
		}
		return i + 6, ""
	}
	return i + 1, ReasonNotJSON
}

// hexValue returns the value of a hexadecimal digit, or −1.
func hexValue(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
