// SPDX-License-Identifier: Apache-2.0

package residency

// memory is which blocks are remembered that are in no tier, in the order in which
// they left the last one. Those that came back since are still in it.
type memory struct {
	ring  []uint64 // mixed keys; its length is a power of 2
	first uint32   // number of the oldest
	next  uint32   // number of the next; numbers wrap around
	count int      // blocks that are remembered
}

func (m *memory) len() int { return int(m.next - m.first) }

// push returns the state of a block that is remembered from now on.
func (m *memory) push(key uint64) state {
	if m.len() == len(m.ring) {
		ring := make([]uint64, max(64, 2*len(m.ring)))
		for n := m.first; n != m.next; n++ {
			ring[int(n)%len(ring)] = m.ring[int(n)%len(m.ring)]
		}
		m.ring = ring
	}
	n := m.next
	m.ring[int(n)%len(m.ring)] = key
	m.next++
	m.count++
	return memoryState(n)
}

func memoryState(n uint32) state { return isRemembered | state(n)&^isRemembered }

// pop returns the oldest, and the state that its block has if it has not come back.
func (m *memory) pop() (key uint64, s state) {
	n := m.first
	m.first++
	return m.ring[int(n)%len(m.ring)], memoryState(n)
}

// Blocks are remembered of engines that offload: as many as the larger of
// leastRemembered and a part of all.
const (
	leastRemembered = 1024
	rememberedPart  = 8
)
