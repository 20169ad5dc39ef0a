// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// enginePollers ask the engines of a pool about themselves: one goroutine for each
// engine that a configuration lists or a request has seen, while a configuration
// with the option `engine` is applied. A reload leaves them running and changes
// what they ask, and over which proxy's transport.
//
// Upstreams that are made of a request's placeholders are never asked: their
// addresses may be a client's word, and headers with keys may go along.
type enginePollers struct {
	mu      sync.Mutex  // guards the fields below
	conf    *poolConfig // applied, nil if there is none with the option
	running map[*upstream]*enginePoller
}

// poll applies a configuration to the pollers; nil, or one without the option, ends
// them, and returns when they have ended.
func (pl *pool) poll(conf *poolConfig) {
	e := &pl.pollers
	if conf.scraping() == nil {
		conf = nil
	}
	via := make(map[*upstream]*Policy)
	if conf != nil {
		for _, p := range conf.members {
			if p.proxy == nil {
				continue
			}
			for u := range pl.resolved(dialsOf(p)) {
				if via[u] == nil {
					via[u] = p
				}
			}
		}
	}
	e.mu.Lock()
	e.conf = conf
	e.mu.Unlock()
	var ended []*enginePoller
	engines := pl.polled() // those that come from here on see the new configuration
	e.mu.Lock()
	for u, p := range e.running {
		if conf == nil || !slices.Contains(engines, u) {
			p.cancel()
			delete(e.running, u)
			ended = append(ended, p)
		}
	}
	for _, u := range engines {
		if conf != nil && !u.removed.Load() {
			e.watch(pl, u).claim(via[u])
		}
	}
	e.mu.Unlock()
	for _, p := range ended {
		<-p.done
	}
	if conf == nil {
		for _, u := range pl.all() {
			u.unlearn()
		}
	}
}

// polled gives the engines that may be asked.
func (pl *pool) polled() (engines []*upstream) {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	for _, u := range pl.byAddress {
		if u.rank == 0 && (u.listed || u.fixed) {
			engines = append(engines, u)
		}
	}
	return engines
}

// watch starts to ask an engine if nobody does. e.mu is held, and conf set.
func (e *enginePollers) watch(pl *pool, u *upstream) *enginePoller {
	if p := e.running[u]; p != nil {
		return p
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &enginePoller{pool: pl, up: u, cancel: cancel, wake: make(chan struct{}, 1), done: make(chan struct{})}
	if e.running == nil {
		e.running = make(map[*upstream]*enginePoller)
	}
	e.running[u] = p
	go p.run(ctx)
	return p
}

// seen starts to ask an engine that has just entered the pool.
func (e *enginePollers) seen(pl *pool, u *upstream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conf != nil && !u.removed.Load() {
		e.watch(pl, u).claim(nil)
	}
}

// left ends what asks an engine that has left the pool.
func (e *enginePollers) left(u *upstream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.running[u]; p != nil {
		p.cancel()
		delete(e.running, u)
	}
}

// claimFor has an engine that no proxy lists asked over the transport of a policy
// to which it was a candidate. Policies of configurations that were replaced have
// no say.
func (e *enginePollers) claimFor(u *upstream, by *Policy) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.running[u]; p != nil && p.via.Load() == nil && e.conf != nil && slices.Contains(e.conf.members, by) {
		p.claim(by)
	}
}

// kick has an engine asked now.
func (e *enginePollers) kick(u *upstream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.running[u]; p != nil {
		p.kick()
	}
}

func (e *enginePollers) settings() *scraping {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.conf.scraping()
}

// scraping gives what a configuration says of asking engines; nil if it says nothing.
func (conf *poolConfig) scraping() *scraping {
	if conf == nil || conf.explainer == nil {
		return nil
	}
	return conf.explainer.scraping
}

// enginePoller asks one engine.
type enginePoller struct {
	pool   *pool
	up     *upstream // rank 0
	cancel context.CancelFunc
	wake   chan struct{}
	done   chan struct{}
	// via is the policy over whose proxy's transport it goes; nil until one is known.
	via atomic.Pointer[Policy]

	engineAnswers // of the goroutine alone
}

// claim sets whose transport is used; nil waits for the first request.
func (p *enginePoller) claim(by *Policy) {
	p.via.Store(by)
	p.up.unclaimed.Store(by == nil)
	if by != nil {
		p.kick()
	}
}

func (p *enginePoller) kick() {
	select {
	case p.wake <- struct{}{}:
	default: // it is already to ask
	}
}

// run asks until ctx ends: soon after it was told whom over, and then at intervals
// that differ a little, so that engines are not asked all at once.
func (p *enginePoller) run(ctx context.Context) {
	defer close(p.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-p.wake:
			if !sleepCtx(ctx, time.Duration(rand.Int64N(int64(maxFirstDelay)))) {
				return
			}
		}
		s, by := p.pool.pollers.settings(), p.via.Load()
		if s == nil {
			return
		}
		if by != nil {
			p.ask(ctx, by, s)
		}
		timer.Reset(s.every*9/10 + time.Duration(rand.Int64N(int64(s.every)/5+1)))
	}
}

// maxFirstDelay spreads the questions to all engines of a new configuration.
const maxFirstDelay = 50 * time.Millisecond

// sleepCtx waits, and reports whether ctx still lives.
func sleepCtx(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
