// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

// explanation is the answer to POST /kv_aware/explain.
type explanation struct {
	Pool   string `json:"pool"`
	API    string `json:"api"`
	Reason string `json:"reason"` // load, or affinity when it continues an upstream's response

	// What the text was encoded with, and by how much its counts are corrected.
	Tokenizer  string  `json:"tokenizer"`
	TokenRatio float64 `json:"token_ratio"`
	// Whether the tokens are the very ones that the engine makes of the prompt.
	Exact bool `json:"exact"`

	PromptTokens int64 `json:"prompt_tokens"` // all prompts together, as corrected
	Prompts      int   `json:"prompts"`
	Sequences    int   `json:"sequences"`
	// Output tokens expected of each sequence; null if nothing tells.
	ExpectedOutput *int `json:"expected_output_tokens"`
	Blocks         int  `json:"blocks"` // whole KV blocks of the prompts
	BlockSize      int  `json:"block_size"`
	// Whether an engine may take anything of it from its KV cache.
	ReusesCache bool `json:"reuses_cache"`

	// What was made least: token_load or latency.
	Objective string   `json:"objective"`
	Weights   struct { // of the token load
		Prefill float64 `json:"prefill"`
		Decode  float64 `json:"decode"`
		Request float64 `json:"request"`
	} `json:"weights"`

	// How many upstreams are marked as chosen. One of them would be, at random.
	Tied      int                 `json:"tied"`
	Upstreams []explainedUpstream `json:"upstreams"`
	Truncated bool                `json:"truncated"`
}

// explainedUpstream is an upstream as a request sees it. Load is
//
//	prefill · (prefill_tokens + uncached_tokens) + decode · decode_tokens + request · sequences
//
// and cost, which decides, is load and failure_penalty, or with objective latency
// the product of its terms.
type explainedUpstream struct {
	Address        string  `json:"address"`
	Chosen         bool    `json:"chosen"`
	CachedTokens   int64   `json:"cached_tokens"`
	UncachedTokens int64   `json:"uncached_tokens"`
	PrefillTokens  int64   `json:"prefill_tokens"` // waiting there
	DecodeTokens   int64   `json:"decode_tokens"`
	Sequences      int64   `json:"sequences"`
	Load           float64 `json:"load"`
	FailurePenalty float64 `json:"failure_penalty"`
	Cost           float64 `json:"cost"`
	// Why it is left out while others are available: model, or asleep. Then nothing
	// else is told of it.
	Excluded string `json:"excluded,omitempty"`

	// The terms of objective latency, of which choose.Latency makes the cost; to its
	// sequences, the request's own and recent failures are added. They are left out
	// with another objective.
	Own      *float64 `json:"own_seconds,omitempty"`      // prefill of what it would compute of this request
	Queue    *float64 `json:"queue_seconds,omitempty"`    // prefill that waits there
	Wait     *float64 `json:"wait_seconds,omitempty"`     // likely wait for KV memory or a place among max_sequences
	Delay    *float64 `json:"delay_seconds,omitempty"`    // what others that wait there lose by its prefill
	Memory   *float64 `json:"memory_seconds,omitempty"`   // what others lose by the memory it takes
	Eviction *float64 `json:"eviction_seconds,omitempty"` // prefill that others would lose
	Step     *float64 `json:"step_seconds,omitempty"`     // a decode step with this request
	KVUse    *float64 `json:"kv_use,omitempty"`           // share of the KV cache that running requests would hold
}

