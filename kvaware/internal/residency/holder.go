// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"sync"
	"sync/atomic"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// Rules is how an engine tells of its blocks, where engines differ.
type Rules struct {
	// LastRemoval: a block's removal is told when its last copy goes. Otherwise
	// each copy's is.
	LastRemoval bool
	// ClearsAll: a clear empties every tier, as SGLang's does, and not the GPU's
	// alone, as vLLM's.
	ClearsAll bool
}

// Holder is an engine, or a data-parallel rank of one, and what it has. Its methods
// are safe for concurrent use, but wait for each other.
type Holder struct {
	x    *Index
	slot int32
	seen atomic.Uint32 // the id of life's member

	mu      sync.Mutex // guards all below
	closed  bool
	rules   Rules
	life    *life
	learnt  learnt
	parking parking
	stats   Stats

	ops     []op
	waiting []uint32               // pages behind entries that ops have yet to find
	before  ref                    // the block before those that are being stored
	root    uint64                 // if before is a prompt's root
	whole   [2 * leastBlock]uint32 // tokens of an index block of several pages
	odd     [leastBlock]uint32     // tokens of a page that is not of text alone
	warmed  uint64                 // keeps reads that only warm the caches
	ahead   [warmAhead]*keyPlace

	lastRoot struct { // what LoRA and salt gave last
		lora, salt []byte
		hash       uint64
		known      bool
	}

	statsMu   sync.Mutex // guards published
	published Stats
}

// Open enters an engine, whose credit Match gives to dst[slot]. The slot must not be
// in use by another holder of the index.
func (x *Index) Open(slot int) *Holder {
	h := &Holder{x: x, slot: int32(slot), ops: make([]op, 0, maxOps)}
	h.start()
	return h
}

// SetRules changes how the next events are understood.
func (h *Holder) SetRules(r Rules) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rules = r
}

// Apply takes over a batch of events, in steps: of the shared tables a step changes at
// most 256 blocks while others who change them wait. What it has done is seen by Match at once.
// The batch is not kept.
func (h *Holder) Apply(b *kvevents.Batch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	warmed := 0
	for i := range b.Events {
		if i >= warmed {
			warmed = h.warm(b.Events, i)
		}
		switch e := &b.Events[i]; e.Kind {
		case kvevents.Stored:
			h.stored(e)
		case kvevents.Removed:
			h.removed(e)
		case kvevents.Cleared:
			h.cleared()
		}
	}
	h.flush()
	h.findCovers()
	h.publish()
}

// warmAhead is how many keys are looked at before they are wanted.
const warmAhead = 64

// warm has the slots of the next events' keys at hand, and returns before which event
// that ends.
func (h *Holder) warm(events []kvevents.Event, i int) int {
	n := 0
	for ; i < len(events) && n < warmAhead; i++ {
		n = h.aim(events[i].Blocks, n)
	}
	h.touch(n)
	return i
}

func (h *Holder) warmKeys(keys []kvevents.Key) { h.touch(h.aim(keys, 0)) }

// aim finds where keys are, behind n others.
func (h *Holder) aim(keys []kvevents.Key, n int) int {
	for _, key := range keys[:min(len(keys), warmAhead-n)] {
		h.ahead[n] = h.life.keys.place(h.mixed(key))
		n++
	}
	return n
}

// touch reads what was aimed at: many reads that do not wait for each other take little
// longer than one.
func (h *Holder) touch(n int) {
	sum := uint64(0)
	for _, p := range h.ahead[:n] {
		sum += p[0].key + p[len(p)-1].key
	}
	h.warmed += sum
}

// mixed is what stands for an engine's key in tables: spread, and so that nobody can
// aim at a place. It is not 0.
func (h *Holder) mixed(key kvevents.Key) uint64 { return max(1, mix64(key^h.x.secret)) }

// flush does the operations that were gathered.
func (h *Holder) flush() {
	h.warmed += h.life.run(h.ops, h.waiting)
	if h.before.kind() == refPending {
		h.before = refEntry | ref(h.ops[h.before.number()].entry)
	}
	h.ops, h.waiting = h.ops[:0], h.waiting[:0]
}

