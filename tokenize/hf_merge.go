// SPDX-License-Identifier: Apache-2.0

package tokenize

import "unicode/utf8"

// merger is byte-pair encoding for any list of merges: it merges the adjacent
// pair whose merge comes first in the list, the leftmost of several, until none
// is left. A vocabulary of ordered ranks has a faster way (see vocab).
//
// A text is encoded in pieces between characters that stand side by side in no
// token that a merge makes, for no merge can join what is on the two sides. A
// piece of n characters takes n log n; one longer than maxMergePiece bytes is
// cut there, between two units.
type merger struct {
	pairs      pairTable
	neighbours pairFilter

	byByte   *[256]uint32 // ids of bytes; nil: the units are characters
	byRune   runeTable    // ids of characters
	fallback *[256]uint32 // ids of <0x00> to <0xFF> for other characters, or nil
	unknown  uint32       // id for other characters if there is no fallback
	fuse     bool         // one unknown for a run of them

	late *lateTokens // a faster way for most texts, or nil

	// With ignore_merges, a piece that is a token is that token: those of up to
	// wholeMax bytes by their place in places, longer ones by their bytes.
	whole  *wholeTable
	places []uint32
	longer map[string]uint32
}

const (
	noUnit = ^uint32(0)

	// maxMergePiece is the longest piece, in bytes, whose ids are exact.
	maxMergePiece = 64 << 10
)

// pairTable finds what two adjacent tokens merge into. It is open-addressing.
type pairTable struct {
	entries []pairMerge
	shift   uint8
}

type pairMerge struct {
	key      uint64 // left<<32 | right, plus 1; 0: the entry is free
	rank, id uint32
}

func newPairTable(n int) pairTable {
	t := pairTable{shift: tableShift(n)}
	t.entries = make([]pairMerge, 1<<(64-t.shift))
	return t
}

// add reports whether the pair was new.
func (t *pairTable) add(left, right, rank, id uint32) bool {
	e := t.find(left, right)
	if e.key != 0 {
		return false
	}
	*e = pairMerge{uint64(left)<<32 | uint64(right) + 1, rank, id}
	return true
}

// find returns the pair's entry, or a free one.
func (t *pairTable) find(left, right uint32) *pairMerge {
	key := uint64(left)<<32 | uint64(right) + 1
	for i := key * oddA >> t.shift; ; i = (i + 1) & uint64(len(t.entries)-1) {
		if e := &t.entries[i]; e.key == key || e.key == 0 {
			return e
		}
	}
}

// pairFilter tells of two units whether they may stand side by side in a token
// that a merge makes. It is a Bloom filter of one hash: it may say yes of others.
type pairFilter []uint64

const pairFilterBits = 21

func newPairFilter() pairFilter { return make(pairFilter, 1<<(pairFilterBits-6)) }

func pairBit(x, y uint32) uint64 { return (uint64(x)<<21 ^ uint64(y)) * oddA >> (64 - pairFilterBits) }

func (f pairFilter) add(x, y uint32) {
	bit := pairBit(x, y)
	f[bit>>6] |= 1 << (bit & 63)
}

func (f pairFilter) has(x, y uint32) bool {
	bit := pairBit(x, y)
	return f[bit>>6]>>(bit&63)&1 != 0
}

// mergeScratch is what one call works with.
type mergeScratch struct {
	units  []mergeUnit
	heap   []uint64 // rank<<32 | place of the left unit
	pieces []knownPiece
	owner  *merger // whose the pieces are
}

// mergeUnit is a token of the piece in the making, linked to its neighbours.
type mergeUnit struct {
	id         uint32
	prev, next int32 // -1 at the ends; prev is -2 for a unit that was merged away
}

// unitAt returns the unit at text[p] as a number and its length in bytes.
func (m *merger) unitAt(text []byte, p int) (unit uint32, n int) {
	if b := text[p]; b < utf8.RuneSelf || m.byByte != nil {
		return uint32(b), 1
	}
	r, n := utf8.DecodeRune(text[p:])
	return uint32(r), n
}

