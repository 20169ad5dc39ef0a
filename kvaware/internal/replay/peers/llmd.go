// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"math"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// llmd is llm-d's default stack since 2026-08-17: keep to replicas that hold most
// of the prompt until they are saturated, and take the least uncached tokens in
// flight of those:
//
//	sticky = replicas with at least 0.8 of the prompt's blocks
//	cost   = tokens in flight + uncached tokens of this request
//
// where tokens in flight are the uncached prompt tokens of requests without a
// first chunk. All replicas are candidates if none is sticky, or if the least
// loaded sticky one would answer 18 s later than the least loaded other, at
// 15,928 tokens a second.
//
// Source: llm-d-router:pkg/epp/framework/plugins, scheduling/filter/
// prefixcacheaffinity/plugin.go, scheduling/scorer/tokenload/token_load.go
// (saturates at 4,194,304 tokens), requestcontrol/dataproducer/inflightload,
// requestcontrol/dataproducer/approximateprefix/indexer.go (an LRU of each
// replica's routed blocks, the head of a prompt first; a match counts every block
// that the replica holds up to the first that none holds; at most 131,072 tokens
// of a prompt).
//
// The LRU has as many entries as the engine has KV blocks, of at least 64 tokens
// each whatever the engine's: with the usual 16 the index believes in four times
// what fits, and so it does here. The peak throughput is that of its reference
// accelerator, which it ships as default.
type llmd struct {
	queue  // of uncached prompt tokens
	routed *routed
	limit  []int // blocks
	sticky []int
}

const (
	llmdAffinity     = 0.80
	llmdMaxPenalty   = 18.0   // seconds
	llmdThroughput   = 15_928 // tokens a second
	llmdSaturated    = 4_194_304
	llmdMatched      = 131_072 // tokens of a prompt
	llmdBlock        = 64      // tokens
	llmdEngineBlock  = 16      // tokens
	llmdDefaultLimit = 31_250 * llmdBlock
)

func newLLMD(s replay.Setting) replay.Policy {
	return &llmd{queue: newQueue(s), routed: newRouted(headFirst)}
}

func (p *llmd) Joined(_ time.Duration, replica int, c replay.Capacity) {
	p.routed.clear(replica)
	p.limit = grown(p.limit, replica)
	p.limit[replica] = max(c.CacheTokens/llmdEngineBlock*llmdBlock/p.block, 1)
}

func (p *llmd) Left(_ time.Duration, replica int) { p.routed.clear(replica) }

func (p *llmd) Route(now time.Duration, r *replay.Request, up []int) int {
	p.fleet(up)
	p.routed.fleet(up[len(up)-1])
	blocks := r.Blocks[:min(len(r.Blocks), llmdMatched/p.block)]
	match := p.routed.count(blocks)
	uncached := func(i int) int {
		return (len(blocks)-match[i])*p.block + max(r.Prompt-len(blocks)*p.block, 0)
	}
	i := p.least(p.candidates(up, match, len(blocks)), func(i int) float64 {
		return float64(min(p.queued[i]+uncached(i), llmdSaturated))
	})
	p.enqueue(r, i, uncached(i))
	p.routed.use(i, blocks, now)
	p.routed.trim(&p.routed.uses[i], p.limitOf(i))
	return i
}

func (p *llmd) limitOf(replica int) int {
	if replica < len(p.limit) && p.limit[replica] > 0 {
		return p.limit[replica]
	}
	return max(llmdDefaultLimit/p.block, 1)
}

// candidates is the affinity filter. It returns up or a part of it.
func (p *llmd) candidates(up, match []int, blocks int) []int {
	if len(up) == 1 || blocks == 0 {
		return up
	}
	p.sticky = p.sticky[:0]
	in, out := math.MaxInt, math.MaxInt
	for _, i := range up {
		if float64(match[i])/float64(blocks) >= llmdAffinity {
			p.sticky = append(p.sticky, i)
			in = min(in, p.queued[i])
		} else {
			out = min(out, p.queued[i])
		}
	}
	if len(p.sticky) == 0 || out != math.MaxInt && float64(in-out)/llmdThroughput > llmdMaxPenalty {
		return up
	}
	return p.sticky
}

// llmdPrecise is llm-d's weighted scorers over the engines' own cache and gauges:
//
//	2 · cached share of the prompt's blocks + (1 − KV use)
//	  + (most waiting − waiting here) / (most − fewest waiting)
//
// where the last is 1 if all queues are equal.
// The highest score wins, equal ones at random.
//
// Source: llm-d-router:deploy/config/epp-precise-prefix-cache-config.yaml and the
// scorers prefix, kvcacheutilization and queuedepth under
// pkg/epp/framework/plugins/scheduling/scorer; metrics every 50 ms
// (pkg/epp/server/options.go), no speculative indexing. Since 2026-07 llm-d's
// guide for exact events takes the stack of llmd instead.
type llmdPrecise struct {
	base
	listener
	gauges []replay.Metrics
}

func newLLMDPrecise(s replay.Setting) replay.Policy {
	return &llmdPrecise{base: newBase(s), listener: newListener()}
}

func (p *llmdPrecise) PollEvery() time.Duration { return 50 * time.Millisecond }

func (p *llmdPrecise) Polled(_ time.Duration, replica int, m replay.Metrics) {
	p.gauges = grown(p.gauges, replica)
	p.gauges[replica] = m
}

func (p *llmdPrecise) Route(_ time.Duration, r *replay.Request, up []int) int {
	last := up[len(up)-1]
	p.index.fleet(last)
	p.gauges = grown(p.gauges, last)
	cached := p.index.match(r.Blocks)
	fewest, most := math.MaxInt, 0
	for _, i := range up {
		fewest, most = min(fewest, p.gauges[i].Waiting), max(most, p.gauges[i].Waiting)
	}
	return p.least(up, func(i int) float64 {
		score := 1 - p.gauges[i].KVUsage
		if len(r.Blocks) > 0 {
			score += 2 * float64(cached[i]) / float64(len(r.Blocks))
		}
		if most == fewest {
			score++
		} else {
			score += float64(most-p.gauges[i].Waiting) / float64(most-fewest)
		}
		return -score
	})
}
