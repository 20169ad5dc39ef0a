// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"
)

func init() {
	caddy.RegisterModule(new(Admin))
}

// Admin adds what kv_aware knows to Caddy's admin API:
//
// Endpoint | Answer
// ---------|-------
// `GET /kv_aware/upstreams` | What each upstream carries, holds and has done
// `GET /kv_aware/index` | How large the prefix index is, and what it believes each upstream to hold
// `DELETE /kv_aware/index` | Forgets what upstreams are believed to hold
// `GET /kv_aware/snapshot` | All that the dashboard shows
// `GET /kv_aware/events` | How far the KV events of each upstream are followed
// `POST /kv_aware/explain` | Where the request in the body would go, and why
// `POST /kv_aware/tokenize` | How the request in the body becomes tokens and blocks
// `GET /kv_aware/record` | The requests that come from now on, as a trace
//
// `?pool=` names a pool; `?pool=` with nothing behind it is the pool without a
// name. No answer holds anything of a prompt.
//
// It reads what all configurations share, so it has no fields, and it works on
// while a configuration is replaced.
type Admin struct{}

// CaddyModule returns the Caddy module information.
func (*Admin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.kv_aware",
		New: func() caddy.Module { return new(Admin) },
	}
}

// Routes implements caddy.AdminRouter.
func (*Admin) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{
		{Pattern: "/kv_aware/upstreams", Handler: endpoint{
			{http.MethodGet, showUpstreams},
		}},
		{Pattern: "/kv_aware/index", Handler: endpoint{
			{http.MethodGet, showIndex},
			{http.MethodDelete, forgetIndex},
		}},
		{Pattern: "/kv_aware/snapshot", Handler: endpoint{
			{http.MethodGet, showSnapshot},
		}},
		{Pattern: "/kv_aware/events", Handler: endpoint{
			{http.MethodGet, showEvents},
		}},
		{Pattern: "/kv_aware/explain", Handler: endpoint{
			{http.MethodPost, explain},
		}},
		{Pattern: "/kv_aware/tokenize", Handler: endpoint{
			{http.MethodPost, showTokens},
		}},
		{Pattern: "/kv_aware/record", Handler: caddy.AdminHandlerFunc(record)},
	}
}

// endpoint answers each of its methods with JSON. It is no map, so that Allow
// lists them in one order.
type endpoint []struct {
	method string
	answer func(http.ResponseWriter, *http.Request) (any, error)
}

