// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// clocked is an index whose clock the test moves.
func clocked() (x *Index, now *time.Duration) {
	now = new(time.Duration)
	return New(func() time.Duration { return *now }), now
}

func wantFresh(t *testing.T, x *Index, chain []uint64, want ...int32) {
	t.Helper()
	got := make([]int32, x.Slots())
	x.Find(0, chain, &Found{Held: got, Fresh: true})
	if !slices.Equal(got, want) {
		t.Fatalf("fresh %v, want %v", got, want)
	}
}

func TestPredictedBlocksStayFreshUntilTheFirstTokenAndSomeTimeBeyond(t *testing.T) {
	x, now := clocked()
	events, guessed := x.Add(100), x.Add(100)
	x.SetReported(events, true)
	chain := prompt([2]int{1, 10})
	p := x.Pin(events, 0, chain)
	serve(x, guessed, chain, 0)
	*now += time.Hour // it waits in the engine's queue
	wantFresh(t, x, chain, 10, 10)
	x.Confirm(&p)
	*now += DefaultPredictedTTL
	wantFresh(t, x, chain, 10, 10)
	*now += time.Second
	wantFresh(t, x, chain, 0, 10)
	wantHeld(t, x, chain, 10, 10)
	x.Done(&p)
	wantFresh(t, x, chain, 0, 10)
	x.SetReported(events, false)
	wantFresh(t, x, chain, 10, 10)
}

func TestARequestWithoutAFirstTokenKeepsItsBlocksFreshUntilItEndsAndSomeTimeBeyond(t *testing.T) {
	x, now := clocked()
	h := x.Add(100)
	x.SetReported(h, true)
	x.SetPredictedTTL(2 * time.Second)
	chain := prompt([2]int{1, 10})
	p := x.Pin(h, 0, chain)
	*now += time.Hour
	x.Done(&p)
	*now += 2 * time.Second
	wantFresh(t, x, chain, 10)
	*now += time.Second
	wantFresh(t, x, chain, 0)
}

// The prompt's stale part is what a shorter one did not refresh.
func TestAStaleTailLeavesAFreshHead(t *testing.T) {
	x, now := clocked()
	h := x.Add(100)
	x.SetReported(h, true)
	serve(x, h, prompt([2]int{1, 10}, [2]int{2, 10}), 0)
	*now += time.Minute
	p := x.Pin(h, 0, prompt([2]int{1, 10}, [2]int{3, 10}))
	wantFresh(t, x, prompt([2]int{1, 10}, [2]int{2, 10}), 10)
	wantFresh(t, x, prompt([2]int{1, 10}, [2]int{3, 10}), 20)
	x.Abort(&p) // it was never there
	wantFresh(t, x, prompt([2]int{1, 10}, [2]int{3, 10}), 0)
	wantHeld(t, x, prompt([2]int{1, 10}, [2]int{3, 10}), 10)
}

// An engine that cleared its cache still reports.
func TestForgettingKeepsAnUpstreamReporting(t *testing.T) {
	x, now := clocked()
	h := x.Add(100)
	x.SetReported(h, true)
	serve(x, h, prompt([2]int{1, 10}), 0)
	x.Forget(h)
	wantFresh(t, x, prompt([2]int{1, 10}), 0)
	serve(x, h, prompt([2]int{1, 10}), 0)
	wantFresh(t, x, prompt([2]int{1, 10}), 10)
	*now += time.Minute
	wantFresh(t, x, prompt([2]int{1, 10}), 0)
	x.Remove(h)
	if again := x.Add(100); again != h {
		t.Fatalf("slot %d", again)
	}
	serve(x, h, prompt([2]int{1, 10}), 0)
	*now += time.Minute
	wantFresh(t, x, prompt([2]int{1, 10}), 10)
}

// 8192 blocks of 64 upstreams that report: all in one span, or in 200 of which
// none is fresh.
func BenchmarkFindFresh(b *testing.B) {
	for _, turns := range []int{1, 200} {
		x, now := clocked()
		long := longPrompt()
		for h := range Holder(64) {
			x.Add(maxCapacity)
			x.SetReported(h, true)
			for i := range turns {
				serve(x, h, long[:len(long)/turns*(i+1)], 0)
			}
		}
		*now += time.Hour
		b.Run(fmt.Sprintf("turns=%d", turns), func(b *testing.B) {
			dst := make([]int32, x.Slots())
			b.ReportAllocs()
			for b.Loop() {
				x.Find(0, long, &Found{Held: dst, Fresh: true})
			}
		})
	}
}
