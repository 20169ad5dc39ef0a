// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math"
	"sync"
	"sync/atomic"
)

const (
	// keepOfPool is what is left of older observations of a whole pool after each
	// new one.
	keepOfPool = 1 - 1./500
	// fade is the part of its distance to the mean by which the pace of the fastest
	// nears it with each observation: who was fast once may be gone.
	fade = 1. / 200
)

// poolPace is what all upstreams of a ledger were seen to take, over what they
// would by the prior; 1 before any was.
type poolPace struct {
	mu       sync.Mutex
	mean     quotient
	fastest  float64       // guarded by mu; of the upstreams that were seen
	expected atomic.Uint64 // the lesser of both as float bits; read without a lock
}

func newPoolPace() *poolPace {
	p := &poolPace{fastest: math.Inf(1)}
	p.mean.set(priorPaceWeight, priorPaceWeight)
	p.expected.Store(math.Float64bits(1))
	return p
}

// load is what is expected of an upstream that nobody tried.
func (p *poolPace) load() float64 { return math.Float64frombits(p.expected.Load()) }

// learn adds an observation of an upstream with the pace own.
func (p *poolPace) learn(own, amount, base float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mean.learnKeeping(keepOfPool, amount, base)
	mean := p.mean.load()
	if p.fastest < mean {
		p.fastest += (mean - p.fastest) * fade
	}
	p.fastest = min(p.fastest, own)
	p.expected.Store(math.Float64bits(min(mean, p.fastest)))
}

// leaningPace is one upstream's. For want of observations of its own it leans on
// the pool's: an upstream that nobody has tried is expected to be like the fastest
// of the others, so that it is tried, and not like the prior, which may be off
// tenfold. Else the first one to be found faster than the prior would take all that
// comes, and the others never show what they can.
type leaningPace struct {
	pool         *poolPace
	amount, base float64
	// What amount/base and base are, as float bits; read without a lock. The mean is
	// written first and read last: a reader may see an older weight with it, which is
	// as good as either, but never a weight with a mean of nothing.
	mean, weight atomic.Uint64
}

func (l *leaningPace) load() float64 {
	weight := math.Float64frombits(l.weight.Load())
	mean := math.Float64frombits(l.mean.Load())
	return (mean*weight + l.pool.load()*priorPaceWeight) / (weight + priorPaceWeight)
}

// learn adds an observation: seconds, and what they would have been by the prior,
// which is positive. Keep is what is left of older ones. The seconds are brought
// within outlier times what was known.
func (l *leaningPace) learn(keep, amount, base float64) {
	if !(base > 0) || !(amount >= 0) {
		return
	}
	known := l.load()
	amount = max(known*base/outlier, min(amount, known*base*outlier))
	l.amount, l.base = l.amount*keep+amount, l.base*keep+base
	l.mean.Store(math.Float64bits(l.amount / l.base))
	l.weight.Store(math.Float64bits(l.base))

	l.pool.learn(l.amount/l.base, amount, base)
}
