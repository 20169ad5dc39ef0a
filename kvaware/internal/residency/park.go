// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"slices"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

const (
	maxParkedBlocks = 4096
	maxParkedTokens = 1 << 17
)

// parkedStore is a store that waits for its parent.
type parkedStore struct {
	run
	parent kvevents.Key
	page   int // the block size it was stored with, in tokens
}

// parking keeps stores whose parent is not known, the oldest first.
type parking struct {
	stores         []*parkedStore
	byParent       map[kvevents.Key][]*parkedStore
	times          map[kvevents.Key]int // in how many of stores a key is
	ready          []*parkedStore       // whose parent has come; not in stores any more
	blocks, tokens int
}

// park keeps an event whose parent is not known until that comes.
func (h *Holder) park(e *kvevents.Event) {
	p := &h.parking
	if len(e.Blocks) > maxParkedBlocks || len(e.Tokens) > maxParkedTokens {
		h.stats.Orphaned += uint64(len(e.Blocks))
		return
	}
	for p.blocks+len(e.Blocks) > maxParkedBlocks || p.tokens+len(e.Tokens) > maxParkedTokens {
		h.stats.Orphaned += uint64(len(p.stores[0].keys))
		p.take(p.stores[0])
	}
	s := &parkedStore{parent: e.Parent, page: h.learnt.page, run: run{
		keys:   slices.Clone(e.Blocks),
		tokens: slices.Clone(e.Tokens),
		counts: slices.Repeat([]uint8{1}, len(e.Blocks)),
		tier:   e.Tier,
	}}
	for _, x := range e.Extra {
		s.extra = append(s.extra, kvevents.Extra{Other: x.Other})
	}
	if p.byParent == nil {
		p.byParent = make(map[kvevents.Key][]*parkedStore)
		p.times = make(map[kvevents.Key]int)
	}
	p.stores = append(p.stores, s)
	p.byParent[s.parent] = append(p.byParent[s.parent], s)
	for _, k := range s.keys {
		p.times[k]++
	}
	p.blocks += len(s.keys)
	p.tokens += len(s.tokens)
}

// take takes a store out.
func (p *parking) take(s *parkedStore) {
	p.stores = slices.DeleteFunc(p.stores, func(t *parkedStore) bool { return t == s })
	siblings := slices.DeleteFunc(p.byParent[s.parent], func(t *parkedStore) bool { return t == s })
	if p.byParent[s.parent] = siblings; len(siblings) == 0 {
		delete(p.byParent, s.parent)
	}
	for _, k := range s.keys {
		if p.times[k]--; p.times[k] == 0 {
			delete(p.times, k)
		}
	}
	p.blocks -= len(s.keys)
	p.tokens -= len(s.tokens)
}

// remove counts a copy of a block out of the stores, and reports whether there was one.
func (p *parking) remove(k kvevents.Key, t kvevents.Tier, last bool) (found bool) {
	if p.times[k] == 0 {
		return false
	}
	for _, s := range p.stores {
		if s.tier != t {
			continue
		}
		for i, key := range s.keys {
			if key == k && s.counts[i] > 0 {
				s.counts[i]--
				if found = true; !last {
					return true
				}
			}
		}
	}
	return found
}

// arrived readies the stores that wait for a block which is known from now on.
func (p *parking) arrived(k kvevents.Key) {
	if len(p.stores) == 0 {
		return
	}
	for _, s := range slices.Clone(p.byParent[k]) {
		p.take(s)
		p.ready = append(p.ready, s)
	}
}

// enterReady enters the stores that are ready, and those that they make ready.
func (h *Holder) enterReady() {
	p := &h.parking
	for len(p.ready) > 0 {
		s := p.ready[0]
		p.ready = p.ready[1:]
		slot := h.life.keys.find(h.mixed(s.parent))
		if slot == nil || s.page != h.learnt.page {
			h.stats.Orphaned += uint64(len(s.keys))
			continue
		}
		h.before = slot.ref
		h.enter(&s.run)
	}
	p.ready = nil
}
