// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

// BenchmarkPublishToVisible tells how long it takes from an engine's publishing a
// block, over its socket, until a lookup finds it.
func BenchmarkPublishToVisible(b *testing.B) {
	engine := proxytest.NewEngine(b, nil)
	r := report(b, 0, 0)
	c := proxytest.Start(b, "", site(engine.Addr(), r.options(), ""))
	r.publish(storedIDs(0, someIDs(0, 1), ""))
	wantFollowed(b, c, 1)
	pl := defaultPool(b)
	reports, chains := pl.reported(), tokenize.NewChains(pl.keys.Load().chains)
	slot := pl.lookup(engine.Addr(), nil).slot
	held := make([]int32, pl.index.Slots())
	var took []time.Duration
	for i := 1; b.Loop(); i++ {
		ids := someIDs(i, 1)
		chain := []uint64{chains.Extend(chains.Root("", ""), ids)}
		start := time.Now()
		r.publish(storedIDs(i, ids, ""))
		clear(held)
		for held[slot] == 0 {
			runtime.Gosched()
			reports.Match(16, chain, held)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
