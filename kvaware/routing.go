// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/route"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

// routing is what one policy instance knows of one request, over all attempts
// at it. It lives in the context of the proxy's clone of the request, so that
// handlers after the proxy and other policies do not see it. It is used on the
// request's goroutine, except for end.
type routing struct {
	policy *Policy

	// request is what it asks for. Its chains are let go of when the response
	// begins.
	request route.Request
	// Room for the usual request.
	prompt       [1]ledger.Prompt
	chainSpace   [1][]uint64
	countedSpace [1]int

	reportedSpace [1]route.ReportedChains

	// goesOn is where the only prompt's chain goes on with its output, if goesOnKnown.
	goesOn      tokenize.Continuation
	goesOnKnown bool
	begunSpace  [DefaultBlockSize]uint32

	keys       *hashKeys // of all its hashes
	tenantName string    // what isolate_by says
	tenant     uint64    // keyed hash of what isolate_by says, part of the namespace
	ratioKey   tokenize.RatioKey
	exact      bool   // prompts are counted as the engine itself counts
	asked      string // what became of asking an engine for the tokens, "" if none is asked
	teaches    bool   // the engine's count of the prompts can be learnt from

	api        tokenize.Kind
	comparable bool // cached tokens that the engine reports can be compared with ours

	reason   string // why the request is routed as it is
	streamed bool   // the client asked for a stream
	observed bool   // the response is worth counting
	response uint64 // keyed hash of the earlier response that the request names, 0 if none

	pinnedRank int  // the data-parallel rank that the client asks for, -1 for none
	sentRank   bool // an attempt told its engine a rank

	control   *control // what it has an engine do, nil for all others
	generates bool     // it is for engines that are awake and serve its model
	model     string   // that its body names, or what an alias stands for
	missed    bool     // it was counted as for a model that nobody lists

	salted   bool   // upstreams are sent the body with the tenant's salt
	unsalted string // why not, where inject_salt would have it

	recorded *recorded // what recordings keep of it, nil if nobody records

	replay  *replay
	tried   []*upstream // engines where attempts failed or were answered with 4xx or 5xx
	current atomic.Pointer[attempt]
	stop    func() bool // stops end from being called; nil when not armed
}

// routingKey finds a policy's own routing in a context.
type routingKey struct{ policy *Policy }

// routed gives what this policy instance knows of the request, or nil if it has
// not routed it.
func (p *Policy) routed(ctx context.Context) *routing {
	rt, _ := ctx.Value(routingKey{p}).(*routing)
	return rt
}

// newRouting reads the request and attaches what was learnt to it.
func (p *Policy) newRouting(r *http.Request, repl *caddy.Replacer) (rt *routing) {
	rt = &routing{policy: p, keys: p.keysNow(), request: route.Request{Demand: ledger.Demand{Choices: 1, Expected: -1}, Ratio: 1, BlockSize: p.BlockSize}, pinnedRank: pinnedRank(r)}
	defer func() {
		if val := recover(); val != nil {
			// The request goes on as one without tokens.
			p.panicked("read", val)
			rt.withoutTokens(r, "panic")
			rt.unsalted = "panic"
			rt.countUnsalted(r)
		}
		*r = *r.WithContext(context.WithValue(r.Context(), routingKey{p}, rt))
	}()
	rt.response = p.namedResponse(r)
	rt.control = controlOf(r)
	rt.generates = r.Method == http.MethodPost && rt.control == nil
	if p.IsolateBy != "" && repl != nil {
		rt.isolate(repl.ReplaceAll(p.IsolateBy, ""))
	}
	rt.read(r)
	rt.recorded = p.pool.recordings.arrived(rt)
	rt.countUnsalted(r)
	return rt
}

// read finds the prompt of a request, or the reason why it is routed without.
func (rt *routing) read(r *http.Request) {
	p := rt.policy
	rt.reason = "load"
	kind, outcome := mayCarryPrompt(r)
	rt.unsalted = string(outcome)
	if outcome != bodyRead {
		rt.withoutTokens(r, string(outcome))
		return
	}
	start := time.Now()
	rp, outcome := readBody(r, p.MaxBody, &p.pool.budget)
	rt.replay = rp
	stageSeconds.read.Observe(time.Since(start).Seconds())
	rt.unsalted = string(outcome)
	if outcome != bodyRead {
		rt.withoutTokens(r, string(outcome))
		return
	}
	start = time.Now()
	rt.tokenize(r, kind)
	stageSeconds.tokenize.Observe(time.Since(start).Seconds())
}

// largeBody is the size from which bodies are tokenized only as many at a time
// as there are processors: more at once would not be done earlier, and each needs
// several times its length in memory.
const largeBody = 1 << 20

var largeBodies = make(chan struct{}, runtime.GOMAXPROCS(0))

// turn waits until a body of that length may be tokenized, or reports that the
// request ended first.
func turn(ctx context.Context, length int) (done func(), ok bool) {
	if length <= largeBody {
		return func() {}, true
	}
	select {
	case largeBodies <- struct{}{}:
		return func() { <-largeBodies }, true
	case <-ctx.Done():
		return nil, false
	}
}

