// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"math"
	"sync"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/reuse"
)

// Holder is an upstream's slot in an Index, and its position in what Match
// fills. Slots are small, dense, and reused after Remove.
type Holder uint32

// Index tells how much of a prompt each upstream of a pool holds. It is safe
// for concurrent use.
type Index struct {
	mu sync.RWMutex // guards everything below and the fields of every Path

	nodes nodeTable
	spans spanTable

	slots     []*cache // by Holder; nil where no upstream is
	freeSlots []Holder

	caches     []*cache // by cache id; nil where unused
	slotOf     []int32  // by cache id: the Holder or dead; apart for Match's sake
	freeCaches []uint32
	doomed     []*cache // dead caches with spans left, first to go first
	reapSteps  int      // dead spans that each change frees at least; constant

	now     func() time.Duration // constant
	tick    uint32               // when a path last came or went
	history reuse.History        // what became of idle blocks

	reporting int    // upstreams that report what they hold
	ttl       uint32 // ticks that their predicted blocks stay fresh

	slottedCaches int // caches in use that are of slots
}

// New returns an empty index that tells how long blocks are idle. Now is
// monotonic, the time since some origin; it is called under the index's lock.
func New(now func() time.Duration) *Index {
	return &Index{reapSteps: 32, now: now, ttl: ticksOf(DefaultPredictedTTL)}
}

func (x *Index) ticks() uint32 { return uint32(x.now() / reuse.Tick) }

// maxCapacity keeps block counts within 32 bits.
const maxCapacity = math.MaxInt32

func clampCapacity(blocks int) int { return min(max(blocks, 0), maxCapacity) }

// Add enters an upstream whose cache has room for so many blocks (0 to 2^31-1;
// values outside are clamped).
func (x *Index) Add(capacityBlocks int) Holder {
	x.mu.Lock()
	defer x.mu.Unlock()
	var h Holder
	if n := len(x.freeSlots); n > 0 {
		h = x.freeSlots[n-1]
		x.freeSlots = x.freeSlots[:n-1]
	} else {
		h = Holder(len(x.slots))
		x.slots = append(x.slots, nil)
	}
	x.open(h, clampCapacity(capacityBlocks))
	return h
}

// Slots returns the length that Match's dst must have to cover every Holder.
func (x *Index) Slots() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.slots)
}

// SetCapacity changes an upstream's capacity, evicting as needed, and drops what
// was learnt of it; the capacity that was set before changes nothing. It lets
// others use the index between chunks of that work. As long as running
// requests alone hold more than the new capacity, the bound is what they hold,
// and falls as they end.
func (x *Index) SetCapacity(h Holder, blocks int) {
	c := x.want(h, clampCapacity(blocks))
	for c != nil && x.shrink(c) {
	}
}

// want sets the capacity that shrink then brings about.
func (x *Index) want(h Holder, blocks int) *cache {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.cacheOf(h)
	if c != nil && c.told != blocks {
		c.told = blocks
		x.aim(c, blocks)
	}
	return c
}

// aim sets the capacity that is wanted, without evicting.
func (x *Index) aim(c *cache, blocks int) {
	c.wanted = blocks
	c.limit = max(blocks, c.used())
}

// shrink brings a cache a chunk nearer to the capacity that is wanted and
// reports whether there is more to evict.
func (x *Index) shrink(c *cache) (more bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c.slot == dead {
		return false
	}
	x.evict(c, c.wanted, capacityChunk)
	c.limit = max(c.wanted, c.used())
	return c.limit > c.wanted && c.idleSpans.oldest != 0
}

// capacityChunk is how many evictions SetCapacity makes under one lock.
const capacityChunk = 128

// Forget drops everything an upstream holds, because its cache is lost. The
// slot stays in use; Paths pinned before it have no effect any more.
func (x *Index) Forget(h Holder) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.cacheOf(h)
	if c == nil {
		return
	}
	x.close(c)
	next := x.successor(c, h)
	if s := c.slotted; s != nil {
		x.setSlotted(next, len(s.slots), s.context)
	}
	x.reap(0)
}

// successor opens an empty cache in place of one that was closed.
func (x *Index) successor(c *cache, h Holder) *cache {
	next := x.open(h, c.wanted)
	next.told, next.lesson = c.told, c.lesson
	next.evicted, next.reports = c.evicted, c.reports
	return next
}

// Remove drops an upstream and frees its slot.
func (x *Index) Remove(h Holder) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.cacheOf(h)
	if c == nil {
		return
	}
	x.close(c)
	x.setReports(c, false)
	x.slots[h] = nil
	x.freeSlots = append(x.freeSlots, h)
	x.reap(0)
}

func (x *Index) cacheOf(h Holder) *cache {
	if int(h) >= len(x.slots) {
		return nil
	}
	return x.slots[h]
}

// open puts a new, empty cache into a slot.
func (x *Index) open(h Holder, capacity int) *cache {
	c := &cache{slot: int32(h), limit: capacity, wanted: capacity, told: capacity}
	if n := len(x.freeCaches); n > 0 {
		c.id = x.freeCaches[n-1]
		x.freeCaches = x.freeCaches[:n-1]
	} else {
		c.id = uint32(len(x.caches))
		x.caches = append(x.caches, nil)
		x.slotOf = append(x.slotOf, dead)
	}
	x.caches[c.id] = c
	x.slotOf[c.id] = c.slot
	x.slots[h] = c
	return c
}
