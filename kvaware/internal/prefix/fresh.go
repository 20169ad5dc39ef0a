// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"math"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/reuse"
)

// DefaultPredictedTTL is how long predicted blocks stay fresh unless
// SetPredictedTTL says otherwise: an engine reports a block well within it.
const DefaultPredictedTTL = 5 * time.Second

// SetReported says whether an upstream reports by events of its own what it
// holds. If so, its predicted blocks are fresh only while a request that pins
// them is before its first token, and for the predicted TTL beyond; one whose
// first token is never seen, until it ends. What is stale counts no less but
// where Found.Fresh asks for it. It lasts until Remove.
func (x *Index) SetReported(h Holder, on bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c := x.cacheOf(h); c != nil {
		x.setReports(c, on)
	}
}

// Reported reports whether an upstream tells by events what it holds.
func (x *Index) Reported(h Holder) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	c := x.cacheOf(h)
	return c != nil && c.reports
}

func (x *Index) setReports(c *cache, on bool) {
	switch {
	case on && !c.reports:
		x.reporting++
	case !on && c.reports:
		x.reporting--
	}
	c.reports = on
}

// SetPredictedTTL sets how long predicted blocks stay fresh, 0 and more; it is
// rounded up to whole ticks of an eighth of a second.
func (x *Index) SetPredictedTTL(d time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ttl = ticksOf(d)
}

func ticksOf(d time.Duration) uint32 {
	d = max(0, d)
	n := d / reuse.Tick
	if d%reuse.Tick > 0 {
		n++
	}
	return uint32(min(n, math.MaxInt32))
}

// freshness is what a lookup needs to tell fresh spans from stale ones.
type freshness struct {
	matters bool
	now     uint32
}

func (x *Index) freshness(asked bool) freshness {
	if !asked || x.reporting == 0 {
		return freshness{}
	}
	return freshness{matters: true, now: x.ticks()}
}

// freshUpTo returns how many of a path's leading blocks are fresh, s being its
// last span. Who stamps a span stamps what comes before it, so a span is never
// staler than those behind it.
func (x *Index) freshUpTo(s *span, blocks int32, f freshness) int32 {
	for range pathSteps {
		if s.unseen > 0 || f.now-s.seen <= x.ttl {
			return min(blocks, int32(x.nodes.at(s.node).before+s.n))
		}
		if s.up == 0 {
			return 0
		}
		s = x.spans.at(s.up)
	}
	return 0
}
