// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"cmp"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/route"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

// pools holds the knowledge about upstreams by pool name: prefix index and
// ledger. It is the only state that outlives a configuration. Every policy
// holds one reference to its pool; requests that outlive their configuration
// hold it further (see pool.release).
var pools = caddy.NewUsagePool()

// poolParams are the parameters that belong to a pool and not to a handler.
type poolParams struct {
	tokenizer   string // what Tokenizer.provision calls it
	asking      string // how engines are asked for tokens
	blockSize   int
	cacheTokens int64
	cacheAuto   bool   // engines tell it; cacheTokens is for those that do not
	engine      string // what Engine.provision calls it
	slots       int    // 0: caches are of blocks
	context     int64  // tokens of a slot's, 0 if unknown
	maxBuffered int64
	tokenCache  int64
	aliases     string // what aliasesOf calls them
	secret      keysID // of the option secret, zero without it
	ranks       int    // data-parallel ranks of each engine; 0 means 1
	events      string // what KVEvents.provision calls it
}

// difference names the first parameter in which p and q differ, with both
// values.
func (p poolParams) difference(q poolParams) (option, ours, theirs string) {
	for _, d := range []struct {
		option string
		a, b   any
	}{
		{"tokenizer", p.tokenizer, q.tokenizer},
		{"tokenizer", p.asking, q.asking},
		{"block_size", p.blockSize, q.blockSize},
		{"cache_tokens", p.cacheShown(), q.cacheShown()},
		{"engine", p.engine, q.engine},
		{"cache slots", p.slots, q.slots},
		{"cache slots: context", p.context, q.context},
		{"max_buffered", p.maxBuffered, q.maxBuffered},
		{"token_cache", p.tokenCache, q.tokenCache},
		{"model_alias", p.aliases, q.aliases},
		{"secret", p.secret, q.secret},
		{"kv_events", p.events, q.events},
		{"ranks", p.ranks, q.ranks},
	} {
		if d.a != d.b {
			return d.option, cmp.Or(fmt.Sprint(d.a), "none"), cmp.Or(fmt.Sprint(d.b), "none")
		}
	}
	return "", "", ""
}

func (p poolParams) cacheShown() string {
	if p.cacheAuto {
		return cacheTokensAuto
	}
	return fmt.Sprint(p.cacheTokens)
}

func (p poolParams) capacityBlocks() int { return int(p.cacheTokens / int64(p.blockSize)) }

func (p poolParams) contextBlocks() int {
	return int(min(p.context/int64(p.blockSize), math.MaxInt32))
}

// pool is what is known about a set of upstreams.
//
// Locks: the ledger's lock is held while a request is matched, chosen for and
// charged; the index has its own, taken inside it and inside mu. mu guards the
// fields named below and is never held together with the ledger's.
type pool struct {
	name       string
	router     *route.Router
	ledger     *ledger.Ledger // the router's
	index      *prefix.Index  // the router's
	budget     bodyBudget
	responses  responseOwners
	pollers    enginePollers
	served     atomic.Pointer[servedModels] // nil if no engine's models are known
	indexing   sync.Mutex                   // one at a time makes served; mu is taken inside it
	resizing   sync.Mutex                   // one at a time changes capacities; mu is taken inside it
	recordings recordings
	decisions  decisions
	history    history
	followed   followed
	metrics    *poolMetrics
	now        func() time.Time
	// tokens remembers how prompts were encoded. It is replaced when a
	// configuration gives it another size.
	tokens atomic.Pointer[tokenize.Cache]
	// ratios is what is learnt of how far counts are from the engines' own.
	ratios *tokenize.Ratios
	// keys are those of the configuration that was applied last; before the first
	// one, keys of the pool's own.
	keys atomic.Pointer[hashKeys]

	mu        sync.RWMutex
	params    poolParams
	applied   *poolConfig          // what was applied last; nil before the first
	explainer *Policy              // whose weights and bounds the admin API explains with
	byAddress map[string]*upstream // network address, with the rank → upstream
	byDial    map[string]*upstream // dial string without placeholders → upstream

	// live counts requests that hold a charge. A policy that is cleaned up while
	// there are some leaves its reference to the last of them.
	live      atomic.Int64
	lingering atomic.Int64
}

// acquirePool takes a reference to the pool of that name, making it if it is
// not there. Parameters of a pool that is there stay as they are until
// configure.
func acquirePool(name string, params poolParams) *pool {
	val, _, _ := pools.LoadOrNew(name, func() (caddy.Destructor, error) {
		return newPool(name, params, time.Now), nil
	})
	return val.(*pool)
}

func newPool(name string, params poolParams, now func() time.Time) *pool {
	router := route.New(route.Options{Now: monotonic(now)})
	pl := &pool{
		name:      name,
		router:    router,
		ledger:    router.Ledger,
		index:     router.Index,
		metrics:   newPoolMetrics(),
		ratios:    tokenize.NewRatios(),
		now:       now,
		params:    params,
		byAddress: make(map[string]*upstream),
		byDial:    make(map[string]*upstream),
	}
	pl.budget.limit.Store(params.maxBuffered)
	pl.tokens.Store(tokenize.NewCache(params.tokenCache))
	pl.keys.Store(randomKeys())
	return pl
}

// Destruct implements caddy.Destructor. Nothing but memory is held.
func (*pool) Destruct() error { return nil }

