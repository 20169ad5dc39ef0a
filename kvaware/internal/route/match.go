// SPDX-License-Identifier: Apache-2.0

package route

import "github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"

// match looks a prompt up: leading blocks held, by slot, and if asked for, which
// of them are pinned.
func (r *Router) match(c *Choice, q *Request, prompt int, pinned bool) []int32 {
	slots := r.Index.Slots()
	c.held = bySlot(c.held, slots)
	found := prefix.Found{Fresh: q.Fresh, Held: c.held}
	if pinned {
		c.pinned = bySlot(c.pinned, len(c.held))
		found.Pinned = c.pinned
	}
	shares := r.outputs.of(q.Model)
	credited := shares != [prefix.Contents]float32{}
	if credited {
		c.outputs = bySlot(c.outputs, len(c.held))
		found.Outputs = c.outputs
	}
	r.Index.Find(q.Namespace, q.Chains[prompt], &found)
	if credited {
		c.creditOutputs(q.Chains[prompt], &shares)
	}
	c.said.raise(prompt, c.Candidates, c.held)
	c.blend()
	for i := range c.Candidates {
		cand := &c.Candidates[i]
		if cand.NoCache {
			c.held[cand.Slot] = 0
		} else if block := int(cand.block.Load()); block > q.BlockSize {
			c.held[cand.Slot] = q.wholeBlocks(prompt, c.held[cand.Slot], block)
		}
	}
	return c.held
}

// blend gives the ranks of an engine that places requests as it likes what they
// hold on average.
func (c *Choice) blend() {
	for i := range c.Candidates {
		cand := &c.Candidates[i]
		if !cand.Blended || i > 0 && c.Candidates[i-1].sharesRanks(cand) {
			continue
		}
		sum := 0
		for _, rank := range cand.Ranks {
			sum += int(c.held[rank.Slot])
		}
		for _, rank := range cand.Ranks {
			c.held[rank.Slot] = int32(sum / len(cand.Ranks))
		}
	}
}

// sharesRanks reports whether two candidates, of which one comes right after the
// other, are ranks of one engine.
func (c *Candidate) sharesRanks(other *Candidate) bool {
	return len(c.Ranks) > 0 && len(other.Ranks) > 0 && c.Ranks[0] == other.Ranks[0]
}

// bySlot gives a slice that covers so many slots, with some to spare for those
// that come meanwhile.
func bySlot[T any](old []T, slots int) []T {
	if cap(old) < slots {
		old = make([]T, slots+slots/2)
	}
	return old[:cap(old)]
}

// wholeBlocks gives what of a prompt's leading blocks an engine reuses whose own ones
// are larger, of so many tokens.
func (q *Request) wholeBlocks(prompt int, held int32, block int) int32 {
	tokens := min(int(held)*q.BlockSize, q.Counted[prompt]-1)
	return int32(max(0, tokens) / block * block / q.BlockSize)
}
