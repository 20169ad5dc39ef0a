// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"math/bits"
	"sync"
	"unsafe"
)

// stripe is one lock's share of a cache. Entries are added to the young
// generation; when that is full it becomes the old one, whose entries are
// dropped, those excepted that were asked for in the meantime and so moved to
// the young one. Memory goes round between the two.
type stripe struct {
	mu         sync.Mutex // guards the rest; held for one entry's copy or a few
	young, old generation
	promoted   int // entries of the old generation that the young one has too
	hits       uint64
	misses     uint64
	evicted    uint64

	_ [8]byte // keeps the locks of two stripes out of one cache line
}

// generation is a log of entries and an index over it.
//
// An entry is in words: both halves of its key, a head, the hashes of its blocks
// and its ids, two to a word. A slot of the index is the upper half of the key's
// second half, which also says where it belongs, and the entry's place plus one;
// 0 is free. Nothing in it is a pointer, which spares the garbage collector.
type generation struct {
	pages   [][]uint64
	page    int // the page being filled
	filled  int // words of it
	slots   []uint64
	entries int
}

// generationLayout is what all generations of a cache have in common.
type generationLayout struct {
	maxBytes int64
	pageBits uint8 // words in a page, as a power of two
}

const (
	entryHead  = 3 // words before an entry's hashes
	countBits  = 21
	countMask  = 1<<countBits - 1
	leastSlots = 16

	mostPageBits = 13                // 64 KiB
	mostWords    = 1 << mostPageBits // more than an entry can have
)

func newGenerationLayout(maxBytes int64) generationLayout {
	l := generationLayout{maxBytes: maxBytes, pageBits: mostPageBits}
	for l.pageBits > 4 && 8<<l.pageBits > maxBytes/4 {
		l.pageBits--
	}
	return l
}

func (l *generationLayout) bytes(g *generation) int64 {
	return int64(len(g.pages))*8<<l.pageBits + int64(len(g.slots))*8
}

// take looks a segment up. If it is known, its blocks are appended to blocks,
// its ids to ids, which is emptied first if there are blocks.
func (c *Cache) take(k cacheKey, blocks []uint64, ids []uint32) (_ []uint64, _ []uint32, tokens int, ok bool) {
	s := &c.stripes[k.lo>>c.shift]
	s.mu.Lock()
	defer s.mu.Unlock()
	entry, young := s.young.find(&c.layout, k), true
	if entry == nil {
		if entry, young = s.old.find(&c.layout, k), false; entry == nil {
			s.misses++
			return blocks, ids, 0, false
		}
	}
	s.hits++
	head := entry[2]
	tokens = int(head >> (2 * countBits))
	hashes, tail := int(head>>countBits&countMask), int(head&countMask)
	if hashes > 0 {
		blocks = append(blocks, entry[entryHead:entryHead+hashes]...)
		ids = ids[:0]
	}
	if tail > 0 {
		ids = append(ids, idsIn(entry[entryHead+hashes:], tail)...)
	}
	if !young {
		s.promoted++
		// From the copy, as making room may overwrite the entry itself.
		s.add(&c.layout, k, tokens, blocks[len(blocks)-hashes:], ids[len(ids)-tail:])
	}
	return blocks, ids, tokens, true
}

// idsIn views the first n ids in words.
func idsIn(words []uint64, n int) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(words))), n) //nolint:gosec // n ids lie in words
}

// put remembers a segment.
func (c *Cache) put(k cacheKey, tokens int, blocks []uint64, ids []uint32) {
	size := entryHead + len(blocks) + (len(ids)+1)/2
	if size > 1<<c.layout.pageBits || tokens > countMask {
		return
	}
	s := &c.stripes[k.lo>>c.shift]
	s.mu.Lock()
	defer s.mu.Unlock()
	// Another request may have been faster.
	if s.young.find(&c.layout, k) == nil && s.old.find(&c.layout, k) == nil {
		s.add(&c.layout, k, tokens, blocks, ids)
	}
}

