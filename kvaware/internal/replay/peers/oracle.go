// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"math"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/engine"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// oracle knows the lengths of outputs and the engines' state, and takes the
// replica where the request adds least to
//
//	ln(mean TTFT) + ln(mean end-to-end latency)
//
// over all requests, its own and the delay it causes:
//
//	cost = (ttft + k·own) / mean TTFT + (ttft + decode + (n + k)·own + slower) / mean latency
//
// in which, of a replica with n requests,
//
//   - own are the seconds to prefill what is not cached there
//   - ttft = hold + (backlog + own), stretched by the decodes that share the steps
//   - hold are the seconds until memory and a place in the batch are free, if they
//     are not, when the running end evenly; memory is for all that the requests
//     there will hold, distinct prompts counted once
//   - decode are the output's steps with this request in the batch
//   - slower is what its tokens add to the steps of the others, for as long as
//     both decode
//   - k = (rate of arrivals per replica) · ttft / (1 − share of time in prefill) are
//     the requests expected to queue behind it, as in a busy period
//
// It is greedy and so no bound in the strict sense: it holds nothing back, moves
// nothing, and knows nothing of requests to come but their rate.
type oracle struct {
	base
	sight    replay.Sight
	pace     engine.Pace
	capacity []replay.Capacity
	tickets  tickets[oracleTicket]
	prompts  []*active // of the requests in flight, by replica
	outputs  []int     // all tokens that these will have generated, by replica

	first    time.Duration // arrival
	arrivals int
	// Sums of what was predicted, in seconds.
	ttfts, totals, owns float64
}

func newOracle(s replay.Setting) replay.Policy {
	return &oracle{base: newBase(s), pace: engine.Default().Pace}
}

type oracleTicket struct {
	prompt holding
	output int
}

// paced is a Sight that knows the constants of the fleet's base pace. Without it
// the engine's defaults are taken for them.
type paced interface{ Pace() engine.Pace }

func (p *oracle) See(fleet replay.Sight) {
	p.sight = fleet
	if known, ok := fleet.(paced); ok {
		p.pace = known.Pace()
	}
}

func (p *oracle) Joined(_ time.Duration, replica int, c replay.Capacity) {
	p.capacity = grown(p.capacity, replica)
	p.capacity[replica] = c
}

func (p *oracle) Left(time.Duration, int) {}

// fate is what is predicted of a request at one replica, all in seconds.
type fate struct{ own, ttft, decode, slower float64 }

func (p *oracle) Route(now time.Duration, r *replay.Request, up []int) int {
	if p.sight == nil {
		return up[p.rand.IntN(len(up))]
	}
	last := up[len(up)-1]
	p.fleet(up)
	p.capacity, p.outputs = grown(p.capacity, last), grown(p.outputs, last)
	for len(p.prompts) <= last {
		p.prompts = append(p.prompts, newActive())
	}
	if p.arrivals == 0 {
		p.first = now
	}
	p.arrivals++
	rate, busy := 0.0, 0.0
	if lasted := (now - p.first).Seconds() * float64(len(up)); lasted > 0 {
		rate = float64(p.arrivals-1) / lasted
		busy = min(p.owns/lasted, 0.9)
	}
	output := p.sight.Output(r)
	// The means include this request as it would be served alone, so that they
	// are never 0.
	ttft := p.prefill(r.Prompt, 0, up[0])
	total := ttft + float64(output)*p.pace.Step
	ttft, total = (p.ttfts+ttft)/float64(p.arrivals), (p.totals+total)/float64(p.arrivals)

	var chosen fate
	least := math.Inf(1)
	i := p.least(up, func(i int) float64 {
		f := p.fate(r, output, i)
		n := p.sight.Metrics(i)
		behind := rate * f.ttft / (1 - busy)
		cost := (f.ttft+behind*f.own)/ttft +
			(f.ttft+f.decode+(float64(n.Running+n.Waiting)+behind)*f.own+f.slower)/total
		if cost < least {
			least, chosen = cost, f
		}
		return cost
	})
	p.ttfts += chosen.ttft
	p.owns += chosen.own
	p.totals += chosen.ttft + chosen.decode
	p.sent(i)
	*p.tickets.issue(r) = oracleTicket{p.prompts[i].acquire(r.Blocks), output}
	p.outputs[i] += output
	return i
}

func (p *oracle) Ended(now time.Duration, r *replay.Request, replica int, o replay.Outcome, u replay.Usage) {
	if t := p.tickets.redeem(r); t != nil {
		p.base.Ended(now, r, replica, o, u)
		p.prompts[replica].release(&t.prompt)
		p.outputs[replica] -= t.output
	}
}

// prefill returns the seconds that a prompt takes from its cached part on.
func (p *oracle) prefill(prompt, cached, replica int) float64 {
	uncached := float64(max(prompt-cached, 1)) // the last token is always computed
	return p.steps(uncached, replica)*p.pace.Step + p.pace.Token*uncached +
		p.pace.Pair*uncached*float64(cached+prompt)/2
}

// steps returns in how many steps that many tokens are computed.
func (p *oracle) steps(tokens float64, replica int) float64 {
	return math.Ceil(tokens / float64(p.batched(replica)))
}

func (p *oracle) batched(replica int) int {
	if n := p.capacity[replica].MaxBatched; n > 0 {
		return n
	}
	return engine.Default().MaxBatchedTokens
}

func (p *oracle) fate(r *replay.Request, output, replica int) fate {
	m, c := p.sight.Metrics(replica), p.capacity[replica]
	speed := p.sight.Speed(replica)
	if speed <= 0 {
		speed = 1
	}
	cached := p.sight.Cached(r, replica)
	n := float64(m.Running + m.Waiting)
	memory := float64(c.CacheTokens)
	context := m.KVUsage * memory
	left := float64(p.sight.Remaining(replica))
	backlog := p.sight.Backlog(replica)

	// What the decodes there add to each step, and a step of this request's.
	drag := p.pace.Token*float64(m.Running) + p.pace.Context*context
	grows := float64(r.Prompt) + float64(output)/2
	adds := (p.pace.Token + p.pace.Context*grows) / speed
	step := (p.pace.Step+drag)/speed + adds

	own := p.prefill(r.Prompt, cached, replica) / speed
	full := p.pace.Step + p.pace.Token*float64(p.batched(replica)) // seconds of a full step of prefill
	steps := backlog*speed/full + p.steps(float64(max(r.Prompt-cached, 1)), replica)
	f := fate{own: own, ttft: backlog + own + steps*drag/speed, decode: float64(output) * step}
	if n > 0 {
		// The running end evenly over twice the mean of what they have left.
		twice := 2 * left / n * step
		short := 0.0
		held := p.prompts[replica].blocks()*float64(p.block) + float64(p.outputs[replica])
		needs := float64(p.prompts[replica].missing(r.Blocks)*p.block + output)
		if excess := held + needs - memory; memory > 0 && excess > 0 && held > 0 {
			short = min(excess/held, 1)
		}
		if excess := n + 1 - float64(c.MaxSeqs); c.MaxSeqs > 0 && excess > 0 {
			short = max(short, excess/n)
		}
		f.ttft += short * twice
	}
	f.slower = adds * min(n*float64(output), left)
	return f
}
