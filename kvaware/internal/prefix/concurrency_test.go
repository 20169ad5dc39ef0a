// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"math/rand/v2"
	"sync"
	"testing"
)

// Everything at once: requests that run, upstreams that come, go, lose their
// cache and change their size, and readers that must never see a bound broken.
func TestConcurrentUseKeepsBoundsAndEndsAtNothing(t *testing.T) {
	x := unclocked()
	const upstreams, rounds = 8, 3000
	for range upstreams {
		x.Add(500)
	}
	var wg sync.WaitGroup
	run := func(seed uint64, f func(r *rand.Rand)) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for range rounds {
				f(r)
			}
		})
	}
	randomPrompt := func(r *rand.Rand) []uint64 {
		return prompt([2]int{1, 20}, [2]int{r.IntN(3), r.IntN(20)}, [2]int{r.IntN(100), r.IntN(20)})
	}
	for seed := range uint64(3) {
		run(seed, func(r *rand.Rand) {
			p := x.Pin(Holder(r.IntN(upstreams)), 0, randomPrompt(r))
			x.Grow(&p, r.IntN(50))
			if r.IntN(2) == 0 {
				x.Confirm(&p)
			}
			x.Grow(&p, r.IntN(100))
			var ends sync.WaitGroup // who comes first wins, the other does nothing
			ends.Go(func() { x.Done(&p) })
			ends.Go(func() { x.Abort(&p) })
			ends.Wait()
		})
	}
	run(10, func(r *rand.Rand) {
		chain := randomPrompt(r)
		dst := make([]int32, x.Slots())
		x.Match(0, chain, dst)
		for h, n := range dst {
			if n < 0 || int(n) > len(chain) {
				t.Errorf("upstream %d holds %d of %d blocks", h, n, len(chain))
			}
			st := x.Stats(Holder(h))
			if st.Blocks > st.Capacity || st.Blocks != st.Pinned+st.Idle+st.Generating+st.Output {
				t.Errorf("upstream %d: %+v", h, st)
			}
		}
	})
	run(20, func(r *rand.Rand) {
		h := Holder(r.IntN(upstreams))
		switch r.IntN(30) {
		case 0:
			x.Forget(h)
		case 1:
			x.Remove(h)
			x.Add(500)
		case 2, 3:
			x.SetCapacity(h, r.IntN(700))
		default:
			x.Size()
		}
	})
	wg.Wait()
	if err := x.check(); err != nil {
		t.Fatal(err)
	}
	for h := range Holder(x.Slots()) {
		if st := x.Stats(h); st.Pinned != 0 || st.Generating != 0 {
			t.Errorf("nothing runs, yet upstream %d has %+v", h, st)
		}
		x.Remove(h)
	}
	for x.Size().Doomed > 0 {
		x.Remove(x.Add(0))
	}
	if sz := x.Size(); sz.Nodes != 0 || sz.Spans != 0 || sz.Blocks != 0 {
		t.Errorf("%+v left", sz)
	}
}
