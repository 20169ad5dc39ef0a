// SPDX-License-Identifier: Apache-2.0

package prefix

// Match sets dst[h] to the number of leading blocks of the chain that upstream
// h holds, and to 0 for all others. Upstreams beyond dst's end are left out; a
// dst of Slots() elements covers all. It does not allocate.
func (x *Index) Match(ns uint64, chain []uint64, dst []int32) {
	x.Find(ns, chain, &Found{Held: dst})
}

// Found is what Find finds, by Holder. The caller gives the slices, whose lengths
// are as with Match.
type Found struct {
	// Fresh asks to leave out what of upstreams that report their caches
	// (SetReported) is no longer fresh.
	Fresh bool
	// Held is how many leading blocks of the chain the upstream holds.
	Held []int32
	// Pinned is how many of the leading blocks running requests hold there, fresh or
	// not; the others are idle. At least as long as Held, or nil if not wanted.
	Pinned []int32
	// Outputs are those behind the end of what is held, where the chain goes on there
	// and the upstream does not report. At least as long as Held, or nil if not wanted.
	Outputs []Output
}

// Find looks a chain up. It does not allocate.
func (x *Index) Find(ns uint64, chain []uint64, f *Found) {
	clear(f.Held)
	clear(f.Pinned)
	clear(f.Outputs)
	seed := seedOf(ns)
	x.mu.RLock()
	defer x.mu.RUnlock()

	// Down: the deepest node on the chain's way, how many blocks lie before it,
	// and how many of its run are the chain's.
	var at uint32
	before, common := 0, 0
	for depth := 0; depth < len(chain); {
		id := x.nodes.find(chain[depth]^seed, at)
		if id == 0 {
			break
		}
		n := x.nodes.at(id)
		at, before, common = id, depth, n.common(seed, chain[depth:])
		depth += common
		if common < n.blocks() {
			break
		}
	}

	// Up: a node's holders are its child's and those that stop here, so a node
	// with no more holders than its child has no news.
	dst := f.Held
	fresh, stale := x.freshness(f.Fresh), false
	closer := f.Pinned != nil || f.Outputs != nil || fresh.matters
	known := uint32(0)
	for at != 0 {
		n := x.nodes.at(at)
		news := n.holders - known
		known = n.holders
		for id := n.first; id != 0 && news > 0; {
			s := x.spans.at(id)
			id = s.right
			slot := x.slotOf[s.cache]
			if slot == dead || int(slot) >= len(dst) || dst[slot] != 0 {
				continue // dead ones never count as news, which costs time at worst
			}
			dst[slot] = int32(before + min(int(s.n), common))
			if closer {
				stale = x.lookCloser(f, slot, s, len(chain), fresh) || stale
			}
			news--
		}
		if at = n.parent; at != 0 {
			common = x.nodes.at(at).blocks()
			before -= common
		}
	}
	if x.slottedCaches > 0 {
		x.findSlotted(seed, chain, f)
	}
	if stale {
		for i, blocks := range dst {
			dst[i] = max(0, blocks)
		}
	}
}

// lookCloser fills in what else is wanted of an upstream whose last span on the
// chain's way is s, and reports whether nothing of it is fresh. Chain is the
// chain's length.
func (x *Index) lookCloser(f *Found, slot int32, s *span, chain int, fresh freshness) (stale bool) {
	blocks := f.Held[slot]
	if f.Pinned != nil {
		f.Pinned[slot] = x.pinnedUpTo(s, blocks)
	}
	if f.Outputs != nil && s.outs != 0 && int(blocks) < chain {
		if n := x.nodes.at(s.node); int(blocks) == int(n.before)+n.blocks() {
			f.Outputs[slot] = x.outputBehind(s)
		}
	}
	if fresh.matters && x.caches[s.cache].reports {
		if f.Outputs != nil {
			f.Outputs[slot] = Output{}
		}
		if blocks = x.freshUpTo(s, blocks, fresh); blocks == 0 {
			blocks, stale = seenStale, true
		}
		f.Held[slot] = blocks
	}
	return stale
}

// seenStale marks an upstream of which nothing is fresh while its nodes are gone
// through.
const seenStale = -1

// pinnedUpTo returns how many of a path's leading blocks are pinned, s being its
// last span. Who pins a span pins what comes before it.
func (x *Index) pinnedUpTo(s *span, blocks int32) int32 {
	for range pathSteps {
		if s.pins > 0 {
			return min(blocks, int32(x.nodes.at(s.node).before+s.n))
		}
		if s.up == 0 {
			return 0
		}
		s = x.spans.at(s.up)
	}
	return 0
}

// pathSteps bounds how far back in a path it is looked for what is pinned, or
// fresh: an idle conversation has a span for each turn. What is pinned before
// that counts as idle, what is fresh as stale.
const pathSteps = 32
