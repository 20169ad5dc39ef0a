// SPDX-License-Identifier: Apache-2.0

package kvaware

import "sync"

// Reasons for which what an upstream is believed to hold is withdrawn.
const (
	withdrawnRestarted  = "restarted" // its process has started anew
	withdrawnReset      = "reset"     // a request to it that empties its KV cache
	withdrawnAsleep     = "asleep"    // a request to it to give its memory away
	withdrawnNewWeights = "weights"   // a request to it that changes the model
	withdrawnByAdmin    = "admin"     // DELETE /kv_aware/index
	withdrawnRefused    = "refused"   // nothing listens there
)

// invalidations are who wants to know that what an upstream is believed to hold
// was withdrawn.
type invalidations struct {
	mu    sync.Mutex // guards fs
	fs    map[int]func(reason string)
	added int
}

// onInvalidate has f called each time that what u is believed to hold is withdrawn,
// until remove is called. F is called without a lock held, possibly for several
// reasons at once, on the goroutine of a request among others: it must not take long,
// but for withdrawnByAdmin, where it is waited for.
func (u *upstream) onInvalidate(f func(reason string)) (remove func()) {
	v := &u.invalidations
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fs == nil {
		v.fs = make(map[int]func(string))
	}
	id := v.added
	v.added++
	v.fs[id] = f
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.fs, id)
	}
}

func (v *invalidations) tell(reason string) {
	v.mu.Lock()
	fs := make([]func(string), 0, len(v.fs))
	for _, f := range v.fs {
		fs = append(fs, f)
	}
	v.mu.Unlock()
	for _, f := range fs {
		f(reason)
	}
}

// invalidate withdraws what one rank of an engine is believed to hold, and tells
// about how many blocks that was; it is not ok if the upstream has left the pool.
func (pl *pool) invalidate(u *upstream, reason string) (blocks int, ok bool) {
	if blocks, ok = pl.forget(u); !ok {
		return 0, false
	}
	if blocks > 0 {
		pl.metrics.invalidations.WithLabelValues(pl.name, u.address, reason).Inc()
	}
	u.invalidations.tell(reason)
	return blocks, true
}

// invalidateEngine is invalidate of all ranks of u's engine.
func (pl *pool) invalidateEngine(u *upstream, reason string) {
	u.engine.each(func(rank *upstream) { pl.invalidate(rank, reason) })
}

// forget drops what the index believes an upstream to hold. The pool's lock keeps
// the upstream's slot its own.
func (pl *pool) forget(u *upstream) (blocks int, ok bool) {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	if u.removed.Load() {
		return 0, false
	}
	blocks = pl.index.Stats(u.slot).Blocks
	pl.index.Forget(u.slot)
	return blocks, true
}
