// SPDX-License-Identifier: Apache-2.0

package residency

import "github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"

// removed counts blocks out of a tier.
func (h *Holder) removed(e *kvevents.Event) {
	if !h.counts(e) {
		return
	}
	for i, k := range e.Blocks {
		if i > 0 && i%warmAhead == 0 {
			h.warmKeys(e.Blocks[i:])
		}
		h.flushIfFull()
		slot := h.life.keys.find(h.mixed(k))
		if slot == nil {
			if !h.parking.remove(k, e.Tier, h.rules.LastRemoval) {
				h.stats.Unknown++
			}
			continue
		}
		h.lose(slot, e.Tier)
	}
}

// lose counts a copy of a block out of a tier, or the last one.
func (h *Holder) lose(slot *keySlot, t kvevents.Tier) {
	l := h.life
	n := slot.state.count(t)
	if n == 0 {
		h.stats.Unknown++
		return
	}
	if n--; h.rules.LastRemoval {
		n = 0
	}
	slot.state = slot.state.with(t, n)
	if n > 0 {
		return
	}
	l.held[t]--
	h.stats.Evicted[t]++
	p := planeOf(t)
	if slot.state != 0 {
		h.change(slot.ref, 0, p, h.coverOf(t))
		return
	}
	limit := h.remembers(l)
	if limit == 0 {
		h.drop(slot, p)
		return
	}
	slot.state = l.memory.push(slot.key)
	h.change(slot.ref, remembered, p, h.coverOf(t))
	for l.memory.count > limit || l.memory.len() > 2*limit {
		h.forgetOldest()
	}
}

// drop takes out a block that was in these planes last.
func (h *Holder) drop(slot *keySlot, p planes) {
	if slot.ref.kind() == refPage {
		h.life.pages.remove(slot.ref.number())
	} else {
		h.leaves(slot.ref, p)
	}
	h.life.keys.remove(slot)
}

// remembers is how many blocks of a life are remembered at most.
func (h *Holder) remembers(l *life) int {
	if !h.learnt.offloads {
		return 0
	}
	return max(h.x.remember, l.keys.len/rememberedPart)
}

// forgetOldest drops the oldest remembered block, if it has not come back.
func (h *Holder) forgetOldest() {
	l := h.life
	h.flushIfFull()
	key, s := l.memory.pop()
	slot := l.keys.find(key)
	if slot == nil || slot.state != s {
		return
	}
	l.memory.count--
	h.drop(slot, remembered)
}
