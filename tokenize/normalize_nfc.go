// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"encoding/binary"
	"slices"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// nfc is Unicode's normalization form C as the tokenizers library has it. It
// differs from that of golang.org/x/text in two ways: it knows the characters of
// Unicode 9 only (see laterForNFC), and it breaks up no long runs of marks.
type nfc struct{}

func (nfc) normalize(buf *[]byte, text []byte) []byte {
	inert := runesInert()
	for p := 0; ; {
		end, from := inert.span(text, max(p, endOfASCII(text, p)-1))
		if end == len(text) {
			return text
		}
		// Another character, with those of its kind around and an inert one before.
		for p = end; p < len(text) && !inert.begins(text, p); {
			_, n := utf8.DecodeRune(text[p:])
			p += n
		}
		if part := text[from:p]; hasLaterForNFC(part) || !norm.NFC.IsNormal(part) {
			*buf = appendNFC(append((*buf)[:0], text[:from]...), text[from:])
			return *buf
		}
	}
}

// endOfASCII returns the end of the run of ASCII characters, all of which are
// inert, that begins at p.
func endOfASCII(text []byte, p int) int {
	for p+8 <= len(text) && binary.LittleEndian.Uint64(text[p:])&byteTops == 0 {
		p += 8
	}
	for p < len(text) && text[p] < utf8.RuneSelf {
		p++
	}
	return p
}

// appendNFC appends the normal form of text. Later characters take no part in
// it: what is between them is normalized by itself.
func appendNFC(dst, text []byte) []byte {
	start := 0
	for p := 0; p < len(text); {
		if text[p] < utf8.RuneSelf {
			p++
			continue
		}
		r, n := utf8.DecodeRune(text[p:])
		if isLaterForNFC(r) {
			dst = appendNFCBetween(dst, text[start:p])
			dst = append(dst, text[p:p+n]...)
			start = p + n
		}
		p += n
	}
	return appendNFCBetween(dst, text[start:])
}

// graphemeJoiner is what x/text puts into runs of more than 30 marks.
var graphemeJoiner = []byte("\u034f")

func appendNFCBetween(dst, text []byte) []byte {
	from := len(dst)
	dst = norm.NFC.Append(dst, text...)
	if bytes.Count(dst[from:], graphemeJoiner) == bytes.Count(text, graphemeJoiner) {
		return dst
	}
	return appendComposed(dst[:from], decomposed(text))
}

// markedRune is a character with its canonical combining class.
type markedRune struct {
	r     rune
	class uint8
}

// decomposed returns the characters of text in canonical order.
func decomposed(text []byte) []markedRune {
	var runes []markedRune
	start := 0 // of the marks that are to be ordered
	order := func() {
		slices.SortStableFunc(runes[start:], func(a, b markedRune) int { return int(a.class) - int(b.class) })
	}
	add := func(r rune) {
		var b [utf8.UTFMax]byte
		class := norm.NFD.Properties(utf8.AppendRune(b[:0], r)).CCC()
		if class == 0 {
			order()
			start = len(runes) + 1
		}
		runes = append(runes, markedRune{r, class})
	}
	for p := 0; p < len(text); {
		properties := norm.NFD.Properties(text[p:])
		n := max(properties.Size(), 1)
		if d := properties.Decomposition(); d != nil {
			for _, r := range string(d) {
				add(r)
			}
		} else {
			r, _ := utf8.DecodeRune(text[p:])
			add(r)
		}
		p += n
	}
	order()
	return runes
}

// appendComposed composes characters in canonical order after Unicode Standard
// Annex 15 and appends them.
func appendComposed(dst []byte, runes []markedRune) []byte {
	starter := -1
	kept := runes[:0]
	for _, m := range runes {
		if starter >= 0 {
			last := kept[len(kept)-1].class
			if blocked := starter < len(kept)-1 && (last == 0 || last >= m.class); !blocked {
				if c, ok := composed(kept[starter].r, m.r); ok {
					kept[starter].r = c
					continue
				}
			}
		}
		if m.class == 0 {
			starter = len(kept)
		}
		kept = append(kept, m)
	}
	for _, m := range kept {
		dst = utf8.AppendRune(dst, m.r)
	}
	return dst
}

// composed returns the character that the two make.
func composed(a, b rune) (rune, bool) {
	var pair, out [4 * utf8.UTFMax]byte
	text := utf8.AppendRune(utf8.AppendRune(pair[:0], a), b)
	made := norm.NFC.Append(out[:0], text...)
	r, n := utf8.DecodeRune(made)
	return r, n == len(made)
}

// hasLaterForNFC looks at the first two bytes of most characters only: they tell
// the block of 256 to which the character belongs.
func hasLaterForNFC(text []byte) bool {
	blocks := laterBlocks()
	for p := 0; p < len(text); {
		b := text[p]
		if b < 0xdf { // the first of them is U+07FD
			p++
			continue
		}
		if b >= 0xe0 && b < 0xf0 && p+3 <= len(text) {
			block := uint(b&15)<<4 | uint(text[p+1]&63)>>2
			if blocks[block>>6]>>(block&63)&1 == 0 {
				p += 3
				continue
			}
		}
		r, n := utf8.DecodeRune(text[p:])
		if isLaterForNFC(r) {
			return true
		}
		p += n
	}
	return false
}
