// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"sync"
	"sync/atomic"
)

// adapterNames are names of LoRA adapters that engines' events have told. They only
// become more, up to maxAdapterNames. The zero value has none.
type adapterNames struct {
	mu    sync.Mutex                          // one at a time adds
	names atomic.Pointer[map[string]struct{}] // does not change once it is there
}

// maxAdapterNames is far more than an engine serves.
const maxAdapterNames = 4096

func (a *adapterNames) has(name string) bool {
	names := a.names.Load()
	if names == nil {
		return false
	}
	_, has := (*names)[name]
	return has
}

func (a *adapterNames) add(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.has(name) {
		return
	}
	var known map[string]struct{}
	if names := a.names.Load(); names != nil {
		known = *names
	}
	if len(known) >= maxAdapterNames {
		return
	}
	more := make(map[string]struct{}, len(known)+1)
	for name := range known {
		more[name] = struct{}{}
	}
	more[name] = struct{}{}
	a.names.Store(&more)
}

// isAdapter reports whether a LoRA adapter of that name is known: from the lists of
// models, or from what engines report to hold. It takes no lock.
func (pl *pool) isAdapter(name string) bool {
	if m := pl.served.Load(); m != nil {
		if _, is := m.adapters[name]; is {
			return true
		}
	}
	f := pl.followed.current.Load()
	return f != nil && f.adapters.has(name)
}
