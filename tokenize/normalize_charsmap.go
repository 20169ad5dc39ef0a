// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// characterMap is SentencePiece's precompiled character map: a double-array trie
// (Darts-clone) of texts, and what stands for each of them. It is applied as
// the tokenizers library does: to each grapheme cluster of less than six bytes
// if the map has a prefix of it, the shortest of which replaces the whole
// cluster, and else to each character.
type characterMap struct {
	nodes []uint32
	texts []byte // each ends with a zero byte
	// kept are the characters that are alone and mapped to nothing else.
	alone, kept *runeSet
}

// maxMapped is the longest replacement, in bytes.
const maxMapped = 255

func newCharacterMap(b []byte) (*characterMap, error) {
	if len(b) < 4 {
		return nil, errors.New("too short")
	}
	size := binary.LittleEndian.Uint32(b)
	b = b[4:]
	if uint64(size) > uint64(len(b)) || size%4 != 0 || size == 0 {
		return nil, fmt.Errorf("a trie of %d bytes in %d", size, len(b))
	}
	m := &characterMap{nodes: make([]uint32, size/4), texts: b[size:]}
	for i := range m.nodes {
		m.nodes[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	run := 0
	for _, c := range m.texts {
		if run++; c == 0 {
			run = 0
		}
		if run > maxMapped {
			return nil, fmt.Errorf("a replacement of more than %d bytes", maxMapped)
		}
	}
	if !utf8.Valid(m.texts) {
		return nil, errors.New("a replacement that is not UTF-8")
	}
	m.alone, m.kept = runesAlone(), new(runeSet)
	*m.kept = *m.alone
	var text [utf8.UTFMax]byte
	for r := range rune(0x10000) {
		if m.kept.has(r) {
			if _, ok := m.find(utf8.AppendRune(text[:0], r)); ok {
				m.kept.remove(r, r)
			}
		}
	}
	return m, nil
}

// child returns the node that b leads to from the node at place at, whose offset
// is in its upper bits (see Darts-clone's DoubleArrayUnit).
func (m *characterMap) child(at uint32, b byte) (next uint32, ok bool) {
	unit := m.nodes[at]
	next = at ^ unit>>10<<(unit&(1<<9)>>6) ^ uint32(b)
	if int64(next) >= int64(len(m.nodes)) || m.nodes[next]&(1<<31|0xff) != uint32(b) {
		return 0, false
	}
	return next, true
}

// find returns what stands for the shortest mapped prefix of text.
func (m *characterMap) find(text []byte) (mapped []byte, ok bool) {
	at := uint32(0)
	for _, b := range text {
		if b == 0 {
			return nil, false
		}
		if at, ok = m.child(at, b); !ok {
			return nil, false
		}
		unit := m.nodes[at]
		if unit>>8&1 == 0 {
			continue
		}
		leaf := at ^ unit>>10<<(unit&(1<<9)>>6)
		if int64(leaf) >= int64(len(m.nodes)) {
			return nil, false
		}
		start := int64(m.nodes[leaf] & (1<<31 - 1))
		if start > int64(len(m.texts)) {
			return nil, false
		}
		mapped = m.texts[start:]
		for i, c := range mapped {
			if c == 0 {
				return mapped[:i], true
			}
		}
		return mapped, true
	}
	return nil, false
}

func (m *characterMap) normalize(buf *[]byte, text []byte) []byte {
	b := (*buf)[:0]
	for p := 0; p < len(text); {
		end, last := m.kept.span(text, p)
		if end < len(text) && !m.alone.begins(text, end) {
			end = last // the last one may be a cluster with what follows
		}
		if end > p {
			b = append(b, text[p:end]...)
			if p = end; p == len(text) {
				break
			}
		}
		end = m.endOfCluster(text, p)
		if end-p < 6 {
			if mapped, ok := m.find(text[p:end]); ok {
				b = append(b, mapped...)
				p = end
				continue
			}
		}
		for p < end {
			_, n := utf8.DecodeRune(text[p:])
			if mapped, ok := m.find(text[p : p+n]); ok {
				b = append(b, mapped...)
			} else {
				b = append(b, text[p:p+n]...)
			}
			p += n
		}
	}
	*buf = b
	return b
}

// endOfCluster is the function of that name, quick for the usual characters.
func (m *characterMap) endOfCluster(text []byte, p int) int {
	if m.alone.begins(text, p) {
		_, n := utf8.DecodeRune(text[p:])
		if p+n == len(text) || m.alone.begins(text, p+n) {
			return p + n
		}
	}
	return endOfCluster(text, p)
}

// endOfCluster returns the end of the grapheme cluster (Unicode Standard Annex
// 29) that begins at p. Conjuncts of Indic scripts (rule GB9c) are not joined:
// all their parts are of three bytes or more, so that they would be taken
// character by character anyway, unless a mark of two bytes follows.
func endOfCluster(text []byte, p int) int {
	r, n := utf8.DecodeRune(text[p:])
	end := p + n
	if r == '\r' && end < len(text) && text[end] == '\n' {
		return end + 1
	}
	if isClusterControl(r) {
		return end
	}
	pictograph, before := isPictograph(r), r
	for end < len(text) {
		next, n := utf8.DecodeRune(text[end:])
		switch {
		case isClusterControl(next):
			return end
		case isExtending(next):
			before = next
		case isPrepended(before), before == zeroWidthJoiner && pictograph && isPictograph(next), joinsByRule(before, next):
			if isIndicator(before) && isIndicator(next) {
				next = ' ' // a third one begins another flag
			}
			before, pictograph = next, isPictograph(next)
		default:
			return end
		}
		if next != zeroWidthJoiner && !isSpacelessExtend(next) && !isPictograph(next) {
			pictograph = false
		}
		end += n
	}
	return end
}

const zeroWidthJoiner = 0x200d

func isIndicator(r rune) bool { return r >= 0x1f1e6 && r <= 0x1f1ff }

// isSpacelessExtend reports whether r may stand between a pictograph and the
// joiner after it: Extend, but not SpacingMark.
func isSpacelessExtend(r rune) bool {
	return isExtending(r) && (!unicode.Is(unicode.Mc, r) || unicode.Is(unicode.Other_Grapheme_Extend, r)) && r != 0xe33 && r != 0xeb3
}

// joinsByRule reports whether two starting characters are one cluster: Hangul
// syllables, and a pair of regional indicators.
func joinsByRule(a, b rune) bool {
	leading := func(r rune) bool { return r >= 0x1100 && r <= 0x115f || r >= 0xa960 && r <= 0xa97c }
	vowel := func(r rune) bool { return r >= 0x1160 && r <= 0x11a7 || r >= 0xd7b0 && r <= 0xd7c6 }
	trailing := func(r rune) bool { return r >= 0x11a8 && r <= 0x11ff || r >= 0xd7cb && r <= 0xd7fb }
	syllable := func(r rune) bool { return r >= 0xac00 && r <= 0xd7a3 }
	open := func(r rune) bool { return syllable(r) && (r-0xac00)%28 == 0 }
	switch {
	case isIndicator(a) && isIndicator(b):
		return true
	case leading(a):
		return leading(b) || vowel(b) || syllable(b)
	case vowel(a), open(a):
		return vowel(b) || trailing(b)
	case trailing(a), syllable(a):
		return trailing(b)
	}
	return false
}

func isClusterControl(r rune) bool {
	if r < 0x300 {
		return r < ' ' || r >= 0x7f && r < 0xa0 || r == 0xad
	}
	if r == 0x200c || r == 0x200d || unicode.Is(unicode.Prepended_Concatenation_Mark, r) || r >= 0xe0020 && r <= 0xe007f {
		return false
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) && !isExtending(r) ||
		r >= 0xfff0 && r <= 0xfff8 || r >= 0xe0000 && r <= 0xe0fff && !unicode.Is(unicode.M, r)
}

// isExtending reports whether r never begins a cluster: Extend, ZWJ and
// SpacingMark.
func isExtending(r rune) bool {
	switch {
	case r < 0x300:
		return false
	case r == 0x200c || r == 0x200d || r >= 0x1f3fb && r <= 0x1f3ff || r >= 0xe0020 && r <= 0xe007f:
		return true
	case r == 0xe33 || r == 0xeb3:
		return true
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Other_Grapheme_Extend):
		return true
	}
	return unicode.Is(unicode.Mc, r) && !unicode.Is(notSpacing, r)
}

// notSpacing are the spacing marks that Annex 29 leaves out of SpacingMark.
var notSpacing = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x102b, 0x102c, 1}, {0x1038, 0x1038, 1}, {0x1062, 0x1064, 1}, {0x1067, 0x106d, 1}, {0x1083, 0x1083, 1},
		{0x1087, 0x108c, 1}, {0x108f, 0x108f, 1}, {0x109a, 0x109c, 1}, {0x1a61, 0x1a61, 1}, {0x1a63, 0x1a64, 1},
		{0xaa7b, 0xaa7b, 1}, {0xaa7d, 0xaa7d, 1},
	},
	R32: []unicode.Range32{{0x11720, 0x11721, 1}},
}

