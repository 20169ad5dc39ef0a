// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"net/http"
	"net/url"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/recent"
)

// Snapshot is the answer to GET /kv_aware/snapshot: all that the dashboard shows.
// What is recent is of the last minute, rates of the last ten seconds.
type Snapshot struct {
	Time    time.Time      `json:"time"`
	Process time.Time      `json:"process"` // when it started
	Pools   []PoolSnapshot `json:"pools"`   // by name
	// Whether there are more upstreams than are listed.
	Truncated bool `json:"truncated"`
}

// PoolSnapshot is what is known of a pool.
type PoolSnapshot struct {
	Pool      string `json:"pool"`
	Objective string `json:"objective"`
	Tokenizer string `json:"tokenizer"`
	BlockSize int    `json:"block_size"` // tokens

	// Of all its upstreams together, those not listed too.
	Totals         Figures            `json:"totals"`
	UpstreamsTotal int                `json:"upstreams_total"`
	Upstreams      []UpstreamSnapshot `json:"upstreams"` // by address

	// Some of its last decisions, newest first: all of them while there are few.
	Decisions []Decision `json:"decisions"`
	// Only with ?history=.
	History *History `json:"history,omitempty"`
}

// UpstreamSnapshot is what is known of an upstream.
type UpstreamSnapshot struct {
	Address    string `json:"address"`
	Configured bool   `json:"configured"` // a configuration lists it
	Figures
	FailureScore float64 `json:"failure_score"` // what recent failures weigh, in requests
	// How far its KV events are followed; left out where they are not.
	Events *EventsBrief `json:"events,omitempty"`
	// Only with ?history=.
	History *LoadHistory `json:"history,omitempty"`
}

// Figures are of an upstream or of a pool.
type Figures struct {
	// What is carried now: uncached prompt tokens that wait for their prefill, and KV
	// tokens of running decodes. Load is weighed as the pool's first handler does.
	Load          float64 `json:"load"`
	PrefillTokens int64   `json:"prefill_tokens"`
	DecodeTokens  int64   `json:"decode_tokens"`
	Requests      int64   `json:"requests"`
	Sequences     int64   `json:"sequences"`

	// The KV cache, in tokens: what running requests hold, what finished ones left
	// there, and room for how much.
	RunningKVTokens int64 `json:"running_kv_tokens"`
	IdleKVTokens    int64 `json:"idle_kv_tokens"`
	CacheTokens     int64 `json:"cache_tokens"`

	// Of the last minute; null where there was nothing. The hit rate is the share of
	// prompt tokens that were cached where their requests were sent.
	HitRate    *float64     `json:"hit_rate"`
	FirstToken *Percentiles `json:"time_to_first_token_ms"`
	InterToken *Percentiles `json:"inter_token_ms"`

	// Of the last ten seconds.
	RequestsPerSecond        float64 `json:"requests_per_second"`
	PrefillTokensPerSecond   float64 `json:"prefill_tokens_per_second"` // prompt tokens not cached
	GeneratedTokensPerSecond float64 `json:"generated_tokens_per_second"`

	// Since the upstream is known. Cached tokens are prefill that was saved.
	AttemptsTotal        int64 `json:"attempts_total"`
	FailuresTotal        int64 `json:"failures_total"`
	BusyTotal            int64 `json:"busy_total"`
	PromptTokensTotal    int64 `json:"prompt_tokens_total"`
	CachedTokensTotal    int64 `json:"cached_tokens_total"`
	GeneratedTokensTotal int64 `json:"generated_tokens_total"`
}

// Percentiles are of streamed requests, in milliseconds.
type Percentiles struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
}

// processStart tells one process from the next.
var processStart = time.Now()

// showSnapshot answers GET /kv_aware/snapshot[?pool=][&limit=][&history=].
func showSnapshot(_ http.ResponseWriter, r *http.Request) (any, error) {
	return takeSnapshot(r.URL.Query())
}

// takeSnapshot answers a query of the snapshot.
func takeSnapshot(query url.Values) (*Snapshot, error) {
	left, err := limitAsked(query)
	if err != nil {
		return nil, err
	}
	views, err := poolsAsked(query)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Time: time.Now(), Process: processStart, Pools: make([]PoolSnapshot, len(views))}
	for i := range views {
		s.Pools[i] = views[i].snapshot(&left, query.Get("history") != "")
		s.Truncated = s.Truncated || len(s.Pools[i].Upstreams) < s.Pools[i].UpstreamsTotal
	}
	return s, nil
}

