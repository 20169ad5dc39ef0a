// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"unsafe"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// Stats is what a holder has, in the engine's own blocks, and what became of the
// events. Counters are over the time since Open.
type Stats struct {
	Blocks     [kvevents.Tiers]int // in each tier; copies in one tier count once
	Remembered int                 // in no tier
	Parked     int                 // blocks whose parent is not known
	BlockSize  int                 // the engine's, in tokens; 0: not known yet
	IndexBlock int                 // the index's, in tokens; 0: not known yet
	Bytes      int                 // of memory for this holder alone, without the runtime's overhead

	Peak    [kvevents.Tiers]int    // most blocks at a time since the last Forget: with evictions, a capacity
	Evicted [kvevents.Tiers]uint64 // blocks that left a tier, clears apart

	Incomplete bool   // blocks were dropped for want of room since the last Forget or clear
	Dropped    uint64 // blocks beyond Options.MaxBlocks
	Orphaned   uint64 // blocks whose parent never came
	Unresolved uint64 // stores of a key alone that is not known
	Unknown    uint64 // removals of blocks that were not there
	Malformed  uint64 // stored blocks of another size than the engine's, or without all their tokens
	Cleared    uint64 // clears
	Restarts   uint64 // times that the block size or the group that counts changed
}

// Stats returns the holder's figures as of the last batch.
func (h *Holder) Stats() Stats {
	h.statsMu.Lock()
	defer h.statsMu.Unlock()
	return h.published
}

// publish has Stats return the figures as they are.
func (h *Holder) publish() {
	l, st := h.life, &h.stats
	st.Blocks = l.held
	st.Remembered = l.memory.count
	st.Parked = h.parking.blocks
	st.BlockSize, st.IndexBlock = h.learnt.page, 0
	if l.blocks != nil {
		st.IndexBlock = l.blocks.size
	}
	st.Bytes = l.keys.slots*int(unsafe.Sizeof(keySlot{})) + len(l.keys.segments)*int(unsafe.Sizeof(uintptr(0))) +
		len(l.memory.ring)*8 + len(l.pages.chunks)*pageChunkSize*4*(1+l.pages.size)
	h.statsMu.Lock()
	defer h.statsMu.Unlock()
	h.published = *st
}

// Size is the extent of what holders share.
type Size struct {
	Blocks int // different blocks, each counted once however many hold it
	Sets   int // different sets of holders
	Bytes  int // memory reserved, without the runtime's overhead
}

// Size returns the extent of what holders share.
func (x *Index) Size() (sz Size) {
	for _, t := range *x.tables.Load() {
		b := t.blocks
		b.mu.Lock()
		sz.Blocks += b.live
		sz.Sets += b.sets.live
		sz.Bytes += b.held*int(unsafe.Sizeof(chunk{})) + b.places.slots*8 +
			len(*b.sets.chunks.Load())*int(unsafe.Sizeof(setChunk{})) + b.sets.cells*8 +
			b.sets.live*setIDBytes
		b.mu.Unlock()
	}
	return sz
}

// setIDBytes is about what a map needs to find a set by its hash.
const setIDBytes = 24
