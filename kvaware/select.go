// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
)

// Select chooses the upstream that takes r, and charges it. It is called again
// for each further attempt at the same request; w may be nil.
func (p *Policy) Select(pool reverseproxy.UpstreamPool, r *http.Request, w http.ResponseWriter) (chosen *reverseproxy.Upstream) {
	defer func() {
		if val := recover(); val != nil {
			p.panicked("select", val)
			p.abandon(r)
			chosen = fewestRequests(pool)
		}
	}()
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	rt := p.routed(r.Context())
	if rt == nil {
		rt = p.newRouting(r, repl)
	} else {
		rt.again(r)
	}
	return rt.choose(pool, r, w, repl)
}

// abandon gives back what an attempt holds whose choice panicked: another
// upstream may take the request now.
func (p *Policy) abandon(r *http.Request) {
	rt := p.routed(r.Context())
	if rt == nil {
		return
	}
	rt.arm(r.Context()) // the body is still held
	if a := rt.current.Swap(nil); a != nil {
		a.finish(ledger.Superseded)
	}
}

// candidates is the memory of one choice. It is used by one goroutine and
// reused by later requests.
type candidates struct {
	upstreams []*reverseproxy.Upstream // available ones
	unknown   []*reverseproxy.Upstream // available ones without a valid address, see pool.lookup
	known     []*upstream              // what the pool knows of them
	loads     []*ledger.Upstream
	held      []int32 // by index slot: leading blocks that the upstream holds
}

var candidatesPool = sync.Pool{New: func() any { return new(candidates) }}

// gather lists the upstreams that may take the request: those that Caddy calls
// available and whose address can be told.
func (c *candidates) gather(p *Policy, from reverseproxy.UpstreamPool, repl *caddy.Replacer) {
	c.upstreams, c.known, c.loads, c.unknown = c.upstreams[:0], c.known[:0], c.loads[:0], c.unknown[:0]
	resolved := p.resolve(from, repl)
	now := p.pool.now().UnixNano()
	for i, u := range from {
		if !u.Available() {
			continue
		}
		var known *upstream
		if resolved != nil {
			known = resolved[i]
		} else {
			known = p.pool.lookup(u.Dial, repl)
		}
		if known == nil {
			c.unknown = append(c.unknown, u)
			continue
		}
		known.lastSeen.Store(now)
		c.upstreams = append(c.upstreams, u)
		c.known = append(c.known, known)
		c.loads = append(c.loads, known.load)
	}
}

// release lets go of everything that belongs to the request.
func (c *candidates) release() {
	clear(c.upstreams[:cap(c.upstreams)])
	clear(c.unknown[:cap(c.unknown)])
	clear(c.known[:cap(c.known)])
	clear(c.loads[:cap(c.loads)])
	candidatesPool.Put(c)
}

// resolvedPool is a list of static upstreams with what the pool knows of each,
// so that a proxy with a fixed list looks nothing up.
type resolvedPool struct {
	from  reverseproxy.UpstreamPool
	known []*upstream
}

// resolve gives the pool's knowledge of from, element by element, or nil when
// the list is not fixed.
func (p *Policy) resolve(from reverseproxy.UpstreamPool, repl *caddy.Replacer) []*upstream {
	last := p.static.Load()
	if last != nil && len(last.from) == len(from) && len(from) > 0 && &last.from[0] == &from[0] {
		for _, u := range last.known {
			if u.removed.Load() {
				last = nil
				break
			}
		}
		if last != nil {
			return last.known
		}
	}
	if p.proxy == nil || len(from) == 0 || len(p.proxy.Upstreams) != len(from) || &p.proxy.Upstreams[0] != &from[0] {
		return nil
	}
	rp := &resolvedPool{from: from, known: make([]*upstream, len(from))}
	for i, u := range from {
		known := p.pool.lookup(u.Dial, repl)
		if known == nil || !p.pool.fixed(u.Dial) {
			return nil // placeholders: the address may differ for each request
		}
		rp.known[i] = known
	}
	p.static.Store(rp)
	return rp.known
}

