// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"bytes"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// stored enters an event's blocks.
func (h *Holder) stored(e *kvevents.Event) {
	if len(e.Blocks) == 0 || !h.counts(e) {
		return
	}
	if len(e.Tokens) == 0 || e.Tier != kvevents.GPU && e.Group >= 0 {
		h.storedByKey(e)
		return
	}
	if !e.Whole() || !h.learn(e) {
		h.stats.Malformed += uint64(len(e.Blocks))
		return
	}
	if e.HasParent {
		slot := h.life.keys.find(h.mixed(e.Parent))
		if slot == nil {
			h.park(e)
			return
		}
		h.before = slot.ref
	} else {
		h.before, h.root = refRoot, h.rootOf(e)
	}
	h.enter(&run{keys: e.Blocks, tokens: e.Tokens, extra: e.Extra, tier: e.Tier})
	h.enterReady()
}

// storedByKey counts blocks of which nothing is told but the key, or nothing that can
// be trusted: vLLM's offloading tiers, which unlike SGLang's name a group, leave out
// what tells salted and multimodal blocks from others.
func (h *Holder) storedByKey(e *kvevents.Event) {
	h.learnCover(e)
	for _, k := range e.Blocks {
		h.flushIfFull()
		slot := h.life.keys.find(h.mixed(k))
		if slot == nil {
			h.stats.Unresolved++
			continue
		}
		h.learnt.depths[e.Tier].note(slot.key)
		on, off := h.gain(slot, e.Tier, 1)
		if on|off != 0 {
			h.change(slot.ref, on, off, h.coverOf(e.Tier))
		}
	}
}

// rootOf is what a prompt's first block is chained to.
func (h *Holder) rootOf(e *kvevents.Event) uint64 {
	var salt []byte
	if len(e.Extra) > 0 {
		salt = e.Extra[0].Salt
	}
	last := &h.lastRoot
	if !last.known || !bytes.Equal(last.lora, e.LoRA) || !bytes.Equal(last.salt, salt) {
		last.lora, last.salt = append(last.lora[:0], e.LoRA...), append(last.salt[:0], salt...)
		last.hash, last.known = h.x.chains.Root(string(e.LoRA), string(salt)), true
	}
	return last.hash
}

// run is blocks of one prompt, one behind the other.
type run struct {
	keys   []kvevents.Key
	tokens []uint32
	extra  []kvevents.Extra // by block, or nil
	counts []uint8          // how often each lies in the tier; nil: once
	tier   kvevents.Tier
}

// enter stores the blocks of a run behind h.before.
func (h *Holder) enter(r *run) {
	l, page := h.life, h.learnt.page
	cover := int32(h.coverOf(r.tier))
	for i, k := range r.keys {
		if i > 0 && i%warmAhead == 0 {
			h.warmKeys(r.keys[i:])
		}
		h.flushIfFull()
		count := 1
		if r.counts != nil {
			count = int(r.counts[i])
		}
		key := h.mixed(k)
		slot := l.keys.slot(key)
		if slot == nil || slot.key != key {
			if l.keys.len >= h.x.maxBlocks {
				slot = nil // what makes room may move it
			}
			if !h.makeRoom() {
				h.stats.Dropped += uint64(len(r.keys) - i)
				h.stats.Incomplete = true
				return
			}
			var other uint64
			if r.extra != nil {
				other = r.extra[i].Other
			}
			at, o, ok := h.place(r.tokens[i*page:(i+1)*page], other)
			if !ok {
				h.stats.Malformed += uint64(len(r.keys) - i)
				return
			}
			slot = l.keys.insert(key, slot)
			slot.ref = at
			h.before = at
			on := h.arrive(slot, r.tier, count)
			if at.kind() == refPending {
				o.key, o.on, o.cover = key, on, cover
				h.ops = append(h.ops, o)
			}
			h.parking.arrived(k)
			continue
		}
		h.before = slot.ref
		if count == 0 {
			continue
		}
		if on, off := h.gain(slot, r.tier, count); on|off != 0 {
			h.change(slot.ref, on, off, int(cover))
		}
	}
}

// place returns the ref of a block that is new and lies behind h.before; for an index
// block's end with the operation that finds its entry.
func (h *Holder) place(tokens []uint32, other uint64) (at ref, o op, ok bool) {
	l := h.life
	perBlock := l.blocks.size / len(tokens)
	before, root := h.before, h.root
	if perBlock > 1 {
		place := 0
		if before.kind() == refPage {
			place = l.pages.place(before.number()) + 1
		}
		if other != 0 {
			n := copy(h.odd[:], tokens)
			h.odd[0] = uint32(mix64(other)) | 1<<31 // no vocabulary's
			tokens, other = h.odd[:n], 0
		}
		if place < perBlock-1 {
			n := l.pages.add(before, place, root, tokens)
			if before.kind() == refPending {
				h.waiting = append(h.waiting, n)
			}
			return refPage | ref(n), op{}, n != 0
		}
		whole := h.whole[:l.blocks.size]
		copy(whole[place*len(tokens):], tokens)
		if before, root, ok = l.pages.gather(before.number(), place-1, whole); !ok {
			return 0, op{}, false
		}
		tokens = whole
	}
	if before.kind() != refRoot {
		root = h.hashOf(before)
	}
	if other != 0 {
		root = mix64(root ^ mix64(other))
	}
	o = op{hash: h.x.chains.Extend(root, tokens), pending: -1, parent: before}
	return refPending | ref(len(h.ops)), o, true
}

// hashOf returns the chain hash of an index block.
func (h *Holder) hashOf(r ref) uint64 {
	if r.kind() == refPending {
		return h.ops[r.number()].hash
	}
	return h.life.blocks.hash(r.number())
}

// arrive counts a block that is new.
func (h *Holder) arrive(slot *keySlot, t kvevents.Tier, count int) planes {
	if count == 0 {
		slot.state = h.life.memory.push(slot.key)
		return remembered
	}
	slot.state = state(0).with(t, state(count))
	h.enters(t)
	return planeOf(t)
}

// gain counts a block that comes into a tier, and returns how its planes change.
func (h *Holder) gain(slot *keySlot, t kvevents.Tier, count int) (on, off planes) {
	n := slot.state.count(t)
	if slot.state&isRemembered != 0 {
		h.life.memory.count--
		off = remembered
	}
	slot.state = slot.state.with(t, n+state(count))
	if n > 0 {
		return 0, 0
	}
	h.enters(t)
	return planeOf(t), off
}

// enters counts a block into a tier.
func (h *Holder) enters(t kvevents.Tier) {
	h.life.held[t]++
	h.stats.Peak[t] = max(h.stats.Peak[t], h.life.held[t])
}

// makeRoom forgets remembered blocks if there are as many as there may be, and reports
// whether there is room for one more.
func (h *Holder) makeRoom() bool {
	l := h.life
	for l.keys.len >= h.x.maxBlocks {
		if l.memory.len() == 0 {
			return false
		}
		h.forgetOldest()
	}
	return true
}
