// SPDX-License-Identifier: Apache-2.0

package prefix

import "fmt"

// check goes through the whole structure and returns the first invariant that
// does not hold.
func (x *Index) check() error {
	x.mu.RLock()
	defer x.mu.RUnlock()
	nodes, blocks := 0, 0
	for id := uint32(1); id < x.nodes.next; id++ {
		n := x.nodes.at(id)
		if n.holders == 0 {
			continue // free
		}
		nodes++
		blocks += n.blocks()
		if err := x.checkNode(id); err != nil {
			return err
		}
	}
	if nodes != x.nodes.entries || blocks != x.nodes.blocks {
		return fmt.Errorf("%d nodes of %d blocks, counted as %d of %d", nodes, blocks, x.nodes.entries, x.nodes.blocks)
	}
	free := 0
	for id := x.nodes.free; id != 0; id = x.nodes.at(id).chain {
		free++
	}
	if x.nodes.next > 0 && nodes+free+1 != int(x.nodes.next) {
		return fmt.Errorf("%d nodes and %d free ones out of %d", nodes, free, x.nodes.next)
	}
	spans, tabled := 0, 0
	for _, c := range x.caches {
		if c == nil {
			continue
		}
		n, t, err := x.checkCache(c)
		if err != nil {
			return err
		}
		spans += n
		tabled += t
	}
	if spans != x.spans.live || tabled != x.spans.entries {
		return fmt.Errorf("%d spans, %d in the table, counted as %d and %d", spans, tabled, x.spans.live, x.spans.entries)
	}
	free = 0
	for id := x.spans.free; id != 0; id = x.spans.at(id).chain {
		free++
	}
	if x.spans.next > 0 && spans+free+1 != int(x.spans.next) {
		return fmt.Errorf("%d spans and %d free ones out of %d", spans, free, x.spans.next)
	}
	return nil
}

func (x *Index) checkNode(id uint32) error {
	n := x.nodes.at(id)
	if x.nodes.find(n.key, n.parent) != id {
		return fmt.Errorf("node %d is not found", id)
	}
	if n.parent == 0 && n.before != 0 || n.parent != 0 && n.before != x.nodes.at(n.parent).before+uint32(x.nodes.at(n.parent).blocks()) {
		return fmt.Errorf("node %d is said to have %d blocks before it", id, n.before)
	}
	if n.parent != 0 && x.nodes.at(n.parent).holders < n.holders {
		return fmt.Errorf("node %d has more holders than its parent", id)
	}
	holders, last := uint32(0), uint32(0)
	for sid := n.first; sid != 0; sid = x.spans.at(sid).right {
		s := x.spans.at(sid)
		holders++
		if s.node != id || s.left != last || x.spans.find(id, s.cache) != sid {
			return fmt.Errorf("span %d is not linked to node %d", sid, id)
		}
		if s.n == 0 || int(s.n) > n.blocks() || s.sure > s.n {
			return fmt.Errorf("span %d: %d blocks of %d, %d sure", sid, s.n, n.blocks(), s.sure)
		}
		if n.holders == 1 && int(s.n) != n.blocks() {
			return fmt.Errorf("node %d has %d blocks, its only span %d", id, n.blocks(), s.n)
		}
		if s.pins > 0 && int(s.n) != n.blocks() {
			return fmt.Errorf("span %d is pinned with %d blocks of %d", sid, s.n, n.blocks())
		}
		if s.pins == 0 && s.sure != s.n {
			return fmt.Errorf("span %d is idle with %d blocks sure of %d", sid, s.sure, s.n)
		}
		if s.unseen > s.pins {
			return fmt.Errorf("span %d has %d requests before their first token of %d", sid, s.unseen, s.pins)
		}
		if (s.up == 0) != (n.parent == 0) {
			return fmt.Errorf("span %d: parent missing", sid)
		}
		if s.up != 0 {
			up := x.spans.at(s.up)
			if up.node != n.parent || up.cache != s.cache {
				return fmt.Errorf("span %d: wrong parent", sid)
			}
			if up.unseen < s.unseen || up.seen < s.seen {
				return fmt.Errorf("span %d is fresher than its parent", sid)
			}
			if int(up.n) != x.nodes.at(n.parent).blocks() || up.pins < s.pins {
				return fmt.Errorf("span %d: parent holds %d blocks, pinned %d times", sid, up.n, up.pins)
			}
		}
		out, before := s.outs, uint32(0)
		for ; out != 0; out = x.spans.at(out).right {
			o := x.spans.at(out)
			if o.up != sid || o.node != 0 || o.left != before {
				return fmt.Errorf("output %d is not linked to span %d", out, sid)
			}
			before = out
		}
		last = sid
	}
	if holders != n.holders || last != n.last {
		return fmt.Errorf("node %d: %d holders, counted as %d", id, holders, n.holders)
	}
	return nil
}

// checkCache returns the cache's spans and how many of them belong in the table.
func (x *Index) checkCache(c *cache) (spans, tabled int, err error) {
	var pinned, idle, output int
	place := map[uint32]int{}
	for _, l := range []*list{&c.idleSpans, &c.pinnedSpans} {
		last := uint32(0)
		for id := l.oldest; id != 0; id = x.spans.at(id).newer {
			s := x.spans.at(id)
			spans++
			place[id] = spans
			if s.cache != c.id || s.older != last || c.listOf(s) != l {
				return 0, 0, fmt.Errorf("span %d is in the wrong list", id)
			}
			last = id
			switch {
			case s.node == 0:
				output += int(s.n)
				if s.n == 0 {
					return 0, 0, fmt.Errorf("output %d is empty", id)
				}
			case s.pins > 0:
				tabled++
				pinned += int(s.n)
			default:
				tabled++
				idle += int(s.n)
			}
		}
		if l.newest != last {
			return 0, 0, fmt.Errorf("list of cache %d ends at %d, not %d", c.id, last, l.newest)
		}
	}
	for id, at := range place {
		if up := x.spans.at(id).up; up != 0 && place[up] < at {
			return 0, 0, fmt.Errorf("span %d stands behind its parent", id)
		}
	}
	if c.slot == dead {
		return spans, tabled, nil
	}
	if pinned != c.pinned || idle != c.idle || output != c.output {
		return 0, 0, fmt.Errorf("cache %d: pinned %d, idle %d, output %d, counted as %d, %d, %d", c.id, pinned, idle, output, c.pinned, c.idle, c.output)
	}
	if c.used() > c.limit {
		return 0, 0, fmt.Errorf("cache %d: %d blocks in use, bound %d", c.id, c.used(), c.limit)
	}
	if c.limit != c.wanted && (c.limit != c.used() || c.limit < c.wanted) {
		return 0, 0, fmt.Errorf("cache %d: bound %d, wanted %d, used %d", c.id, c.limit, c.wanted, c.used())
	}
	return spans, tabled, nil
}
