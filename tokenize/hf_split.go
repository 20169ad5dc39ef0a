// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// maxStages is more cuts in a row than any tokenizer has.
const maxStages = 6

// pieceWalk walks through the pieces of a text.
type pieceWalk struct {
	stages []splitStage
	ends   [maxStages]int // of the piece of each stage that holds the current one
}

// next returns the end of the piece that begins at text[p]. A stage sees the
// piece of the one before as if nothing followed it.
func (w *pieceWalk) next(t *classTable, text []byte, p int) int {
	end := len(text)
	for i, stage := range w.stages {
		if w.ends[i] <= p {
			w.ends[i] = stage(t, text[:end], p)
		}
		end = w.ends[i]
	}
	return end
}

// endQwen follows patternQwen: that of cl100k_base with each number alone.
func endQwen(t *classTable, text []byte, p int) int {
	if class := t.at(text, p); class&classNumber != 0 {
		return p + class.bytes()
	}
	return endCL100K(t, text, p)
}

// endQwenMarks follows patternQwenMarks: that of endQwen with combining marks
// among the letters.
func endQwenMarks(t *classTable, text []byte, p int) int {
	class := t.at(text, p)
	q := p + class.bytes()
	switch {
	case class&classLetterOrMark != 0:
		return endOfLettersAndMarks(t, text, q)
	case class&classNumber != 0:
		return q
	case class&classNewline != 0:
		return endOfSpaces(t, text, p, true)
	case text[p] == '\'':
		if end := contraction(text, p, true); end > p {
			return end
		}
	}
	if q < len(text) {
		next := t.at(text, q)
		if next&classLetterOrMark != 0 {
			return endOfLettersAndMarks(t, text, q+next.bytes())
		}
		if text[p] == ' ' && next&(classSpace|classNumber) == 0 {
			class, q = next, q+next.bytes()
		}
	}
	if class&classSpace != 0 {
		return endOfSpaces(t, text, p, true)
	}
	for q < len(text) {
		if class = t.at(text, q); class&(classLetterOrMark|classNumber|classSpace) != 0 {
			break
		}
		q += class.bytes()
	}
	for q < len(text) && (text[q] == '\n' || text[q] == '\r') {
		q++
	}
	return q
}

// endTekken follows patternTekken: that of o200k_base with each number alone
// and without contractions.
func endTekken(t *classTable, text []byte, p int) int {
	class := t.at(text, p)
	q := p + class.bytes()
	if class&classLetter != 0 {
		end, _ := caseRun(t, text, p)
		return end
	}
	if class&classNumber != 0 {
		return q
	}
	if class&classNewline == 0 && q < len(text) {
		// What leads a word; see endO200K.
		if next := t.at(text, q); next&(classUpper|classLower) != 0 {
			if end, mixed := caseRun(t, text, q); mixed || class&classUpper == 0 {
				return end
			}
		}
	}
	if class&classUpper != 0 {
		end, _ := caseRun(t, text, p)
		return end
	}
	return endO200K(t, text, p) // neither a word nor a number
}

// endDeepSeek follows patternDeepSeek, which does not match everywhere: what is
// between two matches is a piece.
func endDeepSeek(t *classTable, text []byte, p int) int {
	class := t.at(text, p)
	q := p + class.bytes()
	switch {
	case class&classLetterOrMark != 0:
		return endOfLettersAndMarks(t, text, q)
	case class&classSymbol != 0:
		if text[p] < utf8.RuneSelf && q < len(text) && isASCIILetter(text[q]) {
			for q < len(text) && isASCIILetter(text[q]) {
				q++
			}
			return q
		}
		return endOfSymbolsAndNewlines(t, text, q)
	case class&classNewline != 0:
		return endOfSpaces(t, text, p, true)
	case class&classSpace != 0:
		if q < len(text) {
			switch next := t.at(text, q); {
			case next&classLetterOrMark != 0:
				return endOfLettersAndMarks(t, text, q+next.bytes())
			case next&classSymbol != 0 && text[p] == ' ':
				return endOfSymbolsAndNewlines(t, text, q+next.bytes())
			}
		}
		return endOfSpaces(t, text, p, true)
	}
	// Numbers, control characters and what is unassigned: one of them may lead a
	// word, the others stand for themselves.
	for from := p; ; p, q = q, q+class.bytes() {
		if q == len(text) {
			return q
		}
		class = t.at(text, q)
		switch {
		case class&classLetterOrMark != 0 && p == from:
			return endOfLettersAndMarks(t, text, q+class.bytes())
		case class&classLetterOrMark != 0:
			return p
		case class&(classSymbol|classSpace) != 0:
			return q
		}
	}
}

