// SPDX-License-Identifier: Apache-2.0

// Package enginesim is a Caddy HTTP handler that answers like a replica of vLLM
// without having a model: it invents the words, and a modelled engine decides
// when each of them appears. It serves demonstrations and tests of routing where
// there is no GPU. The plugin does not need it; a build has it only if it imports
// this package.
//
// What is real: continuous batching, chunked prefill, the prefix cache with its
// evictions, queueing, preemption, and the shapes of requests, streams, errors
// and metrics. What is not: the text, and tokens, which are pieces of 4 bytes; the
// path /tokenize tells their ids, so that a router may ask for them.
//
// # Life
//
// An engine lives as long as a config has a handler of its name with the same
// parameters, so its cache survives reloads; with other parameters it is another
// engine, as a real one would have to be restarted for them. Requests keep
// theirs until they end, whatever becomes of the config. An engine at work has
// one goroutine, an idle one has none. Sockets for KV events are open while a
// running config has the engine; a reload keeps them and their connections.
package enginesim

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/engine"
)

func init() {
	caddy.RegisterModule(new(Handler))
}

// Handler answers as a simulated inference engine, for demonstrations and tests
// without a GPU. It serves `POST /v1/chat/completions` and `/v1/completions`
// (streamed or not), `POST /tokenize`, `GET /v1/models`, `/health` and `/metrics`
// with the names that vLLM gives them, `POST /reset_prefix_cache`, `/sleep` and
// `/wake_up`, and `GET /is_sleeping`. Any model name is accepted.
//
// The header `X-Engine-Fail` makes one request fail, in the words of `fail`.
//
// The length of an answer follows from the prompt: equal requests get equal
// answers. A request with `ignore_eos` gets exactly its `max_tokens`.
type Handler struct {
	// The engine's name. Handlers with the same name and the same parameters are
	// one engine, with one cache and one queue. Default: `engine`; in a Caddyfile
	// `engine-1`, `engine-2`, … in the order of the directives without a name.
	Name string `json:"name,omitempty"`

	// The model that `/v1/models` lists and metrics are labelled with.
	// Default: `simulated`.
	Model string `json:"model,omitempty"`

	// LoRA adapters that `/v1/models` lists beside the model. Default: none.
	Adapters []string `json:"adapters,omitempty"`

	// How many times faster than the modelled hardware it is. Default: 1, which
	// streams about 80 tokens per second to each of a few requests, and prefills
	// 20,000 tokens per second.
	Speed float64 `json:"speed,omitempty"`

	// What a step costs on the modelled hardware. Default: a 70B model on four H100.
	Pace *Pace `json:"pace,omitempty"`

	// Tokens in a block of KV cache, the unit of prefix reuse. Default: 16.
	BlockSize int `json:"block_size,omitempty"`

	// How many tokens the KV cache holds, rounded down to whole blocks. Requests
	// whose prompts do not fit beside those that run have to wait. About 4 bytes of
	// memory each. Default: 400000.
	KVTokens int `json:"kv_tokens,omitempty"`

	// How many sequences run at once, at most; more have to wait. Default: 256.
	MaxNumSeqs int `json:"max_num_seqs,omitempty"`

	// How many tokens a step computes, at most, those of decodes included. Longer
	// prompts are prefilled in several steps. Default: 8192, or `max_num_seqs` if
	// that is more.
	MaxNumBatchedTokens int `json:"max_num_batched_tokens,omitempty"`

	// How many tokens prompt and answer may have together. Default: 131072, or
	// `kv_tokens` if that is less.
	MaxModelLen int `json:"max_model_len,omitempty"`

	// The mean length of answers in tokens, where the request does not bound it.
	// They are from a quarter to seven quarters as long. Default: 128.
	Output int `json:"output,omitempty"`

	// How requests fail: `refuse` breaks the connection without an answer (on every
	// path, health checks included), `500` answers so before the first token,
	// `die:N` breaks the connection after N tokens, `stall:N` falls silent after N
	// tokens until the client leaves; without `:N` after 8. Default: they do not.
	Fail string `json:"fail,omitempty"`

	// The share of requests that fail, from 0 to 1, if `fail` is set. Default: 1.
	FailRate *float64 `json:"fail_rate,omitempty"`

	// Publish what the KV cache holds. Default: it is not published.
	KVEvents *KVEvents `json:"kv_events,omitempty"`

	fail    failure
	replica *replica
	key     poolKey
	chance  func() float64
	now     func() time.Time
}