// flushIfFull flushes if there is no room for some operations more.
func (h *Holder) flushIfFull() {
	if len(h.ops) > maxOps-4 {
		h.flush()
	}
}

// change gathers a change of planes for what a ref stands for.
func (h *Holder) change(r ref, on, off planes, cover int) {
	o := op{on: on, off: off, pending: -1, cover: int32(cover)}
	switch r.kind() {
	case refPage:
		return // no index block ends there
	case refPending:
		o.pending = int32(r.number())
	case refEntry:
		o.entry = r.number()
	}
	h.ops = append(h.ops, o)
}

// start begins a life.
func (h *Holder) start() {
	h.life = &life{member: h.x.enter(h.slot)}
	h.seen.Store(h.life.member.id)
}

// Forget drops all that the holder has and was learnt of it: its engine is another, or
// what it told is lost. It is not seen any more from the first, though giving it back
// takes time in its blocks.
func (h *Holder) Forget() {
	h.x.hide(h.seen.Load(), h.slot)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.end()
	h.start()
	h.learnt = learnt{}
	h.stats.Incomplete = false
	h.stats.Peak = [kvevents.Tiers]int{}
	h.publish()
}

// Close is Forget for good; the slot may then be used for another. Apply does nothing
// after it.
func (h *Holder) Close() {
	h.x.hide(h.seen.Load(), h.slot)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.closed = true
	h.end()
	h.seen.Store(noMember)
	h.publish()
}

// end ends the holder's life and gives back what was in it.
func (h *Holder) end() {
	h.x.hide(h.life.member.id, h.slot)
	h.parking = parking{}
	h.flush()
	h.drain(h.life)
}

// drain gives back what is in a life that is seen no more.
func (h *Holder) drain(l *life) {
	current := h.life
	h.life = l
	l.keys.each(func(slot *keySlot) {
		h.flushIfFull()
		h.leaves(slot.ref, slot.state.planes())
	})
	h.flush()
	h.life = current
	l.keys = keyTable{}
	if l.blocks != nil {
		h.x.part(l.blocks)
		l.blocks = nil
	}
	h.x.leave(l.member.id)
}

// leaves gathers that a block leaves planes: those whose blocks cover others by
// themselves.
func (h *Holder) leaves(r ref, p planes) {
	for t, cover := range h.learnt.cover {
		if plane := planeOf(kvevents.Tier(t)); cover > 1 && p&plane != 0 {
			h.change(r, 0, plane, cover-1)
			p &^= plane
		}
	}
	if p != 0 {
		h.change(r, 0, p, 0)
	}
}

// cleared empties the GPU tier. If there are blocks in others, they stay, under another
// member.
func (h *Holder) cleared() {
	h.flush()
	old := h.life
	h.x.hide(old.member.id, h.slot)
	h.parking = parking{}
	h.stats.Cleared++
	h.stats.Incomplete = false
	h.start()
	if old.blocks != nil {
		h.life.blocks = h.x.join(old.blocks.size)
	}
	if old.held[kvevents.CPU]+old.held[kvevents.Disk] > 0 && !h.rules.ClearsAll {
		h.move(old, h.life)
	}
	h.life.pages.size = old.pages.size
	h.drain(old)
}

// move takes over blocks that are in other tiers than the GPU's, and remembers of the
// others as many as it may.
func (h *Holder) move(from, to *life) {
	to.pages = from.pages
	limit := h.remembers(from)
	from.keys.each(func(slot *keySlot) {
		h.flushIfFull()
		s := slot.state.with(kvevents.GPU, 0)
		if s == 0 {
			if to.memory.count < limit {
				moved := to.keys.insert(slot.key, to.keys.slot(slot.key))
				moved.ref, moved.state = slot.ref, to.memory.push(slot.key)
				h.change(slot.ref, remembered, 0, 0)
			} else if slot.ref.kind() == refPage {
				to.pages.remove(slot.ref.number())
			}
			return
		}
		moved := to.keys.insert(slot.key, to.keys.slot(slot.key))
		moved.ref, moved.state = slot.ref, s
		for t := range kvevents.Tier(kvevents.Tiers) {
			if s.count(t) > 0 {
				to.held[t]++
				h.change(slot.ref, planeOf(t), 0, h.coverOf(t))
			}
		}
	})
	h.flush()
}
