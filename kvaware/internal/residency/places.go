// SPDX-License-Identifier: Apache-2.0

package residency

import "sync/atomic"

// places finds the entries of blocks by hash. A slot is the hash's upper half above
// the entry's number; 0 is empty.
//
// Readers take no lock. A segment's version is odd while slots move, so who found
// nothing knows whether to look again.
type places struct {
	directory atomic.Pointer[placeDirectory] // replaced when it grows
	slots     int                            // of all segments, pads included
	len       int
}

type placeDirectory struct {
	segments []atomic.Pointer[placeSegment] // by the hash's first depth bits
	depth    uint8
}

type placeSegment struct {
	version atomic.Uint32
	used    int
	depth   uint8
	slots   []atomic.Uint64
}

const (
	placeLoad     = 72 // percent, when a segment grows
	placeLoadNext = 60 // percent at most, when it has grown

	slotHash = uint64(0xffffffff) << 32 // the part of a slot that is of the hash
)

func (p *places) init() {
	d := &placeDirectory{segments: make([]atomic.Pointer[placeSegment], 1)}
	d.segments[0].Store(p.rebuilt(&placeSegment{}, 0, 0, 0, 0))
	p.directory.Store(d)
}

func (p *places) segment(hash uint64) *placeSegment {
	d := p.directory.Load()
	return d.segments[hash>>(64-d.depth)].Load()
}

func (s *placeSegment) home(slot uint64) int {
	return home(slot&slotHash, s.depth, len(s.slots)-segmentPad)
}

// hashPlace is where the slot of a hash mostly is. Its ends are mostly in two cache
// lines.
type hashPlace [5]atomic.Uint64

// near returns where the slot of a hash mostly is.
func (p *places) near(hash uint64) *hashPlace {
	s := p.segment(hash)
	i := s.home(hash)
	return (*hashPlace)(s.slots[i : i+len(hashPlace{})])
}

// find returns the entry of a hash, 0 if there is none.
func (p *places) find(hash uint64, b *blocks) uint32 {
	for range 4 {
		s := p.segment(hash)
		version := s.version.Load()
		for i := s.home(hash); i < len(s.slots); i++ {
			slot := s.slots[i].Load()
			if slot == 0 {
				break
			}
			if (slot^hash)&slotHash == 0 && b.hash(uint32(slot)) == hash {
				return uint32(slot)
			}
		}
		if version&1 == 0 && s.version.Load() == version {
			return 0
		}
	}
	return 0 // slots move all the time; to miss once is no harm
}

// place returns the entry of a hash, or 0 and the empty slot where it would be, if
// there is one. It is for those who write.
func (p *places) place(hash uint64, b *blocks) (entry uint32, at *atomic.Uint64) {
	s := p.segment(hash)
	for i := s.home(hash); i < len(s.slots); i++ {
		slot := s.slots[i].Load()
		if slot == 0 {
			return 0, &s.slots[i]
		}
		if (slot^hash)&slotHash == 0 && b.hash(uint32(slot)) == hash {
			return uint32(slot), nil
		}
	}
	return 0, nil
}

// insert adds an entry for a hash that has none. At is what place returned for it.
func (p *places) insert(hash uint64, id uint32, at *atomic.Uint64) {
	slot := hash&slotHash | uint64(id)
	s := p.segment(hash)
	for at == nil || (s.used+1)*100 > (len(s.slots)-segmentPad)*placeLoad {
		p.grow(hash, s)
		s = p.segment(hash)
		at = s.empty(slot)
	}
	at.Store(slot)
	s.used++
	p.len++
}

// empty returns the slot for one that is not there, nil if there is no place behind its
// home.
func (s *placeSegment) empty(slot uint64) *atomic.Uint64 {
	for i := s.home(slot); i < len(s.slots); i++ {
		if s.slots[i].Load() == 0 {
			return &s.slots[i]
		}
	}
	return nil
}

