// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"math/bits"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// matching is the memory of a Match.
type matching struct {
	active []groupMatch // groups of holders that have all blocks so far
	lost   []int64      // by member: the credit that slower tiers take away; 0 between calls
}

// groupMatch is a group of holders, and what they have of the block at hand.
type groupMatch struct {
	group     uint64
	all       uint64 // those that have all blocks so far
	gpu, slow uint64 // of them, those that have it there; not there, but in CPU or disk
	cpu       uint64 // those that have it in CPU
}

// Match raises dst[slot], for each holder whose index block size it is, to the
// credit for the chain's leading blocks that the holder has, each in any tier: the
// sum of what their fastest tiers are worth, in whole blocks. It lowers nothing, and
// leaves out slots beyond dst's end. It takes no lock and does not allocate.
func (x *Index) Match(blockSize int, chain []uint64, dst []int32) {
	b := x.blocksOf(blockSize)
	if b == nil || len(chain) == 0 {
		return
	}
	m, _ := x.scratch.Get().(*matching)
	if m == nil {
		m = new(matching)
	}
	x.walk(b, chain, m, dst)
	x.scratch.Put(m)
}

// walk goes along the chain as long as anybody has it. There is work to do only where
// the set of those who have a block is another than the block's before.
func (x *Index) walk(b *blocks, chain []uint64, m *matching, dst []int32) {
	m.active = m.active[:0]
	var set uint32 // of the blocks from first on
	first := 0
	entry := uint32(0)
	for i := 0; i < len(chain); {
		n := 0
		if set != 0 {
			// Chains mostly lie in order.
			n = b.run(entry+1, set, chain[i:])
		}
		if n > 0 {
			i += n
			entry += uint32(n)
			continue
		}
		next, has, cells := b.look(entry+1, chain[i])
		if has == 0 {
			x.pass(m, i-first)
			x.finish(m, i, dst)
			return
		}
		if has != set {
			x.pass(m, i-first)
			if set == 0 {
				m.start(cells)
			} else if !x.narrow(m, cells, i, dst) {
				return
			}
			set, first = has, i
		}
		entry = next
		i++
	}
	x.pass(m, len(chain)-first)
	x.finish(m, len(chain), dst)
}

// run returns how many entries from one on are those of a chain and have a set.
func (b *blocks) run(entry, set uint32, chain []uint64) int {
	c := b.chunk(entry)
	if c == nil {
		return 0
	}
	hashes, sets := c.hashes[entry%chunkSize:], c.sets[entry%chunkSize:]
	n := min(len(hashes), len(chain))
	hashes, sets = hashes[:n], sets[:n]
	for i := range n {
		if hashes[i].Load() != chain[i] || sets[i].Load() != set {
			return i
		}
	}
	return n
}

// look finds a block, which is at guess or anywhere, and returns its entry and its
// set with the cells; set 0 if nobody has it.
func (b *blocks) look(guess uint32, hash uint64) (entry, set uint32, cells []uint64) {
	entry = guess
	if b.hash(guess) != hash || b.set(guess) == 0 {
		entry = b.find(hash)
	}
	for range 4 {
		if entry == 0 {
			return 0, 0, nil
		}
		if set = b.set(entry); set != 0 {
			s := b.sets.at(set)
			if s != nil {
				cells = s.read()
			}
			// Entry and set may have become others meanwhile.
			if len(cells) > 0 && b.set(entry) == set && b.hash(entry) == hash {
				return entry, set, cells
			}
		}
		entry = b.find(hash)
	}
	return 0, 0, nil
}

// start has all holders of the first block be active.
func (m *matching) start(cells []uint64) {
	for len(cells) > 0 {
		var g groupMatch
		g, cells = readGroup(cells)
		g.all = g.gpu | g.slow
		m.active = append(m.active, g)
	}
}

// readGroup reads the first group of a set's cells.
func readGroup(cells []uint64) (g groupMatch, rest []uint64) {
	g.group = cells[0] >> groupShift
	var disk uint64
	for len(cells) > 0 && cells[0]>>groupShift == g.group {
		holders := cells[0] & cellBits
		switch planes(1) << (cells[0] >> planeShift & (planeCount - 1)) {
		case inGPU:
			g.gpu = holders
		case inCPU:
			g.cpu = holders
		case inDisk:
			disk = holders
		}
		cells = cells[1:]
	}
	g.slow = (g.cpu | disk) &^ g.gpu
	return g, cells
}

// narrow finishes those that do not have block i, of these cells, and reports whether
// anybody is left.
func (x *Index) narrow(m *matching, cells []uint64, i int, dst []int32) bool {
	left := m.active[:0]
	for _, g := range m.active {
		for len(cells) > 0 && cells[0]>>groupShift < g.group {
			cells = cells[1:]
		}
		var now groupMatch
		if len(cells) > 0 && cells[0]>>groupShift == g.group {
			now, cells = readGroup(cells)
		}
		have := now.gpu | now.slow
		for gone := g.all &^ have; gone != 0; gone &= gone - 1 {
			x.credited(m, g.group, gone, i, dst)
		}
		if g.all &= have; g.all != 0 {
			g.gpu, g.slow, g.cpu = now.gpu&g.all, now.slow&g.all, now.cpu&g.all
			left = append(left, g)
		}
	}
	m.active = left
	return len(left) > 0
}

// pass takes from those that have n blocks in slower tiers what these are worth less.
func (x *Index) pass(m *matching, n int) {
	for k := range m.active {
		g := &m.active[k]
		for slow := g.slow; slow != 0; slow &= slow - 1 {
			tier := kvevents.Disk
			if g.cpu&slow&-slow != 0 {
				tier = kvevents.CPU
			}
			m.lose(memberOf(g.group, slow), int64(n)*(x.credit[kvevents.GPU]-x.credit[tier]))
		}
	}
}

func (m *matching) lose(id int, credit int64) {
	for id >= len(m.lost) {
		m.lost = append(m.lost, 0)
	}
	m.lost[id] += credit
}

// finish gives all that are left the credit for n blocks.
func (x *Index) finish(m *matching, n int, dst []int32) {
	for k := range m.active {
		g := &m.active[k]
		for all := g.all; all != 0; all &= all - 1 {
			x.credited(m, g.group, all, n, dst)
		}
	}
}

// credited gives the first holder of a group's bits the credit for n blocks.
func (x *Index) credited(m *matching, group, holders uint64, n int, dst []int32) {
	id := memberOf(group, holders)
	credit := int64(n) * x.credit[kvevents.GPU]
	if id < len(m.lost) {
		credit -= m.lost[id]
		m.lost[id] = 0
	}
	slots := *x.slotOf.Load()
	if id >= len(slots) {
		return
	}
	slot := slots[id].Load()
	if slot < 0 || int(slot) >= len(dst) {
		return
	}
	// A credit that is no binary fraction is rounded a little.
	whole := int32((credit + 1<<(creditBits-16)) >> creditBits)
	dst[slot] = max(dst[slot], whole)
}

func memberOf(group, holders uint64) int {
	return int(group)*groupSize + bits.TrailingZeros64(holders)
}
