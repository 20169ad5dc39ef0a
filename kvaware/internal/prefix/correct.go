// SPDX-License-Identifier: Apache-2.0

package prefix

// Correction is what an engine's word on a prompt changed.
type Correction uint8

// The corrections.
const (
	// Agreed: nothing is to be learnt.
	Agreed Correction = iota
	// Shortened: blocks were gone that were believed to be there.
	Shortened
	// Extended: more blocks were there than was believed.
	Extended
)

const (
	// capacityShare is which part of the difference one lesson takes a capacity
	// nearer to what it points to.
	capacityShare = 8
	// growthShare is which part of itself a capacity grows by beyond what was set.
	growthShare = 32
	// leastShare and mostTimes bound what is learnt: from a sixteenth of the
	// capacity that was set to four times as much.
	leastShare, mostTimes = 16, 4
	// correctionSteps bounds the evictions of one correction.
	correctionSteps = 128
)

// Missed takes in that of the prompt's leading blocks the engine found only so
// many, less than were sure to be there. The request computed the others again, so
// the path stays. But what was idle for as long as the first of them or longer is
// gone too, and what is left shows how much the engine has room for: the capacity
// goes part of the way there, once for all paths that were pinned before.
func (x *Index) Missed(p *Path, blocks int) Correction {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := p.cache
	if c == nil || c.slot == dead || c.slotted != nil || blocks < p.busy || blocks >= p.before.Sure {
		return Agreed // no eviction takes what others run on
	}
	// The span of the first one missing. Nobody but requests that came later has
	// pinned it since, so it still tells since when it was idle.
	id := p.leaf
	for s := x.spans.at(id); int(x.nodes.at(s.node).before) > blocks; s = x.spans.at(id) {
		id = s.up
	}
	since := x.spans.at(id).idle
	for steps := correctionSteps; steps > 0; steps-- {
		oldest := c.idleSpans.oldest
		if oldest == 0 || x.spans.at(oldest).idle > since {
			break
		}
		x.evict(c, c.used()-int(x.spans.at(oldest).n), 1)
	}
	if target := max(c.used(), c.told/leastShare); target < c.wanted && p.lesson == c.lesson {
		c.lesson++
		x.aim(c, c.wanted-max(1, (c.wanted-target)/capacityShare))
	}
	x.settle(c)
	x.reap(0)
	return Shortened
}

// Exceeded takes in that the engine found more of the prompt than anything
// explains that is known of it. Where blocks were believed evicted, and the cache
// to be full, that was too early: the capacity grows, back to what was set faster
// than beyond.
func (x *Index) Exceeded(p *Path) Correction {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := p.cache
	if c == nil || c.slot == dead || c.slotted != nil {
		return Agreed
	}
	full := c.used() >= c.wanted-c.wanted/capacityShare
	if c.evicted == 0 || !full || p.lesson != c.lesson {
		return Extended
	}
	c.lesson++
	more := max(1, c.wanted/growthShare)
	if c.wanted < c.told {
		more = max(1, (c.told-c.wanted)/capacityShare)
	}
	x.aim(c, min(c.wanted+more, clampCapacity(c.told*mostTimes)))
	return Extended
}
