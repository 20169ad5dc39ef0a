// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"errors"
	"time"
)

// errOverloaded ends a run that exceeds its limit.
var errOverloaded = errors.New("overloaded")

// limit bounds the means of a run, in seconds; 0 is no limit.
type limit struct{ ttft, e2e float64 }

// watch measures a run. Its memory does not grow with the run, but for the records
// that were asked for.
type watch struct {
	warmUp   int // requests that arrive before any is measured
	measured int
	overloaded,
	begun bool

	ttft, itl, e2e   sketch
	prompt, cached   int64
	output           int64 // of all that were completed
	completedN       int
	good             int // that kept the SLO
	failed, rejected int
	first, last      time.Duration

	// Sums over samples at arrivals of requests at the busiest replica and of the
	// mean over replicas in service. Arrivals at random see time averages.
	busiest, mean float64
	tenants       map[int]*tally
	sessions      moments

	sampleAt, sampleEvery time.Duration
	times                 []time.Duration
	records               []Record
	perReplica            []int
}

// tally is what a tenant got.
type tally struct{ tokens, seconds float64 }

// moments give Jain's fairness index: (Σx)² / (n·Σx²).
type moments struct {
	n          int
	sum, sumSq float64
}

func (m *moments) add(x float64) {
	m.n++
	m.sum += x
	m.sumSq += x * x
}

func (m *moments) jain() float64 {
	if m.sumSq == 0 {
		return 1
	}
	return m.sum * m.sum / (float64(m.n) * m.sumSq)
}

// maxTenants bounds the tenants that are told apart.
const maxTenants = 4096

// Record is what became of a measured request.
type Record struct {
	ID   int
	TTFT float64 // seconds
	ITL  float64 // seconds, mean over its tokens; 0 if there was one only
	E2E  float64 // seconds
}

func (w *watch) begin(r *run) {
	w.warmUp = int(r.WarmUp * float64(r.Trace.Requests))
	w.sampleAt = never
	if r.Points > 0 {
		w.sampleEvery = 100 * time.Millisecond
		w.sampleAt = w.sampleEvery
	}
	w.tenants = make(map[int]*tally)
	w.perReplica = make([]int, len(r.Fleet.Replicas))
}

func (w *watch) arrived(r *run) {
	if !w.begun {
		w.begun, w.first = true, r.now
	}
	// A large fleet is looked at less often, so that looking costs the same.
	if every := len(r.up)/32 + 1; r.arrived%every != 0 || len(r.up) == 0 {
		return
	}
	most, sum := 0, 0
	for _, i := range r.up {
		n := r.replicas[i].outstanding
		sum += n
		most = max(most, n)
	}
	w.busiest += float64(most)
	w.mean += float64(sum) / float64(len(r.up))
}

func (w *watch) completed(r *run, p *replica, q *request) {
	w.last = r.now
	w.completedN++
	w.output += int64(q.seq.Output)
	w.perReplica[p.id]++
	if !q.measured {
		return
	}
	w.measured++
	w.prompt += int64(q.Prompt)
	w.cached += int64(q.seq.Cached)
	ttft, e2e, itl := (q.first - q.Arrived).Seconds(), (r.now - q.Arrived).Seconds(), 0.0
	w.ttft.add(ttft)
	w.e2e.add(e2e)
	if q.seq.Output > 1 {
		itl = (r.now - q.first).Seconds() / float64(q.seq.Output-1)
		w.itl.add(itl)
	}
	if ttft*1e3 <= r.SLO.TTFT && itl*1e3 <= r.SLO.ITL {
		w.good++
	}
	if len(w.tenants) < maxTenants || w.tenants[q.Tenant] != nil {
		t := w.tenants[q.Tenant]
		if t == nil {
			t = new(tally)
			w.tenants[q.Tenant] = t
		}
		t.tokens += float64(q.seq.Output)
		t.seconds += e2e
	}
	if r.Records && q.ID%r.RecordEvery == 0 {
		w.records = append(w.records, Record{ID: q.ID, TTFT: ttft, ITL: itl, E2E: e2e})
	}
	if n := float64(r.Trace.Requests - w.warmUp); r.limit.ttft > 0 && (w.ttft.sum > r.limit.ttft*n || w.e2e.sum > r.limit.e2e*n) {
		w.overloaded = true
	}
	if r.Progress != nil && w.completedN%1024 == 0 {
		r.Progress(w.completedN, r.Trace.Requests)
	}
}

func (w *watch) sessionEnded(s *session) {
	if s.counts && s.tokens > 0 {
		w.sessions.add(float64(s.tokens) / s.busy.Seconds())
	}
}

// Point is a replica's state at one of Result.Times.
type Point struct {
	Running int     `json:"running"`  // requests
	Waiting int     `json:"waiting"`  // requests
	KVUsage float64 `json:"kv_usage"` // share of the KV blocks held by running requests
}

// sample adds a point to the time series. When there are too many every other goes,
// and they are taken half as often.
func (w *watch) sample(r *run) {
	if len(w.times) >= r.Points && r.Points > 1 {
		half := func(i int) int { return 2*i + 1 }
		n := len(w.times) / 2
		for i := range n {
			w.times[i] = w.times[half(i)]
		}
		w.times = w.times[:n]
		for _, p := range r.replicas {
			for i := range n {
				p.series[i] = p.series[half(i)]
			}
			p.series = p.series[:n]
		}
		w.sampleEvery *= 2
	}
	w.times = append(w.times, r.now)
	for _, p := range r.replicas {
		m, _ := p.metrics()
		p.series = append(p.series, Point{Running: m.Running, Waiting: m.Waiting, KVUsage: m.KVUsage})
	}
	w.sampleAt = r.now + w.sampleEvery
	if len(w.times) >= max(r.Points, 1) && r.Points <= 1 {
		w.sampleAt = never
	}
}
