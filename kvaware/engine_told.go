// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"math"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/enginefacts"
)

// engineTold is what is known of an engine beyond the requests sent to it. All but
// observed is of rank 0 alone.
type engineTold struct {
	// unclaimed says that it is to be asked over the transport of a proxy that is
	// not known yet.
	unclaimed atomic.Bool
	noCache   atomic.Bool // prefixes do not stay in its KV cache
	// asleepUntil is when it is taken to be awake again, in Unix nanoseconds; 0 if
	// it is.
	asleepUntil atomic.Int64
	// marked is when a request to it last said whether it sleeps, in Unix
	// nanoseconds: what was asked before is no news after that.
	marked atomic.Int64

	facts atomic.Pointer[engineFacts] // nil until it was asked
	// observed is how many tokens its events show to fit into its cache; 0 if they
	// do not say. Of each rank.
	observed atomic.Int64
}

// engineFacts is what an engine said. It does not change.
type engineFacts struct {
	enginefacts.Facts
	models   *enginefacts.Models // nil if they are not known
	answered time.Time           // when it last said anything
	trouble  string              // why it said nothing the last time, "" if it did
}

// unconfirmedSleep is how long an engine is taken to sleep because a request told
// it to, where it says nothing of it itself.
const unconfirmedSleep = 10 * time.Minute

func (t *engineTold) asleep(now int64) bool {
	until := t.asleepUntil.Load()
	return until > 0 && now < until
}

// mark takes in that a request told the engine to sleep or to wake up.
func (t *engineTold) mark(asleep bool, now time.Time) {
	t.marked.Store(now.UnixNano())
	if asleep {
		t.asleepUntil.Store(now.Add(unconfirmedSleep).UnixNano())
	} else {
		t.asleepUntil.Store(0)
	}
}

// unlearn forgets what the engine said of itself.
func (t *engineTold) unlearn() {
	t.facts.Store(nil)
	t.noCache.Store(false)
	if t.asleepUntil.Load() == math.MaxInt64 {
		t.asleepUntil.Store(0)
	}
}

// awakeSince takes in what the engine, asked at a time, said of itself.
func (t *engineTold) awakeSince(awake enginefacts.Told, asked time.Time) {
	if asked.UnixNano() <= t.marked.Load() {
		return
	}
	switch awake {
	case enginefacts.Yes:
		t.asleepUntil.Store(0)
	case enginefacts.No:
		t.asleepUntil.Store(math.MaxInt64)
	}
}

// told takes in what an engine said of itself.
func (pl *pool) told(u *upstream, f *engineFacts, log *zap.Logger) {
	before := u.facts.Swap(f)
	if before == nil {
		before = new(engineFacts)
	}
	u.noCache.Store(f.PrefixCaching == enginefacts.No)
	if f.KVTokens != before.KVTokens || f.Engines != before.Engines {
		pl.resizeEngine(u)
	}
	if f.models != before.models {
		pl.indexModels()
	}
	pl.mu.RLock()
	params := pl.params
	pl.mu.RUnlock()
	if f.BlockSize > 0 {
		u.engine.each(func(rank *upstream) { rank.routed.SetEngineBlock(f.BlockSize) })
	}
	if f.BlockSize > 0 && f.BlockSize != before.BlockSize && params.blockSize%f.BlockSize != 0 {
		log.Warn("the engine's KV blocks are of another size: what it reuses of a prompt is misjudged by up to a block; set block_size to the engine's",
			zap.String("upstream", u.address), zap.Int("engine_block_size", f.BlockSize), zap.Int("block_size", params.blockSize))
	}
	if f.PrefixCaching == enginefacts.No && before.PrefixCaching != enginefacts.No {
		log.Warn("prefix caching is off in the engine: it gets no credit for prompts that it has computed before",
			zap.String("upstream", u.address))
	}
	if f.Engine != before.Engine || f.Capacity() != before.Capacity() {
		log.Info("the engine told of itself",
			zap.String("upstream", u.address), zap.String("engine", f.Engine),
			zap.Int64("kv_tokens", f.KVTokens), zap.Int("engines", f.Engines), zap.Int("block_size", f.BlockSize))
	}
}

// observedCapacity takes in how many tokens an upstream's events show to fit into
// its cache, as it evicts beyond them; 0 takes it back. With `cache_tokens auto` it
// lowers what the engine says, which has been wrong by factors.
func (pl *pool) observedCapacity(u *upstream, tokens int64) {
	if u.observed.Swap(max(0, tokens)) != tokens {
		pl.resize([]*upstream{u})
	}
}

// Where the capacity of an upstream's cache is from.
const (
	capacityConfigured = "configuration"
	capacityTold       = "engine"
	capacityObserved   = "events"
)

// capacityOf gives the tokens that fit into an upstream's cache, and from where
// that is known.
func (p poolParams) capacityOf(u *upstream) (tokens int64, source string) {
	tokens, source = p.cacheTokens, capacityConfigured
	if !p.cacheAuto {
		return tokens, source
	}
	if f := u.engine.facts.Load(); f != nil && f.KVTokens > 0 {
		tokens, source = f.KVTokens, capacityTold
		if p.ranks <= 1 {
			tokens = f.Capacity() // all of its ranks are one upstream
		}
	}
	if seen := u.observed.Load(); seen > 0 && seen < tokens {
		tokens, source = seen, capacityObserved
	}
	return tokens, source
}

func (p poolParams) blocksOf(u *upstream) int {
	tokens, _ := p.capacityOf(u)
	return int(max(1, min(tokens/int64(p.blockSize), math.MaxInt32/2)))
}

// resizeEngine gives the caches of all ranks of an engine their capacity.
func (pl *pool) resizeEngine(u *upstream) {
	var ranks []*upstream
	u.engine.each(func(rank *upstream) { ranks = append(ranks, rank) })
	pl.resize(ranks)
}

// resize gives caches the capacity that is known now. It is done without pl.mu,
// since evicting what no longer fits may take a while and requests look upstreams
// up meanwhile. Where a slot has changed hands, its new upstream gets its own.
func (pl *pool) resize(us []*upstream) {
	pl.resizing.Lock()
	defer pl.resizing.Unlock()
	for _, u := range us {
		for u != nil {
			pl.mu.RLock()
			blocks := pl.params.blocksOf(u)
			pl.mu.RUnlock()
			pl.index.SetCapacity(u.slot, blocks)
			if !u.removed.Load() {
				break
			}
			u = pl.atSlot(u)
		}
	}
}

// atSlot gives the upstream that has the slot of one that left, or nil.
func (pl *pool) atSlot(left *upstream) *upstream {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	for _, u := range pl.byAddress {
		if u.slot == left.slot {
			return u
		}
	}
	return nil
}