// ServeHTTP implements caddy.AdminHandler. HEAD is answered as GET is; the
// server leaves the body out.
func (e endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Cache-Control", "no-store")
	var allowed []string
	for _, m := range e {
		if r.Method == m.method || r.Method == http.MethodHead && m.method == http.MethodGet {
			answer, err := m.answer(w, r)
			if err != nil {
				return err
			}
			return writeJSON(w, answer)
		}
		allowed = append(allowed, m.method)
		if m.method == http.MethodGet {
			allowed = append(allowed, http.MethodHead)
		}
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return refuse(http.StatusMethodNotAllowed, "method not allowed: use %s", strings.Join(allowed, " or "))
}

func writeJSON(w http.ResponseWriter, answer any) error {
	data, err := json.Marshal(answer)
	if err != nil {
		return caddy.APIError{HTTPStatus: http.StatusInternalServerError, Err: err}
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(data, '\n')) // who asked may be gone
	return nil
}

func refuse(status int, format string, args ...any) error {
	return caddy.APIError{HTTPStatus: status, Err: fmt.Errorf(format, args...)}
}

// upstreamState is an element of the answer to GET /kv_aware/upstreams.
type upstreamState struct {
	Address string `json:"address"`
	Pool    string `json:"pool"`

	// What it carries now. Load is weighed as the pool's first handler does.
	Load          float64 `json:"load"`
	PrefillTokens int64   `json:"prefill_tokens"`
	DecodeTokens  int64   `json:"decode_tokens"`
	Requests      int64   `json:"requests"`
	Sequences     int64   `json:"sequences"`
	// The part that is modelled because no event has shown it.
	ModelledPrefillTokens int64 `json:"modelled_prefill_tokens"`
	ModelledDecodeTokens  int64 `json:"modelled_decode_tokens"`

	// What it is believed to hold, and room for how much.
	CachedTokens int64 `json:"cached_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	CacheTokens  int64 `json:"cache_tokens"`
	// From where its capacity is known: configuration, engine or events.
	CacheTokensFrom string `json:"cache_tokens_from"`

	// Totals since the upstream is known.
	HitRate              float64 `json:"hit_rate"`
	PromptTokensTotal    int64   `json:"prompt_tokens_total"`
	CachedTokensTotal    int64   `json:"cached_tokens_total"`
	PredictedCachedTotal int64   `json:"predicted_cached_tokens_total"`
	ReportedCachedTotal  int64   `json:"reported_cached_tokens_total"`
	GeneratedTokensTotal int64   `json:"generated_tokens_total"`
	AttemptsTotal        int64   `json:"attempts_total"`
	FailuresTotal        int64   `json:"failures_total"`
	BusyTotal            int64   `json:"busy_total"`
	FailureScore         float64 `json:"failure_score"`

	// What was learnt of it. RoleStarts: its role-only chunk comes with the first
	// token, as from vLLM and SGLang, and ends the prefill.
	PrefillTokensPerSecond float64 `json:"prefill_tokens_per_second"`
	TokenGapMilliseconds   float64 `json:"token_gap_ms"`
	TokensPerDelta         float64 `json:"tokens_per_delta"`
	// How many times as long as by package pace's prior its first tokens and
	// decode steps take.
	PrefillPace float64 `json:"prefill_pace"`
	DecodePace  float64 `json:"decode_pace"`
	RoleStarts  bool    `json:"role_starts"`

	// What its engine said of itself; null if it was not asked.
	Engine *engineState `json:"engine"`
	// Whether it is left out while another is available, as its engine sleeps.
	Asleep bool `json:"asleep"`

	// Whether a configuration lists it; others leave after an hour unseen.
	Configured bool `json:"configured"`
}

// showUpstreams answers GET /kv_aware/upstreams[?pool=].
func showUpstreams(_ http.ResponseWriter, r *http.Request) (any, error) {
	views, err := poolsAsked(r.URL.Query())
	if err != nil {
		return nil, err
	}
	states := []upstreamState{}
	for _, v := range views {
		for _, u := range v.upstreams {
			if load, held, ok := v.pool.state(u.upstream); ok {
				states = append(states, v.describe(u, load, held))
			}
		}
	}
	return states, nil
}

func (v *poolView) describe(u viewedUpstream, s ledger.Snapshot, held prefix.Stats) upstreamState {
	hitRate := 0.0
	_, from := v.params.capacityOf(u.upstream)
	if s.PromptTokens > 0 {
		hitRate = min(1, float64(s.CachedTokens)/float64(s.PromptTokens))
	}
	predicted, reported := u.reports.totals()
	return upstreamState{
		Address: u.address,
		Pool:    v.pool.name,

		Load: choose.Load(v.weights(), choose.Candidate{
			Prefill: s.PrefillTokens, Decode: s.DecodeTokens, Running: s.Running,
		}),
		PrefillTokens:         s.PrefillTokens,
		DecodeTokens:          s.DecodeTokens,
		Requests:              s.Live,
		Sequences:             s.Running,
		ModelledPrefillTokens: s.ModelledPrefillTokens,
		ModelledDecodeTokens:  s.ModelledDecodeTokens,

		CachedTokens:    v.tokens(held.Pinned + held.Idle),
		OutputTokens:    v.tokens(held.Generating + held.Output),
		CacheTokens:     v.tokens(held.Capacity),
		CacheTokensFrom: from,

		HitRate:              hitRate,
		PromptTokensTotal:    s.PromptTokens,
		CachedTokensTotal:    s.CachedTokens,
		PredictedCachedTotal: predicted,
		ReportedCachedTotal:  reported,
		GeneratedTokensTotal: s.GeneratedTokens,
		AttemptsTotal:        s.Requests,
		FailuresTotal:        s.Failures,
		BusyTotal:            s.Busy,
		FailureScore:         s.FailureScore,

		PrefillTokensPerSecond: s.PrefillRate,
		TokenGapMilliseconds:   s.TokenGap.Seconds() * 1e3,
		TokensPerDelta:         s.TokensPerDelta,
		PrefillPace:            s.PrefillPace,
		DecodePace:             s.DecodePace,
		RoleStarts:             u.roles.Load(),

		Engine: describeEngine(u.upstream),
		Asleep: u.engine.asleep(v.pool.now().UnixNano()),

		Configured: u.configured,
	}
}

// poolView is what is known of a pool at one time. What it points to goes on
// changing.
type poolView struct {
	pool      *pool
	params    poolParams
	explainer *Policy          // nil until a configuration with the pool has started
	upstreams []viewedUpstream // by address
}

type viewedUpstream struct {
	*upstream
	configured bool
}

func (pl *pool) view() poolView {
	pl.mu.RLock()
	v := poolView{pool: pl, params: pl.params, explainer: pl.explainer}
	for _, u := range pl.byAddress {
		v.upstreams = append(v.upstreams, viewedUpstream{u, u.listed})
	}
	pl.mu.RUnlock()
	slices.SortFunc(v.upstreams, func(a, b viewedUpstream) int { return strings.Compare(a.address, b.address) })
	return v
}

func (v *poolView) tokens(blocks int) int64 { return int64(blocks) * int64(v.params.blockSize) }

// The bound of a listing, and how many upstreams it lists unless asked for more
// or fewer.
const (
	maxListed     = 10_000
	defaultListed = 1000
)

// limitAsked gives how many upstreams a query wants to see.
func limitAsked(query url.Values) (int, error) {
	if !query.Has("limit") {
		return defaultListed, nil
	}
	n, err := strconv.Atoi(query.Get("limit"))
	if err != nil || n < 0 || n > maxListed {
		return 0, refuse(http.StatusBadRequest, "limit: expecting a whole number from 0 to %d", maxListed)
	}
	return n, nil
}

// weights are those of the handler that named the pool first.
func (v *poolView) weights() choose.Weights {
	if v.explainer == nil {
		return choose.Weights{Prefill: 1, Decode: 1}
	}
	return v.explainer.objective.Weights
}

// poolsAsked gives the pool that a query names, or all by name if it names none.
func poolsAsked(query url.Values) ([]poolView, error) {
	var all []*pool
	eachPool(func(pl *pool) { all = append(all, pl) })
	slices.SortFunc(all, func(a, b *pool) int { return cmp.Compare(a.name, b.name) })
	views := make([]poolView, 0, len(all))
	for _, pl := range all {
		if !query.Has("pool") || pl.name == query.Get("pool") {
			views = append(views, pl.view())
		}
	}
	if query.Has("pool") && len(views) == 0 {
		return nil, refuse(http.StatusNotFound, "no such pool: %s", poolNames(all))
	}
	return views, nil
}

// poolNames tells some of the pools there are.
func poolNames(all []*pool) string {
	const most = 20
	if len(all) == 0 {
		return "no running configuration has a proxy with lb_policy kv_aware"
	}
	names := make([]string, 0, most)
	for _, pl := range all[:min(most, len(all))] {
		names = append(names, strconv.Quote(pl.name))
	}
	text := "there are " + strings.Join(names, ", ")
	if len(all) > most {
		text += fmt.Sprintf(" and %d more", len(all)-most)
	}
	return text
}

// Interface guards
var (
	_ caddy.AdminRouter  = (*Admin)(nil)
	_ caddy.AdminHandler = endpoint(nil)
)