// snapshot describes a pool with as many of its upstreams as are left to list.
func (v *poolView) snapshot(left *int, history bool) PoolSnapshot {
	pl := v.pool
	s := PoolSnapshot{
		Pool:      pl.name,
		Tokenizer: v.params.tokenizer,
		BlockSize: v.params.blockSize,
		Upstreams: []UpstreamSnapshot{},
		Decisions: pl.decisions.last(),
	}
	if v.explainer != nil {
		s.Objective = v.explainer.Objective
	}
	now := pl.ledger.Now()
	all := new(recent.Totals)
	followed := pl.followedBriefly()
	for _, u := range v.upstreams {
		load, held, ok := pl.state(u.upstream)
		if !ok {
			continue
		}
		d := v.describe(u, load, held)
		f := Figures{
			Load:          d.Load,
			PrefillTokens: d.PrefillTokens,
			DecodeTokens:  d.DecodeTokens,
			Requests:      d.Requests,
			Sequences:     d.Sequences,

			RunningKVTokens: v.tokens(held.Pinned + held.Generating),
			IdleKVTokens:    v.tokens(held.Idle + held.Output),
			CacheTokens:     d.CacheTokens,

			AttemptsTotal:        d.AttemptsTotal,
			FailuresTotal:        d.FailuresTotal,
			BusyTotal:            d.BusyTotal,
			PromptTokensTotal:    d.PromptTokensTotal,
			CachedTokensTotal:    d.CachedTokensTotal,
			GeneratedTokensTotal: d.GeneratedTokensTotal,
		}
		s.UpstreamsTotal++
		s.Totals.add(&f)
		u.labels.recent.AddTo(all, now)
		if *left == 0 {
			continue
		}
		*left--
		var own recent.Totals
		u.labels.recent.AddTo(&own, now)
		f.lately(&own)
		s.Upstreams = append(s.Upstreams, UpstreamSnapshot{
			Address:      u.address,
			Configured:   u.configured,
			Figures:      f,
			FailureScore: d.FailureScore,
			Events:       followed[u.address],
		})
		if history {
			s.Upstreams[len(s.Upstreams)-1].History = pl.history.load(u.upstream)
		}
	}
	s.Totals.lately(all)
	if history {
		s.History = pl.history.all()
	}
	return s
}

// add sums up what can be.
func (f *Figures) add(u *Figures) {
	f.Load += u.Load
	f.PrefillTokens += u.PrefillTokens
	f.DecodeTokens += u.DecodeTokens
	f.Requests += u.Requests
	f.Sequences += u.Sequences
	f.RunningKVTokens += u.RunningKVTokens
	f.IdleKVTokens += u.IdleKVTokens
	f.CacheTokens += u.CacheTokens
	f.AttemptsTotal += u.AttemptsTotal
	f.FailuresTotal += u.FailuresTotal
	f.BusyTotal += u.BusyTotal
	f.PromptTokensTotal += u.PromptTokensTotal
	f.CachedTokensTotal += u.CachedTokensTotal
	f.GeneratedTokensTotal += u.GeneratedTokensTotal
}

// lately fills in what was counted lately.
func (f *Figures) lately(t *recent.Totals) {
	f.RequestsPerSecond = t.Requests
	f.PrefillTokensPerSecond = t.Computed
	f.GeneratedTokensPerSecond = t.Generated
	f.HitRate = hitRate(t)
	f.FirstToken = percentiles(&t.FirstToken)
	f.InterToken = percentiles(&t.InterToken)
}

func hitRate(t *recent.Totals) *float64 {
	if t.PromptTokens == 0 {
		return nil
	}
	rate := min(1, float64(t.CachedTokens)/float64(t.PromptTokens))
	return &rate
}

func percentiles(d *recent.Distribution) *Percentiles {
	if d.Count() == 0 {
		return nil
	}
	ms := func(share float64) float64 { return float64(d.Quantile(share).Microseconds()) / 1e3 }
	return &Percentiles{Count: d.Count(), P50: ms(0.5), P99: ms(0.99)}
}
