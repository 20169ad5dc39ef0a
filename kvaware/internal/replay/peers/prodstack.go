// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"math"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// prodStack is the loadaware routing of vLLM's production-stack:
//
//	score = cached tokens / prompt tokens − (requests − mean) / max(1, mean)
//
// The highest score wins, of equal ones the first. If no replica holds anything of
// the prompt: the session's place on a hash ring, without session the replica with
// the fewest requests in the last minute.
//
// Source: production-stack:src/vllm_router/routers/routing_logic.py
// (LoadAwareRouter, pull request 1035; beta 1, --request-stats-window 60). What is
// cached it asks LMCache's controller, which hears of chunks of 256 tokens; here
// they are the engine's own blocks in whole chunks.
type prodStack struct {
	base
	listener
	ring   ring
	recent [][]time.Duration // arrivals of the last minute, by replica
	seen   []bool            // replicas that ever had a request
}

const (
	prodStackBeta   = 1.0
	prodStackChunk  = 256 // tokens
	prodStackWindow = 60 * time.Second
)

func newProdStack(s replay.Setting) replay.Policy {
	return &prodStack{base: newBase(s), listener: newListener(), ring: ring{each: 160}}
}

func (p *prodStack) Route(now time.Duration, r *replay.Request, up []int) int {
	p.fleet(up)
	last := up[len(up)-1]
	p.index.fleet(last)
	p.recent, p.seen = grown(p.recent, last), grown(p.seen, last)
	i := p.choose(now, r, up)
	p.sent(i)
	p.seen[i] = true
	p.recent[i] = append(p.lately(now, i), now)
	return i
}

func (p *prodStack) choose(now time.Duration, r *replay.Request, up []int) int {
	cached := p.index.match(r.Blocks)
	chunk := max(prodStackChunk/p.block, 1)
	held, best, most := false, up[0], math.Inf(-1)
	mean := p.mean(up)
	for _, i := range up {
		tokens := cached[i] / chunk * chunk * p.block
		held = held || tokens > 0
		score := float64(min(tokens, r.Prompt))/float64(max(r.Prompt, 1)) -
			prodStackBeta*(float64(p.running[i])-mean)/max(1, mean)
		if score > most {
			best, most = i, score
		}
	}
	if held {
		return best
	}
	if r.Session != 0 {
		p.ring.place(up)
		return p.ring.points[p.ring.search(r.Session)].replica
	}
	best = up[0]
	for _, i := range up {
		if !p.seen[i] {
			return i
		}
		if p.recent[i] = p.lately(now, i); len(p.recent[i]) < len(p.recent[best]) {
			best = i
		}
	}
	return best
}

// lately returns the replica's arrivals of the last minute.
func (p *prodStack) lately(now time.Duration, replica int) []time.Duration {
	all, k := p.recent[replica], 0
	for k < len(all) && now-all[k] > prodStackWindow {
		k++
	}
	return all[k:]
}
