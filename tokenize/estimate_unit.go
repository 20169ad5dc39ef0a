// SPDX-License-Identifier: Apache-2.0

package tokenize

import "encoding/binary"

// What a unit may hold. The figures are fitted to what o200k_base makes of
// English, program code, JSON and East Asian text: its tokens are mostly whole
// words up to about these lengths.
const (
	wordBytes     = 7  // of a word in lower case, behind anything but a space
	spacedBytes   = 12 // the same behind a space, the commoner form
	capitalBytes  = 4  // of a word that begins with two capitals or more
	accentBytes   = 5  // of a word with accents or in Greek
	cyrillicBytes = 8  // of a word in Cyrillic
	otherBytes    = 6  // of a word in any other alphabet
	symbolBytes   = 4  // of punctuation
	repeats       = 4  // of one symbol that are a run
	runBytes      = 64 // of a run of one symbol, of blanks, or of newlines
)

// Of 16 pairs of ideographs or syllables, how many are one unit.
const (
	hanPairs    = 6
	kanaPairs   = 7
	hangulPairs = 8
)

const wordClasses = classUpper | classLower // letters and combining marks

// unitEnd returns the end of the unit that begins at text[p]; p < len(text). A
// unit is
//
//   - a word or a part of one, with an ASCII character before it that is no
//     letter, number or newline, and with a contraction behind it;
//   - one ideograph, kana or Hangul syllable, or two, as their bytes decide, with
//     a space before Hangul;
//   - up to three digits;
//   - a few symbols or a run of one, with a space before and newlines behind it;
//   - white space, without the last blank if a word or symbol follows.
//
// Where it ends depends on its own bytes and the character behind it, or two
// behind white space that something follows. So no unit but the last changes if
// text is continued. A unit always ends between a letter or number and what is
// neither, nor a mark or an apostrophe, and between a newline and what is no
// white space.
func unitEnd(t *classTable, text []byte, p int) int {
	b := text[p]
	if ideographic(b) && p+8 <= len(text) && ideographic(text[p+3]) && t.endOfCaseless(text[:p+8], p) > p {
		// Two ideographs, the usual case: the shortest way to the same end.
		return p + 3 + 3*pairedIdeographs(text[p:p+3], text[p+3:p+6])
	}
	class := t.at(text, p)
	q := p + class.bytes()
	switch {
	case class&wordClasses != 0:
		if ideographic(b) {
			return endOfIdeographs(t, text, p, q)
		}
		return endOfWordUnit(t, text, p, wordBytes)
	case class&classNumber != 0:
		return endOfThreeNumbers(t, text, q)
	case class&classNewline != 0:
		return endOfNewlines(text, p)
	case q == len(text):
		return q
	}
	next := t.at(text, q)
	switch {
	case next&wordClasses != 0:
		switch {
		case b >= 0x80:
			return q
		case ideographic(text[q]):
			if b == ' ' && text[q] >= firstHangul {
				return endOfIdeographs(t, text, q, q+next.bytes())
			}
			return q
		case b == ' ':
			return endOfWordUnit(t, text, q, spacedBytes)
		}
		return endOfWordUnit(t, text, q, wordBytes)
	case class&classSpace == 0:
		return endOfSymbols(t, text, p, p)
	case b == ' ' && next&(classNumber|classSpace) == 0:
		return endOfSymbols(t, text, p, q)
	}
	return endOfBlanks(t, text, p)
}

// firstHangul is the least byte that a Hangul syllable begins with; those of
// Chinese characters are below.
const firstHangul = 0xea

// ideographic tells whether a character that begins with b is a Chinese
// character, kana or Hangul, or of a few small scripts that are coded between.
func ideographic(b byte) bool { return b >= 0xe3 && b <= 0xed }

