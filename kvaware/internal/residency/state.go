// SPDX-License-Identifier: Apache-2.0

package residency

import "github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"

// ref is what a holder's block stands for: the entry of an index block, an entry that
// an operation has yet to find or make, or a page inside of an index block.
type ref uint32

const (
	refEntry   ref = iota << refShift
	refPending     // the number of an operation
	refPage        // the number of a page
	refRoot        // in pages only: the page has a prompt's root before it

	refShift = 30
	refKind  = ref(3) << refShift
	refBits  = refShift
)

func (r ref) kind() ref      { return r & refKind }
func (r ref) number() uint32 { return uint32(r &^ refKind) }

// state counts how often a block lies in each tier. A block that lies in none has
// the number under which it is remembered instead.
type state uint32

const (
	gpuBits  = 11
	slowBits = 10

	isRemembered state = 1 << 31
)

var tierShift = [kvevents.Tiers]uint{0, gpuBits, gpuBits + slowBits}

func tierMask(t kvevents.Tier) state {
	if t == kvevents.GPU {
		return 1<<gpuBits - 1
	}
	return 1<<slowBits - 1
}

func (s state) count(t kvevents.Tier) state {
	if s&isRemembered != 0 {
		return 0
	}
	return s >> tierShift[t] & tierMask(t)
}

// with returns s with another count in a tier. Counts end at the most that fits.
func (s state) with(t kvevents.Tier, count state) state {
	if s&isRemembered != 0 {
		s = 0
	}
	return s&^(tierMask(t)<<tierShift[t]) | min(count, tierMask(t))<<tierShift[t]
}

func (s state) planes() (p planes) {
	if s&isRemembered != 0 {
		return remembered
	}
	for t := range kvevents.Tier(kvevents.Tiers) {
		if s.count(t) > 0 {
			p |= planeOf(t)
		}
	}
	return p
}

func planeOf(t kvevents.Tier) planes { return inGPU << t }
