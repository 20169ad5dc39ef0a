// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"fmt"
	"maps"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// check returns what of the shared tables is not as the holders' own tables want it,
// which must be all holders that are in the index.
func (x *Index) check(holders ...*Holder) error {
	type want map[uint32]map[uint32][planeCount]int // by entry and member: owners by plane
	wants := map[*blocks]want{}
	for _, t := range *x.tables.Load() {
		wants[t.blocks] = want{}
	}
	tableHolders := map[*blocks]int{}
	for _, h := range holders {
		if h.closed {
			continue
		}
		l := h.life
		if len(h.ops) > 0 || len(h.waiting) > 0 {
			return fmt.Errorf("slot %d has operations left", h.slot)
		}
		if l.blocks == nil {
			if l.keys.len > 0 {
				return fmt.Errorf("slot %d has keys without a block size", h.slot)
			}
			continue
		}
		tableHolders[l.blocks]++
		w, ok := wants[l.blocks]
		if !ok {
			return fmt.Errorf("slot %d has blocks that are not in the index", h.slot)
		}
		own := func(entry uint32, p planes) {
			if w[entry] == nil {
				w[entry] = map[uint32][planeCount]int{}
			}
			n := w[entry][l.member.id]
			for i := range n {
				n[i] += int(p >> i & 1)
			}
			w[entry][l.member.id] = n
		}
		var held [kvevents.Tiers]int
		count, memories := 0, 0
		var err error
		l.keys.each(func(s *keySlot) {
			count++
			p := s.state.planes()
			if p == 0 {
				err = fmt.Errorf("slot %d has a key with state %b", h.slot, s.state)
			}
			if p == remembered {
				memories++
			}
			if l.keys.find(s.key) != s {
				err = fmt.Errorf("slot %d does not find a key", h.slot)
			}
			if k := s.ref.kind(); k == refPending || k == refRoot || k == refPage && l.blocks.size == l.pages.size {
				err = fmt.Errorf("slot %d has ref %x", h.slot, s.ref)
			}
			for t := range kvevents.Tier(kvevents.Tiers) {
				if s.state.count(t) == 0 {
					continue
				}
				held[t]++
				if s.ref.kind() == refEntry {
					at := s.ref.number()
					for range h.coverOf(t) {
						if at = l.blocks.before(at); at == 0 {
							break
						}
						own(at, planeOf(t))
					}
				}
			}
			if s.ref.kind() == refEntry {
				own(s.ref.number(), p)
			}
		})
		if err != nil {
			return err
		}
		if count != l.keys.len || held != l.held || memories != l.memory.count {
			return fmt.Errorf("slot %d has %d keys %v %d, counted %d %v %d", h.slot, count, held, memories, l.keys.len, l.held, l.memory.count)
		}
		for entry, members := range w {
			more := l.more[entry]
			for i, n := range members[l.member.id] {
				if int(more[i]) != max(0, n-1) {
					return fmt.Errorf("slot %d counts %v more for entry %d, not %v", h.slot, more, entry, members[l.member.id])
				}
			}
		}
		for entry := range l.more {
			if _, ok := w[entry][l.member.id]; !ok {
				return fmt.Errorf("slot %d counts more of an entry that it does not have", h.slot)
			}
		}
		blocks, tokens := 0, 0
		times := map[kvevents.Key]int{}
		for _, s := range h.parking.stores {
			blocks += len(s.keys)
			tokens += len(s.tokens)
			for _, k := range s.keys {
				times[k]++
			}
		}
		if p := &h.parking; blocks != p.blocks || tokens != p.tokens || !maps.Equal(times, p.times) && len(times)+len(p.times) > 0 {
			return fmt.Errorf("slot %d parks %d blocks, not %d", h.slot, p.blocks, blocks)
		}
	}
	for _, t := range *x.tables.Load() {
		if t.holders != tableHolders[t.blocks] {
			return fmt.Errorf("%d holders counted for size %d, not %d", t.holders, t.blocks.size, tableHolders[t.blocks])
		}
		if err := t.blocks.check(wants[t.blocks]); err != nil {
			return err
		}
	}
	return nil
}

