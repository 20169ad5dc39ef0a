// SPDX-License-Identifier: Apache-2.0

package prefix

import "math"

// slotted is the other kind of cache, that of llama.cpp's server and of Ollama's
// runner: a fixed number of slots, each with a context of its own, which keeps the
// last sequence that ran there, prompt and output. A request takes an idle slot and
// reuses what it has in common with the sequence there; the rest of that is lost.
// Where no slot is idle, it waits until one is.
//
// As llama.cpp does, a request takes the slot with which it has most in common, if
// that is more than a tenth of it (slot-prompt-similarity, 0.1), and else the one
// used least recently. What llama.cpp saves to host memory (cache-ram) is not
// counted on.
type slotted struct {
	slots   []slot
	context int      // blocks that a sequence has at most
	queue   []queued // in the order in which they came
	tickets uint64   // given to paths so far
	uses    uint64   // beginnings and ends so far: the order of slots
}

// slot is one of them and the sequence there. Its hashes carry the namespace.
type slot struct {
	hashes  []uint64 // of the prompt
	sure    int      // leading blocks known to have been prefilled
	kept    int      // leading blocks that the running request found there
	out     int      // blocks of output behind them
	content Content
	ticket  uint64 // of the path that runs in it, 0 if it is idle
	used    uint64 // when the path began or, if it is idle, ended
	idle    uint32 // when it became idle, in ticks
}

// queued is a path that waits for a slot.
type queued struct {
	ticket uint64
	hashes []uint64
}

// similar is the least part of a prompt, one of so many, that must be in common
// with a slot's sequence for the slot to be taken for it.
const similar = 10

// SetSlots makes an upstream's cache one of so many slots, of contexts of so many
// blocks each (0: as many as the capacity); with 0 slots it is one of blocks. A
// change forgets what it holds. It lasts until Remove.
func (x *Index) SetSlots(h Holder, slots, context int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.cacheOf(h)
	if c == nil || slots == c.slotCount() && (c.slotted == nil || context == c.slotted.context) {
		return
	}
	x.close(c)
	x.setSlotted(x.successor(c, h), max(0, slots), max(0, context))
	x.reap(0)
}

func (c *cache) slotCount() int {
	if c.slotted == nil {
		return 0
	}
	return len(c.slotted.slots)
}

// setSlotted makes a new cache one of slots, if there are any.
func (x *Index) setSlotted(c *cache, slots, context int) {
	if slots > 0 {
		c.slotted = &slotted{slots: make([]slot, slots), context: context}
		x.slottedCaches++
	}
}

// most is how many blocks a sequence has at most.
func (c *cache) most() int {
	if n := c.slotted.context; n > 0 {
		return n
	}
	return c.wanted
}

