// SPDX-License-Identifier: Apache-2.0

package peers

import "math/bits"

// index tells which replicas hold which blocks, as engines report it; so the
// engines' capacities bound it.
type index struct {
	slots  map[uint64]int32 // by block
	blocks []uint64         // by slot
	sets   []uint64         // of replicas, words for each slot; empty if it is free
	words  int
	free   []int32

	depth []int    // by replica
	kept  []uint64 // set of replicas
}

func newIndex() *index {
	return &index{slots: make(map[uint64]int32), words: 1, kept: make([]uint64, 1)}
}

// fleet makes room for replicas up to last.
func (x *index) fleet(last int) {
	x.depth = grown(x.depth, last)
	words := last>>6 + 1
	if words <= x.words {
		return
	}
	sets := make([]uint64, len(x.blocks)*words)
	for slot := range x.blocks {
		copy(sets[slot*words:], x.sets[slot*x.words:(slot+1)*x.words])
	}
	x.sets, x.words, x.kept = sets, words, make([]uint64, words)
}

func (x *index) store(replica int, block uint64) {
	slot, ok := x.slots[block]
	if !ok {
		if n := len(x.free); n > 0 {
			slot, x.free = x.free[n-1], x.free[:n-1]
		} else {
			slot = int32(len(x.blocks))
			x.blocks = append(x.blocks, 0)
			for range x.words {
				x.sets = append(x.sets, 0)
			}
		}
		x.slots[block], x.blocks[slot] = slot, block
	}
	x.set(slot)[replica>>6] |= 1 << (replica & 63)
}

func (x *index) remove(replica int, block uint64) {
	if slot, ok := x.slots[block]; ok {
		x.take(replica, slot)
	}
}

// take makes the replica no longer hold the block at slot, which another does.
func (x *index) take(replica int, slot int32) {
	set := x.set(slot)
	if set[replica>>6] &^= 1 << (replica & 63); empty(set) {
		delete(x.slots, x.blocks[slot])
		x.free = append(x.free, slot)
	}
}

// clear forgets what the replica holds.
func (x *index) clear(replica int) {
	if replica>>6 >= x.words {
		return
	}
	for slot := range x.blocks {
		if x.sets[slot*x.words+replica>>6]>>(replica&63)&1 != 0 {
			x.take(replica, int32(slot))
		}
	}
}

func (x *index) set(slot int32) []uint64 {
	return x.sets[int(slot)*x.words : (int(slot)+1)*x.words]
}

// holders returns the replicas that hold the block, nil if there are none.
func (x *index) holders(block uint64) []uint64 {
	if slot, ok := x.slots[block]; ok {
		return x.set(slot)
	}
	return nil
}

// match returns how many of the first blocks each replica holds. It relies on
// replicas that hold a block holding those before it, and looks at few of them.
// The result is valid until the next call.
func (x *index) match(blocks []uint64) []int {
	clear(x.depth)
	if len(blocks) == 0 || copy(x.kept, x.holders(blocks[0])) == 0 {
		return x.depth
	}
	for at := 1; ; {
		// All of kept hold what is before at. Find the first block that one of
		// them lacks.
		lo, hi := at, len(blocks)
		if lo < hi && x.holdKept(blocks[hi-1]) {
			lo = hi
		}
		for lo < hi {
			if mid := (lo + hi) / 2; x.holdKept(blocks[mid]) {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		var still []uint64
		if lo < len(blocks) {
			still = x.holders(blocks[lo])
		}
		for w, kept := range x.kept {
			if still != nil {
				x.kept[w] &= still[w]
				kept &^= still[w]
			}
			for ; kept != 0; kept &= kept - 1 {
				x.depth[w<<6+bits.TrailingZeros64(kept)] = lo
			}
		}
		if still == nil || empty(x.kept) {
			return x.depth
		}
		at = lo + 1
	}
}

// holdKept tells if all of kept hold the block.
func (x *index) holdKept(block uint64) bool {
	set := x.holders(block)
	if set == nil {
		return false
	}
	for w, kept := range x.kept {
		if kept&^set[w] != 0 {
			return false
		}
	}
	return true
}

func empty(set []uint64) bool {
	for _, w := range set {
		if w != 0 {
			return false
		}
	}
	return true
}
