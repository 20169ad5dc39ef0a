// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/binary"
	"math/bits"
)

// splitRule names one of the three patterns by which the encodings cut a text
// into pieces before merging. The patterns are those of OpenAI's tiktoken
// (openai_public.py). Each rule is a function from the start of a piece to its
// end that looks at each byte a bounded number of times; none backtracks.
type splitRule uint8

const (
	splitByGPT2   splitRule = iota // r50k_base, p50k_base
	splitByCL100K                  // cl100k_base
	splitByO200K                   // o200k_base
)

// pieceEnd returns the end of the piece that begins at text[p]; p < len(text).
func (s splitRule) pieceEnd(t *classTable, text []byte, p int) int {
	switch s {
	case splitByCL100K:
		return endCL100K(t, text, p)
	case splitByO200K:
		return endO200K(t, text, p)
	default:
		return endGPT2(t, text, p)
	}
}

// endGPT2 follows the pattern
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func endGPT2(t *classTable, text []byte, p int) int {
	class := t.at(text, p)
	q := p + class.bytes()
	switch text[p] {
	case '\'':
		if end := contraction(text, p, false); end > p {
			return end
		}
	case ' ':
		if q == len(text) {
			return q
		}
		next := t.at(text, q)
		if next&classSpace != 0 {
			return endOfSpaces(t, text, p, false)
		}
		class, q = next, q+next.bytes()
	}
	switch {
	case class&classLetter != 0:
		return endOfLetters(t, text, q)
	case class&classNumber != 0:
		for q < len(text) {
			class := t.at(text, q)
			if class&classNumber == 0 {
				break
			}
			q += class.bytes()
		}
		return q
	case class&classSpace != 0:
		return endOfSpaces(t, text, p, false)
	}
	return endOfOthers(t, text, q)
}

// endCL100K follows the pattern
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func endCL100K(t *classTable, text []byte, p int) int {
	class := t.at(text, p)
	q := p + class.bytes()
	if class&classLetter != 0 {
		return endOfLetters(t, text, q)
	}
	if class&classNumber != 0 {
		return endOfThreeNumbers(t, text, q)
	}
	if text[p] == '\'' {
		if end := contraction(text, p, true); end > p {
			return end
		}
	}
	if class&classNewline != 0 {
		return endOfSpaces(t, text, p, true)
	}
	if q < len(text) {
		next := t.at(text, q)
		if next&classLetter != 0 {
			return endOfLetters(t, text, q+next.bytes())
		}
		if text[p] == ' ' && next&(classSpace|classNumber) == 0 {
			class, q = next, q+next.bytes()
		}
	}
	if class&classSpace != 0 {
		return endOfSpaces(t, text, p, true)
	}
	q = endOfOthers(t, text, q)
	for q < len(text) && (text[q] == '\n' || text[q] == '\r') {
		q++
	}
	return q
}

// endOfLetters returns the end of the \p{L}* that begins at p.
func endOfLetters(t *classTable, text []byte, p int) int {
	return endOfRun(t, text, p, classLetter, caseBits)
}

// endOfRun returns the end of the characters of any of these classes that begin
// at p. Of ASCII these are the small letters, and with caseBits the capitals too.
func endOfRun(t *classTable, text []byte, p int, classes runeClass, capitals uint64) int {
	for {
		for p+8 <= len(text) {
			n := asciiLetters(binary.LittleEndian.Uint64(text[p:]) | capitals)
			p += n
			if n < 8 {
				break
			}
		}
		if p == len(text) {
			return p
		}
		if text[p] >= firstOfThree {
			if q := t.endOfWide(text, p, classes); q > p {
				p = q
				continue
			}
		}
		class := t.at(text, p)
		if class&classes == 0 {
			return p
		}
		p += class.bytes()
	}
}

const (
	byteOnes = 0x0101010101010101
	byteTops = 0x80 * byteOnes
	caseBits = 0x20 * byteOnes
)

// asciiLetters counts the leading bytes of the little-endian word w that are in
// a-z. With caseBits set in w, it counts those of A-Z as well.
func asciiLetters(w uint64) int {
	low := w &^ byteTops
	// Sums of seven-bit numbers: the high bit of each byte tells the comparison.
	fromA := low + (0x80-'a')*byteOnes
	beyondZ := low + (0x7f-'z')*byteOnes
	return bits.TrailingZeros64((^fromA|beyondZ|w)&byteTops) >> 3
}

// endOfOthers returns the end of the [^\s\p{L}\p{N}]* that begins at p.
func endOfOthers(t *classTable, text []byte, p int) int {
	for p < len(text) {
		class := t.at(text, p)
		if class&(classLetter|classNumber|classSpace) != 0 {
			break
		}
		p += class.bytes()
	}
	return p
}

// endOfThreeNumbers returns the end of the \p{N}{0,2} that begins at p.
func endOfThreeNumbers(t *classTable, text []byte, p int) int {
	for range 2 {
		if p == len(text) {
			break
		}
		class := t.at(text, p)
		if class&classNumber == 0 {
			break
		}
		p += class.bytes()
	}
	return p
}

// endOfSpaces returns the end of the piece that begins at the white space
// text[p] by \s*[\r\n]+|\s+(?!\S)|\s+, or without the first part if newlines is
// false: the run of white space up to its last newline, else the run up to the
// end of the text, else the run without its last character, which belongs to
// what follows, else that one character. A run is seen at most three times,
// once for each of these.
func endOfSpaces(t *classTable, text []byte, p int, newlines bool) int {
	q, last, afterNewline := p, p, 0
	for q < len(text) {
		class := t.at(text, q)
		if class&classSpace == 0 {
			break
		}
		last = q
		q += class.bytes()
		if class&classNewline != 0 {
			afterNewline = q
		}
	}
	switch {
	case newlines && afterNewline > 0:
		return afterNewline
	case q == len(text) || last == p:
		return q
	}
	return last
}

// contraction returns the end of the English contraction ('s 't 're 've 'm 'll
// 'd) that begins with the apostrophe text[p], or p if there is none. With fold
// it ignores case as Unicode has it, which makes U+017F an s.
func contraction(text []byte, p int, fold bool) int {
	var b [2]byte
	if copy(b[:], text[p+1:]) == 0 {
		return p
	}
	if fold {
		if b == [2]byte{0xc5, 0xbf} {
			return p + 3
		}
		// Of the bytes that are no letters none becomes one of these letters.
		b[0] |= 0x20
		b[1] |= 0x20
	}
	switch b[0] {
	case 's', 't', 'm', 'd':
		return p + 2
	case 'l':
		if b[1] == 'l' {
			return p + 3
		}
	case 'r', 'v':
		if b[1] == 'e' {
			return p + 3
		}
	}
	return p
}