// tokenize turns the body into prompts and chains.
func (rt *routing) tokenize(r *http.Request, kind tokenize.Kind) {
	p := rt.policy
	done, ok := turn(r.Context(), len(rt.replay.bytes()))
	if !ok {
		rt.unsalted = string(bodyBroken)
		rt.withoutTokens(r, string(bodyBroken))
		return
	}
	defer done()
	rd := tokenize.AcquireReader()
	defer rd.Release()
	rd.SetSecret(rt.keys.chains)
	req, err := rt.readSalted(r, rd, kind)
	if req != nil {
		rt.streamed = req.Stream
		rt.model = p.aliases.nameOf(req.Model)
		if id := req.PreviousResponseID; id != "" {
			rt.response = p.pool.responses.key(id)
		}
	}
	if err != nil {
		var typed *tokenize.Error
		errors.As(err, &typed) // Read gives no other
		rt.withoutTokens(r, string(typed.Reason))
		return
	}
	rt.demandOf(r.Context(), rd, req)
	if rt.asked != "" {
		p.pool.metrics.asked.WithLabelValues(p.pool.name, rt.asked).Inc()
	}
}

// demandOf takes over what a request that could be read asks for.
func (rt *routing) demandOf(ctx context.Context, rd *tokenize.Reader, req *tokenize.Request) {
	p := rt.policy
	if name, isAlias := p.aliases[req.Model]; isAlias {
		rd.NameModel(req, name)
	}
	if req.LoRA == "" && p.pool.isAdapter(req.Model) {
		rd.NameAdapter(req, req.Model) // as engines root its blocks
	}
	rt.chain(ctx, rd, req)
	if rt.exact && req.Choices == 1 && !req.Pooling {
		rt.goesOn, rt.goesOnKnown = rd.Continuation(req, p.BlockSize, rt.begunSpace[:0])
	}
	rt.request.Namespace, rt.request.Model = req.Namespace^rt.tenant, req.Namespace
	rt.ratioKey = tokenize.RatioKey{Model: req.Namespace ^ p.tokens.key, Script: rd.Script()}
	rt.request.Ratio = 1
	if !rt.exact {
		rt.request.Ratio = p.pool.ratios.Ratio(rt.ratioKey)
	}
	// Media count by a guess, and what is only named does not count at all.
	rt.teaches = !rt.exact && req.WholePrompt && req.Images+req.Audio+req.Video+req.Files == 0
	rt.request.BlockSize = p.BlockSize
	rt.api = req.Kind
	rt.comparable = req.WholePrompt && !req.Transfers && (rt.exact || rt.teaches)
	rt.request.Reuses = !req.NoReuse && !req.Pooling
	rt.request.Keeps = !req.Pooling
	rt.observed = true
	rt.request.Demand = ledger.Demand{
		Prompts:  rt.prompt[:0],
		Choices:  req.Choices,
		Expected: req.MaxOutput,
		Stream:   req.Stream,
		Pooling:  req.Pooling,
	}
	rt.request.Chains, rt.request.Counted = rt.chainSpace[:0], rt.countedSpace[:0]
	for i := range req.Prompts {
		n, blocks := rt.cut(req.Prompts[i].Tokens, req.Prompts[i].Blocks)
		rt.request.Counted = append(rt.request.Counted, n)
		rt.request.Demand.Prompts = append(rt.request.Demand.Prompts, ledger.Prompt{Tokens: rt.request.Corrected(n)})
		// Matching and pinning go on under the ledger's lock, so a batch of many
		// prompts is only known by its first ones; the rest counts as uncached.
		if i < route.MaxMatchedPrompts {
			rt.request.Chains = append(rt.request.Chains, append([]uint64(nil), blocks...))
		}
	}
	rt.report(ctx, rd, req)
}

// learn takes in how many tokens the engine counted in all prompts together.
func (rt *routing) learn(reported int) {
	if !rt.teaches || reported <= 0 {
		return
	}
	sum := 0
	for _, n := range rt.request.Counted {
		sum += n
	}
	rt.policy.pool.ratios.Learn(rt.ratioKey, sum, reported)
}

// withoutTokens routes the request by load alone. A body that was not read
// weighs what its length suggests.
func (rt *routing) withoutTokens(r *http.Request, reason string) {
	rt.reason = "no_tokens:" + reason
	pool := rt.policy.pool
	pool.metrics.fallbacks.WithLabelValues(pool.name, reason).Inc()
	rt.request.Chains, rt.request.Counted = nil, nil
	rt.request.Demand = ledger.Demand{Choices: 1, Expected: -1, Stream: rt.streamed}
	if r.Method != http.MethodPost || !carriesBody(r) {
		return
	}
	rt.observed = true
	rt.request.Demand.Prompts = rt.prompt[:1]
	rt.request.Demand.Prompts[0] = ledger.Prompt{Tokens: estimateTokens(r, rt.replay)}
	rt.request.Demand.Estimated = true
}

func carriesBody(r *http.Request) bool {
	return r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody
}