// choose picks an upstream from those available and charges it in one step.
func (rt *routing) choose(from reverseproxy.UpstreamPool, r *http.Request, w http.ResponseWriter, repl *caddy.Replacer) *reverseproxy.Upstream {
	p := rt.policy
	rt.arm(r.Context())
	start := time.Now()
	c := candidatesPool.Get().(*candidates)
	defer c.release()
	c.gather(p, from, repl)
	if len(c.upstreams) == 0 {
		return fewestRequests(c.unknown)
	}

	a := &attempt{routing: rt, reason: rt.reason}
	preferred, why := rt.owner(c), "affinity"
	if preferred < 0 && len(rt.chains) == 0 && p.fallback != nil {
		u := p.fallback.Select(from, r, w)
		if u == nil {
			return nil
		}
		why = "fallback"
		if preferred = slices.Index(c.upstreams, u); preferred < 0 {
			c.keepOnly(u, p, repl)
			if len(c.upstreams) == 0 {
				return u
			}
			preferred = 0
		}
	}

	p.pool.hold()
	charged := false
	defer func() {
		if !charged {
			p.pool.free()
		}
	}()
	i := p.pool.ledger.Choose(&a.ticket, &rt.demand, c.loads, func(cands []choose.Candidate) int {
		return rt.decide(a, c, cands, preferred, why)
	})
	if i < 0 {
		return nil
	}
	charged = true
	a.upstream = c.known[i]
	a.sent = p.pool.ledger.Now()
	if rt.current.Swap(a) == nil {
		a.upstream.labels.routed(a.reason)
	}
	if r.Context().Err() != nil {
		a.finish(ledger.Canceled) // the net may have been drawn in before it knew of a
	}
	stageSeconds.choose.Observe(time.Since(start).Seconds())
	rt.publish(a, repl, r)
	if ce := p.logger.Check(zapcore.DebugLevel, "chose upstream"); ce != nil {
		ce.Write(
			zap.String("upstream", a.upstream.address),
			zap.String("reason", a.reason),
			zap.Int("prompt_tokens", a.promptTokens),
			zap.Int("cached_tokens", a.cachedTokens),
			zap.Float64("load", a.load),
			zap.Int("candidates", len(c.upstreams)))
	}
	return c.upstreams[i]
}

// keepOnly reduces the candidates to one upstream.
func (c *candidates) keepOnly(u *reverseproxy.Upstream, p *Policy, repl *caddy.Replacer) {
	c.upstreams, c.known, c.loads = c.upstreams[:0], c.known[:0], c.loads[:0]
	if known := p.pool.lookup(u.Dial, repl); known != nil {
		c.upstreams = append(c.upstreams, u)
		c.known = append(c.known, known)
		c.loads = append(c.loads, known.load)
	}
}

// decide runs under the ledger's lock: it matches the prompts against the
// index, picks the candidate of least load, and pins the prompts there. Preferred,
// if not -1, takes the request instead, for the reason why; but not if it is full,
// or was tried by this request while another is free: a fallback policy knows
// neither.
func (rt *routing) decide(a *attempt, c *candidates, cands []choose.Candidate, preferred int, why string) int {
	p := rt.policy
	rt.weigh(c, cands)

	full := func(i int) bool {
		// Caddy counts a request on its upstream only after Select returned.
		most := c.upstreams[i].MaxRequests
		return most > 0 && c.loads[i].Live() >= most
	}
	untried := false
	for i := range cands {
		cands[i].Excluded = full(i) || rt.hasTried(c.known[i])
		untried = untried || !cands[i].Excluded
	}
	for i := range cands {
		cands[i].Excluded = cands[i].Excluded && (untried || full(i))
	}

	var i int
	switch {
	case preferred >= 0 && !cands[preferred].Excluded:
		i = preferred
		a.reason = why
	case len(rt.chains) > 0:
		i = choose.Least(p.weights, cands, nil)
	default:
		i = choose.LeastRunning(p.weights, cands, nil)
	}
	if i < 0 {
		return -1
	}
	a.load = choose.Load(p.weights, cands[i])
	rt.charge(a, c, i)
	return i
}

