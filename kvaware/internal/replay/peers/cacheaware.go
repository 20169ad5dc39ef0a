// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// What both routers of the SGLang line share: a tree over the prompts routed so
// far, cleaned every two minutes, and two thresholds for imbalance.
const (
	cacheThreshold = 0.3
	balanceAbs     = 64  // requests
	balanceRel     = 1.5 // of the other end
	evictEvery     = 120 * time.Second
	maxTree        = 67_108_864 / charsPerToken // tokens
)

// promptTree is the tree over prompts. A block stands for the characters of its
// tokens; replicas are its tenants.
type promptTree struct {
	routed  *routed
	evicted time.Duration
}

// due tells, once in evictEvery, that the tree is to be cleaned.
func (t *promptTree) due(now time.Duration) bool {
	if now-t.evicted < evictEvery {
		return false
	}
	t.evicted = now - (now-t.evicted)%evictEvery
	return true
}

func (t *promptTree) Joined(_ time.Duration, replica int, _ replay.Capacity) { t.routed.clear(replica) }

func (t *promptTree) Left(_ time.Duration, replica int) { t.routed.clear(replica) }

// smg is smg's cache_aware: if more than 0.3 of the prompt was routed before, the
// least loaded of the replicas that were sent the longest part, equal ones at
// random; else the replica with the fewest requests, then with the fewest ever
// routed, then the first. A replica with more than 1.5 times the mean and 64 over
// it gives way to that one.
//
// Source: smg:model_gateway/src/policies/cache_aware.rs at f8daa883, HTTP path
// (select_worker_with_text); defaults of model_gateway/src/main.rs. KV triggers,
// overlap decay and temperature are off by default. The tree is bounded over all
// replicas together.
type smg struct {
	base
	promptTree
	ever    []int // requests routed
	holders []int
}

func newSMG(s replay.Setting) replay.Policy {
	return &smg{base: newBase(s), promptTree: promptTree{routed: newRouted(tailFirst)}}
}

func (p *smg) Route(now time.Duration, r *replay.Request, up []int) int {
	p.fleet(up)
	p.routed.fleet(up[len(up)-1])
	p.ever = grown(p.ever, up[len(up)-1])
	if p.due(now) {
		p.routed.trimAll(maxTree / p.block)
	}
	idlest := up[0]
	for _, i := range up[1:] {
		if n, least := p.running[i], p.running[idlest]; n < least || n == least && p.ever[i] < p.ever[idlest] {
			idlest = i
		}
	}
	chosen := idlest
	if depth, end := p.routed.longest(r.Blocks); matched(depth*p.block, r.Prompt) > cacheThreshold {
		p.holders = end.among(up, p.holders[:0])
		if len(p.holders) > 0 {
			chosen = p.fewest(p.holders)
			n, mean := float64(p.running[chosen]), p.mean(up)
			if n > mean*balanceRel && n > mean+balanceAbs {
				chosen = idlest
			}
		}
	}
	p.routed.use(chosen, r.Blocks, now)
	p.sent(chosen)
	p.ever[chosen]++
	return chosen
}

// matched returns the share of the prompt that tokens are.
func matched(tokens, prompt int) float64 {
	if prompt <= 0 {
		return 0
	}
	return float64(tokens) / float64(prompt)
}

// sglang is the SGLang router's cache_aware: while the loads are balanced, the
// replica that was sent the longest part of the prompt last, if that is more than
// 0.3 of it; else, and while they are not, the first replica with the fewest
// requests. Loads are out of balance when the most and the fewest requests differ
// by more than 64 and by more than 1.5 times.
//
// Source: sglang:sgl-model-gateway/src/policies/{cache_aware,tree}.rs; defaults of
// its launcher (cache_threshold 0.3, balance_abs_threshold 64,
// balance_rel_threshold 1.5, eviction every 120 s, max_tree_size 67,108,864
// characters for each replica). Versions before its pull request 14532 send what
// misses to the smallest tree.
type sglang struct {
	base
	promptTree
}

func newSGLang(s replay.Setting) replay.Policy {
	return &sglang{base: newBase(s), promptTree: promptTree{routed: newRouted(tailFirst)}}
}

func (p *sglang) Route(now time.Duration, r *replay.Request, up []int) int {
	p.fleet(up)
	p.routed.fleet(up[len(up)-1])
	if p.due(now) {
		for i := range p.routed.uses {
			p.routed.trim(&p.routed.uses[i], maxTree/p.block)
		}
	}
	idlest, most := up[0], 0
	for _, i := range up {
		if p.running[i] < p.running[idlest] {
			idlest = i
		}
		most = max(most, p.running[i])
	}
	least := p.running[idlest]
	chosen := idlest
	if most-least <= balanceAbs || float64(most) <= float64(least)*balanceRel {
		if depth, end := p.routed.longest(r.Blocks); matched(depth*p.block, r.Prompt) > cacheThreshold {
			chosen = up[0]
			latest := time.Duration(-1)
			for h := end.holders; h != nil; h = h.next {
				if h.used > latest && inService(up, h.replica) {
					chosen, latest = h.replica, h.used
				}
			}
		}
	}
	p.routed.use(chosen, r.Blocks, now)
	p.sent(chosen)
	return chosen
}
