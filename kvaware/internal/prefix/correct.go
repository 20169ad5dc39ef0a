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
	// Disputed: blocks were gone that had been idle for less long than others which
	// were still there. Its prompt may have other tokens than it is taken to have.
	Disputed
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
	// doubts is how many disputed misses in a row, with nothing older found between
	// them, are believed: the engine has lost its cache.
	doubts = 6
)

// evidence is what an upstream's engine was last seen to hold, in ticks.
type evidence struct {
	proven  uint32 // since when blocks had been idle that were found: of late, the longest
	known   bool   // there is such a proof
	evicted uint64 // the cache's evictions up to then
	doubted uint32 // since when blocks had been idle that were disputed last
	doubts  int    // disputed misses since one was refuted
}

// disputes takes in a miss and reports whether it is disputed.
func (e *evidence) disputes(since uint32) bool {
	if !e.known || since <= e.proven {
		return false
	}
	e.doubted = since
	e.doubts++
	if e.doubts < doubts {
		return true
	}
	*e = evidence{}
	return false
}

// Met takes in that the engine found all of the prompt that was sure to be there.
func (x *Index) Met(p *Path) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := p.cache
	if c == nil || c.slot == dead || c.slotted != nil || p.before.Sure <= p.busy {
		return
	}
	e := &c.evidence
	since := x.idleSince(p, p.before.Sure-1)
	if since <= e.doubted {
		e.doubts = 0
	}
	if !e.known || since <= e.proven || c.evicted-e.evicted > uint64(c.wanted/capacityShare) {
		e.proven, e.known, e.evicted = since, true, c.evicted
	}
}

// idleSince returns since when a block of the path had been idle when it was
// pinned, in ticks; it was. Nobody but requests that came later has pinned it
// since, so its span still tells.
func (x *Index) idleSince(p *Path, block int) uint32 {
	id := p.leaf
	for s := x.spans.at(id); int(x.nodes.at(s.node).before) > block; s = x.spans.at(id) {
		id = s.up
	}
	return x.spans.at(id).idle
}

// Missed takes in that of the prompt's leading blocks the engine found only so
// many, less than were sure to be there. The request computed the others again, so
// the path stays. But what was idle for as long as the first of them or longer is
// gone too, and what is left shows how much the engine has room for: the capacity
// goes part of the way there, once for all paths that were pinned before. A miss
// that another prompt's hit speaks against is only taken in if it stays alone.
func (x *Index) Missed(p *Path, blocks int) Correction {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := p.cache
	if c == nil || c.slot == dead || c.slotted != nil || blocks < p.busy || blocks >= p.before.Sure {
		return Agreed // no eviction takes what others run on
	}
	since := x.idleSince(p, blocks)
	if c.evidence.disputes(since) {
		return Disputed
	}
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
