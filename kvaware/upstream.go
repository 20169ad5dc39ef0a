// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/route"
)

// upstream is what the pool keeps of one network address, or of one data-parallel
// rank of the engine there: each rank has a KV cache and a queue of its own.
type upstream struct {
	// What each request reads of all upstreams comes first, within a cache line.

	// engine is rank 0 of the same address, itself where it is that.
	engine *upstream
	// ranks are all ranks, nil if there is but one; of rank 0 only.
	ranks  atomic.Pointer[rankSet]
	routed *route.Upstream
	// lastSeen is when a request last could have gone there, in Unix
	// nanoseconds.
	lastSeen atomic.Int64
	removed  atomic.Bool // no longer in the pool's maps
	engineTold

	address string // with a rank beyond 0 behind it, as in 10.0.0.1:8000#1
	rank    int
	heeds   rankVotes        // whether the engine heeds the rank that it is told; of rank 0 only
	load    *ledger.Upstream // of routed
	slot    prefix.Holder    // of routed
	listed  bool             // guarded by pool.mu: a configuration names it
	fixed   bool             // guarded by pool.mu: a dial string without placeholders names it
	dropped bool             // guarded by pool.mu: the configuration applied last names it no more
	roles   atomic.Bool      // sends the role-only chunk on its engine's first output
	reports reporting        // how it reports cached tokens
	labels  *upstreamMetrics

	invalidations invalidations
}

// each calls f for all ranks of the engine that u is rank 0 of.
func (u *upstream) each(f func(rank *upstream)) {
	ranks := u.ranks.Load()
	if ranks == nil {
		f(u)
		return
	}
	for _, rank := range ranks.upstreams {
		f(rank)
	}
}

// maxFromPlaceholders is how many upstreams there may be for one more to be made
// of a dial string with placeholders, which may take a client's word for the
// address. Others are as many as configurations and name servers say.
const maxFromPlaceholders = 4096

// lookup gives the upstream behind a dial string: rank 0 of the engine there. It is
// nil when the string is no valid address once its placeholders are replaced
// (dialling will then fail as well, and say why), or when there are too many.
func (pl *pool) lookup(dial string, repl *caddy.Replacer) *upstream {
	pl.mu.RLock()
	u := pl.byDial[dial]
	pl.mu.RUnlock()
	if u != nil {
		return u
	}
	fixed := !strings.Contains(dial, "{")
	resolved := dial
	if !fixed && repl != nil {
		resolved = repl.ReplaceKnown(dial, "")
	}
	if strings.Contains(resolved, "{") {
		return nil
	}
	addr, err := caddy.ParseNetworkAddress(resolved)
	if err != nil || addr.PortRangeSize() != 1 {
		return nil
	}
	address := poolAddress(addr)
	u, isNew := pl.at(address, dial, fixed)
	if isNew {
		pl.pollers.seen(pl, u)
	}
	return u
}

// at gives the upstream of a network address, and makes it if it is not there. New
// is one that may be asked about itself from now on.
func (pl *pool) at(address, dial string, fixed bool) (u *upstream, isNew bool) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	u = pl.byAddress[address]
	if u == nil {
		if len(pl.byAddress) >= maxFromPlaceholders && !fixed {
			return nil, false
		}
		u = pl.enter(address, 0, nil)
		pl.rankOne(u)
	}
	if fixed {
		pl.byDial[dial] = u
		isNew = !u.fixed
		u.fixed, u.dropped = true, false
		pl.followed.changed()
	}
	return u, isNew
}

// poolAddress is what the pool calls the upstream at a network address of one port.
func poolAddress(addr caddy.NetworkAddress) string {
	address := addr.JoinHostPort(0)
	if addr.Network != "" && addr.Network != "tcp" {
		address = addr.Network + "/" + address
	}
	return address
}

// enter makes an upstream. pl.mu is held.
func (pl *pool) enter(address string, rank int, engine *upstream) *upstream {
	routed := pl.router.Add(pl.params.capacityBlocks())
	pl.index.SetSlots(routed.Slot, pl.params.slots, pl.params.contextBlocks())
	u := &upstream{
		address: address,
		rank:    rank,
		engine:  engine,
		routed:  routed,
		load:    routed.Load,
		slot:    routed.Slot,
		labels:  pl.metrics.upstream(pl.name, address),
	}
	if engine == nil {
		u.engine = u
	} else {
		u.listed = engine.listed
	}
	if pl.params.cacheAuto {
		pl.index.SetCapacity(u.slot, pl.params.blocksOf(u)) // it is empty yet
	}
	u.lastSeen.Store(pl.now().UnixNano())
	pl.byAddress[address] = u
	pl.followed.changed()
	return u
}

