// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/binary"
	"sync"
	"unicode"
	"unicode/utf8"
)

// runeClass says which of the classes that the encodings' patterns name a
// character belongs to. A character in none of classLetter, classNumber and
// classSpace is in [^\s\p{L}\p{N}]; combining marks are among those.
type runeClass uint16

const (
	classLetter  runeClass = 1 << iota // \p{L}
	classUpper                         // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
	classLower                         // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
	classNumber                        // \p{N}
	classSpace                         // \s, the White_Space property
	classNewline                       // [\r\n]
	classSymbol                        // [\p{P}\p{S}]

	classBits = 8 // above them, the length in bytes (see classTable.at)
)

// bytes returns the length of the character whose class at returned.
func (c runeClass) bytes() int { return int(c >> classBits) }

// The classes of the general categories.
const (
	upperLetter    = classLetter | classUpper              // Lu, Lt
	lowerLetter    = classLetter | classLower              // Ll
	caselessLetter = classLetter | classUpper | classLower // Lm, Lo
	combiningMark  = classUpper | classLower               // M
)

// classTable is a two-stage table over all code points in blocks of 64, so that
// one block is what one last byte of a UTF-8 sequence can select.
type classTable struct {
	ascii  [128]runeClass
	index  [(unicode.MaxRune + 1) >> 6]uint16
	blocks [][64]runeClass // without lengths

	caseless uint16 // the block that holds caselessLetter only
}

// runeClasses builds the table at the first call; it takes about a millisecond
// and 60 KB.
var runeClasses = sync.OnceValue(newClassTable)

func newClassTable() *classTable {
	flat := make([]runeClass, unicode.MaxRune+1)
	mark := func(t *unicode.RangeTable, class runeClass) {
		for _, r := range t.R16 {
			for c := uint32(r.Lo); c <= uint32(r.Hi); c += uint32(r.Stride) {
				flat[c] |= class
			}
		}
		for _, r := range t.R32 {
			for c := r.Lo; c <= r.Hi; c += r.Stride {
				flat[c] |= class
			}
		}
	}
	mark(unicode.Lu, upperLetter)
	mark(unicode.Lt, upperLetter)
	mark(unicode.Ll, lowerLetter)
	mark(unicode.Lm, caselessLetter)
	mark(unicode.Lo, caselessLetter)
	mark(unicode.M, combiningMark)
	mark(unicode.N, classNumber)
	mark(unicode.White_Space, classSpace)
	mark(unicode.P, classSymbol)
	mark(unicode.S, classSymbol)
	for _, r := range laterRanges {
		for c := r.lo; c <= r.hi; c++ {
			flat[c] = r.class
		}
	}
	flat['\r'] |= classNewline
	flat['\n'] |= classNewline

	t := &classTable{}
	for b := range t.ascii {
		t.ascii[b] = flat[b] | 1<<classBits
	}
	seen := make(map[[64]runeClass]uint16)
	for i := range t.index {
		block := [64]runeClass(flat[i<<6:])
		at, ok := seen[block]
		if !ok {
			at = uint16(len(t.blocks))
			seen[block] = at
			t.blocks = append(t.blocks, block)
		}
		t.index[i] = at
	}
	t.caseless = t.index['\u4e00'>>6]
	return t
}

// of returns the class of r, which must be a code point.
func (t *classTable) of(r rune) runeClass {
	return t.blocks[t.index[uint32(r)>>6]][r&63]
}

// at returns the class of the character that begins at text[i], with its length
// in bytes above. A byte that is not valid UTF-8 counts as U+FFFD of one byte.
func (t *classTable) at(text []byte, i int) runeClass {
	if b := text[i]; b < utf8.RuneSelf {
		return t.ascii[b]
	}
	return t.beyondASCII(text, i)
}

func (t *classTable) beyondASCII(text []byte, i int) runeClass {
	// Three bytes whose first excludes overlong forms and surrogates: most of
	// the world's scripts. Everything else takes the library's way.
	if b := text[i:]; len(b) > 2 && b[0] > 0xe0 && b[0] < 0xf0 && b[0] != 0xed {
		b1, b2 := b[1]^0x80, b[2]^0x80
		if b1 < 64 && b2 < 64 {
			return t.blocks[t.index[uint32(b[0]&15)<<6|uint32(b1)]][b2] | 3<<classBits
		}
	}
	r, n := utf8.DecodeRune(text[i:])
	return t.of(r) | runeClass(n)<<classBits
}

// firstOfThree is the least byte that a character of three bytes begins with.
const firstOfThree = 0xe0

// endOfWide returns a place in the run of characters of all these classes that
// begins at p: the first one where no such character of three bytes is plain to
// see. It is several times as fast as a call of at for each.
func (t *classTable) endOfWide(text []byte, p int, classes runeClass) int {
	for p+8 <= len(text) {
		w := binary.LittleEndian.Uint64(text[p:])
		if w&0xc0c0f0 != 0x8080e0 {
			break
		}
		// The index takes the six bits of the second byte and the four of the first.
		first := w&15<<6 | w>>8&63
		// Below 0x20 it is no character but an overlong form of one.
		if first < 0x20 {
			break
		}
		if block := t.index[first]; block != t.caseless {
			if t.blocks[block][w>>16&63]&classes != classes {
				break
			}
			p += 3
			continue
		}
		p += 3
		// In Chinese and Hangul another one follows, mostly.
		second := w>>24&15<<6 | w>>32&63
		if w>>24&0xc0c0f0 == 0x8080e0 && second >= 0x20 && t.index[second] == t.caseless {
			p += 3
		}
	}
	return p
}

// endOfCaseless returns a place in the run of letters without case that begins
// at p: the first one that is not within three-byte characters of blocks of
// such letters only. Chinese, Hangul and a few others pass here, at half the
// price of a look at each character.
func (t *classTable) endOfCaseless(text []byte, p int) int {
	for p+8 <= len(text) {
		w := binary.LittleEndian.Uint64(text[p:])
		if w&0xc0c0f0c0c0f0 != 0x8080e08080e0 {
			break
		}
		// The index takes the six bits of the second byte and the four of the first.
		first := w&15<<6 | w>>8&63
		second := w>>24&15<<6 | w>>32&63
		// Below 0x20 it is no character but an overlong form of one.
		if min(first, second) < 0x20 || t.index[first] != t.caseless || t.index[second] != t.caseless {
			break
		}
		p += 6
	}
	return p
}
