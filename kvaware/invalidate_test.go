// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// withdrawals notes the reasons for which an upstream's blocks were withdrawn.
type withdrawals struct {
	mu      sync.Mutex
	reasons []string
}

func (w *withdrawals) add(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reasons = append(w.reasons, reason)
}

func (w *withdrawals) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.reasons)
}

func TestWhoeverFollowsAnUpstreamIsToldThatItsBlocksWereWithdrawn(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "", "transport http {\n\t\t\tkeepalive off\n\t\t}"))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("held", 200), true)))
	wantIdle(t)
	pl := defaultPool(t)
	u := pl.lookup(engine.Addr(), nil)
	var told, gone withdrawals
	defer u.onInvalidate(told.add)()
	u.onInvalidate(gone.add)()

	c.Admin("DELETE", "/kv_aware/index", "")
	if n := pl.index.Stats(u.slot).Blocks; n != 0 {
		t.Errorf("%d blocks are left", n)
	}
	engine.Close()
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("nobody listens", true)))
	if got := told.all(); !slices.Equal(got, []string{"admin", "refused"}) {
		t.Errorf("told %v", got)
	}
	if got := gone.all(); len(got) > 0 {
		t.Errorf("who no longer wanted to know was told %v", got)
	}
	_, _, metrics := c.Admin("GET", "/metrics", "")
	if !strings.Contains(metrics, `caddy_kv_aware_invalidations_total{pool="",reason="admin",upstream="`+engine.Addr()+`"} 1`) {
		t.Error("the withdrawal is not counted")
	}
}
