// SPDX-License-Identifier: Apache-2.0

package route

import (
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/pace"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"
)

// ghostTokens is the least that a ghost of a failure weighs in prompt tokens;
// otherwise it weighs as much as the request being placed.
const ghostTokens = 2048

// size is what of a request is the same wherever it goes.
type size struct {
	prompts   int64   // tokens of all of them
	compute   float64 // seconds to prefill them with nothing cached, but for the steps' own time
	sequences float64
	contexts  float64 // KV tokens that its decodes read, halfway through
	blocks    int     // of all prompts
	output    int     // blocks of output that are expected
	mean      float64 // tokens of an output that are expected
}

// sizeOf measures a request of which outputs of a mean length are expected.
func (q *Request) sizeOf(mean float64) size {
	var s size
	d := &q.Demand
	for i := range d.Prompts {
		n := int64(d.Prompts[i].Tokens)
		s.prompts += n
		s.compute += pace.Prior.Compute(0, n)
		counted := d.Prompts[i].Tokens
		if i < len(q.Counted) {
			counted = q.Counted[i]
		}
		s.blocks += (counted + q.BlockSize - 1) / q.BlockSize
	}
	choices := max(1, d.Choices)
	s.sequences = float64(max(1, len(d.Prompts)) * choices)
	if d.Pooling {
		return s
	}
	if d.Expected >= 0 {
		mean = min(mean, float64(d.Expected))
	}
	s.mean = mean
	s.contexts = float64(s.prompts)*float64(choices) + s.sequences*mean/2
	s.output = int(min(s.sequences, ledger.MaxSequences)) * ((int(mean) + q.BlockSize - 1) / q.BlockSize)
	return s
}

// estimate fills the terms of the latency. The ledger's lock is held; weigh was
// called.
func (r *Router) estimate(c *Choice, q *Request, cands []choose.Candidate, now time.Duration) {
	n := len(cands)
	if cap(c.terms) < n {
		c.terms, c.needs = make([]choose.Terms, n), make([]int, n)
	}
	c.terms, c.needs = c.terms[:n], c.needs[:n]
	c.uses = bySlot(c.uses, r.Index.Slots())
	r.Index.Uses(c.uses)

	r.Ledger.Outlook(&c.outlook)
	sz := q.sizeOf(c.outlook.Mean)
	for i := range c.terms {
		// For now, Own is the time to compute what is uncached, KVUse the blocks
		// that running requests would hold, and the need is in blocks.
		c.terms[i] = choose.Terms{Own: sz.compute, KVUse: float64(sz.blocks + sz.output), Excluded: cands[i].Excluded}
		c.needs[i] = sz.blocks + sz.output
	}
	if q.Reuses {
		r.takeCached(c, q)
	}

	ghost := pace.Prior.Prefill(0, max(ghostTokens, sz.prompts))
	for i := range c.terms {
		t, cand, use := &c.terms[i], &cands[i], &c.uses[c.Candidates[i].Slot]
		w := c.Candidates[i].Load.Work(now)
		t.Own = (pace.Prior.Steps(cand.Uncached) + t.Own) * w.PrefillPace
		t.Queue = w.Queue
		t.Sequences = float64(cand.Running) + sz.sequences
		t.Step = pace.Prior.Decode(t.Sequences, w.Contexts+sz.contexts) * w.DecodePace
		t.Delay = choose.Delay(w.Waiting, t.Own)
		capacity := float64(max(1, use.Capacity))
		t.KVUse = (float64(use.Running) + t.KVUse) / capacity
		remaining := c.Candidates[i].Load.Remaining(&c.outlook)
		grown := float64(cand.Running) * remaining / (float64(q.BlockSize) * capacity)
		t.Memory = choose.Memory(float64(c.needs[i]-sz.output)/capacity, t.KVUse+grown, sz.mean*t.Step)
		excess := t.KVUse - choose.FullKVUse
		if most := c.Candidates[i].MaxSequences; most > 0 {
			excess = max(excess, t.Sequences/float64(most)-1)
		}
		if excess > 0 {
			t.Wait = choose.Wait(excess, remaining, t.Step)
		}
		t.Priced = c.needs[i] <= use.Free || c.Candidates[i].NoCache
		t.Ghosts, t.GhostSeconds = cand.Ghosts, cand.Ghosts*ghost
	}
}

// takeCached takes off what each candidate holds of the prompts.
func (r *Router) takeCached(c *Choice, q *Request) {
	for j, chain := range q.Chains {
		if len(chain) == 0 {
			continue
		}
		if len(q.Chains) > 1 { // else it was looked up when it was weighed
			r.match(c, q, j, true)
		}
		tokens := int64(q.Demand.Prompts[j].Tokens)
		whole := pace.Prior.Compute(0, tokens)
		for i := range c.terms {
			slot := c.Candidates[i].Slot
			held := c.held[slot]
			if held == 0 {
				continue
			}
			t := &c.terms[i]
			t.Own -= whole - pace.Prior.Compute(int64(q.cachedTokens(j, held)), tokens)
			t.KVUse -= float64(c.pinned[slot])
			c.needs[i] -= int(held)
		}
	}
	for i := range c.terms {
		c.terms[i].Own = max(0, c.terms[i].Own) // what rounding leaves
	}
}

// priceEviction is what making room for the request costs others at candidate i.
// Of several prompts, those after the first may pay for their own blocks.
func (r *Router) priceEviction(c *Choice, q *Request, i int) float64 {
	c.price = prefix.Eviction{Pace: &pace.Prior, BlockSize: q.BlockSize, Namespace: q.Namespace}
	if len(q.Chains) > 0 {
		c.price.Chain = q.Chains[0]
	}
	cand := &c.Candidates[i]
	return r.Index.Price(cand.Slot, c.needs[i], &c.price) * cand.Load.PrefillPace()
}