// Pace is what a step costs: step + token · (new tokens) + context · (KV tokens
// read by decodes) + pair · Σ (tokens of a prefill chunk · their mean context).
type Pace struct {
	// Per step, as for reading the weights. Default: 12ms.
	Step caddy.Duration `json:"step,omitempty"`
	// Per token prefilled or decoded. Default: 50µs.
	Token caddy.Duration `json:"token,omitempty"`
	// Per token of context that a decode reads. Default: 30ns.
	Context caddy.Duration `json:"context,omitempty"`
	// Per pair of a prefilled token and a token before it. Default: 1ns.
	Pair caddy.Duration `json:"pair,omitempty"`
}

const (
	defaultName   = "engine"
	defaultModel  = "simulated"
	defaultOutput = 128
	defaultMaxLen = 131_072
)

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.kv_aware_engine",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision fills in defaults and takes the engine, a new one if no handler has it.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.chance, h.now = rand.Float64, time.Now
	if h.Name == "" {
		h.Name = defaultName
	}
	if h.Model == "" {
		h.Model = defaultModel
	}
	if h.Output == 0 {
		h.Output = defaultOutput
	}
	params, err := h.params()
	if err != nil {
		return err
	}
	capacity := params.Blocks * params.BlockSize
	if h.MaxModelLen == 0 {
		h.MaxModelLen = min(defaultMaxLen, capacity)
	}
	if h.MaxModelLen < 2 || h.MaxModelLen > capacity {
		return fmt.Errorf("max_model_len %d: must be from 2 to the %d tokens that the KV cache holds", h.MaxModelLen, capacity)
	}
	if h.Output < 1 {
		return fmt.Errorf("output %d: must be at least 1 token", h.Output)
	}
	if h.fail, err = parseFailure(h.Fail); err != nil {
		return fmt.Errorf("fail: %w", err)
	}
	if r := h.FailRate; r != nil && !(*r >= 0 && *r <= 1) {
		return fmt.Errorf("fail_rate %v: must be from 0 to 1", *r)
	}

	key := poolKey{name: h.Name, params: params}
	if key.events, err = h.KVEvents.settings(); err != nil {
		return fmt.Errorf("kv_events: %w", err)
	}
	if key.events.publishes() {
		key.model = h.Model
	}
	pooled, _, err := replicas.LoadOrNew(key, func() (caddy.Destructor, error) {
		return newReplica(key)
	})
	if err != nil {
		return err
	}
	h.key, h.replica = key, pooled.(*replica)
	if !key.events.publishes() {
		return nil
	}
	app, err := ctx.App("kv_aware_engines")
	if err != nil {
		return err
	}
	return app.(*App).use(h)
}

// params returns the model's parameters with defaults for what is not given.
func (h *Handler) params() (engine.Params, error) {
	p := engine.Default()
	tokens := p.Blocks * p.BlockSize
	or(&p.Speed, h.Speed)
	or(&p.BlockSize, h.BlockSize)
	or(&tokens, h.KVTokens)
	or(&p.MaxSeqs, h.MaxNumSeqs)
	p.MaxBatchedTokens = max(p.MaxBatchedTokens, p.MaxSeqs)
	or(&p.MaxBatchedTokens, h.MaxNumBatchedTokens)
	if h.Pace != nil {
		or(&p.Pace.Step, time.Duration(h.Pace.Step).Seconds())
		or(&p.Pace.Token, time.Duration(h.Pace.Token).Seconds())
		or(&p.Pace.Context, time.Duration(h.Pace.Context).Seconds())
		or(&p.Pace.Pair, time.Duration(h.Pace.Pair).Seconds())
	}
	if p.BlockSize > 0 {
		p.Blocks = tokens / p.BlockSize
	}
	return p, p.Validate()
}

