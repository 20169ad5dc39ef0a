// SPDX-License-Identifier: Apache-2.0

package prefix

import "math"

// list orders spans of one cache from the oldest to the newest.
type list struct {
	oldest, newest uint32
}

func (l *list) pushNewest(t *spanTable, id uint32) {
	s := t.at(id)
	s.older, s.newer = l.newest, 0
	if l.newest != 0 {
		t.at(l.newest).newer = id
	} else {
		l.oldest = id
	}
	l.newest = id
}

func (l *list) pushOldest(t *spanTable, id uint32) {
	s := t.at(id)
	s.older, s.newer = 0, l.oldest
	if l.oldest != 0 {
		t.at(l.oldest).older = id
	} else {
		l.newest = id
	}
	l.oldest = id
}

// insertNewer places id next to at, on its newer side.
func (l *list) insertNewer(t *spanTable, at, id uint32) {
	a, s := t.at(at), t.at(id)
	s.older, s.newer = at, a.newer
	if a.newer != 0 {
		t.at(a.newer).older = id
	} else {
		l.newest = id
	}
	a.newer = id
}

func (l *list) unlink(t *spanTable, id uint32) {
	s := t.at(id)
	if s.older != 0 {
		t.at(s.older).newer = s.newer
	} else {
		l.oldest = s.newer
	}
	if s.newer != 0 {
		t.at(s.newer).older = s.older
	} else {
		l.newest = s.older
	}
}

// cache is one life of an upstream's KV cache. Forget and Remove end it: its
// slot turns negative for good, and its spans are freed bit by bit.
type cache struct {
	id   uint32 // index in Index.caches, reused once all its spans are freed
	slot int32  // the Holder, or dead

	// used() <= limit always. limit is above the wanted capacity only while more
	// is in use, and then falls with the use.
	limit, wanted int
	told          int    // the capacity last set; wanted is what was learnt from it
	lesson        uint32 // how often wanted was learnt
	evidence      evidence

	slotted *slotted // nil where it is one of blocks; then what follows is unused but for evicted

	reports bool // what it holds is known from its own events, see SetReported

	pinned     int // prompt blocks of running requests
	idle       int // other prompt blocks
	generating int // output blocks of running requests; they have no span
	output     int // output blocks of finished requests
	evicted    uint64

	pinnedSpans list // children on the older side of their parents
	idleSpans   list // the LRU, outputs included; likewise
}

const dead = -1

func (c *cache) used() int { return c.pinned + c.idle + c.generating + c.output }

// room returns how many blocks running requests may still pin.
func (c *cache) room() int { return max(0, c.wanted-c.pinned-c.generating) }

func (c *cache) listOf(s *span) *list {
	if s.pins > 0 {
		return &c.pinnedSpans
	}
	return &c.idleSpans
}

// pin counts a running request in and makes the span as long as its node's run.
func (x *Index) pin(c *cache, id uint32) {
	s := x.spans.at(id)
	s.pins++
	s.unseen++
	if s.pins > 1 {
		return
	}
	if s.n > 0 {
		c.idleSpans.unlink(&x.spans, id)
		c.idle -= int(s.n)
		x.history.Reused(x.tick-s.idle, int(s.n))
	}
	s.n = uint32(x.nodes.at(s.node).blocks())
	c.pinned += int(s.n)
	// Parents are pinned before their children, and stay so at least as long.
	c.pinnedSpans.pushOldest(&x.spans, id)
}

// unpin counts a running request out. The last one leaves what is sure at the
// recent end.
func (x *Index) unpin(c *cache, id uint32) {
	s := x.spans.at(id)
	s.pins--
	if s.pins > 0 {
		return
	}
	c.pinnedSpans.unlink(&x.spans, id)
	c.pinned -= int(s.n)
	s.n = s.sure
	if s.n == 0 {
		x.freeSpan(id)
		return
	}
	c.idle += int(s.n)
	s.idle = x.tick
	c.idleSpans.pushNewest(&x.spans, id)
	x.trim(s.node)
}

// takeOver hands up to n blocks of the newest output behind a span over to a
// prompt that continues there.
func (x *Index) takeOver(c *cache, up uint32, n int) {
	if up == 0 || x.spans.at(up).outs == 0 {
		return
	}
	id := x.spans.at(up).outs
	s := x.spans.at(id)
	n = min(n, int(s.n))
	c.output -= n
	s.n -= uint32(n)
	s.sure = s.n
	if s.n == 0 {
		c.idleSpans.unlink(&x.spans, id)
		x.freeSpan(id)
	}
}

// evict frees the least recently used blocks until no more than limit are in
// use, nothing is idle, or steps are used up. A step frees at least one block.
func (x *Index) evict(c *cache, limit, steps int) {
	for ; steps > 0 && c.used() > limit && c.idleSpans.oldest != 0; steps-- {
		id := c.idleSpans.oldest
		s := x.spans.at(id)
		n := min(c.used()-limit, int(s.n))
		c.evicted += uint64(n)
		s.n -= uint32(n)
		s.sure = s.n
		if s.node == 0 {
			c.output -= n
		} else {
			c.idle -= n
			x.history.Lost(x.tick-s.idle, n)
			x.trim(s.node)
		}
		if s.n == 0 {
			c.idleSpans.unlink(&x.spans, id)
			x.freeSpan(id)
		}
	}
}

// settle is the end of every change to a cache: it keeps the bound and brings
// it nearer to the capacity that is wanted, in few steps.
func (x *Index) settle(c *cache) {
	x.evict(c, c.limit, math.MaxInt) // at most as many steps as the change added blocks
	if c.limit > c.wanted {
		x.evict(c, c.wanted, settleSteps)
		c.limit = max(c.wanted, c.used())
	}
}

// settleSteps bounds the evictions that a change makes on behalf of a capacity
// lowered earlier.
const settleSteps = 64
