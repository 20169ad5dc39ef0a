// SPDX-License-Identifier: Apache-2.0

package prefix

// Path is a running request's hold on an upstream's cache. It ends with Done or
// Abort; what is called on it later, or after the upstream was forgotten or
// removed, has no effect. Its methods take the index's lock, so they may be
// called concurrently; a Path must not be copied once in use. The zero value
// holds nothing.
type Path struct {
	cache *cache
	leaf  uint32 // the last span, 0 if no block entered
	out   uint32 // blocks of output

	whole   bool // the prompt entered as a whole
	unseen  bool // its first token was not seen yet
	content Content

	// What its cache held before, and how much was known of the cache then.
	before Before
	busy   int // leading blocks pinned by other requests
	lesson uint32
	ticket uint64 // tells it from others where a cache has slots
}

// Before is what a cache held of a prompt when its path was pinned, in blocks.
type Before struct {
	Held   int // leading ones
	Sure   int // of these, known to have been prefilled
	Output     // the newest behind them, where the prompt goes on
}

// Before returns what was there of the prompt when its path was pinned.
func (p *Path) Before() Before { return p.before }

// Pin enters a prompt's path into an upstream's cache and keeps it there until
// Done or Abort. Where running requests leave too little room, the path enters
// only as far as it fits.
func (x *Index) Pin(h Holder, ns uint64, chain []uint64) Path {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.cacheOf(h)
	if c == nil {
		return Path{}
	}
	x.tick = x.ticks()
	seed := seedOf(ns)
	if c.slotted != nil {
		x.reap(0)
		return x.pinSlot(c, seed, chain)
	}
	pinned := x.pinnedPart(c, seed, chain)
	p := Path{cache: c, unseen: true, busy: pinned, lesson: c.lesson}
	blocks := len(chain)
	chain = chain[:min(blocks, pinned+c.room())]
	p.whole = len(chain) == blocks

	var node, leaf uint32
	nodes := 0
	for depth := 0; depth < len(chain); {
		rest := chain[depth:]
		id := x.runOf(seed, rest, node)
		s := x.spans.find(id, c.id)
		if s == 0 {
			if leaf != 0 && depth == p.before.Held {
				p.before.Output = x.outputBehind(x.spans.at(leaf))
			}
			x.takeOver(c, leaf, len(rest))
			s = x.newSpan(c, id, leaf)
			if leaf != 0 {
				x.goesDeeper(leaf)
			}
		}
		p.before.Held += int(x.spans.at(s).n)
		p.before.Sure += int(x.spans.at(s).sure)
		x.pin(c, s)
		node, leaf = id, s
		depth += x.nodes.at(id).blocks()
		nodes++
	}
	x.settle(c)
	x.reap(nodes)
	p.leaf = leaf
	return p
}

// pinnedPart returns how many leading blocks of the chain are pinned there.
func (x *Index) pinnedPart(c *cache, seed uint64, chain []uint64) int {
	var node uint32
	depth := 0
	for depth < len(chain) {
		id := x.nodes.find(chain[depth]^seed, node)
		if id == 0 {
			break
		}
		s := x.spans.find(id, c.id)
		if s == 0 || x.spans.at(s).pins == 0 {
			break
		}
		n := x.nodes.at(id)
		k := n.common(seed, chain[depth:])
		depth += k
		if k < n.blocks() {
			break
		}
		node = id
	}
	return depth
}

// Grow sets the room that the request's output takes to so many blocks in
// total, or to what fits beside the other running requests.
func (x *Index) Grow(p *Path, outputBlocks int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := p.cache
	if c == nil || c.slot == dead {
		return
	}
	if c.slotted != nil {
		x.growSlot(p, outputBlocks)
		return
	}
	held := int(p.out)
	total := min(clampCapacity(outputBlocks), held+c.room())
	c.generating += total - held
	p.out = uint32(total)
	x.settle(c)
	x.reap(0)
}

// Confirm notes that the prompt's blocks are really there, because the
// request's first token was seen: from now on they outlive an Abort.
func (x *Index) Confirm(p *Path) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p.cache == nil || p.cache.slot == dead {
		return
	}
	if p.cache.slotted != nil {
		x.confirmSlot(p)
		return
	}
	first := p.unseen
	p.unseen = false
	now := x.ticks()
	for id := p.leaf; id != 0; {
		s := x.spans.at(id)
		if first {
			s.unseen--
			s.seen = now
		} else if s.sure == s.n {
			break // and so is all before it
		}
		s.sure = s.n
		id = s.up
	}
}

// Done ends a request that was served: its path moves to the recent end, tail
// first, and its output stays behind the tail as room without content.
func (x *Index) Done(p *Path) { x.finish(p, true) }

// Abort ends a request that was never answered: its output leaves, and so do
// the prompt's blocks that no other running request uses and none is known to
// have prefilled. The others return to the recent end.
func (x *Index) Abort(p *Path) { x.finish(p, false) }

func (x *Index) finish(p *Path, served bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c, out := p.cache, p.out
	p.cache = nil
	if c == nil || c.slot == dead {
		return
	}
	x.tick = x.ticks()
	if c.slotted != nil {
		x.finishSlot(c, p, served)
		return
	}
	c.generating -= int(out)
	if served && out > 0 {
		c.output += int(out)
		c.idleSpans.pushNewest(&x.spans, x.newOutput(c, p.leaf, out, p.content))
	}
	nodes := 0
	for id := p.leaf; id != 0; nodes++ {
		s := x.spans.at(id)
		up := s.up
		if p.unseen {
			s.unseen--
		}
		if served {
			s.sure = s.n
			if p.unseen {
				s.seen = x.tick
			}
		}
		x.unpin(c, id)
		id = up
	}
	x.settle(c)
	x.reap(nodes)
}
