// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/binary"
	"sync"
)

// byteKind is what a byte is to the shape of a unit.
type byteKind uint8

const (
	byteUpper byteKind = iota
	byteLower
	byteDigit
	byteSpace   // ' '
	byteBlank   // any other white space but newlines
	byteNewline // [\r\n]
	byteSymbol  // any other ASCII character
	byteBeyond  // part of a character that is not ASCII

	kindBits = 3
	kindMask = 1<<kindBits - 1
)

func kindOfByte(b byte) byteKind {
	switch {
	case b-'A' < 26:
		return byteUpper
	case b-'a' < 26:
		return byteLower
	case b-'0' < 10:
		return byteDigit
	case b == ' ':
		return byteSpace
	case b == '\t', b == '\v', b == '\f':
		return byteBlank
	case b == '\n', b == '\r':
		return byteNewline
	case b < 0x80:
		return byteSymbol
	}
	return byteBeyond
}

// unitTable tells the usual units without a branch for each of their bytes.
// Nothing about the next word is predictable, and a wrong guess costs the
// processor more than all else here.
type unitTable struct {
	kinds [256]uint16
	// codes has, for the kinds of four bytes, the length of the unit that begins
	// with them if they determine it, else codeWord or codeOther.
	codes [1 << (kindsShown * kindBits)]uint8
	// limits has the most bytes of a word that begins with the byte, or with the
	// letter behind it.
	limits [256]uint8
	// joins is codeWord for bytes that may go on with a word and are no
	// lower-case letters.
	joins [256]uint8
}

const (
	kindsShown = 4

	codeWord  = 8  // a word, whose letters are to be counted
	codeOther = 16 // only unitEnd knows
)

// unitTables builds the table at the first call; it takes about a millisecond.
var unitTables = sync.OnceValue(newUnitTable)

func newUnitTable() *unitTable {
	u := new(unitTable)
	for i := range 256 {
		b := byte(i)
		kind := kindOfByte(b)
		u.kinds[b] = uint16(kind)
		switch kind {
		case byteUpper, byteLower:
			u.limits[b] = wordBytes
		case byteSpace:
			u.limits[b] = 1 + spacedBytes
		default:
			u.limits[b] = 1 + wordBytes
		}
		if b == '\'' || kind == byteBeyond {
			u.joins[b] = codeWord
		}
	}
	t := runeClasses()
	for key := range u.codes {
		var kinds [kindsShown]byteKind
		for i := range kinds {
			kinds[i] = byteKind(key >> (kindBits * i) & kindMask)
		}
		u.codes[key] = unitCode(t, kinds)
	}
	return u
}

// unitCode finds the code of bytes of these kinds by asking unitEnd about
// examples. If all of them, whatever follows, have the same unit, that is it.
func unitCode(t *classTable, kinds [kindsShown]byteKind) uint8 {
	word := kinds[:]
	switch kinds[0] {
	case byteSpace, byteBlank, byteSymbol:
		word = kinds[1:]
	}
	if word[0] <= byteLower {
		if word[1] == byteUpper {
			return codeOther
		}
		return codeWord
	}
	const examples, followers = "Aa0 \t\n-\x80", "Aa0 \t\n-'\x80"
	code := 0
	var text [kindsShown + 1]byte
	// Each bit of variant gives one symbol another example, as runs of one symbol
	// differ from several.
	for variant := range 1 << kindsShown {
		known := true
		for i, kind := range kinds {
			text[i] = examples[kind]
			if variant>>i&1 != 0 {
				text[i] = '\''
				known = known && kind == byteSymbol
			}
		}
		for i := 0; known && i < len(followers); i++ {
			text[kindsShown] = followers[i]
			end := unitEnd(t, text[:], 0)
			if end >= kindsShown || code > 0 && end != code {
				return codeOther
			}
			code = end
		}
	}
	// Characters that are not ASCII are of many kinds. Two behind a unit may matter.
	for _, kind := range kinds[:min(code+2, kindsShown)] {
		if kind == byteBeyond {
			return codeOther
		}
	}
	return uint8(code)
}

// unitWindow is how many bytes usual must be shown: those of the longest word
// and one more, or of two words of memory.
const unitWindow = 16

// usual returns the length of the unit that s begins with if it is one of the
// usual ones, the same as unitEnd tells, else 0.
func (u *unitTable) usual(s *[unitWindow]byte) int {
	key := u.kinds[s[0]] | u.kinds[s[1]]<<kindBits | u.kinds[s[2]]<<(2*kindBits) | u.kinds[s[3]]<<(3*kindBits)
	code := u.codes[key%uint16(len(u.codes))]
	// If it is a word: any first byte, a letter of either case, letters in lower
	// case. Without a first byte that is no letter, the table has seen to it that
	// the second is in lower case.
	n := asciiLetters(binary.LittleEndian.Uint64(s[:])&^0xff | 'a' | 0x2000)
	n += asciiLetters(binary.LittleEndian.Uint64(s[8:])) & -(n >> 3)
	n = min(n, int(u.limits[s[0]]))
	if (code|code&u.joins[s[n%unitWindow]]<<1)&codeOther != 0 {
		return 0
	}
	return n&-int(code/codeWord) | int(code%codeWord)
}