// endOfWordUnit returns the end of the word that begins with the letter or mark
// at text[p] and may have limit bytes if all are in lower case.
func endOfWordUnit(t *classTable, text []byte, p, limit int) int {
	q := p
	for q < len(text) && text[q]-'A' < 26 {
		q++
		if q == p+2 {
			limit = capitalBytes
		}
		if q == p+limit {
			return q
		}
	}
	end := min(len(text), p+limit)
	for q+8 <= len(text) && q < end {
		n := asciiLetters(binary.LittleEndian.Uint64(text[q:]))
		q += n
		if n < 8 {
			break
		}
	}
	for q < end && text[q]-'a' < 26 {
		q++
	}
	switch {
	case q >= end:
		return end
	case text[q] == '\'':
		q++
		for end := min(len(text), q+2); q < end && text[q]-'a' < 26; {
			q++
		}
		return q
	case text[q] < 0x80:
		return q
	default:
		end = p + beyondASCIIBytes(text[q])
	}
	for q < len(text) && q < end && !ideographic(text[q]) {
		var class runeClass
		// Two bytes, the lead of which is valid: t.at takes a longer way.
		if b := text[q]; b-0xc2 < 0x1e && q+1 < len(text) && text[q+1]^0x80 < 64 {
			class = t.blocks[t.index[b&31]][text[q+1]^0x80] | 2<<classBits
		} else {
			class = t.at(text, q)
		}
		if class&wordClasses == 0 {
			break
		}
		q += class.bytes()
	}
	return q
}

// beyondASCIIBytes returns the most bytes of a word by the first byte of its
// first letter that is not ASCII.
func beyondASCIIBytes(b byte) int {
	switch {
	case b < 0xd0:
		return accentBytes
	case b < 0xd4:
		return cyrillicBytes
	}
	return otherBytes
}

// endOfIdeographs returns the end of the unit that begins with the ideographic
// letter text[p:q].
func endOfIdeographs(t *classTable, text []byte, p, q int) int {
	if q+3 > len(text) || !ideographic(text[q]) {
		return q
	}
	class := t.at(text, q)
	if class&wordClasses == 0 {
		return q
	}
	return q + class.bytes()*pairedIdeographs(text[p:p+3], text[q:q+3])
}

// pairedIdeographs returns 1 if two characters of three bytes are one unit, else
// 0. It is not keyed: counts are the same everywhere.
func pairedIdeographs(first, second []byte) int {
	pair := uint64(first[0])<<40 | uint64(first[1])<<32 | uint64(first[2])<<24 |
		uint64(second[0])<<16 | uint64(second[1])<<8 | uint64(second[2])
	return int((pair*spread>>60 - pairsByLead[first[0]]) >> 63)
}

// pairsByLead has how many of 16 pairs are one unit, by the first byte.
var pairsByLead = func() (pairs [256]uint64) {
	pairs[0xe3] = kanaPairs
	for b := 0xe4; b <= 0xe9; b++ {
		pairs[b] = hanPairs
	}
	for b := 0xea; b <= 0xed; b++ {
		pairs[b] = hangulPairs
	}
	return pairs
}()

// endOfSymbols returns the end of the unit that begins at p and whose first
// symbol is at text[first].
func endOfSymbols(t *classTable, text []byte, p, first int) int {
	n := t.at(text, first).bytes()
	symbol := text[first : first+n]
	q := first + n
	for q+n <= len(text) && q < p+runBytes && string(text[q:q+n]) == string(symbol) {
		q += n
	}
	// Fewer fit into a unit of several symbols, whatever comes.
	if n == 1 && q < first+repeats {
		for q < len(text) && q < p+symbolBytes && kindOfByte(text[q]) == byteSymbol {
			q++
		}
	}
	return endOfNewlines(text, q)
}

// endOfNewlines returns the end of the [\r\n]* that begins at p.
func endOfNewlines(text []byte, p int) int {
	for end := min(len(text), p+runBytes); p < end && (text[p] == '\n' || text[p] == '\r'); {
		p++
	}
	return p
}

// endOfBlanks returns the end of the unit that begins with the white space
// text[p].
func endOfBlanks(t *classTable, text []byte, p int) int {
	last := p
	for q := p; q < p+runBytes; {
		if q == len(text) {
			return q
		}
		class := t.at(text, q)
		if class&classNewline != 0 {
			return endOfNewlines(text, q)
		}
		if class&classSpace == 0 {
			if last == p {
				return q
			}
			return last
		}
		last = q
		q += class.bytes()
	}
	return last
}
