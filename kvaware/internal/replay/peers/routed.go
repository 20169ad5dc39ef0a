// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"slices"
	"time"
)

// routed remembers which prompts were routed where: a compressed tree whose
// stretches of blocks have holders, as the peers' own trees have tenants. A request
// costs the stretches it passes, not its blocks.
type routed struct {
	stretches map[uint64]*stretch // by first block, which tells all before it
	uses      []uses              // by replica; if shared one for all
	size      int                 // blocks in uses
	order     order
	shared    bool

	path []*stretch
	seen []int // by replica
}

// order says what is forgotten first of what was routed at once.
type order int

const (
	// tailFirst is that of trees: a stretch is forgotten as a whole, and none
	// before those that build on it.
	tailFirst order = iota
	// headFirst is that of LRU lists of blocks to which prompts are added from
	// their beginning on: block by block, the beginning first.
	headFirst
)

type stretch struct {
	blocks   []uint64
	parent   *stretch
	children int
	holders  *holder
}

// holder is one replica's part in a stretch.
type holder struct {
	stretch      *stretch
	replica      int
	lost         int // blocks at the beginning of the stretch that are forgotten
	used         time.Duration
	next         *holder // of the same stretch
	newer, older *holder // of the same uses
}

// uses is what was routed in the order of use.
type uses struct {
	newest, oldest *holder
	size           int // blocks
}

// everyone is the holder that stands in the order of use for all of a stretch if
// they share it.
const everyone = -1

func newRouted(o order) *routed {
	return &routed{stretches: make(map[uint64]*stretch), order: o}
}

// newSharedRouted makes a tree whose replicas share one order of use.
func newSharedRouted(o order) *routed {
	p := newRouted(o)
	p.shared = true
	p.uses = make([]uses, 1)
	return p
}

// fleet makes room for replicas up to last.
func (p *routed) fleet(last int) {
	if !p.shared {
		p.uses = grown(p.uses, last)
	}
	p.seen = grown(p.seen, last)
}

// next returns the stretch that the blocks begin with, if there is one, and how
// many of its blocks are theirs.
func (p *routed) next(blocks []uint64) (*stretch, int) {
	if len(blocks) == 0 {
		return nil, 0
	}
	s := p.stretches[blocks[0]]
	if s == nil {
		return nil, 0
	}
	return s, common(s.blocks, blocks)
}