func (b *blocks) check(want map[uint32]map[uint32][planeCount]int) error {
	refs := map[uint32]uint32{}
	entries, places, empty, held := 0, 0, 0, 0
	dir := *b.chunks.Load()
	for n := range dir {
		c := dir[n].Load()
		if c == nil {
			continue
		}
		taken := 0
		for i := range uint32(chunkSize) {
			id := uint32(n)<<chunkBits | i
			set := c.sets[i].Load()
			if c.taken[i/64]>>(i%64)&1 == 0 || id == 0 {
				if set != 0 {
					return fmt.Errorf("free entry %d has set %d", id, set)
				}
				taken += int(c.taken[i/64] >> (i % 64) & 1)
				continue
			}
			taken++
			entries++
			refs[set]++
			if b.find(c.hashes[i].Load()) != id {
				return fmt.Errorf("entry %d is not found", id)
			}
			got := map[uint32]planes{}
			last := uint64(0)
			for k, cell := range b.sets.at(set).read() {
				if k > 0 && cell>>tagShift <= last {
					return fmt.Errorf("cells of set %d are not in order", set)
				}
				last = cell >> tagShift
				if cell&cellBits == 0 {
					return fmt.Errorf("set %d has an empty cell", set)
				}
				for bits := cell & cellBits; bits != 0; bits &= bits - 1 {
					got[uint32(memberOf(cell>>groupShift, bits))] |= 1 << (cell >> planeShift & 3)
				}
			}
			wanted := map[uint32]planes{}
			for m, counts := range want[id] {
				for i, n := range counts {
					if n > 0 {
						wanted[m] |= 1 << i
					}
				}
			}
			if !maps.Equal(got, wanted) || len(got) == 0 {
				return fmt.Errorf("entry %d has %v, not %v", id, got, wanted)
			}
		}
		held++
		if c.free == chunkSize {
			empty++
		}
		if taken != chunkSize-c.free {
			return fmt.Errorf("chunk %d has %d entries, not %d", n, taken, chunkSize-c.free)
		}
	}
	if empty != b.empty || held != b.held || empty > keptChunks+1 {
		return fmt.Errorf("%d of %d chunks are empty, counted %d of %d", empty, held, b.empty, b.held)
	}
	if entries != len(want) || entries != b.live {
		return fmt.Errorf("%d entries, counted %d, wanted %d", entries, b.live, len(want))
	}
	d := b.places.directory.Load()
	slots := 0
	var last *placeSegment
	for i := range d.segments {
		s := d.segments[i].Load()
		if s == last {
			continue
		}
		last = s
		slots += len(s.slots)
		used := 0
		for j := range s.slots {
			if s.slots[j].Load() != 0 {
				used++
			}
		}
		if used != s.used || s.version.Load()&1 != 0 {
			return fmt.Errorf("segment %d has %d slots used, not %d", i, used, s.used)
		}
		places += used
	}
	if places != entries || places != b.places.len || slots != b.places.slots {
		return fmt.Errorf("%d places in %d slots, counted %d in %d, for %d entries", places, slots, b.places.len, b.places.slots, entries)
	}
	live := 0
	for id := uint32(1); id < b.sets.next; id++ {
		if s := b.sets.at(id); s.read() != nil {
			live++
			if s.refs != refs[id] || b.sets.ids[s.hash] != id {
				return fmt.Errorf("set %d has %d references, not %d", id, s.refs, refs[id])
			}
		}
	}
	if live != b.sets.live || live != len(b.sets.ids) {
		return fmt.Errorf("%d sets, counted %d, found %d", live, b.sets.live, len(b.sets.ids))
	}
	return nil
}