// estimateTokens guesses the prompt tokens of a body that was not read, from
// its length: 4 bytes of JSON per token (llm-d's and AIBrix's estimate), a
// compressed body four times as dense, and 512 bytes per token for uploads
// (16-bit mono audio of 16 kHz makes 32,000 bytes a second, and speech models
// about 50 tokens of it).
func estimateTokens(r *http.Request, rp *replay) int {
	const unknown, most = 4096, 1 << 20
	length := r.ContentLength
	if length < 0 {
		length = unknown
		if rp != nil {
			length = max(length, int64(len(rp.bytes())))
		}
	}
	media := strings.ToLower(r.Header.Get("Content-Type"))
	switch {
	case !strings.Contains(media, "json") && !strings.HasPrefix(media, "text/") && media != "":
		length /= 512
	case r.Header.Get("Content-Encoding") == "":
		length /= 4
	}
	return int(max(1, min(length, most)))
}

// again prepares a further attempt. The one before has ended, or is
// superseded now.
func (rt *routing) again(r *http.Request) {
	if a := rt.current.Load(); a != nil {
		a.finish(ledger.Superseded)
	}
	rt.replay.rewind(r)
}

// arm makes sure that everything is given back at the request's end, however
// it ends.
func (rt *routing) arm(ctx context.Context) {
	if rt.stop == nil {
		rt.stop = context.AfterFunc(ctx, rt.end)
	}
}

// disarm takes the net away when there is nothing left to catch.
func (rt *routing) disarm() {
	if a := rt.current.Load(); rt.stop != nil && (a == nil || a.placement.Ended()) && !rt.replay.held() {
		rt.stop()
		rt.stop = nil
		rt.recorded.ended()
	}
}

// end gives everything back. It runs on a goroutine of its own.
func (rt *routing) end() {
	if a := rt.current.Load(); a != nil {
		a.finish(ledger.Canceled)
	}
	rt.recorded.ended()
	rt.replay.drop()
}

// begun lets go of what only a further attempt would need: a response's first
// byte is on its way to the client.
func (rt *routing) begun() {
	rt.replay.dropServed()
	rt.request.Chains, rt.request.Reports, rt.request.Reported = nil, nil, nil
	rt.chainSpace[0], rt.reportedSpace[0] = nil, route.ReportedChains{}
	rt.tried = nil
	rt.disarm()
}

// avoid keeps further attempts away from u's engine while another is available.
func (rt *routing) avoid(u *upstream) {
	if !rt.hasTried(u) {
		rt.tried = append(rt.tried, u.engine)
	}
}

// hasTried reports whether an attempt at this request failed at u's engine.
func (rt *routing) hasTried(u *upstream) bool {
	for _, t := range rt.tried {
		if t == u.engine {
			return true
		}
	}
	return false
}

// owner gives the candidate that made the response which the request builds on
// or asks for, or -1.
func (rt *routing) owner(c *candidates) int {
	if rt.response == 0 {
		return -1
	}
	u := rt.policy.pool.responses.owner(rt.response)
	for i, known := range c.known {
		if known == u {
			return i
		}
	}
	return -1
}

// publish tells the decision to placeholders, the access log and the trace.
func (rt *routing) publish(a *attempt, repl *caddy.Replacer, r *http.Request) {
	if repl != nil {
		repl.Set("http.reverse_proxy.kv_aware.upstream", a.upstream.address)
		repl.Set("http.reverse_proxy.kv_aware.prompt_tokens", a.placement.PromptTokens)
		repl.Set("http.reverse_proxy.kv_aware.cached_tokens", a.placement.CachedTokens)
		repl.Set("http.reverse_proxy.kv_aware.generated_tokens", 0)
		repl.Set("http.reverse_proxy.kv_aware.load", int64(a.placement.Load))
		repl.Set("http.reverse_proxy.kv_aware.reason", a.reason)
	}
	if extra := accessLogFields(r); extra != nil {
		extra.Set(zap.String("kv_aware_upstream", a.upstream.address))
		extra.Set(zap.Int("kv_aware_prompt_tokens", a.placement.PromptTokens))
		extra.Set(zap.Int("kv_aware_cached_tokens", a.placement.CachedTokens))
		extra.Set(zap.Int64("kv_aware_load", int64(a.placement.Load)))
		extra.Set(zap.String("kv_aware_reason", a.reason))
	}
	traceDecision(r.Context(), a)
}

// publishEnd tells how much was generated. Only for the request's goroutine.
func (rt *routing) publishEnd(r *http.Request, generated int) {
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		repl.Set("http.reverse_proxy.kv_aware.generated_tokens", generated)
	}
	if extra := accessLogFields(r); extra != nil {
		extra.Set(zap.Int("kv_aware_generated_tokens", generated))
	}
	traceEnd(r.Context(), generated)
}

// accessLogFields gives the fields of the request's access log entry, or nil if
// the server writes none.
func accessLogFields(r *http.Request) *caddyhttp.ExtraLogFields {
	if srv, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); !ok || srv.Logs == nil {
		return nil
	}
	extra, _ := r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields)
	return extra
}
