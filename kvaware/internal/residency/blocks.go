// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	chunkBits = 10
	chunkSize = 1 << chunkBits

	// roomyAt is how many of a chunk's entries are free when it is worth filling
	// again: long enough runs for chains to lie in order.
	roomyAt = chunkSize / 8

	// keptChunks are kept without an entry, as there will be some again.
	keptChunks = 8
)

// chunk holds entries in order of insertion. An entry is a block that somebody has.
type chunk struct {
	hashes [chunkSize]atomic.Uint64
	sets   [chunkSize]atomic.Uint32 // 0: nobody has it, or the entry is free

	// Guarded by the table's mutex.
	parents [chunkSize]link
	taken   [chunkSize / 64]uint64
	free    int
	listed  bool // in roomy
}

// link is the block before, by its entry and, since that may be another's by now, by
// part of its hash. Entry 0 is none.
type link struct {
	entry, check uint32
}

// noParent is the link of a prompt's first block.
var noParent = link{0, 1}

// blocks is what is known of the blocks of one size, of all holders. Readers take no
// lock: what they read is atomic, and what moved while they looked is looked for again.
type blocks struct {
	size int // a block's length in tokens

	mu     sync.Mutex // of those who write
	chunks atomic.Pointer[[]atomic.Pointer[chunk]]
	places places
	sets   sets

	cursor uint32   // where entries are added next
	roomy  []uint32 // chunks to fill again
	unused []uint32 // chunk numbers without a chunk
	live   int      // entries
	held   int      // chunks
	empty  int      // of them, those without an entry; but never the first, where entry 0 is none
}

func newBlocks(size int) *blocks {
	b := &blocks{size: size}
	dir := make([]atomic.Pointer[chunk], 4)
	b.chunks.Store(&dir)
	b.places.init()
	b.sets.init()
	for i := len(dir) - 1; i >= 0; i-- {
		b.unused = append(b.unused, uint32(i))
	}
	return b
}

// chunk returns the chunk of an entry for a reader; nil if it is gone.
func (b *blocks) chunk(entry uint32) *chunk {
	dir := *b.chunks.Load()
	if int(entry>>chunkBits) >= len(dir) {
		return nil
	}
	return dir[entry>>chunkBits].Load()
}

// hash returns an entry's hash; 0 if it is gone.
func (b *blocks) hash(entry uint32) uint64 {
	c := b.chunk(entry)
	if c == nil {
		return 0
	}
	return c.hashes[entry%chunkSize].Load()
}

// set returns an entry's set; 0 if it is gone.
func (b *blocks) set(entry uint32) uint32 {
	c := b.chunk(entry)
	if c == nil {
		return 0
	}
	return c.sets[entry%chunkSize].Load()
}

// find returns the entry of a block, 0 if there is none.
func (b *blocks) find(hash uint64) uint32 {
	return b.places.find(hash, b)
}

// add makes an entry for a block, which has none. It must get a set before the mutex
// is released. It lies behind its parent's if that place is free. At is what
// places.place returned; parent is 0 for a prompt's first block.
func (b *blocks) add(hash uint64, parent uint32, at *atomic.Uint64) uint32 {
	id := b.place(parent)
	c := b.chunk(id)
	i := id % chunkSize
	c.taken[i/64] |= 1 << (i % 64)
	if c.free == chunkSize {
		b.empty--
	}
	c.free--
	c.hashes[i].Store(hash)
	c.parents[i] = noParent
	if parent != 0 {
		c.parents[i] = link{parent, uint32(b.hash(parent))}
	}
	b.live++
	b.places.insert(hash, id, at)
	return id
}

// place returns an entry's number that is free.
func (b *blocks) place(parent uint32) uint32 {
	if next := parent + 1; parent != 0 && next%chunkSize != 0 {
		if c := b.chunk(next); c != nil && c.taken[next%chunkSize/64]>>(next%64)&1 == 0 {
			return next
		}
	}
	c := b.chunk(b.cursor)
	for {
		if c != nil {
			if i, ok := c.nextFree(b.cursor % chunkSize); ok {
				b.cursor = b.cursor&^(chunkSize-1) | i
				return b.cursor
			}
		}
		c = b.nextChunk()
	}
}

// nextFree returns the first free place from i on.
func (c *chunk) nextFree(i uint32) (uint32, bool) {
	for word := i / 64; word < chunkSize/64; word++ {
		free := ^c.taken[word]
		if word == i/64 {
			free &= ^uint64(0) << (i % 64)
		}
		if free != 0 {
			return word*64 + uint32(bits.TrailingZeros64(free)), true
		}
	}
	return 0, false
}

// nextChunk sets the cursor to the beginning of a chunk with room.
func (b *blocks) nextChunk() *chunk {
	if full := b.chunk(b.cursor); full != nil && full.free >= roomyAt {
		b.list(b.cursor>>chunkBits, full) // room was made behind the cursor
	}
	for len(b.roomy) > 0 {
		n := b.roomy[len(b.roomy)-1]
		b.roomy = b.roomy[:len(b.roomy)-1]
		if c := b.chunk(n << chunkBits); c != nil && c.listed {
			c.listed = false
			b.cursor = n << chunkBits
			return c
		}
	}
	if len(b.unused) == 0 {
		b.widen()
	}
	n := b.unused[len(b.unused)-1]
	b.unused = b.unused[:len(b.unused)-1]
	c := &chunk{free: chunkSize}
	b.empty++
	if n == 0 {
		c.taken[0] = 1 // entry 0 is none
		c.free--
		b.empty--
	}
	(*b.chunks.Load())[n].Store(c)
	b.held++
	b.cursor = n << chunkBits
	return c
}

func (b *blocks) list(n uint32, c *chunk) {
	if !c.listed {
		c.listed = true
		b.roomy = append(b.roomy, n)
	}
}

// widen doubles the directory of chunks.
func (b *blocks) widen() {
	old := *b.chunks.Load()
	dir := make([]atomic.Pointer[chunk], 2*len(old))
	for i := range old {
		dir[i].Store(old[i].Load())
	}
	for i := len(dir) - 1; i >= len(old); i-- {
		b.unused = append(b.unused, uint32(i))
	}
	b.chunks.Store(&dir)
}

// remove frees an entry whose set is empty.
func (b *blocks) remove(id uint32) {
	c := b.chunk(id)
	i := id % chunkSize
	b.places.remove(c.hashes[i].Load(), id)
	c.taken[i/64] &^= 1 << (i % 64)
	c.free++
	b.live--
	n := id >> chunkBits
	if c.free == chunkSize {
		b.empty++
	}
	switch {
	case n == b.cursor>>chunkBits:
	case c.free == chunkSize && b.empty > keptChunks:
		(*b.chunks.Load())[n].Store(nil)
		b.unused = append(b.unused, n)
		b.held--
		b.empty--
	case c.free >= roomyAt:
		b.list(n, c)
	}
}

// before returns the block before an entry's, 0 if there is none or it is gone. What
// is gone is never found again, so that who goes this way twice goes as far.
func (b *blocks) before(id uint32) uint32 {
	c := b.chunk(id)
	if c == nil {
		return 0
	}
	l := &c.parents[id%chunkSize]
	if l.entry == 0 {
		return 0
	}
	if b.set(l.entry) == 0 || uint32(b.hash(l.entry)) != l.check {
		*l = link{}
	}
	return l.entry
}
