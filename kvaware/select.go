// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/route"
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
	choice    route.Choice             // what the router does
	narrowed  bool                     // some were left out
}

var candidatesPool = sync.Pool{New: func() any { return new(candidates) }}

// gather lists the upstreams that may take the request: those that Caddy calls
// available and whose address can be told.
func (c *candidates) gather(rt *routing, from reverseproxy.UpstreamPool, repl *caddy.Replacer) {
	p := rt.policy
	c.upstreams, c.known, c.unknown = c.upstreams[:0], c.known[:0], c.unknown[:0]
	c.choice.Candidates, c.narrowed = c.choice.Candidates[:0], false
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
		if known.unclaimed.Load() {
			p.pool.pollers.claimFor(known, p)
		}
		c.add(u, known, rt)
	}
}

// add makes candidates of an upstream's ranks: of all, or of the one that the
// client pinned.
func (c *candidates) add(u *reverseproxy.Upstream, known *upstream, rt *routing) {
	ranks := known.ranks.Load()
	if ranks == nil {
		c.addRank(u, known, rt.policy, nil)
		return
	}
	if pinned := rt.pinnedRank; 0 <= pinned && pinned < len(ranks.upstreams) {
		c.addRank(u, ranks.upstreams[pinned], rt.policy, ranks)
		return
	}
	for _, rank := range ranks.upstreams {
		c.addRank(u, rank, rt.policy, ranks)
	}
}

func (c *candidates) addRank(u *reverseproxy.Upstream, known *upstream, p *Policy, ranks *rankSet) {
	c.upstreams = append(c.upstreams, u)
	c.known = append(c.known, known)
	candidate := known.candidate(p, ranks)
	// Caddy counts a request on its upstream only after Select returned, so the
	// router looks to max_requests.
	candidate.MaxRequests = u.MaxRequests
	c.choice.Candidates = append(c.choice.Candidates, candidate)
}

// candidate is what the router is told of an upstream; ranks are those of its
// engine, nil if there is but one.
func (u *upstream) candidate(p *Policy, ranks *rankSet) route.Candidate {
	candidate := route.Candidate{Upstream: u.routed, MaxSequences: p.MaxSequences, NoCache: u.engine.noCache.Load()}
	if ranks != nil {
		candidate.Ranks, candidate.Blended = ranks.routed, u.engine.heeds.ignored()
	}
	return candidate
}

// release lets go of everything that belongs to the request.
func (c *candidates) release() {
	clear(c.upstreams[:cap(c.upstreams)])
	clear(c.unknown[:cap(c.unknown)])
	clear(c.known[:cap(c.known)])
	c.choice.Release()
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
	c.gather(rt, from, repl)
	if len(c.upstreams) == 0 {
		return fewestRequests(c.unknown)
	}
	c.narrow(rt)

	a := &attempt{routing: rt, reason: rt.reason}
	preferred, why := rt.owner(c), "affinity"
	if preferred < 0 && len(rt.request.Chains) == 0 && p.fallback != nil {
		if c.narrowed {
			from = c.remaining()
		}
		u := p.fallback.Select(from, r, w)
		if u == nil {
			return nil
		}
		why = "fallback"
		if preferred = c.leastRank(u); preferred < 0 {
			c.keepOnly(u, rt, repl)
			if preferred = c.leastRank(u); preferred < 0 {
				return u
			}
		}
	}

	p.pool.hold()
	charged := false
	defer func() {
		if !charged {
			p.pool.free()
		}
	}()
	// Neither a fallback policy nor an owner knows of these.
	for i, known := range c.known {
		c.choice.Candidates[i].Tried = rt.hasTried(known)
	}
	now := p.pool.ledger.Now()
	c.choice.Keep = p.pool.decisions.due(now)
	i := p.pool.router.Place(&c.choice, &rt.request, &p.objective, preferred, &a.placement)
	if i < 0 {
		return nil
	}
	charged = true
	a.upstream = c.known[i]
	a.watchRank()
	if a.placement.Preferred {
		a.reason = why
	}
	if rt.current.Swap(a) == nil {
		a.upstream.labels.routed(now, a.reason, a.placement.PromptTokens, a.placement.CachedTokens)
	} else {
		a.again = true
	}
	if c.choice.Keep {
		p.pool.decisions.keep(a, c)
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
			zap.Int("prompt_tokens", a.placement.PromptTokens),
			zap.Int("cached_tokens", a.placement.CachedTokens),
			zap.Float64("load", a.placement.Load),
			zap.Int("candidates", len(c.upstreams)))
	}
	return c.upstreams[i]
}

// keepOnly reduces the candidates to one upstream.
func (c *candidates) keepOnly(u *reverseproxy.Upstream, rt *routing, repl *caddy.Replacer) {
	c.upstreams, c.known, c.choice.Candidates = c.upstreams[:0], c.known[:0], c.choice.Candidates[:0]
	if known := rt.policy.pool.lookup(u.Dial, repl); known != nil {
		c.add(u, known, rt)
	}
}

// remaining gives the upstreams of the candidates, each once.
func (c *candidates) remaining() (pool reverseproxy.UpstreamPool) {
	for i, u := range c.upstreams {
		if i == 0 || c.upstreams[i-1] != u { // ranks stand together
			pool = append(pool, u)
		}
	}
	return pool
}

// leastRank gives the candidate that is a rank of u and runs the fewest sequences,
// or -1 if none is.
func (c *candidates) leastRank(u *reverseproxy.Upstream) int {
	least := -1
	for i := range c.upstreams {
		if c.upstreams[i] == u && (least < 0 || c.known[i].load.Running() < c.known[least].load.Running()) {
			least = i
		}
	}
	return least
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
