// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/binary"
	"math/bits"
)

// wholeMax is the longest token, in bytes, that wholeTable holds.
const wholeMax = 16

// wholeTable finds tokens of up to wholeMax bytes by their bytes. The entries
// hold the bytes themselves as one or two little-endian words, so that a look-up
// touches one place in memory. Both tables are open-addressing.
type wholeTable struct {
	words      []wordToken // tokens of 1 to 8 bytes
	pairs      []pairToken // tokens of 9 to 16 bytes
	wordsShift uint8
	pairsShift uint8
}

type wordToken struct {
	key   uint64
	token uint32 // id<<8 | length; 0: the entry is free
}

type pairToken struct {
	lo, hi uint64
	token  uint32 // as above
}

const (
	oddA = 0x9e3779b97f4a7c15
	oddB = 0xd6e8feb86659fd93
)

func hashWord(key uint64, n int) uint64 {
	return (key ^ uint64(n)*oddB) * oddA
}

func hashPair(lo, hi uint64, n int) uint64 {
	return ((lo^uint64(n)*oddB)*oddA ^ bits.RotateLeft64(hi, 23)) * oddA
}

// tableShift returns the shift that leaves, of a 64-bit hash, the index into a
// table of n entries that is at most two thirds full.
func tableShift(n int) uint8 {
	return uint8(64 - bits.Len(uint(n+n/2+1)))
}

func newWholeTable(texts *tokenTexts) wholeTable {
	words, pairs := 0, 0
	for id := range uint32(texts.ids()) {
		switch n := len(texts.of(id)); {
		case n > wholeMax:
		case n > 8:
			pairs++
		default:
			words++
		}
	}
	w := wholeTable{wordsShift: tableShift(words), pairsShift: tableShift(pairs)}
	w.words = make([]wordToken, 1<<(64-w.wordsShift))
	w.pairs = make([]pairToken, 1<<(64-w.pairsShift))
	for id := range uint32(texts.ids()) {
		text := texts.of(id)
		n := len(text)
		if n == 0 || n > wholeMax {
			continue
		}
		lo, hi := wholeKey(text)
		token := id<<8 | uint32(n)
		if n <= 8 {
			i := hashWord(lo, n) >> w.wordsShift
			for w.words[i].token != 0 {
				i = (i + 1) & uint64(len(w.words)-1)
			}
			w.words[i] = wordToken{lo, token}
			continue
		}
		i := hashPair(lo, hi, n) >> w.pairsShift
		for w.pairs[i].token != 0 {
			i = (i + 1) & uint64(len(w.pairs)-1)
		}
		w.pairs[i] = pairToken{lo, hi, token}
	}
	return w
}

// wholeKey returns the words of a text of 1 to wholeMax bytes, padded with zeros.
func wholeKey(text []byte) (lo, hi uint64) {
	var b [wholeMax]byte
	copy(b[:], text)
	return binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:])
}

// keyAt is wholeKey(text[p:end]). Where the text goes on behind the piece, it
// reads over its end and masks, which is faster than a copy of odd length.
func keyAt(text []byte, p, end int) (lo, hi uint64) {
	n := end - p
	if p+wholeMax > len(text) {
		return wholeKey(text[p:end])
	}
	b := text[p : p+wholeMax]
	lo = binary.LittleEndian.Uint64(b)
	if n <= 8 {
		return lo & (^uint64(0) >> (64 - 8*uint(n))), 0
	}
	return lo, binary.LittleEndian.Uint64(b[8:]) & (^uint64(0) >> (128 - 8*uint(n)))
}

// find returns the token of n bytes with that key, or noToken; n is at most wholeMax.
func (w *wholeTable) find(lo, hi uint64, n int) uint32 {
	if n <= 8 {
		for i := hashWord(lo, n) >> w.wordsShift; ; i = (i + 1) & uint64(len(w.words)-1) {
			e := &w.words[i]
			if e.key == lo && int(e.token&0xff) == n {
				return e.token >> 8
			}
			if e.token == 0 {
				return noToken
			}
		}
	}
	for i := hashPair(lo, hi, n) >> w.pairsShift; ; i = (i + 1) & uint64(len(w.pairs)-1) {
		e := &w.pairs[i]
		if e.lo == lo && e.hi == hi && int(e.token&0xff) == n {
			return e.token >> 8
		}
		if e.token == 0 {
			return noToken
		}
	}
}