// appendPiece appends the ids of text[p:end], which pre-tokenization left together.
func (m *merger) appendPiece(s *hfScratch, dst []uint32, text []byte, p, end int) []uint32 {
	if p == end {
		return dst
	}
	return m.appendPieceOf(&s.merge, dst, text, p, end)
}

// appendPieceOf appends the ids of the piece text[p:end], which is not empty.
func (m *merger) appendPieceOf(k *mergeScratch, dst []uint32, text []byte, p, end int) []uint32 {
	if k.owner != m {
		k.owner, k.pieces = m, make([]knownPiece, 1<<pieceBits)
	}
	n := end - p
	if n > wholeMax {
		if id, ok := m.longer[string(text[p:end])]; ok {
			return append(dst, id)
		}
		return m.encode(k, dst, text[p:end])
	}
	lo, hi := keyAt(text, p, end)
	known := &k.pieces[hashPair(lo, hi, n)>>(64-pieceBits)]
	if known.lo == lo && known.hi == hi && int(known.length) == n {
		if known.count == 1 {
			return append(dst, known.ids[0])
		}
		return append(dst, known.ids[:known.count]...)
	}
	from := len(dst)
	if place := m.findWhole(lo, hi, n); place != noToken {
		dst = append(dst, m.places[place])
	} else {
		dst = m.encode(k, dst, text[p:end])
	}
	known.remember(lo, hi, n, dst[from:])
	return dst
}

func (m *merger) findWhole(lo, hi uint64, n int) uint32 {
	if m.whole == nil {
		return noToken
	}
	return m.whole.find(lo, hi, n)
}

// setWhole makes whole pieces that are tokens known; texts has their bytes by
// their places in the list, and none for tokens that no text can be.
func (m *merger) setWhole(tokens *hfTokens, texts *tokenTexts) {
	whole := newWholeTable(texts)
	m.whole = &whole
	m.places = make([]uint32, len(tokens.list))
	m.longer = make(map[string]uint32)
	for i := range tokens.list {
		m.places[i] = tokens.list[i].id
		if text := texts.of(uint32(i)); len(text) > wholeMax {
			m.longer[string(text)] = tokens.list[i].id
		}
	}
}

// remember makes the entry that of a piece, if its ids fit in.
func (known *knownPiece) remember(lo, hi uint64, n int, ids []uint32) {
	if len(ids) <= len(known.ids) {
		*known = knownPiece{lo: lo, hi: hi, length: uint16(n), count: uint16(len(ids))}
		copy(known.ids[:], ids)
	}
}

// encode appends the ids of a piece that is not remembered.
func (m *merger) encode(k *mergeScratch, dst []uint32, text []byte) []uint32 {
	if m.late != nil {
		var whole bool
		if dst, whole = m.late.append(dst, text); whole {
			return dst
		}
	}
	return m.appendParts(k, dst, text)
}

// appendParts appends the ids of a text that is cut where no merge can join it.
func (m *merger) appendParts(k *mergeScratch, dst []uint32, text []byte) []uint32 {
	x, n := m.unitAt(text, 0)
	start := 0
	for p := n; p < len(text); p += n {
		var y uint32
		y, n = m.unitAt(text, p)
		if p+n-start > maxMergePiece || !m.neighbours.has(x, y) && !m.fuses(x, y) {
			dst = m.appendPart(k, dst, text, start, p)
			start = p
		}
		x = y
	}
	return m.appendPart(k, dst, text, start, len(text))
}

// fuses reports whether the two units are both unknown and become one token.
func (m *merger) fuses(x, y uint32) bool {
	return m.fuse && m.byRune.find(x) == noUnit && m.byRune.find(y) == noUnit
}

// runeTable holds the ids of characters, in pages of those that share all but
// their last eight bits.
type runeTable []*[256]uint32

func (t *runeTable) add(r rune, id uint32) {
	if *t == nil {
		*t = make(runeTable, (utf8.MaxRune+1)>>8)
	}
	page := &(*t)[r>>8]
	if *page == nil {
		*page = new([256]uint32)
		for i := range *page {
			(*page)[i] = noUnit
		}
	}
	(*page)[r&0xff] = id
}

