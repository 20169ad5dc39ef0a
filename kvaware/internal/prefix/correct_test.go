// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"testing"
	"time"
)

// tenPrompts is a cache of room for 160 blocks that was served ten prompts of 10
// blocks, a second apart, and so is believed to hold them all.
func tenPrompts(t *testing.T) (x *Index, h Holder, now *time.Duration) {
	t.Helper()
	x, now = clocked()
	h = x.Add(160)
	for i := range 10 {
		*now += time.Second
		serve(x, h, prompt([2]int{i, 10}), 0)
	}
	*now += time.Second
	return x, h, now
}

// The engine had only room for five of them. That it misses one shows that older
// ones are gone as well, and that it has less room than it was said to have.
func TestAMissEvictsWhatWasIdleForLongerAndLowersTheCapacity(t *testing.T) {
	x, h, _ := tenPrompts(t)
	p := x.Pin(h, 0, prompt([2]int{4, 10}))
	if got := p.Before(); got != (Before{Held: 10, Sure: 10}) {
		t.Fatalf("%+v", got)
	}
	if got := x.Missed(&p, 0); got != Shortened {
		t.Fatal(got)
	}
	wantHeld(t, x, prompt([2]int{3, 10}), 0)
	wantHeld(t, x, prompt([2]int{4, 10}), 10) // it was computed again
	wantHeld(t, x, prompt([2]int{5, 10}), 10)
	wantStats(t, x, h, Stats{Capacity: 148, Blocks: 60, Pinned: 10, Idle: 50, Evicted: 40}) // 160 − 100/8
	// Of those that were sent before, one lesson is enough.
	q := x.Pin(h, 0, prompt([2]int{5, 10}))
	x.Done(&p)
	x.Missed(&q, 3)
	if got := x.Stats(h).Capacity; got != 137 { // 148 − 88/8
		t.Errorf("capacity %d", got)
	}
	x.Done(&q)
	x.held(t, nil)
}

func TestRequestsSentBeforeALessonTeachNoSecondOne(t *testing.T) {
	x, h, _ := tenPrompts(t)
	p, q := x.Pin(h, 0, prompt([2]int{4, 10})), x.Pin(h, 0, prompt([2]int{5, 10}))
	x.Missed(&p, 0)
	x.Missed(&q, 0)
	if got := x.Stats(h).Capacity; got != 148 {
		t.Errorf("capacity %d", got)
	}
	wantHeld(t, x, prompt([2]int{6, 10}), 10)
}

// What a running request holds is there, and what none is known to have prefilled
// may not be there yet.
func TestSiblingsInFlightCorrectNothing(t *testing.T) {
	x, h, _ := tenPrompts(t)
	first := x.Pin(h, 0, prompt([2]int{77, 10}))
	second := x.Pin(h, 0, prompt([2]int{77, 10}, [2]int{78, 10}))
	if got := second.Before(); got != (Before{Held: 10}) {
		t.Fatalf("%+v", got)
	}
	x.Confirm(&first)
	third := x.Pin(h, 0, prompt([2]int{77, 10}))
	for _, p := range []*Path{&second, &third} {
		if got := x.Missed(p, 0); got != Agreed {
			t.Error(got)
		}
	}
	wantHeld(t, x, prompt([2]int{0, 10}), 10)
}

func TestCapacityIsLearntWithinBoundsAndComesBack(t *testing.T) {
	x, now := clocked()
	h := x.Add(160)
	for i := range 1000 { // it always misses what is second to newest
		*now += time.Second
		serve(x, h, prompt([2]int{i, 2}), 0)
		if i > 0 {
			p := x.Pin(h, 0, prompt([2]int{i - 1, 2}))
			x.Missed(&p, 0)
			x.Done(&p)
		}
	}
	if got := x.Stats(h).Capacity; got != 160/leastShare {
		t.Fatalf("capacity %d", got)
	}
	x.SetCapacity(h, 160)
	if got := x.Stats(h).Capacity; got != 160/leastShare {
		t.Fatalf("capacity %d after it was set to what it was", got)
	}
	for i := range 10000 { // it always holds what was evicted
		*now += time.Second
		p := x.Pin(h, 0, prompt([2]int{5000 + i, 30}))
		x.Exceeded(&p)
		x.Done(&p)
	}
	if got := x.Stats(h).Capacity; got != 160*mostTimes {
		t.Fatalf("capacity %d", got)
	}
	x.SetCapacity(h, 200)
	wantStats(t, x, h, x.Stats(h))
	if got := x.Stats(h).Capacity; got != 200 {
		t.Fatalf("capacity %d after it was set", got)
	}
	x.held(t, nil)
}

// Nothing was evicted, so it is not for want of room that more is there.
func TestMoreThanBelievedGrowsOnlyAFullCache(t *testing.T) {
	x, h, _ := tenPrompts(t)
	p := x.Pin(h, 0, prompt([2]int{50, 10}))
	if got := x.Exceeded(&p); got != Extended {
		t.Fatal(got)
	}
	if got := x.Stats(h).Capacity; got != 160 {
		t.Errorf("capacity %d", got)
	}
}

// Ten thousand idle prompts older than the one that was missed.
func TestACorrectionEvictsABoundedNumberOfSpans(t *testing.T) {
	x, now := clocked()
	h := x.Add(100_000)
	for i := range 10_000 {
		serve(x, h, prompt([2]int{i, 2}), 0)
	}
	*now += time.Second
	p := x.Pin(h, 0, prompt([2]int{9999, 2}))
	x.Missed(&p, 1)
	if st := x.Stats(h); st.Evicted != 2*correctionSteps {
		t.Errorf("%+v", st)
	}
}
