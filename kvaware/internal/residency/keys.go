// SPDX-License-Identifier: Apache-2.0

package residency

// keySlot is what a holder knows of one of its engine's blocks.
type keySlot struct {
	key   uint64 // the engine's, mixed; 0: the slot is empty
	ref   ref
	state state
}

// keyTable finds a holder's blocks by the engine's keys. Pointers into it are good
// until the next insert or remove.
type keyTable struct {
	segments []*keySegment // by the key's first depth bits
	depth    uint8
	len      int
	slots    int // of all segments, pads included
}

type keySegment struct {
	used  int
	depth uint8 // how many bits all its keys have in common
	slots []keySlot
}

const (
	keyLoad     = 80 // percent, when a segment grows
	keyLoadNext = 70 // percent at most, when it has grown
)

func (t *keyTable) segment(key uint64) *keySegment {
	return t.segments[key>>(64-t.depth)]
}

func (s *keySegment) home(key uint64) int {
	return home(key, s.depth, len(s.slots)-segmentPad)
}

// keyPlace is where a key's slot mostly is. Its ends are in two cache lines.
type keyPlace [5]keySlot

// place returns where a key's slot mostly is.
func (t *keyTable) place(key uint64) *keyPlace {
	if t.len == 0 {
		return new(keyPlace)
	}
	s := t.segment(key)
	i := s.home(key)
	return (*keyPlace)(s.slots[i : i+len(keyPlace{})])
}

// find returns a key's slot, or nil.
func (t *keyTable) find(key uint64) *keySlot {
	if slot := t.slot(key); slot != nil && slot.key == key {
		return slot
	}
	return nil
}

// slot returns a key's slot, or the empty one where it would be, if there is one.
func (t *keyTable) slot(key uint64) *keySlot {
	if t.len == 0 {
		return nil
	}
	s := t.segment(key)
	for i := s.home(key); i < len(s.slots); i++ {
		if slot := &s.slots[i]; slot.key == key || slot.key == 0 {
			return slot
		}
	}
	return nil
}

// insert adds a slot for a key that has none. At is what slot returned for it.
func (t *keyTable) insert(key uint64, at *keySlot) *keySlot {
	if t.segments == nil {
		t.segments = []*keySegment{t.rebuilt(&keySegment{}, 0, 0, 0, 0)}
	}
	s := t.segment(key)
	for at == nil || (s.used+1)*100 > (len(s.slots)-segmentPad)*keyLoad {
		t.grow(key, s)
		s = t.segment(key)
		at = s.empty(key)
	}
	at.key = key
	s.used++
	t.len++
	return at
}

// empty returns the slot for a key that has none, nil if there is no place behind its
// home.
func (s *keySegment) empty(key uint64) *keySlot {
	for i := s.home(key); i < len(s.slots); i++ {
		if slot := &s.slots[i]; slot.key == 0 {
			return slot
		}
	}
	return nil
}

// remove empties a slot and moves up those that it kept from their homes.
func (t *keyTable) remove(slot *keySlot) {
	s := t.segment(slot.key)
	hole := s.home(slot.key)
	for &s.slots[hole] != slot {
		hole++
	}
	for i := hole + 1; i < len(s.slots) && s.slots[i].key != 0; i++ {
		if s.home(s.slots[i].key) <= hole {
			s.slots[hole] = s.slots[i]
			hole = i
		}
	}
	key := slot.key
	s.slots[hole] = keySlot{}
	s.used--
	t.len--
	if n := len(s.slots) - segmentPad; n > segmentSizes[0] && s.used*100 < n*keyLoadNext/3 {
		first, width := t.rangeOf(s, key)
		t.lead(first, width, t.rebuilt(s, s.depth, 0, 0, 0))
		t.slots -= len(s.slots)
	}
}

// grow gives the segment of a key more room.
func (t *keyTable) grow(key uint64, s *keySegment) {
	first, width := t.rangeOf(s, key)
	if len(s.slots) < largestSegment && sizeFor(s.used+1, keyLoadNext) < largestSegment {
		t.lead(first, width, t.rebuilt(s, s.depth, 0, 0, len(s.slots)+1))
		t.slots -= len(s.slots)
		return
	}
	if width == 1 {
		wider := make([]*keySegment, 2*len(t.segments))
		for i, old := range t.segments {
			wider[2*i], wider[2*i+1] = old, old
		}
		t.segments = wider
		t.depth++
		first, width = 2*first, 2
	}
	bit := uint64(1) << (63 - s.depth)
	t.lead(first, width/2, t.rebuilt(s, s.depth+1, bit, 0, 0))
	t.lead(first+width/2, width/2, t.rebuilt(s, s.depth+1, bit, bit, 0))
	t.slots -= len(s.slots)
}

// rangeOf returns which part of the directory leads to the segment of a key.
func (t *keyTable) rangeOf(s *keySegment, key uint64) (first, width int) {
	width = 1 << (t.depth - s.depth)
	return int(key>>(64-t.depth)) &^ (width - 1), width
}

// lead has a part of the directory lead to s.
func (t *keyTable) lead(first, width int, s *keySegment) {
	for i := first; i < first+width; i++ {
		t.segments[i] = s
	}
}

// rebuilt returns a segment of the slots of s whose key has of these bits these set, of
// least slots or more.
func (t *keyTable) rebuilt(s *keySegment, depth uint8, bits, set uint64, least int) *keySegment {
	entries := 1 // that is to come
	for i := range s.slots {
		if key := s.slots[i].key; key != 0 && key&bits == set {
			entries++
		}
	}
	for n := max(sizeFor(entries, keyLoadNext), sizeOf(least)); ; n += n / 4 {
		next := &keySegment{depth: depth, slots: make([]keySlot, n+segmentPad)}
		if next.fill(s, bits, set) {
			t.slots += len(next.slots)
			return next
		}
	}
}

func (s *keySegment) fill(from *keySegment, bits, set uint64) bool {
	for i := range from.slots {
		key := from.slots[i].key
		if key == 0 || key&bits != set {
			continue
		}
		slot := s.empty(key)
		if slot == nil {
			return false
		}
		*slot = from.slots[i]
		s.used++
	}
	return true
}

// each calls f with each slot. F must not change the table.
func (t *keyTable) each(f func(*keySlot)) {
	var last *keySegment
	for _, s := range t.segments {
		if s == last {
			continue
		}
		last = s
		for i := range s.slots {
			if s.slots[i].key != 0 {
				f(&s.slots[i])
			}
		}
	}
}