// find returns the id of a character, or noUnit.
func (t runeTable) find(r uint32) uint32 {
	if page := t[r>>8]; page != nil {
		return page[r&0xff]
	}
	return noUnit
}

// appendPart appends the ids of text[p:end].
func (m *merger) appendPart(k *mergeScratch, dst []uint32, text []byte, p, end int) []uint32 {
	n := end - p
	if n > wholeMax || m.whole != nil { // what is remembered is of whole pieces
		return m.merge(k, dst, text[p:end])
	}
	lo, hi := keyAt(text, p, end)
	known := &k.pieces[hashPair(lo, hi, n)>>(64-pieceBits)]
	if known.lo == lo && known.hi == hi && int(known.length) == n {
		return append(dst, known.ids[:known.count]...)
	}
	from := len(dst)
	dst = m.merge(k, dst, text[p:end])
	known.remember(lo, hi, n, dst[from:])
	return dst
}

// unitsOf lays out the piece's units.
func (m *merger) unitsOf(k *mergeScratch, piece []byte) {
	k.units = k.units[:0]
	unknown := false
	for p := 0; p < len(piece); {
		unit, n := m.unitAt(piece, p)
		if m.byByte != nil {
			k.add(m.byByte[unit])
		} else if id := m.byRune.find(unit); id != noUnit {
			k.add(id)
			unknown = false
		} else if m.fallback != nil {
			for _, b := range piece[p : p+n] {
				k.add(m.fallback[b])
			}
		} else {
			if !unknown || !m.fuse {
				k.add(m.unknown)
			}
			unknown = true
		}
		p += n
	}
	k.units[len(k.units)-1].next = -1
}

func (k *mergeScratch) add(id uint32) {
	n := int32(len(k.units))
	k.units = append(k.units, mergeUnit{id, n - 1, n + 1})
}

// merge appends the ids of a piece.
func (m *merger) merge(k *mergeScratch, dst []uint32, piece []byte) []uint32 {
	m.unitsOf(k, piece)
	u := k.units
	k.heap = k.heap[:0]
	for i := 1; i < len(u); i++ {
		if e := m.pairs.find(u[i-1].id, u[i].id); e.key != 0 {
			k.heap = append(k.heap, uint64(e.rank)<<32|uint64(i-1))
		}
	}
	for i := len(k.heap)/2 - 1; i >= 0; i-- {
		k.siftDown(i)
	}
	for len(k.heap) > 0 {
		top := k.heap[0]
		last := len(k.heap) - 1
		k.heap[0] = k.heap[last]
		k.heap = k.heap[:last]
		k.siftDown(0)
		left := int32(uint32(top))
		right := u[left].next
		if u[left].prev == -2 || right < 0 {
			continue
		}
		e := m.pairs.find(u[left].id, u[right].id)
		if e.key == 0 || e.rank != uint32(top>>32) {
			continue // a neighbour has changed since
		}
		u[left].id = e.id
		after := u[right].next
		u[left].next = after
		u[right].prev = -2
		if after >= 0 {
			u[after].prev = left
			if e := m.pairs.find(u[left].id, u[after].id); e.key != 0 {
				k.push(uint64(e.rank)<<32 | uint64(left))
			}
		}
		if before := u[left].prev; before >= 0 {
			if e := m.pairs.find(u[before].id, u[left].id); e.key != 0 {
				k.push(uint64(e.rank)<<32 | uint64(before))
			}
		}
	}
	for i := int32(0); i >= 0; i = u[i].next {
		dst = append(dst, u[i].id)
	}
	return dst
}

func (k *mergeScratch) push(x uint64) {
	h := append(k.heap, x)
	i := len(h) - 1
	for i > 0 && h[(i-1)/2] > x {
		h[i] = h[(i-1)/2]
		i = (i - 1) / 2
	}
	h[i] = x
	k.heap = h
}

func (k *mergeScratch) siftDown(i int) {
	h := k.heap
	if i >= len(h) {
		return
	}
	x := h[i]
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if h[child] >= x {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = x
}
