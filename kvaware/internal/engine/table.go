// SPDX-License-Identifier: Apache-2.0

package engine

import "math/bits"

// table maps hashes to blocks. It is what an engine does most, and most entries are
// replaced sooner or later, so it probes linearly and closes the gap that a deleted
// entry leaves, where Go's maps keep tombstones.
type table struct {
	slots []slot // a power of two, at most half of them taken
	n     int
	shift int // of the mixed hash, to a slot
}

type slot struct {
	hash uint64
	// id is one more than the block's, 0 if the slot is free.
	id int32
}

const leastSlots = 64

func newTable() table {
	return table{slots: make([]slot, leastSlots), shift: 64 - bits.TrailingZeros(leastSlots)}
}

// home is the slot a hash belongs in, by Knuth's multiplicative hashing.
func (t *table) home(hash uint64) int { return int(hash * 0x9e3779b97f4a7c15 >> t.shift) }

// at returns the slot that has the hash, or the free one where it would go.
func (t *table) at(hash uint64) int {
	i := t.home(hash)
	for t.slots[i].id != 0 && t.slots[i].hash != hash {
		i = (i + 1) & (len(t.slots) - 1)
	}
	return i
}

func (t *table) get(hash uint64) (id int32, ok bool) {
	s := &t.slots[t.at(hash)]
	return s.id - 1, s.id != 0
}

func (t *table) put(hash uint64, id int32) {
	s := &t.slots[t.at(hash)]
	if s.id == 0 {
		if 2*(t.n+1) > len(t.slots) {
			t.grow()
			s = &t.slots[t.at(hash)]
		}
		t.n++
	}
	*s = slot{hash, id + 1}
}

func (t *table) remove(hash uint64) {
	i := t.at(hash)
	if t.slots[i].id == 0 {
		return
	}
	t.n--
	mask := len(t.slots) - 1
	for next := (i + 1) & mask; t.slots[next].id != 0; next = (next + 1) & mask {
		// An entry may move to the gap unless that is before its home.
		if home := t.home(t.slots[next].hash); (next-home)&mask >= (next-i)&mask {
			t.slots[i] = t.slots[next]
			i = next
		}
	}
	t.slots[i] = slot{}
}

func (t *table) grow() {
	old := t.slots
	t.slots = make([]slot, 2*len(old))
	t.shift--
	for _, s := range old {
		if s.id != 0 {
			t.slots[t.at(s.hash)] = s
		}
	}
}

func (t *table) clear() {
	clear(t.slots)
	t.n = 0
}
