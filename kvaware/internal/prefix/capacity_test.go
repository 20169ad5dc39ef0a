// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"math"
	"testing"
)

func TestCapacityFallsByEvictingAndRises(t *testing.T) {
	x := unclocked()
	h := x.Add(10000)
	for i := range 1000 {
		serve(x, h, prompt([2]int{10 + i, 5}), 2)
	}
	x.SetCapacity(h, 100)
	wantStats(t, x, h, Stats{Capacity: 100, Blocks: 100, Idle: 72, Output: 28, Evicted: 6900})
	wantHeld(t, x, prompt([2]int{1009, 5}), 5)
	x.SetCapacity(h, 200)
	serve(x, h, prompt([2]int{1, 100}), 0)
	wantHeld(t, x, prompt([2]int{1009, 5}), 5)
	x.SetCapacity(h, -1)
	wantStats(t, x, h, Stats{Evicted: 7100})
	x.SetCapacity(h, math.MaxInt)
	if got := x.Stats(h).Capacity; got != maxCapacity {
		t.Errorf("capacity %d, want %d", got, maxCapacity)
	}
	x.held(t, nil)
}

func TestCapacityBelowWhatRunsFallsAsRequestsEnd(t *testing.T) {
	x := unclocked()
	h := x.Add(100)
	p, q := x.Pin(h, 0, prompt([2]int{1, 30})), x.Pin(h, 0, prompt([2]int{2, 20}))
	serve(x, h, prompt([2]int{3, 20}), 0)
	x.SetCapacity(h, 10)
	wantStats(t, x, h, Stats{Capacity: 50, Blocks: 50, Pinned: 50, Evicted: 20})
	r := x.Pin(h, 0, prompt([2]int{3, 20}))
	x.Grow(&r, 4)
	wantHeld(t, x, prompt([2]int{3, 20}), 0)
	x.Done(&p)
	wantStats(t, x, h, Stats{Capacity: 20, Blocks: 20, Pinned: 20, Evicted: 50})
	x.Done(&q)
	wantStats(t, x, h, Stats{Capacity: 10, Blocks: 10, Idle: 10, Evicted: 60})
	x.Done(&r)
	x.held(t, nil)
}

// Between two chunks of SetCapacity others go on, and must not fill again what
// it frees.
func TestCapacityFallsWhileOthersUseTheIndex(t *testing.T) {
	x := unclocked()
	h := x.Add(10000)
	for i := range 2000 {
		serve(x, h, prompt([2]int{10 + i, 5}), 0)
	}
	c := x.want(h, 100)
	x.held(t, nil)
	for more, i := true, 0; more; i++ {
		more = x.shrink(c)
		before := x.Stats(h)
		serve(x, h, prompt([2]int{5000 + i, 40}), 0)
		p := x.Pin(h, 0, prompt([2]int{9000 + i, 500}))
		if st := x.Stats(h); st.Pinned > 100 || st.Blocks > before.Blocks {
			t.Fatalf("%+v after %+v", st, before)
		}
		x.Abort(&p)
		x.held(t, nil)
	}
	if st := x.Stats(h); st.Capacity != 100 {
		t.Errorf("%+v", st)
	}
	c = x.want(h, 10)
	x.Forget(h)
	if x.shrink(c) {
		t.Error("a forgotten cache has more to evict")
	}
}