// inCommon returns how many leading hashes of a sequence a chain has.
func inCommon(sequence []uint64, seed uint64, chain []uint64) int {
	lo, hi := 0, min(len(sequence), len(chain))
	for lo < hi {
		mid := int(uint(lo+hi+1) / 2)
		if sequence[mid-1] == chain[mid-1]^seed {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// pick returns the slot that a prompt would take, and what it has in common with
// the sequence there. Where none is idle, it is the one whose request began first,
// which is likely to end first.
func (s *slotted) pick(seed uint64, chain []uint64) (at, common int, idle bool) {
	best, oldest, running := 0, -1, -1
	for i := range s.slots {
		sl := &s.slots[i]
		if sl.ticket != 0 {
			if running < 0 || sl.used < s.slots[running].used {
				running = i
			}
			continue
		}
		if k := inCommon(sl.hashes, seed, chain); k > best && k*similar > len(chain) {
			at, best = i, k
		}
		if oldest < 0 || sl.used < s.slots[oldest].used {
			oldest = i
		}
	}
	switch {
	case best > 0:
		return at, best, true
	case oldest >= 0:
		return oldest, inCommon(s.slots[oldest].hashes, seed, chain), true
	}
	return running, inCommon(s.slots[running].hashes, seed, chain), false
}

// outputBehind returns the output behind a sequence, if a chain goes on there.
func (sl *slot) outputBehind(common, chain int) Output {
	if sl.out == 0 || common < len(sl.hashes) || common == chain {
		return Output{}
	}
	return Output{Blocks: int32(sl.out) - 1, Content: sl.content}
}

// findSlotted adds to what is found that of upstreams with slots.
func (x *Index) findSlotted(seed uint64, chain []uint64, f *Found) {
	for h, c := range x.slots[:min(len(x.slots), len(f.Held))] {
		if c == nil || c.slotted == nil {
			continue
		}
		at, common, _ := c.slotted.pick(seed, chain)
		f.Held[h] = int32(common)
		if f.Outputs != nil {
			f.Outputs[h] = c.slotted.slots[at].outputBehind(common, len(chain))
		}
	}
}

// pinSlot is Pin for slots.
func (x *Index) pinSlot(c *cache, seed uint64, chain []uint64) Path {
	s := c.slotted
	chain = chain[:min(len(chain), c.most())]
	s.tickets++
	p := Path{cache: c, unseen: true, ticket: s.tickets}
	at, common, idle := s.pick(seed, chain)
	sl := &s.slots[at]
	p.before = Before{Held: common, Output: sl.outputBehind(common, len(chain))}
	hashes := make([]uint64, len(chain))
	for i, hash := range chain {
		hashes[i] = hash ^ seed
	}
	if !idle {
		s.queue = append(s.queue, queued{ticket: p.ticket, hashes: hashes})
		return p
	}
	p.before.Sure = min(common, sl.sure)
	x.begin(c, sl, common, queued{ticket: p.ticket, hashes: hashes})
	return p
}

// begin has a path run in an idle slot, with whose sequence it has so much in
// common.
func (x *Index) begin(c *cache, sl *slot, common int, q queued) {
	lost := len(sl.hashes) - common
	c.evicted += uint64(lost + sl.out)
	x.history.Lost(x.tick-sl.idle, lost)
	x.history.Reused(x.tick-sl.idle, common)
	c.slotted.uses++
	*sl = slot{hashes: q.hashes, sure: min(sl.sure, common), kept: common, ticket: q.ticket, used: c.slotted.uses}
}

// running returns the slot that a path runs in, or nil.
func (s *slotted) running(ticket uint64) *slot {
	for i := range s.slots {
		if s.slots[i].ticket == ticket {
			return &s.slots[i]
		}
	}
	return nil
}

// growSlot is Grow for slots: what does not fit into the context is not kept.
func (x *Index) growSlot(p *Path, blocks int) {
	if sl := p.cache.slotted.running(p.ticket); sl != nil {
		sl.out = min(clampCapacity(blocks), max(0, p.cache.most()-len(sl.hashes)))
	}
}

// confirmSlot is Confirm for slots.
func (x *Index) confirmSlot(p *Path) {
	if sl := p.cache.slotted.running(p.ticket); sl != nil {
		sl.sure = len(sl.hashes)
	}
}

// finishSlot is Done and Abort for slots. Who has waited longest takes the slot.
func (x *Index) finishSlot(c *cache, p *Path, served bool) {
	s := c.slotted
	sl := s.running(p.ticket)
	if sl == nil {
		for i := range s.queue {
			if s.queue[i].ticket == p.ticket {
				s.queue = append(s.queue[:i], s.queue[i+1:]...)
				break
			}
		}
		return
	}
	switch {
	case served:
		sl.sure = len(sl.hashes)
	case sl.sure < len(sl.hashes):
		sl.hashes, sl.out = sl.hashes[:sl.kept], 0
		sl.sure = min(sl.sure, sl.kept)
	}
	s.uses++
	sl.content, sl.ticket, sl.used, sl.idle = p.content, 0, s.uses, x.tick
	if len(s.queue) > 0 {
		next := s.queue[0]
		s.queue = append(s.queue[:0], s.queue[1:]...)
		at, common, _ := s.pick(0, next.hashes)
		x.begin(c, &s.slots[at], common, next)
	}
}

// slottedStats is Stats for slots. What waits for one holds nothing.
func (c *cache) slottedStats() Stats {
	st := Stats{Capacity: c.most(), Evicted: c.evicted}
	if c.slotted.context > 0 {
		st.Capacity = int(min(int64(len(c.slotted.slots))*int64(c.slotted.context), math.MaxInt32))
	}
	for i := range c.slotted.slots {
		if sl := &c.slotted.slots[i]; sl.ticket != 0 {
			st.Pinned += len(sl.hashes)
			st.Generating += sl.out
		} else {
			st.Idle += len(sl.hashes)
			st.Output += sl.out
		}
	}
	st.Blocks = st.Pinned + st.Idle + st.Generating + st.Output
	return st
}

// slottedUse is Use for slots: there is only room where a slot holds nothing.
func (c *cache) slottedUse() Use {
	st := c.slottedStats()
	u := Use{Capacity: st.Capacity, Running: st.Pinned + st.Generating}
	for i := range c.slotted.slots {
		if sl := &c.slotted.slots[i]; sl.ticket == 0 && len(sl.hashes)+sl.out == 0 {
			u.Free = max(0, st.Capacity-st.Blocks)
		}
	}
	return u
}

// priceSlot is Price for slots: what is lost of the sequence whose slot is taken.
func (x *Index) priceSlot(c *cache, e *Eviction) float64 {
	at, common, _ := c.slotted.pick(seedOf(e.Namespace), e.Chain)
	sl := &c.slotted.slots[at]
	if sl.ticket != 0 {
		return 0 // not known before it has ended
	}
	begin, end := int64(common)*int64(e.BlockSize), int64(len(sl.hashes))*int64(e.BlockSize)
	return e.Pace.Recompute(begin, end) * x.history.Chance(x.ticks()-sl.idle)
}

// bytes is the memory of the sequences' hashes.
func (s *slotted) bytes() (n int) {
	for i := range s.slots {
		n += 8 * cap(s.slots[i].hashes)
	}
	for i := range s.queue {
		n += 8 * cap(s.queue[i].hashes)
	}
	return n
}
