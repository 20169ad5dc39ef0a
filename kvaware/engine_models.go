// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"slices"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"
)

// servedModels says which engines serve which models. It does not change: another
// one takes its place when an engine lists others.
type servedModels struct {
	listed slots            // engines whose models are known
	by     map[string]slots // by name; aliases are under the name they stand for
	// adapters are the names that requests may use for LoRA adapters.
	adapters map[string]struct{}
}

// slots is a set of engines, by the slot of their rank 0.
type slots []uint64

func (s slots) has(h prefix.Holder) bool {
	word := int(h / 64)
	return word < len(s) && s[word]&(1<<(h%64)) != 0
}

func (s slots) with(h prefix.Holder) slots {
	for len(s) <= int(h/64) {
		s = append(s, 0)
	}
	s[h/64] |= 1 << (h % 64)
	return s
}

// indexModels makes the lists of all engines count.
func (pl *pool) indexModels() {
	pl.indexing.Lock()
	defer pl.indexing.Unlock()
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	if s := pl.applied.scraping(); s == nil || s.models == "" {
		pl.served.Store(nil) // engines that nobody lists any more may have said so before
		return
	}
	aliases := pl.explainer.aliases
	m := &servedModels{by: make(map[string]slots), adapters: make(map[string]struct{})}
	for _, u := range pl.byAddress {
		if u.rank != 0 {
			continue
		}
		f := u.facts.Load()
		if f == nil || f.models == nil || f.models.Cut {
			continue
		}
		m.listed = m.listed.with(u.slot)
		f.models.Names(func(name string, adapter bool) {
			stands := aliases.nameOf(name)
			m.by[stands] = m.by[stands].with(u.slot)
			if adapter {
				m.adapters[name] = struct{}{}
			}
		})
	}
	if m.listed == nil {
		m = nil
	}
	pl.served.Store(m)
}

// nameOf gives the name that stands for a model.
func (a modelAliases) nameOf(model string) string {
	if name, isAlias := a[model]; isAlias {
		return name
	}
	return model
}

// Why an upstream is left out.
const (
	excludedByModel = "model"  // it is known to serve others only
	excludedAsleep  = "asleep" // it has given its memory away
)

// narrow leaves out, as long as one remains, candidates that are known not to serve
// the request's model, and of the others those that sleep. A request that wakes
// engines up, in whole or in part, goes to one that sleeps.
func (c *candidates) narrow(rt *routing) {
	pl := rt.policy.pool
	now := pl.now().UnixNano()
	switch {
	case rt.control != nil && rt.control.rouses:
		c.keep(func(u *upstream) bool { return u.asleep(now) })
		return
	case !rt.generates:
		return
	}
	if m := pl.served.Load(); m != nil && rt.model != "" {
		serving, some := m.by[rt.model]
		if some {
			some = c.keep(func(u *upstream) bool { return serving.has(u.slot) || !m.listed.has(u.slot) })
		}
		if !some && !rt.missed {
			rt.missed = true
			pl.metrics.unlisted.WithLabelValues(pl.name).Inc()
		}
	}
	c.keep(func(u *upstream) bool { return !u.asleep(now) })
}

// addExcluded lists the upstreams that were left out.
func (e *explanation) addExcluded(rt *routing, all, kept []*upstream) {
	now := rt.policy.pool.now().UnixNano()
	for _, u := range all {
		if slices.Contains(kept, u) {
			continue
		}
		why := excludedByModel
		if u.engine.asleep(now) {
			why = excludedAsleep
		}
		e.Upstreams = append(e.Upstreams, explainedUpstream{Address: u.address, Excluded: why})
	}
}

// keep leaves out the candidates whose engine does not satisfy a condition, if some
// do, and reports whether some do.
func (c *candidates) keep(satisfies func(engine *upstream) bool) bool {
	some, all := false, true
	for _, u := range c.known {
		if satisfies(u.engine) {
			some = true
		} else {
			all = false
		}
	}
	if !some || all {
		return some
	}
	c.narrowed = true
	n := 0
	for i, u := range c.known {
		if satisfies(u.engine) {
			c.known[n], c.choice.Candidates[n] = u, c.choice.Candidates[i]
			if len(c.upstreams) > 0 { // there are none when a choice is explained
				c.upstreams[n] = c.upstreams[i]
			}
			n++
		}
	}
	c.upstreams = c.upstreams[:min(n, len(c.upstreams))]
	c.known, c.choice.Candidates = c.known[:n], c.choice.Candidates[:n]
	return true
}
