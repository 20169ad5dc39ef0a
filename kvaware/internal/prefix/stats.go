// SPDX-License-Identifier: Apache-2.0

package prefix

import "unsafe"

// Stats is what one upstream is believed to hold, in blocks.
type Stats struct {
	Capacity   int    // the bound in force, see SetCapacity
	Blocks     int    // all that is held: the four below
	Pinned     int    // prompt blocks of running requests, each counted once
	Idle       int    // prompt blocks of finished requests
	Generating int    // output of running requests
	Output     int    // output of finished requests
	Evicted    uint64 // blocks evicted in total, over the slot's life since Add
}

// Stats returns an upstream's figures, zeros if there is none at h.
func (x *Index) Stats(h Holder) Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	c := x.cacheOf(h)
	if c == nil {
		return Stats{}
	}
	if c.slotted != nil {
		return c.slottedStats()
	}
	return Stats{
		Capacity:   c.limit,
		Blocks:     c.used(),
		Pinned:     c.pinned,
		Idle:       c.idle,
		Generating: c.generating,
		Output:     c.output,
		Evicted:    c.evicted,
	}
}

// Size is the extent of a whole index.
type Size struct {
	Nodes  int // runs of blocks
	Spans  int // pairs of a node and an upstream, and outputs
	Blocks int // different blocks, each counted once however many hold it
	Doomed int // forgotten or removed caches that are not freed yet
	Bytes  int // memory reserved, without the runtime's overhead
}

// Size returns the index's extent, forgotten parts that are not freed yet
// included.
func (x *Index) Size() Size {
	x.mu.RLock()
	defer x.mu.RUnlock()
	sz := Size{
		Nodes:  x.nodes.entries,
		Spans:  x.spans.live,
		Blocks: x.nodes.blocks,
		Doomed: len(x.doomed),
	}
	hashes := x.nodes.blocks - x.nodes.entries // a node keeps its first hash itself
	sz.Bytes = hashes*int(unsafe.Sizeof(uint64(0))) +
		len(x.nodes.chunks)*chunkSize*int(unsafe.Sizeof(node{})) +
		len(x.spans.chunks)*chunkSize*int(unsafe.Sizeof(span{})) +
		(len(x.nodes.segments)+len(x.spans.segments))*segmentSize*int(unsafe.Sizeof(uint32(0)))
	for _, c := range x.slots {
		if c != nil && c.slotted != nil {
			sz.Bytes += c.slotted.bytes()
		}
	}
	return sz
}