// add adds an entry that is not in the young generation.
func (s *stripe) add(l *generationLayout, k cacheKey, tokens int, blocks []uint64, ids []uint32) {
	size := entryHead + len(blocks) + (len(ids)+1)/2
	entry := s.young.reserve(l, k, size)
	if entry == nil {
		s.evicted += uint64(s.old.entries - s.promoted)
		s.promoted = 0
		s.young, s.old = s.old, s.young
		s.young.clear()
		if entry = s.young.reserve(l, k, size); entry == nil {
			return // no room even in an empty one
		}
	}
	entry[0], entry[1] = k.lo, k.hi
	entry[2] = uint64(tokens)<<(2*countBits) | uint64(len(blocks))<<countBits | uint64(len(ids))
	copy(entry[entryHead:], blocks)
	copy(idsIn(entry[entryHead+len(blocks):], len(ids)), ids)
}

func (s *stripe) addTo(sum *CacheStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum.Hits += s.hits
	sum.Misses += s.misses
	sum.Evicted += s.evicted
	sum.Entries += s.young.entries + s.old.entries - s.promoted
	for _, g := range [...]*generation{&s.young, &s.old} {
		for _, page := range g.pages {
			sum.Bytes += int64(len(page)) * 8
		}
		sum.Bytes += int64(len(g.slots)) * 8
	}
}

// find returns an entry and what follows it in its page, or nil.
func (g *generation) find(l *generationLayout, k cacheKey) []uint64 {
	if g.entries == 0 {
		return nil
	}
	tag := k.hi >> 32
	for i := g.home(tag); ; i = (i + 1) & (len(g.slots) - 1) {
		slot := g.slots[i]
		if slot == 0 {
			return nil
		}
		if slot>>32 == tag {
			place := uint64(uint32(slot)) - 1
			entry := g.pages[place>>l.pageBits][place&(1<<l.pageBits-1):]
			if entry[0] == k.lo && entry[1] == k.hi {
				return entry
			}
		}
	}
}

// home is where the slot of a tag belongs.
func (g *generation) home(tag uint64) int {
	return int(tag >> (33 - uint(bits.Len(uint(len(g.slots))))))
}

// reserve returns the words for an entry, or nil if the generation is full. Size
// is at most a page.
func (g *generation) reserve(l *generationLayout, k cacheKey, size int) []uint64 {
	if g.entries >= len(g.slots)/4*3 && !g.growIndex(l) {
		return nil
	}
	if len(g.pages) == 0 || g.filled+size > 1<<l.pageBits {
		next := g.page + 1
		if len(g.pages) == 0 {
			next = 0
		}
		if next == len(g.pages) {
			if l.bytes(g)+8<<l.pageBits > l.maxBytes {
				return nil
			}
			g.pages = append(g.pages, make([]uint64, 1<<l.pageBits))
		}
		g.page, g.filled = next, 0
	}
	place := uint64(g.page)<<l.pageBits + uint64(g.filled)
	entry := g.pages[g.page][g.filled : g.filled+size]
	g.filled += size
	g.entries++
	g.index(k.hi>>32<<32 | (place + 1))
	return entry
}

// index adds a slot to the index, which has room.
func (g *generation) index(slot uint64) {
	i := g.home(slot >> 32)
	for g.slots[i] != 0 {
		i = (i + 1) & (len(g.slots) - 1)
	}
	g.slots[i] = slot
}

// growIndex doubles the index, if there are bytes for it.
func (g *generation) growIndex(l *generationLayout) bool {
	n := max(leastSlots, 2*len(g.slots))
	if l.bytes(g)+int64(n-len(g.slots))*8 > l.maxBytes {
		return false
	}
	slots := g.slots
	g.slots = make([]uint64, n)
	for _, slot := range slots {
		if slot != 0 {
			g.index(slot)
		}
	}
	return true
}

// clear drops all entries and keeps the memory.
func (g *generation) clear() {
	g.page, g.filled, g.entries = 0, 0, 0
	clear(g.slots)
}
