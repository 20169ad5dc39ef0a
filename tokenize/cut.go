// SPDX-License-Identifier: Apache-2.0

package tokenize

import "bytes"

// CutRule names the places at which a text may be cut so that its parts,
// encoded alone, give the ids of the whole. Rules combine; 0 allows no cut.
//
// Both rest on how the patterns of byte-level encoders take a text apart: each
// match begins where the last one ended and depends on nothing before it, and
// tokens never reach over the end of a match. So a place is safe if a match
// always ends there, and none looks beyond it.
type CutRule uint8

const (
	// CutAfterWords cuts between a letter or number and a character that is
	// neither, nor a combining mark or an apostrophe (which may begin the ending
	// of an English contraction). It holds for GPT-2's pattern and those derived
	// from it.
	CutAfterWords CutRule = 1 << iota

	// CutAfterLines cuts between a carriage return or newline and a character
	// that is neither white space nor a slash (which o200k's pattern joins to
	// newlines). It holds for patterns with \s*[\r\n]+, not for GPT-2's, by which
	// the last newline of several is a match of its own if text follows.
	CutAfterLines
)

// SafeCutter is an [Encoder] that tells which rules hold for it. Texts of any
// other encoder are never cut.
type SafeCutter interface {
	SafeCuts() CutRule
}

// SafeCuts returns the rules that hold for the encoding's pattern.
func (e *Encoding) SafeCuts() CutRule {
	if e.split == splitByGPT2 {
		return CutAfterWords
	}
	return CutAfterWords | CutAfterLines
}

// character is what a rule must know of one.
type character struct {
	class runeClass
	ascii byte // 0 for any other
}

func characterOf(t *classTable, r rune) character {
	c := character{class: t.of(r)}
	if r < 0x80 {
		c.ascii = byte(r)
	}
	return c
}

// between tells whether the place between two characters is safe.
func (rule CutRule) between(before, after character) bool {
	if before.class&(classLetter|classNumber) != 0 {
		// Letters and marks are all in one of these classes.
		return rule&CutAfterWords != 0 &&
			after.class&(classUpper|classLower|classNumber) == 0 && after.ascii != '\''
	}
	return before.class&classNewline != 0 && rule&CutAfterLines != 0 &&
		after.class&classSpace == 0 && after.ascii != '/'
}

const (
	// cutWindow is how far, in bytes, a safe place is looked for. Prose in any
	// script has one within some tens of bytes, base64 may have none at all.
	cutWindow = 256
	// cutLookback bounds the way back to where an escape begins.
	cutLookback = 64
)

// find returns the first safe place at or after at in the raw bytes of a JSON
// string, which must begin with a whole character; 0 if there is none near.
func (rule CutRule) find(raw []byte, at int) int {
	if rule == 0 {
		return 0
	}
	i := characterStart(raw, at)
	if i < 0 {
		return 0
	}
	t := runeClasses()
	end := min(len(raw), at+cutWindow)
	var before character
	for i < end {
		after, n := t.characterAt(raw, i)
		if i >= at && rule.between(before, after) {
			return i
		}
		before = after
		i += n
	}
	return 0
}

// characterStart returns where a character begins in raw at or shortly before
// at, and if it can before at, or −1 if that is too far away.
func characterStart(raw []byte, at int) int {
	i := max(0, at-1)
	// The longest spelling of a character is that of two surrogates: 12 bytes.
	back := max(0, at-12)
	if slash := bytes.IndexByte(raw[back:at], '\\'); slash >= 0 {
		// A backslash that follows none begins an escape; one that follows one
		// may be what is escaped.
		i = back + slash
		for i > 0 && raw[i-1] == '\\' {
			i--
			if at-i > cutLookback {
				return -1
			}
		}
		return i
	}
	// UTF-8 can be entered anywhere: the bytes within a character differ from those
	// that begin one.
	for i > 0 && at-i < 4 && raw[i]&0xc0 == 0x80 {
		i--
	}
	return i
}

// characterAt returns the character that begins at raw[i] of a JSON string, and
// the number of bytes it is spelt in.
func (t *classTable) characterAt(raw []byte, i int) (c character, n int) {
	b := raw[i]
	switch {
	case b >= 0x80:
		class := t.beyondASCII(raw, i)
		return character{class: class}, class.bytes()
	case b != '\\' || i+1 == len(raw):
		return character{t.ascii[b], b}, 1
	}
	switch b = raw[i+1]; b {
	case 'n':
		b = '\n'
	case 'r':
		b = '\r'
	case 't':
		b = '\t'
	case 'b':
		b = '\b'
	case 'f':
		b = '\f'
	case 'u':
		if i+6 > len(raw) {
			return character{}, len(raw) - i
		}
		r, rest := cutUnicode(raw[i+2:])
		return characterOf(t, r), len(raw) - i - len(rest)
	}
	if b >= 0x80 {
		return character{}, 1
	}
	return character{t.ascii[b], b}, 2
}

// numbersCut returns the first place at or after at in a run of numbers where a
// number begins behind a comma; 0 if there is none near.
func numbersCut(raw []byte, at int) int {
	end := min(len(raw), at+cutWindow)
	comma := bytes.IndexByte(raw[at:end], ',')
	if comma < 0 {
		return 0
	}
	for i := at + comma + 1; i < len(raw) && i < end; i++ {
		if raw[i] > ' ' {
			if raw[i] == ',' {
				return 0
			}
			return i
		}
	}
	return 0
}
