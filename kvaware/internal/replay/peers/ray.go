// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// rayPrefix is Ray Serve's PrefixCacheAffinityRouter: of the replicas that were
// sent the longest part of the prompt, if that is at least 0.1 of it, else of
// those that were sent the fewest distinct characters, the one with the shortest
// queue.
//
// Source: ray:python/ray/llm/_internal/serve/routing_policies/prefix_aware/
// {prefix_aware_router,prefix_tree}.py. Defaults: imbalanced_threshold infinite,
// so the load never overrules; match_rate_threshold 0.1; do_eviction off. Its tree
// grows without bound; this one keeps rayTree blocks for each replica, far more
// than an engine holds. Queue lengths are exact, Ray caches those it probed.
type rayPrefix struct {
	base
	promptTree
	candidates []int
}

const (
	rayMatchRate = 0.1
	rayTree      = 1 << 18 // blocks
)

func newRayPrefix(s replay.Setting) replay.Policy {
	return &rayPrefix{base: newBase(s), promptTree: promptTree{routed: newRouted(tailFirst)}}
}

func (p *rayPrefix) Route(now time.Duration, r *replay.Request, up []int) int {
	p.fleet(up)
	p.routed.fleet(up[len(up)-1])
	p.candidates = p.candidates[:0]
	if depth, end := p.routed.longest(r.Blocks); matched(depth*p.block, r.Prompt) >= rayMatchRate {
		p.candidates = end.among(up, p.candidates)
	}
	if len(p.candidates) == 0 {
		smallest := p.routed.uses[up[0]].size
		for _, i := range up[1:] {
			smallest = min(smallest, p.routed.uses[i].size)
		}
		for _, i := range up {
			if p.routed.uses[i].size == smallest {
				p.candidates = append(p.candidates, i)
			}
		}
	}
	chosen := p.fewest(p.candidates)
	p.routed.use(chosen, r.Blocks, now)
	p.routed.trim(&p.routed.uses[chosen], rayTree)
	p.sent(chosen)
	return chosen
}
