// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"math"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// aibrixPrefix is AIBrix's prefix-cache: the replica with the highest percentage
// of the prompt among those whose requests are at most one standard deviation over
// the mean, equal ones to fewer requests, then at random; without one, the fewest
// requests. When the most and the fewest requests differ by more than 8, only
// replicas with the fewest count as holders.
//
// Source: aibrix:pkg/plugins/gateway/algorithms/prefix_cache.go and
// pkg/utils/prefixcacheindexer/hash.go at e3e10f9e: one table for all replicas,
// 200,000 blocks, least recently routed first, the head of a prompt first, 20
// minutes at most. Its blocks are of 128 characters as in its documentation, 32
// tokens: with the 4 of the code the table would hold a prompt or two. Thresholds
// are those of the code; the documentation has 16 requests and 2 deviations.
type aibrixPrefix struct {
	base
	routed *routed // shared
}

const (
	aibrixImbalance  = 8
	aibrixDeviations = 1
	aibrixTable      = 200_000 * 128 / charsPerToken // tokens
	aibrixIdle       = 20 * time.Minute
)

func newAIBrixPrefix(s replay.Setting) replay.Policy {
	return &aibrixPrefix{base: newBase(s), routed: newSharedRouted(headFirst)}
}

// Joined forgets what a replica of that index held: a pod that is started anew
// has a name of its own.
func (p *aibrixPrefix) Joined(_ time.Duration, replica int, _ replay.Capacity) {
	p.routed.clear(replica)
}

func (p *aibrixPrefix) Left(_ time.Duration, replica int) { p.routed.clear(replica) }

func (p *aibrixPrefix) Route(now time.Duration, r *replay.Request, up []int) int {
	p.fleet(up)
	p.routed.fleet(up[len(up)-1])
	all := &p.routed.uses[0]
	for all.oldest != nil && now-all.oldest.used > aibrixIdle {
		p.routed.forget(all, len(all.oldest.stretch.blocks))
	}
	i := p.choose(r, up)
	p.routed.use(i, r.Blocks, now)
	p.routed.trim(all, max(aibrixTable/p.block, 1))
	p.sent(i)
	return i
}

func (p *aibrixPrefix) choose(r *replay.Request, up []int) int {
	fewest, most, mean := math.MaxInt, 0, p.mean(up)
	variance := 0.0
	for _, i := range up {
		n := p.running[i]
		fewest, most = min(fewest, n), max(most, n)
		variance += (float64(n) - mean) * (float64(n) - mean)
	}
	bound := mean
	if len(up) > 1 {
		bound += aibrixDeviations * math.Sqrt(variance/float64(len(up)-1))
	}
	imbalanced := most-fewest > aibrixImbalance
	depth := p.routed.prefix(r.Blocks)
	best, ties, bestPercent := -1, 0, 0
	for _, i := range up {
		n := p.running[i]
		if depth[i] == 0 || imbalanced && n > fewest || float64(n) > bound {
			continue
		}
		percent := depth[i] * 100 / len(r.Blocks)
		switch {
		case best < 0, percent > bestPercent, percent == bestPercent && n < p.running[best]:
			best, ties, bestPercent = i, 1, percent
		case percent == bestPercent && n == p.running[best]:
			if ties++; p.rand.IntN(ties) == 0 {
				best = i
			}
		}
	}
	if best < 0 {
		return p.fewest(up)
	}
	return best
}

// aibrixTokenLoad is AIBrix's token_load:
//
//	cost   = tokens in prefill + 0.3 · tokens resident
//	charge = 3500 + new tokens
//
// where a request is in prefill until its first token and resident until its end.
// New tokens are what the prompt grew since the session's last one, else all of
// it. Equal costs are broken at random.
//
// Source: aibrix:pkg/plugins/gateway/algorithms/pd/{prefill_scorer,
// token_load_tracker}.go, pull requests 2681 and 2682; defaults kv_weight 0.3,
// request_cost 3500, sessions for 1800 s, at most 100,000 of them, idle ones swept
// every 60 s. It is made for the prefill half of a split fleet, where the prefill
// ends with a call of its own; here a replica is both halves.
type aibrixTokenLoad struct {
	base
	tickets  tickets[aibrixCharge]
	prefill  []int // tokens
	resident []int // tokens
	sessions map[uint64]aibrixSession
	swept    time.Duration
}

type aibrixCharge struct{ prefill, resident int }

type aibrixSession struct {
	prompt int // tokens
	seen   time.Duration
}

const (
	aibrixKVWeight    = 0.3
	aibrixRequestCost = 3500
	aibrixSessionIdle = 1800 * time.Second
	aibrixSessions    = 100_000
	aibrixSweep       = 60 * time.Second
)

// StreamsAll says that the end of the prefill is seen in any case.
func (p *aibrixTokenLoad) StreamsAll() {}

func newAIBrixTokenLoad(s replay.Setting) replay.Policy {
	return &aibrixTokenLoad{base: newBase(s), sessions: make(map[uint64]aibrixSession)}
}

func (p *aibrixTokenLoad) Route(now time.Duration, r *replay.Request, up []int) int {
	p.fleet(up)
	p.prefill = grown(p.prefill, up[len(up)-1])
	p.resident = grown(p.resident, up[len(up)-1])
	i := p.least(up, func(i int) float64 {
		return float64(p.prefill[i]) + aibrixKVWeight*float64(p.resident[i])
	})
	p.sent(i)
	charge := aibrixRequestCost + p.fresh(now, r)
	*p.tickets.issue(r) = aibrixCharge{charge, charge}
	p.prefill[i] += charge
	p.resident[i] += charge
	return i
}

// fresh returns the request's new tokens and remembers its prompt for the next
// turn.
func (p *aibrixTokenLoad) fresh(now time.Duration, r *replay.Request) int {
	if now-p.swept >= aibrixSweep {
		p.swept = now
		for id, s := range p.sessions {
			if now-s.seen > aibrixSessionIdle {
				delete(p.sessions, id)
			}
		}
	}
	if r.Session == 0 {
		return r.Prompt
	}
	last, seen := p.sessions[r.Session]
	if !seen && len(p.sessions) >= aibrixSessions {
		return r.Prompt
	}
	p.sessions[r.Session] = aibrixSession{r.Prompt, now}
	if seen && r.Prompt > last.prompt {
		return r.Prompt - last.prompt
	}
	return r.Prompt
}

func (p *aibrixTokenLoad) Started(_ time.Duration, r *replay.Request, replica int) {
	if t := p.tickets.of(r); t != nil {
		p.prefill[replica] -= t.prefill
		t.prefill = 0
	}
}

func (p *aibrixTokenLoad) Ended(now time.Duration, r *replay.Request, replica int, o replay.Outcome, u replay.Usage) {
	p.Started(now, r, replica)
	if t := p.tickets.redeem(r); t != nil {
		p.base.Ended(now, r, replica, o, u)
		p.resident[replica] -= t.resident
	}
}
