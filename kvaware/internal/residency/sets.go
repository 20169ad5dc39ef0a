// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"sync/atomic"
	"unsafe"
)

// planes are ways in which a holder can have a block: in tiers, or none.
type planes uint8

const (
	inGPU planes = 1 << iota
	inCPU
	inDisk
	// remembered blocks are in no tier. The engine's key is kept for stores
	// that tell nothing else.
	remembered

	planeCount = 4
	inTier     = inGPU | inCPU | inDisk
)

// member is a holder's place in sets.
type member struct {
	id    uint32
	cell  uint64 // its cell in the first plane: its group's tag and its bit
	words [planeCount]uint64
}

// A cell of a set is one plane of a group of holders: a tag above, a bit for each
// holder below.
const (
	groupSize  = 48
	tagShift   = groupSize
	cellBits   = 1<<groupSize - 1
	planeShift = tagShift
	groupShift = planeShift + 2
	maxMembers = groupSize * (1<<(64-groupShift) - 1)
)

func newMember(id uint32, secret uint64) member {
	m := member{id: id, cell: uint64(id/groupSize)<<groupShift | 1<<(id%groupSize)}
	for i := range m.words {
		m.words[i] = mix64(secret ^ (uint64(id)*planeCount+uint64(i)+1)*0x9e3779b97f4a7c15)
	}
	return m
}

// word is what in a set's hash stands for a holder's planes.
func (m *member) word(p planes) (w uint64) {
	for i := range m.words {
		if p>>i&1 != 0 {
			w ^= m.words[i]
		}
	}
	return w
}

// set is who has a block and where. Its cells are sorted by tag, none without a bit.
// Sets are interned: who has the same holders has the same id. Id 0 is the empty set.
type set struct {
	cells atomic.Pointer[uint64] // the first of an array that never changes: its length, then the cells
	hash  uint64                 // the XOR of its members' words (Zobrist 1970)
	refs  uint32                 // entries that have this set; in a free one the next free id
}

func (s *set) read() []uint64 {
	p := s.cells.Load()
	if p == nil {
		return nil
	}
	return unsafe.Slice(p, 1+*p)[1:] //nolint:gosec // the array begins with its own length
}

const (
	setChunkBits = 8
	setChunkSize = 1 << setChunkBits
)

type setChunk [setChunkSize]set

// sets is written under its table's mutex, and read by anyone.
type sets struct {
	chunks atomic.Pointer[[]*setChunk] // replaced when it grows
	ids    map[uint64]uint32           // by hash
	free   uint32
	next   uint32
	live   int
	cells  int // in all sets, to tell their memory
}

func (t *sets) init() {
	t.chunks.Store(&[]*setChunk{new(setChunk)})
	t.ids = make(map[uint64]uint32)
	t.next = 1
}

// at returns a set for a reader, nil for an id that is not there yet.
func (t *sets) at(id uint32) *set {
	chunks := *t.chunks.Load()
	if int(id>>setChunkBits) >= len(chunks) {
		return nil
	}
	return &chunks[id>>setChunkBits][id%setChunkSize]
}

// toggled returns the set that differs from one in a holder's planes p. It has no
// reference yet if it is new.
func (t *sets) toggled(from uint32, m *member, p planes) uint32 {
	hash := t.at(from).hash ^ m.word(p)
	if id, ok := t.ids[hash]; ok {
		return id
	}
	old := t.at(from).read()
	cells := make([]uint64, 1, len(old)+planeCount+1)
	for i := 0; p != 0 || i < len(old); {
		next := ^uint64(0)
		plane := 0
		if p != 0 {
			for p>>plane&1 == 0 {
				plane++
			}
			next = m.cell + uint64(plane)<<planeShift
		}
		switch {
		case i == len(old) || next>>tagShift < old[i]>>tagShift:
			cells = append(cells, next)
			p &^= 1 << plane
		case next>>tagShift == old[i]>>tagShift:
			if cell := old[i] ^ next&cellBits; cell&cellBits != 0 {
				cells = append(cells, cell)
			}
			p &^= 1 << plane
			i++
		default:
			cells = append(cells, old[i])
			i++
		}
	}
	if len(cells) == 1 {
		return 0
	}
	return t.add(hash, append(make([]uint64, 0, len(cells)), cells...))
}

func (t *sets) add(hash uint64, cells []uint64) uint32 {
	id := t.free
	if id != 0 {
		t.free = t.at(id).refs
	} else {
		id = t.next
		t.next++
		if chunks := *t.chunks.Load(); int(id>>setChunkBits) == len(chunks) {
			grown := append(chunks[:len(chunks):len(chunks)], new(setChunk))
			t.chunks.Store(&grown)
		}
	}
	cells[0] = uint64(len(cells) - 1)
	s := t.at(id)
	s.hash, s.refs = hash, 0
	s.cells.Store(&cells[0])
	t.ids[hash] = id
	t.live++
	t.cells += len(cells)
	return id
}

// drop counts a reference out, and frees a set without any.
func (t *sets) drop(id uint32) {
	if id == 0 {
		return
	}
	s := t.at(id)
	if s.refs--; s.refs > 0 {
		return
	}
	t.live--
	t.cells -= len(s.read()) + 1
	delete(t.ids, s.hash)
	s.cells.Store(nil)
	s.hash = 0
	s.refs, t.free = t.free, id
}

// has tells which of a holder's planes a set has.
func (t *sets) has(id uint32, m *member) (p planes) {
	for _, cell := range t.at(id).read() {
		if cell>>groupShift == m.cell>>groupShift && cell&m.cell&cellBits != 0 {
			p |= 1 << (cell >> planeShift & (planeCount - 1))
		}
	}
	return p
}
