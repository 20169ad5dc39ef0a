// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/residency"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

// followed is which followers count in a pool.
//
// Locks: mu is taken before the pool's own, the index's, the pollers' and a followers'
// own.
type followed struct {
	mu      sync.Mutex // one at a time changes who counts and what that means
	current atomic.Pointer[followers]
}

// reported gives what the pool's engines report to hold; nil if nobody listens.
func (pl *pool) reported() *residency.Index {
	if f := pl.followed.current.Load(); f != nil {
		return f.index
	}
	return nil
}

// changed takes note that upstreams came or left. It may be called under any lock.
func (fd *followed) changed() {
	if f := fd.current.Load(); f != nil {
		f.changed()
	}
}

// switchTo makes followers those that count; nil: nobody. The configuration that they
// belong to was just applied. fd.mu is held.
func (fd *followed) switchTo(f *followers) {
	before := fd.current.Swap(f)
	if before != f && before != nil {
		before.show(false)
	}
	if f != nil {
		if before != f {
			f.show(true)
		}
		f.changed()
	}
}

// allFollowers holds the followers in use, by what they need: configurations that
// need the same connections and the same index share them, so that a reload keeps
// both, and one that fails takes nothing from the one before.
var allFollowers = caddy.NewUsagePool()

// followersKey is what followers need.
type followersKey struct {
	pool   *pool
	events string // eventsConfig.described
	keys   keysID
}

// followers follow the engines of one pool, each rank of them. They live as long as
// a started configuration needs them.
type followers struct {
	key      followersKey
	pool     *pool
	conf     *eventsConfig
	index    *residency.Index
	listener *listening // nil where engines are connected to
	logger   atomic.Pointer[zap.Logger]

	adapters adapterNames // of the LoRA adapters that blocks were told of

	wake   chan struct{} // holds one when upstreams may have come or left
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex // guards running
	running map[*upstream]*following

	// unusable are upstreams that cannot be followed, which was said. Of tend alone.
	unusable map[*upstream]bool
}

// follow takes a reference to the followers that the pool needs, and starts them
// if they are not there.
func (use *poolUse) follow(logger *zap.Logger) error {
	p := use.first
	if p.events == nil {
		return nil
	}
	key := followersKey{p.pool, p.events.described, use.applied.keys.id}
	val, _, err := allFollowers.LoadOrNew(key, func() (caddy.Destructor, error) {
		return newFollowers(key, p.events, use.applied.keys)
	})
	if err != nil {
		return err
	}
	use.applied.events = val.(*followers)
	use.applied.events.logger.Store(logger.With(zap.String("pool", p.pool.name)))
	p.warnInexact()
	return nil
}

func newFollowers(key followersKey, conf *eventsConfig, keys *hashKeys) (*followers, error) {
	ctx, cancel := context.WithCancel(context.Background())
	f := &followers{
		key:     key,
		pool:    key.pool,
		conf:    conf,
		index:   residency.New(residency.Options{Chains: tokenize.NewChains(keys.chains), TierCredit: conf.credit}),
		wake:    make(chan struct{}, 1),
		cancel:  cancel,
		done:    make(chan struct{}),
		running: make(map[*upstream]*following),

		unusable: make(map[*upstream]bool),
	}
	f.logger.Store(zap.NewNop())
	if conf.listen != (zmtp.Endpoint{}) {
		var err error
		if f.listener, err = acquireListening(conf); err != nil {
			cancel()
			return nil, err
		}
	}
	go f.tend(ctx)
	return f, nil
}

// release gives back a configuration's reference; nil has none.
func (f *followers) release() {
	if f != nil {
		_, _ = allFollowers.Delete(f.key)
	}
}

// Destruct implements caddy.Destructor: it ends all connections.
func (f *followers) Destruct() error {
	f.cancel()
	<-f.done
	if f.listener != nil {
		f.listener.release()
	}
	return nil
}

func (f *followers) changed() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// tend follows the upstreams that are there until ctx ends.
func (f *followers) tend(ctx context.Context) {
	defer close(f.done)
	for {
		select {
		case <-ctx.Done():
			for _, fo := range f.all() {
				f.stop(fo)
			}
			return
		case <-f.wake:
			f.reconcile(ctx)
		}
	}
}

// reconcile stops to follow upstreams that have left, and then starts with those
// that have come, who may have their slots.
func (f *followers) reconcile(ctx context.Context) {
	fd := &f.pool.followed
	fd.mu.Lock()
	counts := fd.current.Load() == f
	wanted, kept := f.pool.followable()
	fd.mu.Unlock()
	if !counts {
		return // of upstreams that others list, this configuration says nothing
	}
	for _, fo := range f.all() {
		if !slices.Contains(wanted, fo.up) && !slices.Contains(kept, fo.up) {
			f.stop(fo)
		}
	}
	maps.DeleteFunc(f.unusable, func(u *upstream, _ bool) bool { return !slices.Contains(wanted, u) })
	slices.SortFunc(wanted, func(a, b *upstream) int { return strings.Compare(a.address, b.address) })
	for _, u := range wanted {
		f.mu.Lock()
		_, already := f.running[u]
		f.mu.Unlock()
		if !already {
			f.start(ctx, u)
		}
	}
}

// followedAt gives the upstream whose events come from an endpoint; nil if nobody's
// do.
func (f *followers) followedAt(endpoint string) *upstream {
	for _, fo := range f.all() {
		if fo.endpoint == endpoint {
			return fo.up
		}
	}
	return nil
}

// followable gives the upstreams, every rank, whose address is no client's word: a
// configuration or a name server says it. Kept are those that are only followed on
// where they are, as they were listed by the configuration before, which may yet come
// back.
func (pl *pool) followable() (wanted, kept []*upstream) {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	for _, u := range pl.byAddress {
		switch {
		case u.listed || u.engine.fixed && !u.engine.dropped:
			wanted = append(wanted, u)
		case u.engine.fixed:
			kept = append(kept, u)
		}
	}
	return wanted, kept
}

func (f *followers) all() []*following {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]*following, 0, len(f.running))
	for _, fo := range f.running {
		all = append(all, fo)
	}
	slices.SortFunc(all, func(a, b *following) int { return strings.Compare(a.up.address, b.up.address) })
	return all
}

// show tells the index which upstreams' reports are whole, or that none is. The
// pool's followed.mu is held.
func (f *followers) show(on bool) {
	for _, fo := range f.all() {
		f.pool.setReported(fo.up, on && fo.complete.Load())
	}
}

// warnInexact says so if what engines report can match no prompt.
func (p *Policy) warnInexact() {
	switch {
	case p.tokens.remote != nil || p.tokens.exact != nil:
	case p.Tokenizer.Kind == tokenizerHF:
		p.logger.Warn("kv_events: without a chat_template only completions become the engines' own tokens, so what engines report is of no use to chats",
			zap.String("tokenizer", p.tokens.described))
	default:
		p.logger.Warn("kv_events: prompts do not become the engines' own tokens, so what engines report is of no use to them: set `tokenizer hf` with `chat_template`, or `tokenizer remote`",
			zap.String("tokenizer", p.tokens.described))
	}
}