// release gives back a policy's reference, at once or with the last request
// that holds a charge.
func (pl *pool) release() {
	pl.lingering.Add(1)
	if pl.live.Load() == 0 {
		pl.settle()
	}
}

// settle gives back the references that were left to the last request.
func (pl *pool) settle() {
	for n := pl.lingering.Swap(0); n > 0; n-- {
		_, _ = pools.Delete(pl.name)
	}
}

// hold counts a request that is about to be charged; free its end.
func (pl *pool) hold() { pl.live.Add(1) }

func (pl *pool) free() {
	if pl.live.Add(-1) == 0 && pl.lingering.Load() > 0 {
		pl.settle()
	}
}

// poolConfig is what a configuration that is started says of a pool.
type poolConfig struct {
	params    poolParams
	keys      *hashKeys
	dials     []string    // static upstreams, kept for as long as it lists them
	explainer *Policy     // the policy that named the pool first
	members   []*Policy   // all that name it
	events    *followers  // of its kv_events; nil without
	replaced  *poolConfig // the one before, until that is stopped; guarded by pool.mu
}

// configure applies a configuration that is being started.
func (pl *pool) configure(conf *poolConfig) {
	pl.followed.mu.Lock() // nobody follows by one what the other lists
	listed := pl.resolved(conf.dials)
	pl.mu.Lock()
	conf.replaced = pl.applied
	resized := pl.apply(conf, listed)
	pl.mu.Unlock()
	pl.followed.switchTo(conf.events)
	pl.followed.mu.Unlock()
	pl.recordings.stop()
	pl.resize(resized)
	pl.poll(conf)
	pl.indexModels() // aliases may be others
}

// withdraw takes note that a configuration is stopped. If it is the one applied
// last and replaced another that has not stopped, it did not start as a whole (a
// port was taken, say): the other goes on serving and is applied again. If it
// replaced none, all is over.
func (pl *pool) withdraw(conf *poolConfig) {
	pl.mu.RLock()
	var before []string
	if pl.applied == conf && conf.replaced != nil {
		before = conf.replaced.dials
	}
	pl.mu.RUnlock()
	pl.followed.mu.Lock()
	listed := pl.resolved(before)
	var resized, gone []*upstream
	pl.mu.Lock()
	over, back := pl.applied == conf, conf.replaced
	if over {
		pl.recordings.stop()
	}
	switch {
	case pl.applied == conf && conf.replaced != nil:
		resized = pl.apply(conf.replaced, listed)
	case pl.applied == conf:
		pl.applied = nil // a later one has nothing to go back to
	case pl.applied != nil && pl.applied.replaced == conf:
		pl.applied.replaced = nil
		gone = pl.letGo()
	}
	pl.mu.Unlock()
	if over {
		pl.followed.switchTo(back.followers())
	}
	pl.followed.mu.Unlock()
	for _, u := range gone {
		pl.pollers.left(u)
	}
	pl.resize(resized)
	if over {
		pl.poll(back)
		pl.indexModels()
	}
	conf.events.release()
}

// followers gives those that a configuration needs; nil if there is none, or it
// needs none.
func (conf *poolConfig) followers() *followers {
	if conf == nil {
		return nil
	}
	return conf.events
}

// resolved gives the upstreams behind dial strings.
func (pl *pool) resolved(dials []string) map[*upstream]bool {
	us := make(map[*upstream]bool, len(dials))
	for _, dial := range dials {
		if u := pl.lookup(dial, caddy.NewReplacer()); u != nil {
			us[u] = true
		}
	}
	return us
}

// apply makes a configuration count, and gives the upstreams whose capacity changes
// with it. pl.mu is held.
func (pl *pool) apply(conf *poolConfig, listed map[*upstream]bool) (resized []*upstream) {
	params := conf.params
	pl.budget.limit.Store(params.maxBuffered)
	rekeyed := conf.keys.id != pl.keys.Load().id
	// Chains of another block size, tokenizer or seed match nothing that is held.
	stale := params.blockSize != pl.params.blockSize || params.tokenizer != pl.params.tokenizer || rekeyed
	for _, u := range pl.byAddress {
		u.dropped = !listed[u.engine] && (u.listed || u.dropped)
		u.listed = listed[u.engine]
		if stale {
			pl.index.Forget(u.slot)
		}
		pl.index.SetSlots(u.slot, params.slots, params.contextBlocks())
		if stale || params.cacheTokens != pl.params.cacheTokens || params.cacheAuto != pl.params.cacheAuto {
			resized = append(resized, u)
		}
	}
	if params.tokenCache != pl.params.tokenCache || rekeyed {
		pl.tokens.Store(tokenize.NewCache(params.tokenCache))
	}
	pl.params = params
	if conf.explainer != nil && conf.explainer.events != nil {
		pl.index.SetPredictedTTL(conf.explainer.events.ttl)
	}
	pl.rank()
	pl.keys.Store(conf.keys)
	pl.explainer = conf.explainer
	pl.applied = conf
	return resized
}

// monotonic turns a clock into the time since it was first asked.
func monotonic(now func() time.Time) func() time.Duration {
	origin := now()
	return func() time.Duration { return now().Sub(origin) }
}

// eachPool calls f for every pool in use.
func eachPool(f func(*pool)) {
	var all []*pool
	pools.Range(func(_, val any) bool {
		all = append(all, val.(*pool))
		return true
	})
	for _, pl := range all {
		f(pl)
	}
}
