// SPDX-License-Identifier: Apache-2.0

package prefix

import "github.com/kvaware/caddy-kvaware/kvaware/internal/pace"

// Use is how an upstream's room is used, in blocks.
type Use struct {
	Capacity int // the bound in force
	Running  int // held by running requests, prompts and outputs
	Free     int // holds nothing
}

// Uses sets dst[h] to the use of upstream h, and to zeros where there is none.
// Dst is as in Match.
func (x *Index) Uses(dst []Use) {
	clear(dst)
	x.mu.RLock()
	defer x.mu.RUnlock()
	for h, c := range x.slots[:min(len(x.slots), len(dst))] {
		dst[h] = c.use()
	}
}

// UseOf returns the use of one upstream.
func (x *Index) UseOf(h Holder) Use {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.cacheOf(h).use()
}

func (c *cache) use() Use {
	if c == nil {
		return Use{}
	}
	if c.slotted != nil {
		return c.slottedUse()
	}
	return Use{Capacity: c.limit, Running: c.pinned + c.generating, Free: c.limit - c.used()}
}

// Eviction says what evicting blocks costs.
type Eviction struct {
	Pace      *pace.Constants // of computing them again
	BlockSize int             // tokens in a block
	// The prompt that the room is made for, whose own blocks stay.
	Namespace uint64
	Chain     []uint64
}

// Price returns the seconds of prefill that making room for so many new blocks
// costs others: of each block that would be evicted, the time to compute it
// again, times the chance that it is asked for again after being idle for so
// long. It is 0 where there is room.
//
// It looks at a bounded number of spans and takes the rest to be like them; it
// does not allocate.
func (x *Index) Price(h Holder, blocks int, e *Eviction) float64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	c := x.cacheOf(h)
	if c == nil {
		return 0
	}
	if c.slotted != nil {
		return x.priceSlot(c, e)
	}
	over := c.used() + blocks - c.limit
	if over <= 0 {
		return 0
	}
	now, seed := x.ticks(), seedOf(e.Namespace)
	var seconds float64
	priced := 0
	for id, steps := c.idleSpans.oldest, priceSteps; id != 0 && priced < over; steps-- {
		if steps == 0 {
			return seconds * float64(min(over, c.idle+c.output)) / float64(max(1, priced))
		}
		s := x.spans.at(id)
		id = s.newer
		n := min(over-priced, int(s.n))
		if s.node != 0 {
			nd := x.nodes.at(s.node)
			if at := int(nd.before); at < len(e.Chain) && nd.key == e.Chain[at]^seed {
				// On the prompt's way: hashes of a chain are equal at one place only.
				if n = min(n, int(s.n)-nd.common(seed, e.Chain[at:])); n <= 0 {
					continue
				}
			}
			end := int64(nd.before+s.n) * int64(e.BlockSize)
			begin := end - int64(n)*int64(e.BlockSize)
			seconds += e.Pace.Recompute(begin, end) * x.history.Chance(now-s.idle)
		}
		priced += n
	}
	return seconds
}

// priceSteps is how many spans are looked at for one price.
const priceSteps = 32
