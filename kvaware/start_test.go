// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"net"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// Symptom: after a reload that failed because a port was taken, the pool of the
// configuration that went on serving had the failed one's parameters, and its
// upstreams counted as listed by nobody and left after an hour without requests.
func TestAConfigurationThatFailsToStartLeavesThePoolAsItWas(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	pl := defaultPool(t)
	before, explainer := pl.params, pl.explainer
	bad := site(proxytest.Refused(t), "block_size 32\ncache_tokens 1000\nmax_buffered 1000", "") +
		fmt.Sprintf("http://127.0.0.1:%d {\n\tbind 127.0.0.1\n\trespond x\n}\n", taken.Addr().(*net.TCPAddr).Port)
	for range 8 { // apps start in no particular order
		if err := c.TryReload("", bad); err == nil {
			t.Fatal("the configuration was taken")
		}
	}
	if pl.params != before || pl.explainer != explainer || pl.budget.limit.Load() != DefaultMaxBuffered {
		t.Errorf("the pool's parameters were %+v and are %+v", before, pl.params)
	}
	for _, u := range pl.all() {
		if ours := u.address == engine.Addr(); u.listed != ours {
			t.Errorf("%s: listed is %v", u.address, u.listed)
		}
		if n := pl.index.Stats(u.slot).Capacity; n != before.capacityBlocks() {
			t.Errorf("%s has room for %d blocks", u.address, n)
		}
	}
	c.Reload("", site(engine.Addr(), "block_size 32", ""))
	if pl.params.blockSize != 32 {
		t.Errorf("a configuration that started has blocks of %d tokens", pl.params.blockSize)
	}
	eventually(t, "the old one is let go of", func() bool {
		pl.mu.RLock()
		defer pl.mu.RUnlock()
		return pl.applied.replaced == nil
	})
}
