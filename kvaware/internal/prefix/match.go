// SPDX-License-Identifier: Apache-2.0

package prefix

// Match sets dst[h] to the number of leading blocks of the chain that upstream
// h holds, and to 0 for all others. Upstreams beyond dst's end are left out; a
// dst of Slots() elements covers all. It does not allocate.
func (x *Index) Match(ns uint64, chain []uint64, dst []int32) { x.match(ns, chain, dst, nil) }

// MatchPinned does what Match does, and sets pinned[h] to how many of these
// blocks running requests hold there; the others are idle. Pinned is at least as
// long as dst.
func (x *Index) MatchPinned(ns uint64, chain []uint64, dst, pinned []int32) {
	x.match(ns, chain, dst, pinned)
}

func (x *Index) match(ns uint64, chain []uint64, dst, pinned []int32) {
	clear(dst)
	clear(pinned)
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
			if pinned != nil {
				pinned[slot] = x.pinnedUpTo(s, dst[slot])
			}
			news--
		}
		if at = n.parent; at != 0 {
			common = x.nodes.at(at).blocks()
			before -= common
		}
	}
}

// pinnedUpTo returns how many of a path's leading blocks are pinned, s being its
// last span. Who pins a span pins what comes before it.
func (x *Index) pinnedUpTo(s *span, blocks int32) int32 {
	for range pinnedSteps {
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

// pinnedSteps bounds how far back in a path it is looked for what is pinned: an
// idle conversation has a span for each turn. What is pinned before that counts
// as idle.
const pinnedSteps = 32