// remove empties the slot of an entry, which has one.
func (p *places) remove(hash uint64, id uint32) {
	s := p.segment(hash)
	slot := hash&slotHash | uint64(id)
	hole := s.home(slot)
	for hole < len(s.slots) && s.slots[hole].Load() != slot {
		hole++
	}
	if hole == len(s.slots) {
		return
	}
	moving := false
	for i := hole + 1; i < len(s.slots); i++ {
		next := s.slots[i].Load()
		if next == 0 {
			break
		}
		if s.home(next) <= hole {
			if !moving {
				moving = true
				s.version.Add(1)
			}
			s.slots[hole].Store(next)
			hole = i
		}
	}
	s.slots[hole].Store(0)
	if moving {
		s.version.Add(1)
	}
	s.used--
	p.len--
	if n := len(s.slots) - segmentPad; n > 2*segmentSizes[0] && s.used*100 < n*placeLoadNext/3 {
		d := p.directory.Load()
		first, width := d.rangeOf(s, hash)
		d.lead(first, width, p.rebuilt(s, s.depth, 0, 0, 0))
		p.slots -= len(s.slots)
	}
}

// grow gives the segment of a hash more room.
func (p *places) grow(hash uint64, s *placeSegment) {
	d := p.directory.Load()
	first, width := d.rangeOf(s, hash)
	if len(s.slots) < 2*largestSegment && sizeFor((s.used+1)/2, placeLoadNext) < largestSegment {
		d.lead(first, width, p.rebuilt(s, s.depth, 0, 0, len(s.slots)+1))
		p.slots -= len(s.slots)
		return
	}
	if width == 1 {
		wider := &placeDirectory{make([]atomic.Pointer[placeSegment], 2*len(d.segments)), d.depth + 1}
		for i := range d.segments {
			old := d.segments[i].Load()
			wider.segments[2*i].Store(old)
			wider.segments[2*i+1].Store(old)
		}
		d = wider
		first, width = 2*first, 2
	}
	bit := uint64(1) << (63 - s.depth)
	d.lead(first, width/2, p.rebuilt(s, s.depth+1, bit, 0, 0))
	d.lead(first+width/2, width/2, p.rebuilt(s, s.depth+1, bit, bit, 0))
	p.directory.Store(d)
	p.slots -= len(s.slots)
}

// rangeOf returns which part of the directory leads to the segment of a hash.
func (d *placeDirectory) rangeOf(s *placeSegment, hash uint64) (first, width int) {
	width = 1 << (d.depth - s.depth)
	return int(hash>>(64-d.depth)) &^ (width - 1), width
}

// lead has a part of the directory lead to s.
func (d *placeDirectory) lead(first, width int, s *placeSegment) {
	for i := first; i < first+width; i++ {
		d.segments[i].Store(s)
	}
}

// rebuilt returns a segment of the slots of s that have of these bits these set, of
// least slots or more.
func (p *places) rebuilt(s *placeSegment, depth uint8, bits, set uint64, least int) *placeSegment {
	entries := 1 // that is to come
	for i := range s.slots {
		if slot := s.slots[i].Load(); slot != 0 && slot&bits == set {
			entries++
		}
	}
	for n := max(2*sizeFor((entries+1)/2, placeLoadNext)+segmentPad, 2*sizeOf((least+1)/2)+segmentPad); ; n += n / 4 {
		next := &placeSegment{depth: depth, slots: make([]atomic.Uint64, n+segmentPad)}
		if next.fill(s, bits, set) {
			p.slots += len(next.slots)
			return next
		}
	}
}

func (s *placeSegment) fill(from *placeSegment, bits, set uint64) bool {
	for i := range from.slots {
		slot := from.slots[i].Load()
		if slot == 0 || slot&bits != set {
			continue
		}
		at := s.empty(slot)
		if at == nil {
			return false
		}
		at.Store(slot)
		s.used++
	}
	return true
}
