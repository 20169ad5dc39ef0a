// SPDX-License-Identifier: Apache-2.0

// Package ours lets the replay run the routing core that Caddy runs (package
// route), on the replay's clock.
package ours

import (
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/route"
)

// All returns the objectives of kv_aware, the default first. Where it is not said
// otherwise, cache_tokens and max_sequences are configured as the engines have them.
func All() []replay.Spec {
	return []replay.Spec{
		{
			Name:    "kv_aware",
			Summary: "least latency: seconds for itself and others until first tokens, times what later ones take; cache_tokens and max_sequences configured",
			New:     func(s replay.Setting) replay.Policy { return newPolicy(s, true) },
		},
		{
			Name:    "kv_aware_token_load",
			Summary: "least token load: uncached prompt tokens and KV tokens of running decodes; cache_tokens configured",
			New:     func(s replay.Setting) replay.Policy { return newPolicy(s, false) },
		},
		{
			Name:    "kv_aware_defaults",
			Summary: "as kv_aware, with nothing configured: a cache of 400,000 tokens whatever the engine has, no limit of sequences",
			New: func(s replay.Setting) replay.Policy {
				p := newPolicy(s, true)
				p.unconfigured = true
				return p
			},
		},
		{
			Name:    "kv_aware_events",
			Summary: "as kv_aware, with kv_events: engines tell what they hold",
			New:     func(s replay.Setting) replay.Policy { return newListening(s) },
		},
	}
}

// policy is a router in a replay.
type policy struct {
	router    *route.Router
	objective route.Objective
	blockSize int
	// unconfigured says that nothing of the engines is known but their block size.
	unconfigured bool
	// reports are what engines say that they hold; nil if nobody listens.
	reports route.Reports
	now     time.Duration

	replicas []*replica // nil where nothing is known of one
	choice   route.Choice
}

type replica struct {
	*route.Upstream
	maxSequences int // as its operator configured; 0 if nothing is known
}

func newPolicy(s replay.Setting, latency bool) *policy {
	p := &policy{
		blockSize: s.BlockSize,
		objective: route.Objective{Latency: latency, Weights: choose.Weights{Prefill: 1, Decode: 1}},
	}
	opt := route.Options{Now: func() time.Duration { return p.now }}
	if s.Rand != nil {
		opt.Rand = s.Rand
	}
	p.router = route.New(opt)
	return p
}

// defaultCacheTokens is what the configuration has for the KV cache of a replica
// of which nothing is known.
const defaultCacheTokens = 400_000

// Joined implements replay.Member. A replica that comes back is the same upstream
// to a router: it has its address.
func (p *policy) Joined(now time.Duration, id int, c replay.Capacity) {
	p.now = now
	if p.unconfigured {
		p.join(id, defaultCacheTokens)
		return
	}
	p.join(id, c.CacheTokens)
	p.replicas[id].maxSequences = c.MaxSeqs
}

func (p *policy) join(id, cacheTokens int) {
	for len(p.replicas) <= id {
		p.replicas = append(p.replicas, nil)
	}
	blocks := cacheTokens / max(1, p.blockSize)
	if u := p.replicas[id]; u != nil {
		p.router.Index.SetCapacity(u.Slot, blocks)
	} else {
		p.replicas[id] = &replica{Upstream: p.router.Add(blocks)}
	}
}

// Left implements replay.Member: where connections are refused the cache is gone.
func (p *policy) Left(now time.Duration, id int) {
	p.now = now
	if id < len(p.replicas) && p.replicas[id] != nil {
		p.router.Index.Forget(p.replicas[id].Slot)
	}
}

// Route implements replay.Policy.
func (p *policy) Route(now time.Duration, r *replay.Request, up []int) int {
	p.now = now
	p.choice.Candidates = p.choice.Candidates[:0]
	for _, id := range up {
		if id >= len(p.replicas) || p.replicas[id] == nil {
			p.join(id, defaultCacheTokens)
		}
		p.choice.Candidates = append(p.choice.Candidates, route.Candidate{Upstream: p.replicas[id].Upstream, MaxSequences: p.replicas[id].maxSequences})
	}
	expected := -1
	if r.MaxTokens > 0 {
		expected = r.MaxTokens
	}
	prompt, chain, counted := [1]ledger.Prompt{{Tokens: r.Prompt}}, [1][]uint64{r.Blocks}, [1]int{r.Prompt}
	q := route.Request{
		Demand:    ledger.Demand{Prompts: prompt[:], Choices: 1, Expected: expected, Stream: r.Stream},
		Chains:    chain[:],
		Counted:   counted[:],
		Ratio:     1,
		BlockSize: p.blockSize,
		Reuses:    true,
		Keeps:     true,
	}
	if p.reports != nil {
		q.Reports, q.Fresh = p.reports, true
		q.Reported = []route.ReportedChains{{BlockSize: p.blockSize, Chains: q.Chains}}
	}
	placement := new(route.Placement)
	i := p.router.Place(&p.choice, &q, &p.objective, -1, placement)
	r.State = placement
	return up[i]
}

// Started implements replay.Policy.
func (p *policy) Started(now time.Duration, r *replay.Request, _ int) {
	p.now = now
	if placement, ok := r.State.(*route.Placement); ok {
		placement.Started(0, now)
	}
}

// Progress implements replay.Policy.
func (p *policy) Progress(now time.Duration, r *replay.Request, _, total int) {
	p.now = now
	if placement, ok := r.State.(*route.Placement); ok {
		placement.Generated(0, total, now)
	}
}

// Ended implements replay.Policy.
func (p *policy) Ended(now time.Duration, r *replay.Request, _ int, o replay.Outcome, usage replay.Usage) {
	p.now = now
	placement, ok := r.State.(*route.Placement)
	if !ok {
		return
	}
	r.State = nil
	if o != replay.Completed {
		placement.Release(ledger.Failed, false)
		return
	}
	placement.Generated(0, usage.Output, now)
	placement.Release(ledger.Completed, true)
}

// Interface guards
var (
	_ replay.Policy = (*policy)(nil)
	_ replay.Member = (*policy)(nil)
)
