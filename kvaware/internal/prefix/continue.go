// SPDX-License-Identifier: Apache-2.0

package prefix

// Continue tells which whole blocks of a running request's output are cached
// behind its prompt, where their tokens are known. They take the place of as much
// of the room that Grow gave the output, and are of the path like the prompt's
// blocks from then on: what follows is anonymous. Blocks beyond that room are left
// out, and all of them where the prompt entered only in part, or the cache is one of
// slots. It is called at most once.
//
// They are not fresh (SetReported): an upstream that reports has told of them while
// they were generated.
func (x *Index) Continue(p *Path, ns uint64, chain []uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := p.cache
	if c == nil || c.slot == dead || c.slotted != nil || !p.whole {
		return
	}
	chain = chain[:min(len(chain), int(p.out))]
	x.tick = x.ticks()
	seed := seedOf(ns)
	p.out -= uint32(len(chain))
	c.generating -= len(chain)

	leaf := p.leaf
	node := uint32(0)
	if leaf != 0 {
		node = x.spans.at(leaf).node
	}
	nodes := 0
	for ; len(chain) > 0; nodes++ {
		node = x.runOf(seed, chain, node)
		s := x.spans.find(node, c.id)
		if s == 0 {
			s = x.newSpan(c, node, leaf)
			if leaf != 0 {
				x.goesDeeper(leaf)
			}
		}
		x.pin(c, s)
		if at := x.spans.at(s); !p.unseen {
			at.unseen--
			at.sure = at.n
		}
		leaf = s
		chain = chain[x.nodes.at(node).blocks():]
	}
	p.leaf = leaf
	x.settle(c)
	x.reap(nodes)
}

// runOf returns the child of parent that begins a chain and has no block that is
// not of it, made or split off if need be.
func (x *Index) runOf(seed uint64, chain []uint64, parent uint32) uint32 {
	id := x.nodes.find(chain[0]^seed, parent)
	if id == 0 {
		return x.nodes.addRun(seed, chain, parent)
	}
	if n := x.nodes.at(id).common(seed, chain); n < x.nodes.at(id).blocks() {
		return x.split(id, n)
	}
	return id
}
