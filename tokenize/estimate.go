// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
)

// Estimate is an [Encoder] without a vocabulary. It takes text apart into units
// of about one token each (see unitEnd), and a unit's id is a keyed hash of its
// bytes. Its blocks tell prompts apart as well as any encoder's, but are no
// engine's. Its counts are mostly within a tenth of o200k_base's for English,
// program code, JSON, Chinese, Japanese, Korean and Russian, and up to a third
// below in other languages, which [Ratios] can correct.
//
// Text that is continued keeps all its units but the last. The time is linear in
// the text, whatever it holds, and only dst is allocated, where it has to grow.
type Estimate struct {
	classes *classTable
	table   *unitTable
	keys    [3]uint64 // odd
}

// NewEstimate returns an estimate whose ids are keyed by secret. Ids are equal
// for equal secrets.
func NewEstimate(secret uint64) *Estimate {
	e := &Estimate{classes: runeClasses(), table: unitTables()}
	for i := range e.keys {
		// splitmix64
		secret += spread
		z := (secret ^ secret>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		e.keys[i] = (z ^ z>>31) | 1
	}
	return e
}

// SafeCuts returns the rules that hold for units: all of them.
func (e *Estimate) SafeCuts() CutRule { return CutAfterWords | CutAfterLines }

// Append appends the ids of text to dst and returns it.
func (e *Estimate) Append(dst []uint32, text []byte) []uint32 {
	k0, k1, k2 := e.keys[0], e.keys[1], e.keys[2]
	p := 0
	for p+unitWindow <= len(text) {
		s := (*[unitWindow]byte)(text[p:])
		n := 0
		if s[0] < utf8.RuneSelf {
			n = e.table.usual(s)
		}
		if n == 0 {
			n = unitEnd(e.classes, text, p) - p
		}
		var h uint64
		if n <= hashedUnit {
			// A multilinear hash, universal in its upper bits as the keys are odd. The
			// length tells units apart that end in zero bytes.
			h = (binary.LittleEndian.Uint64(s[:])&unitMasks[n][0])*k0 +
				(binary.LittleEndian.Uint64(s[8:])&unitMasks[n][1])*k1 + uint64(n)*k2
		} else {
			h = xxh3.HashSeed(text[p:p+n], k0)
		}
		dst = append(dst, uint32(h>>33))
		p += n
	}
	// The same, near the end.
	for p < len(text) {
		end := unitEnd(e.classes, text, p)
		var h uint64
		n := end - p
		if n <= hashedUnit {
			var unit [hashedUnit]byte
			copy(unit[:], text[p:end])
			h = binary.LittleEndian.Uint64(unit[:])*k0 + binary.LittleEndian.Uint64(unit[8:])*k1 + uint64(n)*k2
		} else {
			h = xxh3.HashSeed(text[p:end], k0)
		}
		dst = append(dst, uint32(h>>33))
		p = end
	}
	return dst
}

// hashedUnit is the longest unit, in bytes, that is hashed as two words.
const hashedUnit = 16

// unitMasks has the bytes of a unit of n bytes in a word and the next.
var unitMasks = func() (m [hashedUnit + 1][2]uint64) {
	for n := range m {
		m[n] = [2]uint64{1<<(8*min(n, 8)) - 1, 1<<(8*max(n-8, 0)) - 1}
	}
	return m
}()
