// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
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

	Weights struct {
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
// and cost, which decides, is load and failure_penalty.
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
}

// explain answers POST /kv_aware/explain[?pool=][&path=][&tenant=][&limit=] with what
// would be chosen for the request in the body, sorted by what it would cost each
// upstream. Path is where the request would be sent, and tells its API; without
// it, the body's shape does. Without pool it asks the pool without a name, or
// the only one. Tenant is what isolate_by would say.
//
// Nothing is charged, pinned or counted. The choice is that of the handler which
// named the pool first, over all upstreams of the pool: which of them other
// handlers list, whether they are healthy and below max_requests, is Caddy's to
// know and not seen here.
func explain(_ http.ResponseWriter, r *http.Request) (answer any, err error) {
	query := r.URL.Query()
	limit, err := limitAsked(query)
	if err != nil {
		return nil, err
	}
	v, err := poolToExplain(query)
	if err != nil {
		return nil, err
	}
	p := v.explainer
	if p == nil {
		return nil, refuse(http.StatusServiceUnavailable, "no configuration with this pool has started yet: try again")
	}
	defer func() {
		if val := recover(); val != nil {
			p.panicked("explain", val)
			answer, err = nil, refuse(http.StatusInternalServerError, "explaining failed: see the log")
		}
	}()

	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, refuse(http.StatusBadRequest, "%s: send the body as it is without Content-Encoding", bodyCompressed)
	}
	body, outcome := readBody(r, p.MaxBody, &v.pool.budget)
	defer body.drop()
	switch outcome {
	case bodyRead:
	case bodyTooLong:
		return nil, refuse(http.StatusRequestEntityTooLarge, "%s: the handler reads at most %d bytes (max_body), and routes longer bodies by their length", outcome, p.MaxBody)
	case bodyNoRoom:
		return nil, refuse(http.StatusServiceUnavailable, "%s: the requests under way hold all of max_buffered; try again", outcome)
	default:
		return nil, refuse(http.StatusBadRequest, "%s: the body ended early", outcome)
	}

	rt := &routing{policy: p}
	if p.IsolateBy != "" {
		rt.tenant = hashTenant(query.Get("tenant"))
	}
	e := explanation{Pool: v.pool.name, BlockSize: p.BlockSize}
	if err := e.read(r.Context(), rt, query, body.bytes()); err != nil {
		return nil, err
	}
	e.weigh(rt, v.upstreams)
	if len(e.Upstreams) > limit {
		e.Upstreams, e.Truncated = e.Upstreams[:limit], true
	}
	return e, nil
}

// poolToExplain gives the pool that a query means.
func poolToExplain(query url.Values) (poolView, error) {
	views, err := poolsAsked(query)
	if err != nil {
		return poolView{}, err
	}
	// The pool without a name is the first, if there is one.
	if len(views) == 1 || len(views) > 0 && views[0].pool.name == "" {
		return views[0], nil
	}
	all := make([]*pool, len(views))
	for i := range views {
		all[i] = views[i].pool
	}
	if len(all) == 0 {
		return poolView{}, refuse(http.StatusNotFound, "no pool: %s", poolNames(all))
	}
	return poolView{}, refuse(http.StatusBadRequest, "give the pool with ?pool=: %s", poolNames(all))
}

// guessedPaths are tried in turn for a body that comes without a path.
var guessedPaths = [...]string{"/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate"}

// read tells rt what the request asks for.
func (e *explanation) read(ctx context.Context, rt *routing, query url.Values, body []byte) error {
	done, ok := turn(ctx, len(body))
	if !ok {
		return ctx.Err()
	}
	defer done()
	rd := tokenize.AcquireReader()
	defer rd.Release()
	paths := guessedPaths[:]
	if query.Has("path") {
		paths = []string{query.Get("path")}
	}
	var first error
	for _, path := range paths {
		req, err := rd.Read(tokenize.KindOfPath(path), path, body)
		if err != nil {
			if first == nil {
				first = unreadable(err)
			}
			var typed *tokenize.Error
			if errors.As(err, &typed) && typed.Reason == tokenize.ReasonNoPrompt {
				continue
			}
			return first
		}
		rt.demandOf(ctx, rd, req)
		if req.PreviousResponseID != "" {
			rt.response = rt.policy.pool.responses.key(req.PreviousResponseID)
		}
		e.describe(req)
		e.ReusesCache = rt.reuses
		e.Tokenizer, e.TokenRatio, e.Exact = rt.policy.tokens.name(req.Model), rt.ratio, rt.exact
		for i := range rt.demand.Prompts {
			e.PromptTokens += int64(rt.demand.Prompts[i].Tokens)
		}
		return nil
	}
	return first
}

