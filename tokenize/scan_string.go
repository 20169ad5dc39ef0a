// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/binary"
	"math/bits"
)

// Eight bytes are tested at once. Sums of seven-bit numbers carry into no other
// byte, so what is told of each is right.
const (
	laneOnes    = 0x0101010101010101
	laneTops    = 0x80 * laneOnes
	laneQuotes  = '"' * laneOnes
	laneSlashes = '\\' * laneOnes
	laneSpaces  = 0x20 * laneOnes // bytes below are control characters
)

// plain sets the high bit of each byte that is a plain part of a string: no
// quote, backslash or control character. Other bits mean nothing.
func plain(x uint64) uint64 {
	low := x &^ laneTops
	noQuote := (low ^ laneQuotes) + 0x7f*laneOnes
	noSlash := (low ^ laneSlashes) + 0x7f*laneOnes
	noControl := low + (laneTops - laneSpaces)
	return noQuote&noSlash&noControl | x
}

// gather puts a bit for each of eight bytes that is not plain side by side.
func gather(plain uint64) uint64 {
	return (^plain & laneTops) >> 7 * 0x0102040810204080 >> 56
}

// skipString reads a string whose opening quote is before i. It returns the
// index of the closing quote.
func skipString(b []byte, i int) (end int, flags uint8, reason Reason) {
	var seen uint64 // all bits that are set in the bytes looked at
	if i+8 <= len(b) {
		// Keys and roles mostly end here.
		seen = binary.LittleEndian.Uint64(b[i:])
		m := ^plain(seen) & laneTops
		if at := i + bits.TrailingZeros64(m)>>3; m != 0 && b[at] == '"' {
			return at, flagsOf(seen), ""
		}
	}
	for i+32 <= len(b) {
		w := b[i : i+32 : i+32]
		x0 := binary.LittleEndian.Uint64(w)
		x1 := binary.LittleEndian.Uint64(w[8:])
		x2 := binary.LittleEndian.Uint64(w[16:])
		x3 := binary.LittleEndian.Uint64(w[24:])
		p0, p1, p2, p3 := plain(x0), plain(x1), plain(x2), plain(x3)
		seen |= x0 | x1 | x2 | x3
		start := i
		i += 32
		if p0&p1&p2&p3&laneTops == laneTops {
			continue
		}
		// The block is not looked at again behind an escape: where the next one
		// is to be found does not wait for where the last one was.
		m := gather(p0) | gather(p1)<<8 | gather(p2)<<16 | gather(p3)<<24
		for m != 0 {
			at := start + bits.TrailingZeros64(m)
			if b[at] == '\\' && at+1 < len(b) && simpleEscapes[b[at+1]] {
				end = at + 2
			} else if end, reason = skipMarked(b, at); end == at || reason != "" {
				return end, flags | flagsOf(seen), reason
			}
			flags |= escaped
			i = max(i, end)
			m &= ^uint64(0) << (end - start)
		}
	}
	for ; i < len(b); i++ {
		seen |= uint64(b[i])
		if c := b[i]; c == '"' || c == '\\' || c < 0x20 {
			if end, reason = skipMarked(b, i); end == i || reason != "" {
				return end, flags | flagsOf(seen), reason
			}
			flags |= escaped
			i = end - 1
		}
	}
	return i, flags | flagsOf(seen), ReasonTruncated
}

func flagsOf(seen uint64) uint8 {
	if seen&laneTops != 0 {
		return nonASCII
	}
	return 0
}

// skipMarked reads the quote, escape or control character at i. It returns the
// index after an escape, and i for the quote.
func skipMarked(b []byte, i int) (end int, reason Reason) {
	switch b[i] {
	case '"':
		return i, ""
	case '\\':
		if i+1 < len(b) && simpleEscapes[b[i+1]] {
			return i + 2, ""
		}
		return skipEscape(b, i)
	}
	// A raw control character: Python, Go and nlohmann/json all refuse it.
	return i, ReasonNotJSON
}

// simpleEscapes are the characters that form an escape of two bytes.
var simpleEscapes = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// skipEscape reads the escape that begins with the backslash at i and is none
// of the simple ones.
func skipEscape(b []byte, i int) (end int, reason Reason) {
	if i+1 >= len(b) {
		return len(b), ReasonTruncated
	}
	if b[i+1] != 'u' {
		return i + 1, ReasonNotJSON
	}
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
