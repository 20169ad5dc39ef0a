// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"math"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// listener keeps the index of a policy that hears of the engines' KV events. A
// replica that leaves, or joins anew, holds nothing.
type listener struct{ index *index }

func newListener() listener { return listener{newIndex()} }

func (l *listener) EventDelay() time.Duration { return eventDelay }

func (l *listener) Stored(_ time.Duration, replica int, block uint64) {
	l.index.fleet(replica)
	l.index.store(replica, block)
}

func (l *listener) Removed(_ time.Duration, replica int, block uint64) {
	l.index.fleet(replica)
	l.index.remove(replica, block)
}

func (l *listener) Cleared(_ time.Duration, replica int) { l.index.clear(replica) }

func (l *listener) Joined(_ time.Duration, replica int, _ replay.Capacity) { l.index.clear(replica) }

func (l *listener) Left(_ time.Duration, replica int) { l.index.clear(replica) }

// dynamo is NVIDIA Dynamo's KV router, and Ray's KVAwareRouter, which calls it:
//
//	cost = max(0, (queued + prompt)/block − cached blocks) + active blocks
//
// in blocks. queued are the uncached prompt tokens of requests without a first
// token; active blocks are the distinct prompt blocks of all requests in flight,
// with this one's. Equal costs are broken at random.
//
// Source: dynamo:lib/kv-router/src/scheduling/selector/{default,mod}.rs,
// sequences/block_tracker.rs. Defaults: overlap_score_credit 1,
// overlap_score_credit_decay 0, prefill_load_scale 1,
// decode_active_request_weight 0, router_temperature 0, use_kv_events,
// track_prefill_tokens, assume_kv_reuse; no tier but the device's. Its workers
// stream to it whatever the client asked for.
type dynamo struct {
	base
	listener
	tickets tickets[dynamoTicket]
	queued  []int // prompt tokens
	active  []*active
	// cost is of the blocks to prefill and those active.
	cost func(prefill, active float64) float64
	// outputs says that each output block counts as one active, and that, with
	// the output's expected length known, what a request alone holds weighs
	// max(0, 1 − output/expected). Expected is max_tokens, as Ray has it.
	outputs bool
}

type dynamoTicket struct {
	queued  int
	holding holding
}

func (p *dynamo) StreamsAll() {}

func newDynamo(s replay.Setting) replay.Policy {
	return dynamoOf(s, func(prefill, active float64) float64 { return prefill + active })
}

// newDynamoOutput makes dynamo with router_track_output_blocks.
//
// Source: dynamo:lib/llm/src/kv_router/push_router.rs;
// ray:python/ray/llm/_internal/serve/routing_policies/kv_aware.
func newDynamoOutput(s replay.Setting) replay.Policy {
	p := dynamoOf(s, func(prefill, active float64) float64 { return prefill + active })
	p.outputs = true
	return p
}

// newDynamoLMetric makes dynamo with router_selection_policy lmetric, which
// multiplies the terms: prefill × (active + 1).
//
// Source: dynamo:docs/components/router/router-configuration.md.
func newDynamoLMetric(s replay.Setting) replay.Policy {
	return dynamoOf(s, func(prefill, active float64) float64 { return prefill * (active + 1) })
}

func dynamoOf(s replay.Setting, cost func(prefill, active float64) float64) *dynamo {
	return &dynamo{base: newBase(s), listener: newListener(), cost: cost}
}

func (p *dynamo) Route(_ time.Duration, r *replay.Request, up []int) int {
	p.fleet(up)
	last := up[len(up)-1]
	p.index.fleet(last)
	p.queued = grown(p.queued, last)
	for len(p.active) <= last {
		p.active = append(p.active, newActive())
	}
	cached := p.index.match(r.Blocks)
	i := p.least(up, func(i int) float64 {
		prefill := float64(p.queued[i]+r.Prompt)/float64(p.block) - float64(cached[i])
		active := math.Round(p.active[i].blocks()) + float64(p.active[i].missing(r.Blocks))
		return p.cost(max(prefill, 0), active)
	})
	p.sent(i)
	t := p.tickets.issue(r)
	t.queued = max(r.Prompt-cached[i]*p.block, 0)
	t.holding = p.active[i].acquire(r.Blocks)
	p.queued[i] += t.queued
	return i
}

func (p *dynamo) Started(_ time.Duration, r *replay.Request, replica int) {
	if t := p.tickets.of(r); t != nil {
		p.queued[replica] -= t.queued
		t.queued = 0
	}
}

func (p *dynamo) Progress(_ time.Duration, r *replay.Request, replica, total int) {
	t := p.tickets.of(r)
	if t == nil || !p.outputs {
		return
	}
	crossed := (r.Prompt+total)/p.block - r.Prompt/p.block - t.holding.outputs
	if crossed <= 0 {
		return
	}
	p.active[replica].grow(&t.holding, crossed)
	if r.MaxTokens > 0 {
		p.active[replica].decay(&t.holding, max(0, 1-float64(total)/float64(r.MaxTokens)))
	}
}

func (p *dynamo) Ended(now time.Duration, r *replay.Request, replica int, o replay.Outcome, u replay.Usage) {
	if t := p.tickets.redeem(r); t != nil {
		p.base.Ended(now, r, replica, o, u)
		p.queued[replica] -= t.queued
		p.active[replica].release(&t.holding)
	}
}