// rank gives every engine as many ranks as the parameters say. pl.mu is held.
func (pl *pool) rank() {
	var engines []*upstream
	for _, u := range pl.byAddress {
		if u.rank == 0 {
			engines = append(engines, u)
		}
	}
	for _, u := range engines {
		pl.rankOne(u)
	}
}

// rankOne gives an engine, of which u is rank 0, as many ranks as the parameters
// say. pl.mu is held.
func (pl *pool) rankOne(u *upstream) {
	var have []*upstream
	if ranks := u.ranks.Load(); ranks != nil {
		have = ranks.upstreams
	} else {
		have = []*upstream{u}
	}
	wanted := max(1, pl.params.ranks)
	if len(have) == wanted {
		return
	}
	ranks := new(rankSet)
	for i, rank := range have {
		if i < wanted {
			ranks.add(rank)
		} else {
			pl.leave(rank)
		}
	}
	for i := len(have); i < wanted; i++ {
		ranks.add(pl.enter(u.address+"#"+strconv.Itoa(i), i, u))
	}
	if wanted == 1 {
		ranks = nil
	}
	u.ranks.Store(ranks)
}

// leave takes an upstream out of the pool, without its dial strings. Requests that
// run there keep what they need. pl.mu is held.
func (pl *pool) leave(u *upstream) {
	u.removed.Store(true)
	pl.followed.changed()
	pl.index.Remove(u.slot)
	delete(pl.byAddress, u.address)
	u.labels.forget()
}

// letGo has upstreams that are listed no more treated as if nobody had said that they
// are there, until a request sees them again. pl.mu is held.
func (pl *pool) letGo() (gone []*upstream) {
	for _, u := range pl.byAddress {
		if u.dropped && u.rank == 0 {
			u.fixed, u.dropped = false, false
			gone = append(gone, u)
		}
	}
	if len(gone) > 0 {
		maps.DeleteFunc(pl.byDial, func(_ string, u *upstream) bool { return !u.fixed })
		pl.followed.changed()
	}
	return gone
}

// expire lets go of engines that no configuration lists, that nobody has seen
// for upstreamExpiry, and where nothing runs.
func (pl *pool) expire() {
	if left := pl.leaving(); len(left) > 0 {
		for _, u := range left {
			pl.pollers.left(u)
		}
		pl.indexModels()
	}
}

func (pl *pool) leaving() (left []*upstream) {
	limit := pl.now().Add(-upstreamExpiry).UnixNano()
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for _, u := range pl.byAddress {
		if u.rank > 0 || u.listed || u.lastSeen.Load() > limit {
			continue
		}
		live := 0
		u.each(func(rank *upstream) { live += rank.load.Live() })
		if live > 0 {
			continue
		}
		u.each(pl.leave)
		left = append(left, u)
		for dial, other := range pl.byDial {
			if other == u {
				delete(pl.byDial, dial)
			}
		}
	}
	return left
}

// fixed reports whether a dial string means the same upstream in every request.
func (pl *pool) fixed(dial string) bool {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	return pl.byDial[dial] != nil
}

// all gives the upstreams, every rank, in no particular order.
func (pl *pool) all() []*upstream {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	us := make([]*upstream, 0, len(pl.byAddress))
	for _, u := range pl.byAddress {
		us = append(us, u)
	}
	return us
}

// state reads what an upstream carries and holds. It is not ok when the upstream
// has left the pool: its slot of the index may then be another's.
func (pl *pool) state(u *upstream) (load ledger.Snapshot, held prefix.Stats, ok bool) {
	load, held = pl.ledger.Snapshot(u.load), pl.index.Stats(u.slot)
	return load, held, !u.removed.Load()
}

// upstreamExpiry is how long an upstream that no configuration lists is
// remembered after a request last saw it.
const upstreamExpiry = time.Hour