// explain answers POST /kv_aware/explain[?pool=][&path=][&tenant=][&limit=] with what
// would be chosen for the request in the body, sorted by what it would cost each
// upstream. Tenant is what isolate_by would say.
//
// Nothing is charged, pinned or counted. The choice is that of the handler which
// named the pool first, over all upstreams of the pool: which of them other
// handlers list, whether they are healthy and below max_requests, is Caddy's to
// know and not seen here.
func explain(_ http.ResponseWriter, r *http.Request) (any, error) {
	limit, err := limitAsked(r.URL.Query())
	if err != nil {
		return nil, err
	}
	return askedAbout(r, "explain", func(v *poolView, rt *routing, _ *tokenize.Reader, req *tokenize.Request) (any, error) {
		e := explanation{Pool: v.pool.name, BlockSize: rt.policy.BlockSize}
		e.describe(rt, req)
		e.weigh(rt, v.upstreams)
		if len(e.Upstreams) > limit {
			e.Upstreams, e.Truncated = e.Upstreams[:limit], true
		}
		return e, nil
	})
}

func (e *explanation) describe(rt *routing, req *tokenize.Request) {
	e.API = req.Kind.String()
	e.Tokenizer, e.TokenRatio, e.Exact = rt.tokenizer(req.Model), rt.request.Ratio, rt.exact
	e.PromptTokens = rt.promptTokens()
	e.Prompts = len(req.Prompts)
	e.Sequences = req.Sequences()
	e.ReusesCache = rt.request.Reuses
	for i := range req.Prompts {
		e.Blocks += len(req.Prompts[i].Blocks)
	}
	if n := req.MaxOutput; n >= 0 {
		e.ExpectedOutput = &n
	}
}

// weigh compares the upstreams as the choice does, and marks who would win.
func (e *explanation) weigh(rt *routing, upstreams []viewedUpstream) {
	c := new(candidates)
	for _, u := range upstreams {
		if !u.removed.Load() {
			c.known = append(c.known, u.upstream)
			c.choice.Candidates = append(c.choice.Candidates, u.candidate(rt.policy, u.engine.ranks.Load()))
		}
	}
	all := slices.Clone(c.known)
	c.narrow(rt)
	objective := &rt.policy.objective
	seen := rt.policy.pool.router.Look(&c.choice, &rt.request, objective)

	weights := objective.Weights
	e.Objective = rt.policy.Objective
	e.Weights.Prefill, e.Weights.Decode, e.Weights.Request = weights.Prefill, weights.Decode, weights.Request
	e.Reason = "load"
	winner, owner := seen.Winner, rt.owner(c)
	if owner >= 0 {
		e.Reason, winner = "affinity", owner
	}
	e.Upstreams = make([]explainedUpstream, len(seen.Candidates))
	for i, cand := range seen.Candidates {
		chosen := i == winner || owner < 0 && seen.Tied(objective, i)
		if chosen {
			e.Tied++
		}
		u := explainedUpstream{
			Address:        c.known[i].address,
			Chosen:         chosen,
			CachedTokens:   e.PromptTokens - cand.Uncached,
			UncachedTokens: cand.Uncached,
			PrefillTokens:  cand.Prefill,
			DecodeTokens:   cand.Decode,
			Sequences:      cand.Running,
			Load:           choose.Load(weights, cand),
			Cost:           seen.Cost(objective, i),
		}
		u.FailurePenalty = u.Cost - u.Load
		if objective.Latency {
			t := &seen.Terms[i]
			u.Own, u.Queue, u.Wait, u.Delay, u.Memory = &t.Own, &t.Queue, &t.Wait, &t.Delay, &t.Memory
			u.Eviction, u.Step, u.KVUse = &t.Eviction, &t.Step, &t.KVUse
			calm := *t
			calm.Ghosts, calm.GhostSeconds = 0, 0
			u.FailurePenalty = u.Cost - choose.Latency(&calm)
		}
		e.Upstreams[i] = u
	}
	e.addExcluded(rt, all, c.known)
	slices.SortStableFunc(e.Upstreams, func(a, b explainedUpstream) int {
		if a.Chosen != b.Chosen {
			if a.Chosen {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.Excluded, b.Excluded), cmp.Compare(a.Cost, b.Cost), cmp.Compare(a.Sequences, b.Sequences))
	})
}
