// SPDX-License-Identifier: Apache-2.0

package residency

import "github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"

// An offloaded block of vLLM's may be several of the GPU's, under the key of the last:
// it covers those before as well. Its store may tell its size. If not, it is found from
// where such blocks end: the depths of all are multiples of it.

// maxCover bounds how much work an offloaded block may make.
const maxCover = 64

// learnCover takes note of how many blocks an offloaded one covers, at the tier's first
// store. Afterwards stores and removals are taken alike.
func (h *Holder) learnCover(e *kvevents.Event) {
	le := &h.learnt
	if e.Tier == kvevents.GPU || le.page == 0 {
		return
	}
	le.offloads = true
	if le.cover[e.Tier] != 0 {
		return
	}
	cover := 1 // each block is named
	switch {
	case len(e.Tokens) > 0:
	case e.BlockSize > 0 && e.BlockSize%le.page == 0:
		cover = e.BlockSize / le.page
	default:
		le.depths[e.Tier].open = true
	}
	if le.page < leastBlock {
		cover, le.depths[e.Tier].open = 1, false
	}
	le.cover[e.Tier] = min(cover, maxCover)
}

// coverOf is how many blocks before it a block of a tier covers.
func (h *Holder) coverOf(t kvevents.Tier) int { return max(0, h.learnt.cover[t]-1) }

// depths is where the blocks of an offloading tier end that does not tell their size.
type depths struct {
	open   bool // the size is not found yet
	gcd    int  // of the depths seen, in blocks
	seen   int
	sample [8]uint64 // mixed keys of the last batch
	n      int
}

const (
	// enoughDepths is how many depths must be multiples of a size above 1. A prompt's
	// blocks are offloaded from the first on, so others show soon.
	enoughDepths = 16
	maxDepth     = 1024
)

// note remembers a key until its depth can be looked at.
func (d *depths) note(key uint64) {
	if d.open && d.n < len(d.sample) {
		d.sample[d.n] = key
		d.n++
	}
}

// findCovers looks at the depths of the last batch's offloaded blocks. It comes after
// a flush.
func (h *Holder) findCovers() {
	for t := range kvevents.Tier(kvevents.Tiers) {
		d := &h.learnt.depths[t]
		if !d.open || d.n == 0 {
			continue
		}
		b := h.life.blocks
		b.mu.Lock()
		for _, key := range d.sample[:d.n] {
			slot := h.life.keys.find(key)
			if slot == nil {
				continue
			}
			if depth := b.depth(slot.ref.number()); depth > 0 {
				d.gcd = gcd(d.gcd, depth)
				d.seen++
			}
		}
		b.mu.Unlock()
		d.n = 0
		switch {
		case d.gcd == 1:
			d.open = false
		case d.seen >= enoughDepths:
			d.open = false
			h.recover(t, min(d.gcd, maxCover))
		}
	}
}

// recover has a tier's blocks cover so many from now on, those that are there too.
func (h *Holder) recover(t kvevents.Tier, cover int) {
	h.learnt.cover[t] = cover
	h.life.keys.each(func(slot *keySlot) {
		if slot.state.count(t) > 0 {
			h.flushIfFull()
			h.change(slot.ref, planeOf(t), 0, cover-1)
			h.change(slot.ref, 0, planeOf(t), 0)
		}
	})
	h.flush()
}

// depth returns how many blocks a prefix has, 0 if that is not known or above maxDepth.
func (b *blocks) depth(id uint32) (n int) {
	for n = 1; n <= maxDepth; n++ {
		c := b.chunk(id)
		if c == nil {
			return 0
		}
		if c.parents[id%chunkSize] == noParent {
			return n
		}
		if id = b.before(id); id == 0 {
			return 0
		}
	}
	return 0
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
