// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

// Options are constant over an Index's life.
type Options struct {
	// Chains hashes the engines' blocks as the router hashes its prompts.
	Chains tokenize.Chains
	// TierCredit is what a block is worth by the fastest tier that it lies in,
	// 0 to 1. All zeros mean 1, 0.75, 0.25.
	TierCredit [kvevents.Tiers]float32
	// MaxBlocks bounds the blocks of a holder, in the engine's own (pages in
	// SGLang), remembered ones included. 0 means 8Mi.
	MaxBlocks int
}

const defaultMaxBlocks = 8 << 20

// Index tells what the engines of a pool hold, by their own reports. It is safe for
// concurrent use.
type Index struct {
	chains    tokenize.Chains
	credit    [kvevents.Tiers]int64 // in 1<<creditBits, constant
	maxBlocks int                   // constant
	remember  int                   // leastRemembered, constant
	secret    uint64                // keys what is hashed for itself alone

	// What readers see. Both are replaced when they grow, under mu.
	slotOf atomic.Pointer[[]atomic.Int32] // by member id: the slot, or nobody
	tables atomic.Pointer[[]table]

	mu      sync.Mutex // guards who is in the index
	free    []uint32   // member ids
	next    uint32
	scratch sync.Pool // of *matching
}

// table is what is known for one index block size, and how many holders have it.
type table struct {
	blocks  *blocks
	holders int
}

const (
	creditBits = 32
	nobody     = -1

	noMember = ^uint32(0) // an id that nobody has
)

// New returns an empty index.
func New(opt Options) *Index {
	x := &Index{chains: opt.Chains, maxBlocks: opt.MaxBlocks, remember: leastRemembered, secret: rand.Uint64()}
	if x.maxBlocks <= 0 {
		x.maxBlocks = defaultMaxBlocks
	}
	credit := opt.TierCredit
	if credit == [kvevents.Tiers]float32{} {
		credit = [kvevents.Tiers]float32{1, 0.75, 0.25}
	}
	for t, c := range credit {
		if c > 0 { // not if it is no number
			x.credit[t] = int64(float64(min(c, 1))*(1<<creditBits) + 0.5)
		}
	}
	x.slotOf.Store(new([]atomic.Int32))
	x.tables.Store(new([]table))
	return x
}

// enter returns a new member, who is seen in slot from now on.
func (x *Index) enter(slot int32) member {
	x.mu.Lock()
	defer x.mu.Unlock()
	var id uint32
	if n := len(x.free); n > 0 {
		id = x.free[n-1]
		x.free = x.free[:n-1]
	} else {
		id = x.next
		x.next++
	}
	slots := *x.slotOf.Load()
	if int(id) >= len(slots) {
		grown := make([]atomic.Int32, max(16, 2*len(slots)))
		for i := range grown {
			grown[i].Store(nobody)
			if i < len(slots) {
				grown[i].Store(slots[i].Load())
			}
		}
		slots = grown
		x.slotOf.Store(&slots)
	}
	slots[id].Store(slot)
	return newMember(id, x.secret)
}

// hide has a member be seen no more, unless the id is another's by now, who has
// another slot.
func (x *Index) hide(id uint32, slot int32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if slots := *x.slotOf.Load(); int(id) < len(slots) {
		slots[id].CompareAndSwap(slot, nobody)
	}
}

// leave gives back the id of a member that is hidden and in no set.
func (x *Index) leave(id uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.free = append(x.free, id)
}

// join returns the blocks of a size, for a holder that has it from now on.
func (x *Index) join(size int) *blocks {
	x.mu.Lock()
	defer x.mu.Unlock()
	tables := append([]table(nil), *x.tables.Load()...)
	i := 0
	for i < len(tables) && tables[i].blocks.size != size {
		i++
	}
	if i == len(tables) {
		tables = append(tables, table{blocks: newBlocks(size)})
	}
	tables[i].holders++
	x.tables.Store(&tables)
	return tables[i].blocks
}

// part counts a holder out of those who have a size.
func (x *Index) part(b *blocks) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var tables []table
	for _, t := range *x.tables.Load() {
		if t.blocks == b {
			t.holders--
		}
		if t.holders > 0 {
			tables = append(tables, t)
		}
	}
	x.tables.Store(&tables)
}

// BlockSizes appends the index block sizes in use, in tokens: for each of them a
// prompt needs a chain.
func (x *Index) BlockSizes(dst []int) []int {
	for _, t := range *x.tables.Load() {
		dst = append(dst, t.blocks.size)
	}
	return dst
}

func (x *Index) blocksOf(size int) *blocks {
	for _, t := range *x.tables.Load() {
		if t.blocks.size == size {
			return t.blocks
		}
	}
	return nil
}