// weigh fills in what the request's prompts would cost each candidate. The
// index's lock is taken inside the ledger's.
func (rt *routing) weigh(c *candidates, cands []choose.Candidate) {
	total := int64(0)
	for i := range rt.demand.Prompts {
		total += int64(rt.demand.Prompts[i].Tokens)
	}
	for i := range cands {
		cands[i].Uncached = total
	}
	if !rt.reuses {
		return
	}
	for j := range rt.chains {
		if len(rt.chains[j]) == 0 {
			continue
		}
		held := rt.match(c, j)
		for i := range cands {
			cands[i].Uncached -= int64(rt.cachedTokens(j, held[c.known[i].slot]))
		}
	}
}

// match looks a prompt up: leading blocks held, by slot.
func (rt *routing) match(c *candidates, prompt int) []int32 {
	index := rt.policy.pool.index
	if slots := index.Slots(); cap(c.held) < slots {
		c.held = make([]int32, slots+slots/2)
	}
	c.held = c.held[:cap(c.held)]
	index.Match(rt.namespace, rt.chains[prompt], c.held)
	return c.held
}

// cachedTokens is what an engine reuses of a prompt of which it holds the
// leading blocks: whole blocks, and never the last token, which it must compute
// to have something to sample from.
func (rt *routing) cachedTokens(prompt int, blocks int32) int {
	size := rt.policy.params.blockSize
	n := rt.counted[prompt]
	return rt.corrected(max(0, min(int(blocks)*size, n-1)/size*size))
}

// charge tells the ledger what of the prompts is cached at candidate i, and
// pins them in the index. All are looked up before the first is pinned: the
// prompts of a batch are told apart as they were weighed.
func (rt *routing) charge(a *attempt, c *candidates, i int) {
	slot := c.known[i].slot
	for j := range rt.demand.Prompts {
		d := &rt.demand.Prompts[j]
		d.Cached = 0
		a.promptTokens += d.Tokens
		if !rt.reuses || j >= len(rt.chains) || len(rt.chains[j]) == 0 {
			continue
		}
		held := c.held // of the last prompt that was weighed
		if len(rt.chains) > 1 {
			held = rt.match(c, j)
		}
		d.Cached = rt.cachedTokens(j, held[slot])
		a.cachedTokens += d.Cached
	}
	if rt.demand.Estimated {
		a.promptTokens = 0 // a guess is charged, but not told
	}
	if !rt.keeps {
		return
	}
	a.prompts = a.promptSpace[:]
	if len(rt.chains) > len(a.promptSpace) {
		a.prompts = make([]pinnedPrompt, len(rt.chains))
	}
	for j := range rt.chains {
		a.prompts[j].path = rt.policy.pool.index.Pin(slot, rt.namespace, rt.chains[j])
	}
}

// fewestRequests is the choice when our own failed: the available upstream with
// the fewest requests by Caddy's count, ties at random.
func fewestRequests(pool reverseproxy.UpstreamPool) *reverseproxy.Upstream {
	var best *reverseproxy.Upstream
	least, ties := 0, 0
	for _, u := range pool {
		if u == nil || u.Host == nil || !u.Available() {
			continue
		}
		n := u.NumRequests()
		switch {
		case best == nil || n < least:
			best, least, ties = u, n, 1
		case n == least:
			if ties++; rand.IntN(ties) == 0 {
				best = u
			}
		}
	}
	return best
}

// panicked counts a panic of ours that was routed around, and logs where it
// happened. The value is left out, since it could quote a prompt.
func (p *Policy) panicked(where string, val any) {
	if val == http.ErrAbortHandler {
		panic(val)
	}
	panics.WithLabelValues(where).Inc()
	p.logger.Error("panic caught; the request goes on without it",
		zap.String("where", where),
		zap.ByteString("stack", debug.Stack()))
}
