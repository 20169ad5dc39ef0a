// SPDX-License-Identifier: Apache-2.0

package prefix

// span is what one cache holds of a node: the leading n blocks of its run. Only
// an idle span without children can be shorter than the run.
// With node 0 it is the output of a finished request: n anonymous blocks.
type span struct {
	cache uint32 // id of the cache
	node  uint32 // id of the node, 0 for output
	up    uint32 // this cache's span of the parent node; for output, the span it follows; 0 at a prompt's start
	pins  uint32 // running requests whose paths go through it
	n     uint32
	sure  uint32 // leading blocks that a request is known to have prefilled; all of them once nobody pins it
	outs  uint32 // newest of the outputs that follow it
	idle  uint32 // when it became idle, in ticks of the index's clock
	// Requests among its pins whose first token was not seen yet, and when one
	// last stopped being such by its first token or its served end, in ticks.
	unseen, seen uint32

	older, newer uint32 // neighbours in the cache's list
	left, right  uint32 // neighbours among the spans of the node, or among the outputs behind up
	chain        uint32 // next span of the bucket, or next free span

	content Content // of output
}

// spanTable is the table of spans by node and cache. Output spans are in its
// arena, not in the table.
type spanTable struct {
	arena[span]
	table
	free uint32
	live int // spans in use, of dead caches too
}

func spanHash(node, cache uint32) uint32 {
	return uint32(mix64(uint64(node)<<32|uint64(cache)) >> 32)
}

func (t *spanTable) hashOf(id uint32) uint32 {
	s := t.at(id)
	return spanHash(s.node, s.cache)
}

func (t *spanTable) link(id uint32) *uint32 { return &t.at(id).chain }

// find returns the cache's span of the node, or 0.
func (t *spanTable) find(node, cache uint32) uint32 {
	head := t.bucket(spanHash(node, cache))
	if head == nil {
		return 0
	}
	for id := *head; id != 0; {
		s := t.at(id)
		if s.node == node && s.cache == cache {
			return id
		}
		id = s.chain
	}
	return 0
}

func (t *spanTable) alloc() uint32 {
	t.live++
	id := t.free
	if id == 0 {
		return t.extend()
	}
	t.free = t.at(id).chain
	return id
}

func (t *spanTable) release(id uint32) {
	t.live--
	*t.at(id) = span{chain: t.free}
	t.free = id
}

// attach enters the span, whose node and cache are set, into the table and at
// the front of its node's list.
func (x *Index) attach(id uint32) {
	x.listFirst(id)
	x.nodes.at(x.spans.at(id).node).holders++
	insert(&x.spans.table, &x.spans, id)
}

// detach undoes attach.
func (x *Index) detach(id uint32) {
	remove(&x.spans.table, &x.spans, id)
	x.nodes.at(x.spans.at(id).node).holders--
	x.unlist(id)
}

// goesDeeper moves a span to the end of its node's list.
func (x *Index) goesDeeper(id uint32) {
	x.unlist(id)
	x.listLast(id)
}

func (x *Index) listFirst(id uint32) {
	s := x.spans.at(id)
	n := x.nodes.at(s.node)
	s.left, s.right = 0, n.first
	if n.first != 0 {
		x.spans.at(n.first).left = id
	} else {
		n.last = id
	}
	n.first = id
}

func (x *Index) listLast(id uint32) {
	s := x.spans.at(id)
	n := x.nodes.at(s.node)
	s.left, s.right = n.last, 0
	if n.last != 0 {
		x.spans.at(n.last).right = id
	} else {
		n.first = id
	}
	n.last = id
}

func (x *Index) unlist(id uint32) {
	s := x.spans.at(id)
	n := x.nodes.at(s.node)
	if s.left != 0 {
		x.spans.at(s.left).right = s.right
	} else {
		n.first = s.right
	}
	if s.right != 0 {
		x.spans.at(s.right).left = s.left
	} else {
		n.last = s.left
	}
}

// newSpan makes an empty span in no list of its cache.
func (x *Index) newSpan(c *cache, node, up uint32) uint32 {
	id := x.spans.alloc()
	*x.spans.at(id) = span{cache: c.id, node: node, up: up}
	x.attach(id)
	return id
}

// newOutput makes the span of n blocks of output that follow up.
func (x *Index) newOutput(c *cache, up, n uint32, content Content) uint32 {
	id := x.spans.alloc()
	s := x.spans.at(id)
	*s = span{cache: c.id, up: up, n: n, sure: n, idle: x.tick, content: content}
	if up != 0 {
		u := x.spans.at(up)
		s.right = u.outs
		if u.outs != 0 {
			x.spans.at(u.outs).left = id
		}
		u.outs = id
	}
	return id
}

// freeSpan frees a span that is in no list of its cache, and its node with the
// last one. Neither children nor outputs of it may be left.
func (x *Index) freeSpan(id uint32) {
	s := x.spans.at(id)
	if s.node != 0 {
		x.detach(id)
		if x.nodes.at(s.node).holders == 0 {
			x.nodes.drop(s.node)
		} else {
			x.trim(s.node)
		}
	} else if s.up != 0 {
		if s.left != 0 {
			x.spans.at(s.left).right = s.right
		} else {
			x.spans.at(s.up).outs = s.right
		}
		if s.right != 0 {
			x.spans.at(s.right).left = s.left
		}
	}
	x.spans.release(id)
}

// trim cuts a node's run to what its holder has, if there is only one. (Of
// several, one with the whole run is the rule, and looking is not worth it.)
func (x *Index) trim(node uint32) {
	n := x.nodes.at(node)
	if n.holders != 1 {
		return
	}
	if held := int(x.spans.at(n.first).n); 0 < held && held < n.blocks() {
		x.nodes.shorten(node, held)
	}
}

// split parts a node after n blocks of its run and returns the node of these.
// Every span is parted with it, in place in its list, so that what was pinned
// stays pinned and what was old stays old; the tail's spans keep their ids,
// because Paths refer to the last span of a path.
func (x *Index) split(node uint32, n int) (head uint32) {
	head = x.nodes.cut(node, n)
	k := uint32(n)
	for id := x.nodes.at(node).first; id != 0; {
		s := x.spans.at(id)
		next := s.right
		if s.n <= k {
			x.detach(id)
			s.node = head
			x.attach(id)
		} else {
			h := x.spans.alloc()
			*x.spans.at(h) = span{cache: s.cache, node: head, up: s.up, pins: s.pins, n: k, sure: min(s.sure, k), idle: s.idle, unseen: s.unseen, seen: s.seen}
			x.attach(h)
			x.goesDeeper(h)
			x.caches[s.cache].listOf(s).insertNewer(&x.spans, id, h)
			s.up, s.n, s.sure = h, s.n-k, s.sure-min(s.sure, k)
		}
		id = next
	}
	if x.nodes.at(node).holders == 0 {
		x.nodes.drop(node)
	} else {
		x.trim(node)
	}
	return head
}