// classLetterOrMark is [\p{L}\p{M}].
const classLetterOrMark = classUpper | classLower

func isASCIILetter(b byte) bool { return b|0x20-'a' < 26 }

// endOfLettersAndMarks returns the end of the [\p{L}\p{M}]* that begins at p.
func endOfLettersAndMarks(t *classTable, text []byte, p int) int {
	return endOfRun(t, text, p, classLetterOrMark, caseBits)
}

// endOfSymbolsAndNewlines returns the end of the [\p{P}\p{S}]*[\r\n]* that begins at p.
func endOfSymbolsAndNewlines(t *classTable, text []byte, p int) int {
	for p < len(text) {
		class := t.at(text, p)
		if class&classSymbol == 0 {
			break
		}
		p += class.bytes()
	}
	for p < len(text) && (text[p] == '\n' || text[p] == '\r') {
		p++
	}
	return p
}

// The stages that follow cut out what a pattern matches, and leave together what
// is between.

func endOfThreeNumbersOrNone(t *classTable, text []byte, p int) int {
	if class := t.at(text, p); class&classNumber != 0 {
		return endOfThreeNumbers(t, text, p+class.bytes())
	}
	return endWithoutNumbers(t, text, p)
}

func endOfNumberOrNone(t *classTable, text []byte, p int) int {
	if class := t.at(text, p); class&classNumber != 0 {
		return p + class.bytes()
	}
	return endWithoutNumbers(t, text, p)
}

func endOfDigitsOrNone(t *classTable, text []byte, p int) int {
	class := t.at(text, p)
	if class&classNumber == 0 {
		return endWithoutNumbers(t, text, p)
	}
	for p < len(text) {
		if class = t.at(text, p); class&classNumber == 0 {
			break
		}
		p += class.bytes()
	}
	return p
}

func endWithoutNumbers(t *classTable, text []byte, p int) int {
	for {
		for p+8 <= len(text) {
			n := asciiButDigits(binary.LittleEndian.Uint64(text[p:]))
			p += n
			if n < 8 {
				break
			}
		}
		if p == len(text) {
			return p
		}
		if text[p] >= firstOfThree {
			if q := t.endOfWide(text, p, classUpper|classLower); q > p {
				p = q
				continue
			}
		}
		class := t.at(text, p)
		if class&classNumber != 0 {
			return p
		}
		p += class.bytes()
	}
}

// asciiButDigits counts the leading bytes of the little-endian word w that are
// ASCII and not in 0-9; see asciiLetters.
func asciiButDigits(w uint64) int {
	low := w &^ byteTops
	from0 := low + (0x80-'0')*byteOnes
	beyond9 := low + (0x7f-'9')*byteOnes
	return bits.TrailingZeros64((from0&^beyond9|w)&byteTops) >> 3
}

// endOfKanaOrNone cuts out runs of the pattern [一-龥぀-ゟ゠-ヿ]+.
func endOfKanaOrNone(_ *classTable, text []byte, p int) int {
	if end := endOfKana(text, p); end > p {
		return end
	}
	for p < len(text) {
		// Such characters begin with 0xe3 to 0xe9.
		if text[p] >= 0xe3 && text[p] <= 0xe9 && endOfKana(text[:min(len(text), p+3)], p) > p {
			break
		}
		p++
		for p+8 <= len(text) && binary.LittleEndian.Uint64(text[p:])&byteTops == 0 {
			p += 8
		}
	}
	return p
}

// endOfKana returns the end of the run of characters of U+3040 to U+30FF and
// U+4E00 to U+9FA5 that begins at p.
func endOfKana(text []byte, p int) int {
	for ; p+8 <= len(text); p += 3 {
		w := binary.LittleEndian.Uint64(text[p:])
		r := w&15<<12 | w>>8&63<<6 | w>>16&63
		if w&0xc0c0f0 != 0x8080e0 || r-0x4e00 > 0x9fa5-0x4e00 && r-0x3040 > 0x30ff-0x3040 {
			return p
		}
	}
	for kanaOrHan(text[p:]) > 0 {
		p += 3
	}
	return p
}

// kanaOrHan returns 3 if text begins with one of U+3040 to U+30FF and U+4E00 to
// U+9FA5, and 0 if not.
func kanaOrHan(text []byte) int {
	if len(text) < 3 || text[0] < 0xe3 || text[0] > 0xe9 || text[1]&0xc0 != 0x80 || text[2]&0xc0 != 0x80 {
		return 0
	}
	r := rune(text[0]&15)<<12 | rune(text[1]&63)<<6 | rune(text[2]&63)
	if r >= 0x4e00 && r <= 0x9fa5 || r >= 0x3040 && r <= 0x30ff {
		return 3
	}
	return 0
}