// isPrepended reports whether r is of the class Prepend.
func isPrepended(r rune) bool {
	switch {
	case r < 0x600:
		return false
	case unicode.Is(unicode.Prepended_Concatenation_Mark, r):
		return true
	}
	return r == 0xd4e || r >= 0x111c2 && r <= 0x111c3 || r == 0x1193f || r == 0x11941 || r == 0x11a3a ||
		r >= 0x11a84 && r <= 0x11a89 || r == 0x11d46 || r == 0x11f02
}

func isPictograph(r rune) bool { return r >= 0xa9 && unicode.Is(pictographs, r) }

// pictographs are Extended_Pictographic of Unicode's emoji-data.txt.
var pictographs = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0xa9, 0xae, 5}, {0x203c, 0x2049, 13}, {0x2122, 0x2139, 23}, {0x2194, 0x2199, 1}, {0x21a9, 0x21aa, 1}, {0x231a, 0x231b, 1},
		{0x2328, 0x2388, 96}, {0x23cf, 0x23cf, 1}, {0x23e9, 0x23f3, 1}, {0x23f8, 0x23fa, 1}, {0x24c2, 0x24c2, 1}, {0x25aa, 0x25ab, 1},
		{0x25b6, 0x25c0, 10}, {0x25fb, 0x25fe, 1}, {0x2600, 0x2605, 1}, {0x2607, 0x2612, 1}, {0x2614, 0x2685, 1}, {0x2690, 0x2705, 1},
		{0x2708, 0x2712, 1}, {0x2714, 0x2716, 2}, {0x271d, 0x2721, 4}, {0x2728, 0x2728, 1}, {0x2733, 0x2734, 1}, {0x2744, 0x2747, 3},
		{0x274c, 0x274e, 2}, {0x2753, 0x2755, 1}, {0x2757, 0x2757, 1}, {0x2763, 0x2767, 1}, {0x2795, 0x2797, 1}, {0x27a1, 0x27b0, 15},
		{0x27bf, 0x27bf, 1}, {0x2934, 0x2935, 1}, {0x2b05, 0x2b07, 1}, {0x2b1b, 0x2b1c, 1}, {0x2b50, 0x2b55, 5}, {0x3030, 0x303d, 13},
		{0x3297, 0x3299, 2},
	},
	R32: []unicode.Range32{
		{0x1f000, 0x1f0ff, 1}, {0x1f10d, 0x1f10f, 1}, {0x1f12f, 0x1f12f, 1}, {0x1f16c, 0x1f171, 1}, {0x1f17e, 0x1f17f, 1}, {0x1f18e, 0x1f18e, 1},
		{0x1f191, 0x1f19a, 1}, {0x1f1ad, 0x1f1e5, 1}, {0x1f201, 0x1f20f, 1}, {0x1f21a, 0x1f22f, 21}, {0x1f232, 0x1f23a, 1}, {0x1f23c, 0x1f23f, 1},
		{0x1f249, 0x1f3fa, 1}, {0x1f400, 0x1f53d, 1}, {0x1f546, 0x1f64f, 1}, {0x1f680, 0x1f6ff, 1}, {0x1f774, 0x1f77f, 1}, {0x1f7d5, 0x1f7ff, 1},
		{0x1f80c, 0x1f80f, 1}, {0x1f848, 0x1f84f, 1}, {0x1f85a, 0x1f85f, 1}, {0x1f888, 0x1f88f, 1}, {0x1f8ae, 0x1f8ff, 1}, {0x1f90c, 0x1f93a, 1},
		{0x1f93c, 0x1f945, 1}, {0x1f947, 0x1faff, 1}, {0x1fc00, 0x1fffd, 1},
	},
	LatinOffset: 1,
}