// common returns how many blocks a and b have in common, of which the first is
// one. Blocks that are equal are equal in all before them.
func common(a, b []uint64) int {
	n := min(len(a), len(b))
	if a[n-1] == b[n-1] {
		return n
	}
	lo, hi := 1, n-1
	for lo < hi {
		if mid := (lo + hi) / 2; a[mid] == b[mid] {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// use remembers that the blocks were routed to the replica.
func (p *routed) use(replica int, blocks []uint64, now time.Duration) {
	p.path = p.path[:0]
	var above *stretch
	for len(blocks) > 0 {
		s, n := p.next(blocks)
		if s == nil {
			s, n = &stretch{blocks: slices.Clone(blocks), parent: above}, len(blocks)
			if above != nil {
				above.children++
			}
			p.stretches[blocks[0]] = s
		} else if n < len(s.blocks) {
			s = p.split(s, n)
		}
		p.path = append(p.path, s)
		above, blocks = s, blocks[n:]
	}
	if p.order == tailFirst {
		slices.Reverse(p.path)
	}
	for _, s := range p.path {
		p.touch(s, replica, now)
		if p.shared {
			p.touch(s, everyone, now)
		}
	}
}

// listed returns the order of use that the holder is in, or nil.
func (p *routed) listed(h *holder) *uses {
	switch {
	case !p.shared:
		return &p.uses[h.replica]
	case h.replica == everyone:
		return &p.uses[0]
	}
	return nil
}

func (p *routed) touch(s *stretch, replica int, now time.Duration) {
	h := s.holders
	for h != nil && h.replica != replica {
		h = h.next
	}
	if h == nil {
		h = &holder{stretch: s, replica: replica, next: s.holders}
		s.holders = h
	} else if l := p.listed(h); l != nil {
		l.unlink(h)
		p.size -= len(s.blocks) - h.lost
	}
	h.lost, h.used = 0, now
	if l := p.listed(h); l != nil {
		l.link(h, l.newest)
		p.size += len(s.blocks)
	}
}

// link puts a holder in front of the older one, which may be nil if there is none.
func (l *uses) link(h, older *holder) {
	behind := &l.oldest
	if older != nil {
		behind = &older.newer
	}
	h.older, h.newer, *behind = older, *behind, h
	if h.newer != nil {
		h.newer.older = h
	} else {
		l.newest = h
	}
	l.size += len(h.stretch.blocks) - h.lost
}

func (l *uses) unlink(h *holder) {
	if h.newer != nil {
		h.newer.older = h.older
	} else {
		l.newest = h.older
	}
	if h.older != nil {
		h.older.newer = h.newer
	} else {
		l.oldest = h.newer
	}
	h.newer, h.older = nil, nil
	l.size -= len(h.stretch.blocks) - h.lost
}

// split makes the first n blocks of a stretch one of their own and returns it. Its
// holders stand beside those of the rest in the order of use.
func (p *routed) split(s *stretch, n int) *stretch {
	head := &stretch{blocks: s.blocks[:n:n], parent: s.parent, children: 1}
	p.stretches[head.blocks[0]] = head
	for h := s.holders; h != nil; h = h.next {
		l := p.listed(h)
		of := holder{stretch: head, replica: h.replica, lost: min(h.lost, n), used: h.used}
		rest := max(h.lost-n, 0)
		if l != nil {
			l.size -= len(head.blocks) - of.lost
		}
		h.lost = rest
		if of.lost == n {
			continue
		}
		of.next = head.holders
		head.holders = &of
		switch {
		case l == nil:
		case p.order == tailFirst:
			l.link(&of, h)
		default:
			l.link(&of, h.older)
		}
	}
	s.parent, s.blocks = head, s.blocks[n:]
	p.stretches[s.blocks[0]] = s
	return head
}

// drop forgets a holder, and with the last one the stretch.
func (p *routed) drop(h *holder) {
	s := h.stretch
	if l := p.listed(h); l != nil {
		l.unlink(h)
		p.size -= len(s.blocks) - h.lost
	}
	for at := &s.holders; *at != nil; at = &(*at).next {
		if *at == h {
			*at = h.next
			break
		}
	}
	p.prune(s)
}

func (p *routed) prune(s *stretch) {
	for s != nil && s.holders == nil && s.children == 0 {
		delete(p.stretches, s.blocks[0])
		if s.parent != nil {
			s.parent.children--
		}
		s = s.parent
	}
}

// forget forgets up to n blocks of the least recently used of l, and more of a
// tree, which forgets whole stretches.
func (p *routed) forget(l *uses, n int) {
	h := l.oldest
	s := h.stretch
	if left := len(s.blocks) - h.lost; p.order == headFirst && n < left {
		h.lost += n
		l.size -= n
		p.size -= n
	} else {
		h.lost = len(s.blocks)
		l.size -= left
		p.size -= left
		p.drop(h)
	}
	if !p.shared {
		return
	}
	for o := s.holders; o != nil; {
		next := o.next
		if o.lost = max(o.lost, h.lost); o.lost == len(s.blocks) {
			p.drop(o)
		}
		o = next
	}
}

// trim forgets the least recently used blocks of l beyond limit.
func (p *routed) trim(l *uses, limit int) {
	for l.size > limit {
		p.forget(l, l.size-limit)
	}
}

// trimAll forgets the least recently used blocks of all replicas beyond limit.
func (p *routed) trimAll(limit int) {
	for p.size > limit {
		var oldest *uses
		for i := range p.uses {
			if l := &p.uses[i]; l.oldest != nil && (oldest == nil || l.oldest.used < oldest.oldest.used) {
				oldest = l
			}
		}
		p.forget(oldest, p.size-limit)
	}
}

// clear forgets what was routed to the replica.
func (p *routed) clear(replica int) {
	if !p.shared {
		if replica < len(p.uses) {
			p.trim(&p.uses[replica], 0)
		}
		return
	}
	for _, s := range p.stretches {
		for h := s.holders; h != nil; h = h.next {
			if h.replica == replica {
				p.drop(h)
				break
			}
		}
	}
}

// longest returns how many of the first blocks were routed to any replica, and the
// stretch where they end. It is for trees.
func (p *routed) longest(blocks []uint64) (int, *stretch) {
	depth, end := 0, (*stretch)(nil)
	for {
		s, n := p.next(blocks[depth:])
		if s == nil {
			return depth, end
		}
		depth, end = depth+n, s
		if n < len(s.blocks) {
			return depth, end
		}
	}
}

// among appends the replicas of up that hold the stretch.
func (s *stretch) among(up, into []int) []int {
	for h := s.holders; h != nil; h = h.next {
		if inService(up, h.replica) {
			into = append(into, h.replica)
		}
	}
	slices.Sort(into)
	return into
}

// prefix returns how many of the first blocks each replica holds. The result is
// valid until the next call.
func (p *routed) prefix(blocks []uint64) []int {
	clear(p.seen)
	for depth := 0; ; {
		s, n := p.next(blocks[depth:])
		if s == nil {
			return p.seen
		}
		for h := s.holders; h != nil; h = h.next {
			if h.replica != everyone && h.lost == 0 && p.seen[h.replica] == depth {
				p.seen[h.replica] += n
			}
		}
		if depth += n; n < len(s.blocks) {
			return p.seen
		}
	}
}

// count returns how many of the blocks each replica holds, up to the first block
// that none holds. The result is valid until the next call.
func (p *routed) count(blocks []uint64) []int {
	clear(p.seen)
	for depth := 0; ; {
		s, n := p.next(blocks[depth:])
		if s == nil {
			return p.seen
		}
		whole := false
		for h := s.holders; h != nil; h = h.next {
			whole = whole || h.lost == 0
		}
		if !whole {
			return p.seen
		}
		for h := s.holders; h != nil; h = h.next {
			p.seen[h.replica] += max(n-h.lost, 0)
		}
		if depth += n; n < len(s.blocks) {
			return p.seen
		}
	}
}