func (e *explanation) describe(req *tokenize.Request) {
	e.API = req.Kind.String()
	e.Prompts = len(req.Prompts)
	e.Sequences = req.Sequences()
	for i := range req.Prompts {
		e.Blocks += len(req.Prompts[i].Blocks)
	}
	if n := req.MaxOutput; n >= 0 {
		e.ExpectedOutput = &n
	}
}

// remedies say what to do about a body whose prompt was not read.
var remedies = map[tokenize.Reason]string{
	tokenize.ReasonEmpty:         "send the body of an LLM request",
	tokenize.ReasonNotJSON:       "send the body as JSON; with curl, --data-binary @file keeps it as it is",
	tokenize.ReasonTruncated:     "the JSON ends too early: send all of it",
	tokenize.ReasonTrailingData:  "send one JSON object and nothing behind it",
	tokenize.ReasonNotObject:     "send a JSON object",
	tokenize.ReasonTooDeep:       "nested deeper than any engine reads: such requests are routed by their length",
	tokenize.ReasonTooManyValues: "more values than are read: such requests are routed by their length",
	tokenize.ReasonTooLarge:      "longer than can be read: such requests are routed by their length",
	tokenize.ReasonNoPrompt:      "the prompt that this API asks for is missing: check the body, or give ?path= as the request would be sent",
	tokenize.ReasonUnlisted:      "no API whose prompt is read: such requests are routed by their length; ?path= tells the API, for example /v1/chat/completions",
}

// unreadable says why a body was not read. It quotes nothing of it.
func unreadable(err error) error {
	var typed *tokenize.Error
	if !errors.As(err, &typed) {
		return refuse(http.StatusBadRequest, "the body cannot be read: check that it is an LLM request")
	}
	return refuse(http.StatusBadRequest, "%s at byte %d: %s", string(typed.Reason), typed.Offset, remedies[typed.Reason])
}

// weigh compares the upstreams as the choice does, and marks who would win.
func (e *explanation) weigh(rt *routing, upstreams []viewedUpstream) {
	c := new(candidates)
	for _, u := range upstreams {
		if !u.removed.Load() {
			c.known = append(c.known, u.upstream)
			c.loads = append(c.loads, u.load)
		}
	}
	var cands []choose.Candidate
	rt.policy.pool.ledger.Look(&rt.demand, c.loads, func(seen []choose.Candidate) {
		rt.weigh(c, seen)
		cands = slices.Clone(seen)
	})

	weights := rt.policy.weights
	e.Weights.Prefill, e.Weights.Decode, e.Weights.Request = weights.Prefill, weights.Decode, weights.Request
	e.Reason = "load"
	winner, owner := choose.Least(weights, cands, nil), rt.owner(c)
	if owner >= 0 {
		e.Reason, winner = "affinity", owner
	}
	e.Upstreams = make([]explainedUpstream, len(cands))
	for i, cand := range cands {
		load, cost := choose.Load(weights, cand), choose.Cost(weights, cand)
		// Equal cost and equally many running: chance decides.
		chosen := i == winner || owner < 0 &&
			cost == choose.Cost(weights, cands[winner]) && cand.Running == cands[winner].Running
		if chosen {
			e.Tied++
		}
		e.Upstreams[i] = explainedUpstream{
			Address:        c.known[i].address,
			Chosen:         chosen,
			CachedTokens:   e.PromptTokens - cand.Uncached,
			UncachedTokens: cand.Uncached,
			PrefillTokens:  cand.Prefill,
			DecodeTokens:   cand.Decode,
			Sequences:      cand.Running,
			Load:           load,
			FailurePenalty: cost - load,
			Cost:           cost,
		}
	}
	slices.SortStableFunc(e.Upstreams, func(a, b explainedUpstream) int {
		if a.Chosen != b.Chosen {
			if a.Chosen {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.Cost, b.Cost), cmp.Compare(a.Sequences, b.Sequences))
	})
}
