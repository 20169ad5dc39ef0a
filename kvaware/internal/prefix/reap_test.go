// SPDX-License-Identifier: Apache-2.0

package prefix

import "testing"

func TestPathsPinnedBeforeForgetHaveNoEffect(t *testing.T) {
	x := unclocked()
	h := x.Add(100)
	chain := prompt([2]int{1, 10})
	p := x.Pin(h, 0, chain)
	x.Grow(&p, 5)
	x.Forget(h)
	wantHeld(t, x, chain, 0)
	q := x.Pin(h, 0, chain[:5])
	x.Grow(&p, 7)
	x.Confirm(&p)
	x.Done(&p)
	wantStats(t, x, h, Stats{Capacity: 100, Blocks: 5, Pinned: 5})
	x.Abort(&q)
	wantHeld(t, x, chain, 0)
}

func TestSlotsAreReusedWithoutInheritingAnything(t *testing.T) {
	x := unclocked()
	x.reapSteps = 0 // the removed one's spans stay
	h := x.Add(100)
	chain := prompt([2]int{1, 10})
	serve(x, h, chain, 0)
	p := x.Pin(h, 0, chain)
	x.Remove(h)
	x.Remove(h)
	again := x.Add(50)
	if again != h || x.Slots() != 1 {
		t.Fatalf("slot %d of %d, want %d of 1", again, x.Slots(), h)
	}
	wantHeld(t, x, chain, 0)
	x.Done(&p)
	wantStats(t, x, h, Stats{Capacity: 50})
	q := x.Pin(h, 0, chain[:4])
	wantHeld(t, x, chain, 4)
	x.Done(&q)
	wantHeld(t, x, chain, 4)
}

func TestForgottenBlocksAreFreedByLaterChanges(t *testing.T) {
	x := unclocked()
	a, b := x.Add(1<<20), x.Add(1<<20)
	for i := range 5000 {
		serve(x, a, prompt([2]int{1, 4}, [2]int{10 + i, 3}), 1)
	}
	serve(x, b, prompt([2]int{1, 4}), 0)
	p := x.Pin(a, 0, prompt([2]int{1, 4}, [2]int{10, 3}))
	x.Grow(&p, 1)
	before := x.Size()
	x.Forget(a)
	wantHeld(t, x, prompt([2]int{1, 4}), 0, 4)
	if after := x.Size(); after.Doomed != 1 || after.Spans < before.Spans-100 {
		t.Fatalf("forgetting was not lazy: %+v, then %+v", before, after)
	}
	for i := 0; x.Size().Doomed > 0; i++ {
		if i > before.Spans/30 {
			t.Fatalf("still %+v after %d changes", x.Size(), i)
		}
		serve(x, b, prompt([2]int{1, 4}), 0)
	}
	if sz := x.Size(); sz.Nodes != 1 || sz.Spans != 1 || sz.Blocks != 4 {
		t.Errorf("%+v left, want one node, one span, four blocks", sz)
	}
	x.held(t, nil)
}

func TestForgettingAgainAndAgainDoesNotPileUp(t *testing.T) {
	x := unclocked()
	x.reapSteps = 0 // what is freed beyond it must do
	h := x.Add(1000)
	most := 0
	for round := range 50 {
		for i := range 100 {
			serve(x, h, prompt([2]int{round, 1}, [2]int{10 + i, 9}), 0)
		}
		x.Forget(h)
		most = max(most, x.Size().Blocks)
	}
	if most > 2000 {
		t.Errorf("%d blocks kept for a capacity of 1000", most)
	}
	x.held(t, nil)
}
