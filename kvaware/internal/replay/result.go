// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"cmp"
	"math"
	"slices"
)

// Result is a run's, a cell of the report.
type Result struct {
	Trace  string  `json:"trace"`
	Fleet  string  `json:"fleet"`
	Load   float64 `json:"load"`
	Rate   float64 `json:"rate"` // requests a second; 0 if at the trace's own times
	Policy string  `json:"policy"`
	Seed   uint64  `json:"seed"`
	// Clients is how many sessions went on at once, in a closed loop.
	Clients int `json:"clients,omitempty"`
	// Routers are those that shared the requests; zero if it was one.
	Routers Routers `json:"routers,omitzero"`

	Requests int `json:"requests"` // completed
	Measured int `json:"measured"` // of these, after the warm-up
	Rejected int `json:"rejected"` // that fit no replica
	Retries  int `json:"retries"`  // attempts that failed and were routed anew

	// TTFT is the time from arrival to the first token, also where the client takes
	// the answer as a whole; ITL, of each request, its mean time between tokens; E2E
	// the time from arrival to the last token.
	TTFT Times `json:"ttft_ms"`
	ITL  Times `json:"itl_ms"`
	E2E  Times `json:"e2e_ms"`

	TokensPerSecond float64 `json:"tokens_per_s"` // generated, over the whole run
	Seconds         float64 `json:"seconds"`      // from the first arrival to the last token
	HitRate         float64 `json:"hit_rate"`     // share of measured prompt tokens that were cached
	Preemptions     uint64  `json:"preemptions"`
	// Imbalance is the mean number of requests at the busiest replica over the mean
	// number at a replica.
	Imbalance float64 `json:"imbalance"`
	SLO       SLO     `json:"slo"`
	Attained  float64 `json:"slo_attained"` // share of measured requests
	// Fairness is Jain's index of the tokens a second that each tenant got, or each
	// session if there is one tenant: from 1/n to 1, all alike.
	Fairness float64 `json:"fairness"`

	Replicas []ReplicaResult `json:"replicas"`
	Times    []float64       `json:"times_s,omitempty"` // of the points
	Records  []Record        `json:"-"`                 // ascending by ID
}

// ReplicaResult is one replica's.
type ReplicaResult struct {
	Machine     string  `json:"machine"`
	Requests    int     `json:"requests"` // completed
	Preemptions uint64  `json:"preemptions"`
	Steps       uint64  `json:"steps"`
	Prefilled   uint64  `json:"prefilled_tokens"`
	Points      []Point `json:"points,omitempty"`
}

// Score is what a routing decision is judged by: the geometric mean, in
// milliseconds, of mean and p99 of TTFT and end-to-end latency. Less is better.
func (r *Result) Score() float64 {
	return math.Exp((math.Log(r.TTFT.Mean) + math.Log(r.TTFT.P99) + math.Log(r.E2E.Mean) + math.Log(r.E2E.P99)) / 4)
}

func (w *watch) result(r *run) *Result {
	out := &Result{
		Trace: r.Trace.Name, Fleet: r.Fleet.Name, Load: r.Load, Rate: r.Rate, Policy: r.Policy.Name, Seed: r.Seed, Clients: r.Clients,
		Requests: w.completedN, Measured: w.measured, Rejected: w.rejected, Retries: w.failed,
		TTFT: w.ttft.times(), ITL: w.itl.times(), E2E: w.e2e.times(),
		Seconds: (w.last - w.first).Seconds(), SLO: r.SLO, Fairness: 1, Records: w.records,
	}
	if r.Routers.N > 1 {
		out.Routers = r.Routers
	}
	if out.Seconds > 0 {
		out.TokensPerSecond = float64(w.output) / out.Seconds
	}
	if w.prompt > 0 {
		out.HitRate = float64(w.cached) / float64(w.prompt)
	}
	if w.mean > 0 {
		out.Imbalance = w.busiest / w.mean
	}
	if w.measured > 0 {
		out.Attained = float64(w.good) / float64(w.measured)
	}
	if len(w.tenants) > 1 {
		out.Fairness = w.fairness()
	} else if w.sessions.n > 0 {
		out.Fairness = w.sessions.jain()
	}
	for i, p := range r.replicas {
		p.retire()
		out.Preemptions += p.gone.Preemptions
		out.Replicas = append(out.Replicas, ReplicaResult{
			Machine: r.Fleet.Replicas[i].Machine.Name, Requests: w.perReplica[i],
			Preemptions: p.gone.Preemptions, Steps: p.gone.Steps, Prefilled: p.gone.ComputedTokens, Points: p.series,
		})
	}
	for _, t := range w.times {
		out.Times = append(out.Times, t.Seconds())
	}
	slices.SortFunc(out.Records, func(a, b Record) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (w *watch) fairness() float64 {
	var names []int
	for name := range w.tenants {
		names = append(names, name)
	}
	slices.Sort(names) // sums are equal only in equal order
	var m moments
	for _, name := range names {
		if t := w.tenants[name]; t.seconds > 0 {
			m.add(t.tokens / t.seconds)
		}
	}
	return m.jain()
}
