// SPDX-License-Identifier: Apache-2.0

// Package reuse learns how likely a prefix that has been idle for so long is
// asked for again.
//
// It is the Kaplan–Meier estimate of a survival function (Kaplan and Meier 1958)
// over logarithmically spaced ages: being asked for is the event, and leaving the
// cache before it censors, so what was evicted early does not count as not
// wanted. Of the blocks that were idle for at least as long as an age, the share
// asked for before the next age is that age's hazard; the product of what the
// hazards from an age on leave is the chance of never being asked for again.
package reuse

import (
	"math/bits"
	"time"
)

// Tick is the resolution of ages.
const Tick = time.Second / 8

// Age is a time in ticks; a 32-bit number of them spans 17 years.
type Age = uint32

const (
	// bins per doubling of the age, and bins in all: up to 3 days; what is older
	// is in the last one.
	perDoubling = 2
	bins        = 42

	// most is how many blocks are remembered: then all counts are halved, so
	// that what is learnt follows the traffic. About what eight caches of 32k
	// blocks hold.
	most = 1 << 18
	// refresh is how many blocks are taken in until chances are worked out anew.
	refresh = 1 << 10

	// Before anything is known of an age, its hazard is taken for a part of that
	// of the age before, and this weighs as much as so many blocks: hazards fall
	// as prefixes grow old. The first is a guess.
	firstHazard = 0.1
	fading      = 0.7
	priorBlocks = 256
)

// History is what became of idle blocks. The zero value has seen none. It is not
// safe for concurrent use: calls of Chance may overlap each other, nothing else.
type History struct {
	reused, lost [bins]float64 // blocks by the age at which they were asked for, or lost
	total        float64
	fresh        int // blocks taken in since chance was worked out
	chance       [bins]float64
	ready        bool
}

// Reused takes in that idle blocks were asked for at an age.
func (h *History) Reused(age Age, blocks int) { h.add(&h.reused, age, blocks) }

// Lost takes in that idle blocks left the cache at an age without having been
// asked for.
func (h *History) Lost(age Age, blocks int) { h.add(&h.lost, age, blocks) }

func (h *History) add(to *[bins]float64, age Age, blocks int) {
	if blocks <= 0 {
		return
	}
	to[bin(age)] += float64(blocks)
	h.total += float64(blocks)
	h.fresh += blocks
	if h.total > most {
		h.total = 0
		for i := range h.reused {
			h.reused[i] /= 2
			h.lost[i] /= 2
			h.total += h.reused[i] + h.lost[i]
		}
	}
	if h.fresh >= refresh || !h.ready {
		h.estimate()
	}
}

// Chance returns how likely a block that has been idle for so long is asked for
// again, from 0 to 1.
func (h *History) Chance(age Age) float64 {
	if !h.ready {
		return prior[bin(age)]
	}
	return h.chance[bin(age)]
}

// prior holds the chances before anything was seen.
var prior = func() [bins]float64 {
	var h History
	h.estimate()
	return h.chance
}()

func (h *History) estimate() {
	var hazards [bins]float64
	atRisk := 0.0
	for i := range bins {
		atRisk += h.reused[i] + h.lost[i]
	}
	expected := firstHazard
	for i := range bins {
		// What is lost within an age is at risk for half of it.
		seen := max(0, atRisk-h.lost[i]/2)
		hazards[i] = (h.reused[i] + priorBlocks*expected) / (seen + priorBlocks)
		atRisk -= h.reused[i] + h.lost[i]
		expected = hazards[i] * fading
	}
	never := 1.0 // from the next age on
	for i := bins - 1; i >= 0; i-- {
		// A block somewhere in an age has half of it before it.
		h.chance[i] = 1 - never*(1-hazards[i]/2)
		never *= 1 - hazards[i]
	}
	h.fresh, h.ready = 0, true
}

// bin is where an age belongs: 0 for less than a tick, then perDoubling to each
// doubling.
func bin(age Age) int {
	if age == 0 {
		return 0
	}
	n := bits.Len32(age) - 1
	half := 0
	// The geometric middle of 2^n and 2^(n+1) lies at √2 of it.
	if uint64(age)*uint64(age) >= 1<<(2*n+1) {
		half = 1
	}
	return min(bins-1, 1+perDoubling*n+half)
}
