// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"sync"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/recent"
)

// How far back the history of a pool goes, how far its points are apart, and of
// how many upstreams it has one each.
const (
	historyPoints    = 150
	historyStep      = 2 * time.Second
	historyUpstreams = 512
)

// history is what a pool looked like in the last minutes.
type history struct {
	mu        sync.Mutex // guards what follows; taken under no other lock
	last      time.Duration
	points    int // taken so far
	ring      [historyPoints]historyPoint
	upstreams map[*upstream]*loadRing
}

type historyPoint struct {
	at                           int64 // Unix milliseconds
	prefill, decode              int64
	requests                     int64
	generated                    float32
	hit                          float32 // below 0 if unknown, as are these
	firstP50, firstP99, interP50 float32
}

// loadRing is one upstream's part, at the indices of the pool's.
type loadRing struct {
	since  int // the point that was its first
	points [historyPoints][2]int32
}

// History has a value for each point in time, oldest first. Null is where there
// was nothing to tell.
type History struct {
	Times            []int64    `json:"times"` // Unix milliseconds
	PrefillTokens    []int64    `json:"prefill_tokens"`
	DecodeTokens     []int64    `json:"decode_tokens"`
	Requests         []int64    `json:"requests"`
	GeneratedTokens  []float32  `json:"generated_tokens_per_second"`
	HitRate          []*float32 `json:"hit_rate"`
	FirstTokenMedian []*float32 `json:"time_to_first_token_p50_ms"`
	FirstTokenP99    []*float32 `json:"time_to_first_token_p99_ms"`
	InterTokenMedian []*float32 `json:"inter_token_p50_ms"`
}

// LoadHistory has the points of an upstream. The last of them belongs to the last
// of the pool's.
type LoadHistory struct {
	PrefillTokens []int32 `json:"prefill_tokens"`
	DecodeTokens  []int32 `json:"decode_tokens"`
}

// remember takes a point of the history, unless one was just taken.
func (pl *pool) remember() {
	now := pl.ledger.Now()
	h := &pl.history
	h.mu.Lock()
	early := h.points > 0 && now-h.last < historyStep*3/4
	if !early {
		h.last = now
	}
	h.mu.Unlock()
	if early { // during a reload two apps keep house
		return
	}
	v := pl.view()
	all := new(recent.Totals)
	loads := make([][2]int32, len(v.upstreams))
	p := historyPoint{at: pl.now().UnixMilli()}
	for i, u := range v.upstreams {
		s := pl.ledger.Snapshot(u.load)
		p.prefill += s.PrefillTokens
		p.decode += s.DecodeTokens
		p.requests += s.Live
		loads[i] = [2]int32{clamp32(s.PrefillTokens), clamp32(s.DecodeTokens)}
		u.labels.recent.AddTo(all, now)
	}
	p.generated = float32(all.Generated)
	p.hit, p.firstP50, p.firstP99, p.interP50 = -1, -1, -1, -1
	if rate := hitRate(all); rate != nil {
		p.hit = float32(*rate)
	}
	if d := percentiles(&all.FirstToken); d != nil {
		p.firstP50, p.firstP99 = float32(d.P50), float32(d.P99)
	}
	if d := percentiles(&all.InterToken); d != nil {
		p.interP50 = float32(d.P50)
	}
	h.add(p, v.upstreams, loads)
}

func clamp32(n int64) int32 { return int32(min(n, 1<<31-1)) }

func (h *history) add(p historyPoint, upstreams []viewedUpstream, loads [][2]int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.points % historyPoints
	h.ring[at] = p
	for u := range h.upstreams {
		if u.removed.Load() {
			delete(h.upstreams, u)
		}
	}
	if h.upstreams == nil {
		h.upstreams = make(map[*upstream]*loadRing)
	}
	for i, u := range upstreams {
		ring := h.upstreams[u.upstream]
		if ring == nil {
			if len(h.upstreams) >= historyUpstreams || u.removed.Load() {
				continue
			}
			ring = &loadRing{since: h.points}
			h.upstreams[u.upstream] = ring
		}
		ring.points[at] = loads[i]
	}
	h.points++
}

// all gives the pool's history.
func (h *history) all() *History {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := min(h.points, historyPoints)
	s := &History{
		Times: make([]int64, n), PrefillTokens: make([]int64, n), DecodeTokens: make([]int64, n), Requests: make([]int64, n),
		GeneratedTokens: make([]float32, n), HitRate: make([]*float32, n), FirstTokenMedian: make([]*float32, n),
		FirstTokenP99: make([]*float32, n), InterTokenMedian: make([]*float32, n),
	}
	known := func(v float32) *float32 {
		if v < 0 {
			return nil
		}
		return &v
	}
	for i := range n {
		p := &h.ring[(h.points-n+i)%historyPoints]
		s.Times[i], s.PrefillTokens[i], s.DecodeTokens[i], s.Requests[i] = p.at, p.prefill, p.decode, p.requests
		s.GeneratedTokens[i], s.HitRate[i] = p.generated, known(p.hit)
		s.FirstTokenMedian[i], s.FirstTokenP99[i], s.InterTokenMedian[i] = known(p.firstP50), known(p.firstP99), known(p.interP50)
	}
	return s
}

// load gives an upstream's history, or nil if it has none.
func (h *history) load(u *upstream) *LoadHistory {
	h.mu.Lock()
	defer h.mu.Unlock()
	ring := h.upstreams[u]
	if ring == nil {
		return nil
	}
	n := min(h.points-ring.since, historyPoints)
	s := &LoadHistory{PrefillTokens: make([]int32, n), DecodeTokens: make([]int32, n)}
	for i := range n {
		p := ring.points[(h.points-n+i)%historyPoints]
		s.PrefillTokens[i], s.DecodeTokens[i] = p[0], p[1]
	}
	return s
}
