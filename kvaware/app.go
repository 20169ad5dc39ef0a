// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"
)

func init() {
	caddy.RegisterModule(new(App))
}

// App holds what the kv_aware policies of one configuration share. Nobody needs
// to configure it: the first policy creates it. It applies the parameters of
// the pools and keeps house among upstreams that are no longer seen.
type App struct {
	mu     sync.Mutex // guards pools while policies are provisioned
	pools  map[string]*poolUse
	logger *zap.Logger
	// storage keeps the seed of pools without a secret.
	storage seedStorage
	cancel  context.CancelFunc
	done    chan struct{}
}

// poolUse is what the policies of one configuration say of a pool.
type poolUse struct {
	params   poolParams
	first    *Policy     // the policy that named the pool first
	others   []*Policy   // that named it since
	where    string      // the proxy of that policy, for errors
	listed   []string    // dial addresses of static upstreams
	handlers int         // that name it
	applied  *poolConfig // once started
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "kv_aware",
		New: func() caddy.Module { return new(App) },
	}
}

// Provision sets up the app.
func (a *App) Provision(ctx caddy.Context) error {
	a.logger = ctx.Logger()
	a.storage = ctx.Storage()
	a.pools = make(map[string]*poolUse)
	return registerMetrics(ctx.GetMetricsRegistry())
}

// use makes a policy's demands on its pool known, and refuses those that
// contradict what another policy of the same configuration demands of it.
func (a *App) use(p *Policy) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	where := proxyName(p.proxy)
	use, known := a.pools[p.Pool]
	if known {
		use.others = append(use.others, p)
	} else {
		use = &poolUse{params: p.params, first: p, where: where}
		a.pools[p.Pool] = use
	}
	if option, one, other := use.params.difference(p.params); option != "" {
		return fmt.Errorf("%s of pool %q: the reverse_proxy to %s says %s, that to %s says %s: a pool has one; give both the same, or one of them a `pool` of its own",
			option, p.Pool, use.where, one, where, other)
	}
	use.handlers++
	if p.proxy != nil {
		use.listed = append(use.listed, dialsOf(p)...)
	}
	return nil
}

// dialsOf gives the dial strings of a policy's static upstreams.
func dialsOf(p *Policy) []string {
	dials := make([]string, len(p.proxy.Upstreams))
	for i, u := range p.proxy.Upstreams {
		dials[i] = u.Dial
	}
	return dials
}

// proxyName tells proxies apart in an error.
func proxyName(proxy *reverseproxy.Handler) string {
	switch {
	case proxy == nil:
		return "(unknown)"
	case len(proxy.Upstreams) == 0:
		return "dynamic upstreams"
	case len(proxy.Upstreams) == 1:
		return proxy.Upstreams[0].Dial
	}
	return fmt.Sprintf("%s and %d more", proxy.Upstreams[0].Dial, len(proxy.Upstreams)-1)
}

// Start applies the parameters of the pools and begins to keep house. It fails
// where engines were to connect to an address that is taken.
func (a *App) Start() error {
	var stored *hashKeys
	for name, use := range a.pools {
		keys := use.first.keys.Load()
		if keys == nil {
			if stored == nil {
				stored = keysOf(seedFrom(a.storage, seedTime, a.logger))
			}
			keys = stored
			use.first.keys.Store(keys)
			for _, p := range use.others {
				p.keys.Store(keys)
			}
		}
		use.applied = &poolConfig{params: use.params, keys: keys, dials: use.listed, explainer: use.first, members: append([]*Policy{use.first}, use.others...)}
		if err := use.follow(a.logger); err != nil {
			for _, use := range a.pools {
				if use.applied != nil {
					use.applied.events.release()
				}
			}
			return fmt.Errorf("kv_events of pool %q: %w", name, err)
		}
	}
	for name, use := range a.pools {
		use.first.pool.configure(use.applied)
		a.logger.Info("routing by load and KV cache",
			zap.String("pool", name),
			zap.String("objective", use.first.Objective),
			zap.Int("handlers", use.handlers),
			zap.String("tokenizer", use.params.tokenizer),
			zap.Int("block_size", use.params.blockSize),
			zap.String("cache_tokens", use.params.cacheShown()))
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	a.done = make(chan struct{})
	go a.keepHouse(ctx)
	return nil
}

// Stop ends the housekeeping, and takes back what Start applied if no later
// configuration has replaced it.
func (a *App) Stop() error {
	if a.cancel != nil {
		a.cancel()
		<-a.done
		for _, use := range a.pools {
			use.first.pool.withdraw(use.applied)
		}
	}
	return nil
}

// keepHouse lets go of upstreams that no configuration lists and no request has
// seen for upstreamExpiry, and writes the history of the pools.
func (a *App) keepHouse(ctx context.Context) {
	defer close(a.done)
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	point := time.NewTicker(historyStep)
	defer point.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			for _, use := range a.pools {
				use.first.pool.expire()
			}
		case <-point.C:
			for _, use := range a.pools {
				use.first.pool.remember()
			}
		}
	}
}

// Interface guards
var (
	_ caddy.App         = (*App)(nil)
	_ caddy.Provisioner = (*App)(nil)
)
