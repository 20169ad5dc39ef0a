// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// runeSet is a set of characters below U+10000, a bit each. One word is what one
// last byte of a UTF-8 sequence can select. It holds no surrogates.
type runeSet [1 << 10]uint64

func (s *runeSet) add(r rune)      { s[r>>6] |= 1 << (r & 63) }
func (s *runeSet) has(r rune) bool { return r < 0x10000 && s[r>>6]>>(r&63)&1 != 0 }

func (s *runeSet) remove(lo, hi rune) {
	for r := lo; r <= hi && r < 0x10000; r++ {
		s[r>>6] &^= 1 << (r & 63)
	}
}

// span returns the end of the run of characters of the set that begins at p, and
// where the last of them begins; both are p if there is none. What is no UTF-8
// is in no set.
func (s *runeSet) span(text []byte, p int) (end, last int) {
	last = p
	for p < len(text) {
		b := text[p]
		word, n := uint32(b>>6), 1
		bit := b
		switch {
		case b < utf8.RuneSelf:
		case b >= 0xe0 && b < 0xf0 && p+2 < len(text) && text[p+1]^0x80 < 64 && text[p+2]^0x80 < 64:
			word, bit, n = uint32(b&15)<<6|uint32(text[p+1]&63), text[p+2], 3
			if word < 0x20 {
				return p, last // an overlong form
			}
		case b >= 0xc2 && b < 0xe0 && p+1 < len(text) && text[p+1]^0x80 < 64:
			word, bit, n = uint32(b&31), text[p+1], 2
		default:
			return p, last
		}
		if s[word]>>(bit&63)&1 == 0 {
			return p, last
		}
		last = p
		p += n
	}
	return p, last
}

// begins reports whether text[p:] begins with a character of the set.
func (s *runeSet) begins(text []byte, p int) bool {
	r, n := utf8.DecodeRune(text[p:])
	return (r != utf8.RuneError || n > 1) && s.has(r)
}

// runesAlone are characters that share a grapheme cluster with none that are in
// the set too. A few that could be in it are not.
var runesAlone = sync.OnceValue(func() *runeSet {
	s := new(runeSet)
	for i := range s {
		s[i] = ^uint64(0)
	}
	for _, t := range []*unicode.RangeTable{
		unicode.M, unicode.Other_Grapheme_Extend, unicode.Cf, unicode.Cs, unicode.Zl, unicode.Zp, unicode.Prepended_Concatenation_Mark,
	} {
		for _, r := range t.R16 {
			for c := rune(r.Lo); c <= rune(r.Hi); c += rune(r.Stride) {
				s.remove(c, c)
			}
		}
	}
	for _, r := range [][2]rune{
		{'\r', '\r'}, {0x1100, 0x11ff}, {0xa960, 0xa97f}, {0xd7b0, 0xd7ff}, // Hangul that is no whole syllable
		{0xe33, 0xe33}, {0xeb3, 0xeb3}, {0xd4e, 0xd4e}, {0xfff0, 0xfffb},
	} {
		s.remove(r[0], r[1])
	}
	return s
})

// runesInert are characters that are in Unicode's normalization form C wherever
// they stand, and so does what is between two of them depend on nothing outside.
// It takes some milliseconds to make.
var runesInert = sync.OnceValue(func() *runeSet {
	s := new(runeSet)
	var b [utf8.UTFMax]byte
	for r := range rune(0x10000) {
		if !utf8.ValidRune(r) || isLaterForNFC(r) {
			continue
		}
		text := utf8.AppendRune(b[:0], r)
		if norm.NFC.Properties(text).BoundaryBefore() && norm.NFC.IsNormal(text) {
			s.add(r)
		}
	}
	return s
})
