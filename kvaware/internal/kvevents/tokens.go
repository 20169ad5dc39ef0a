// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"encoding/binary"
	"slices"

	"github.com/tinylib/msgp/msgp"
)

// tokenIDs reads an array of token ids.
func (d *Decoder) tokenIDs(m []byte) ([]uint32, []byte, Reason) {
	n, m, r := array(m)
	if r != 0 {
		return nil, m, r
	}
	start := len(d.tokens)
	d.tokens = slices.Grow(d.tokens, n)[:start+n]
	tokens := d.tokens[start : start+n : start+n]
	for i := range tokens {
		// Nearly all ids are positive and take five bytes or fewer.
		if len(m) >= 5 {
			if id, size := small(m); size > 0 {
				tokens[i], m = id, m[size:]
				continue
			}
			if m[0] == 0x92 && len(m) >= 11 {
				id, first := small(m[1:])
				if _, second := small(m[1+first:]); first > 0 && second > 0 {
					tokens[i], m = id, m[1+first+second:]
					continue
				}
			}
		}
		if tokens[i], m, r = tokenID(m); r != 0 {
			return nil, m, r
		}
	}
	return tokens, m, 0
}

// small reads an unsigned integer of at most 32 bits from at least five bytes;
// size 0 means that there is none.
func small(m []byte) (id uint32, size int) {
	switch lead := m[0]; {
	case lead == 0xcd:
		return uint32(binary.BigEndian.Uint16(m[1:])), 3
	case lead == 0xce:
		return binary.BigEndian.Uint32(m[1:]), 5
	case lead < 0x80:
		return uint32(lead), 1
	}
	return 0, 0
}

// tokenID reads an id or a pair of which the first counts.
func tokenID(m []byte) (uint32, []byte, Reason) {
	if msgp.NextType(m) == msgp.ArrayType {
		n, first, r := array(m)
		if r != 0 {
			return 0, m, r
		}
		if n == 0 {
			return 0, m, reasonless
		}
		bits, negative, rest, r := integer(first)
		for n--; n > 0 && r == 0; n-- {
			rest, r = skip(rest)
		}
		return narrow(bits, negative), rest, r
	}
	bits, negative, rest, r := integer(m)
	return narrow(bits, negative), rest, r
}

// narrow brings ids outside of 32 bits among those that no vocabulary has.
func narrow(bits uint64, negative bool) uint32 {
	if !negative && bits>>32 == 0 {
		return uint32(bits)
	}
	return uint32(bits^bits>>32) | 1<<31
}