// or sets what is configured; 0 is what is not.
func or[T int | float64](dst *T, configured T) {
	if configured != 0 {
		*dst = configured
	}
}

// Cleanup gives the engine back. Requests in flight keep theirs.
func (h *Handler) Cleanup() error {
	if h.replica == nil {
		return nil // Provision did not get so far
	}
	_, err := replicas.Delete(h.key)
	return err
}

// route is what answers a path.
type route struct {
	method string
	serve  func(h *Handler, w http.ResponseWriter, r *http.Request, fail failure) error
}

var routes = map[string]route{
	"/v1/chat/completions": {http.MethodPost, (*Handler).serveChat},
	"/v1/completions":      {http.MethodPost, (*Handler).serveCompletions},
	"/v1/models":           {http.MethodGet, (*Handler).serveModels},
	"/tokenize":            {http.MethodPost, (*Handler).serveTokenize},
	"/health":              {http.MethodGet, (*Handler).serveHealth},
	"/metrics":             {http.MethodGet, (*Handler).serveMetrics},
	"/reset_prefix_cache":  {http.MethodPost, (*Handler).serveReset},
	"/sleep":               {http.MethodPost, (*Handler).serveSleep},
	"/wake_up":             {http.MethodPost, (*Handler).serveWakeUp},
	"/is_sleeping":         {http.MethodGet, (*Handler).serveIsSleeping},
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	fail, err := h.failureOf(r)
	if err != nil {
		return badRequest(err.Error(), "").write(w)
	}
	if fail.kind == failRefuse {
		panic(http.ErrAbortHandler)
	}
	found, ok := routes[r.URL.Path]
	if !ok {
		return writeJSON(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
	}
	if r.Method != found.method {
		w.Header().Set("Allow", found.method)
		return writeJSON(w, http.StatusMethodNotAllowed, map[string]string{"detail": "Method Not Allowed"})
	}
	return found.serve(h, w, r, fail)
}

func (h *Handler) serveChat(w http.ResponseWriter, r *http.Request, fail failure) error {
	return h.generate(w, r, chat, fail)
}

func (h *Handler) serveCompletions(w http.ResponseWriter, r *http.Request, fail failure) error {
	return h.generate(w, r, completions, fail)
}

func (h *Handler) serveHealth(w http.ResponseWriter, _ *http.Request, _ failure) error {
	w.WriteHeader(http.StatusOK)
	return nil
}

func (h *Handler) serveReset(w http.ResponseWriter, _ *http.Request, _ failure) error {
	h.replica.resetPrefixCache()
	w.WriteHeader(http.StatusOK)
	return nil
}

func (h *Handler) serveModels(w http.ResponseWriter, _ *http.Request, _ failure) error {
	type model struct {
		ID          string  `json:"id"`
		Object      string  `json:"object"`
		Created     int64   `json:"created"`
		OwnedBy     string  `json:"owned_by"`
		Root        string  `json:"root"`
		Parent      *string `json:"parent"`
		MaxModelLen *int    `json:"max_model_len"`
	}
	list := []model{{h.Model, "model", h.replica.started.Unix(), "vllm", h.Model, nil, &h.MaxModelLen}}
	for _, adapter := range h.Adapters {
		list = append(list, model{adapter, "model", h.replica.started.Unix(), "vllm", "/adapters/" + adapter, &h.Model, nil})
	}
	return writeJSON(w, http.StatusOK, struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", list})
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
