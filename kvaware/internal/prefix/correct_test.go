// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"math"
	"math/rand/v2"
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

// world is an engine of one capacity that serves conversations, of which an index
// believes another. It may lose its cache once, and find nothing of some
// conversations, because their tokens are not what they are taken for.
type world struct {
	real, believed int
	loses          bool
	strangers      int // conversations in a hundred
}

// drift returns by how many blocks the index is off per request in the end, and
// the capacity that it believes then.
func (w world) drift(correct bool) (off float64, capacity int) {
	now := new(time.Duration)
	clock := func() time.Duration { return *now }
	engine, x := New(clock), New(clock)
	engine.Add(w.real)
	x.Add(w.believed)
	r := rand.New(rand.NewPCG(1, 2))
	turns := make([]int, 60)
	const requests = 2000
	for i := range requests {
		*now += time.Second
		talk := min(r.IntN(60), r.IntN(60)) // some are livelier than others
		turns[talk] = turns[talk]%10 + 1
		if w.loses && i == requests/4 {
			engine.Forget(0)
		}
		stretches := [][2]int{{talk, 10}, {1000*talk + i/1000, 4 * turns[talk]}}
		p := x.Pin(0, 0, prompt(stretches...))
		if talk*41%100 < w.strangers {
			stretches = append([][2]int{{-i, 1}}, stretches...)
		}
		truth := engine.Pin(0, 0, prompt(stretches...))
		found, before := truth.Before().Held, p.Before()
		if i >= requests/2 {
			off += math.Abs(float64(found - before.Held))
		}
		engine.Confirm(&truth)
		x.Confirm(&p)
		switch {
		case !correct:
		case found < before.Sure:
			x.Missed(&p, found)
		case found == before.Sure:
			x.Met(&p)
		case found > before.Held+int(before.Output.Blocks)+1:
			x.Exceeded(&p)
		}
		engine.Grow(&truth, 3)
		x.Grow(&p, 3)
		engine.Done(&truth)
		x.Done(&p)
	}
	return off / (requests / 2), x.Stats(0).Capacity
}

func TestACapacityThatIsWrongByFactorsIsLearnt(t *testing.T) {
	for _, w := range []world{
		{real: 400, believed: 1600},
		{real: 400, believed: 800},
		{real: 800, believed: 800},
		{real: 1000, believed: 500},
		{real: 1200, believed: 400},
		{real: 400, believed: 800, loses: true},
		{real: 800, believed: 800, loses: true},
		{real: 800, believed: 800, strangers: 5},
		{real: 800, believed: 800, strangers: 30},
	} {
		without, _ := w.drift(false)
		with, capacity := w.drift(true)
		t.Logf("%+v: %.2f blocks off without corrections, %.2f with, capacity %d", w, without, with, capacity)
		if w.strangers > 0 {
			// They overwrite more than is believed, so nothing is exact.
			if with > without+0.5 {
				t.Errorf("%+v: corrections make it worse: %.2f blocks off, without them %.2f", w, with, without)
			}
			continue
		}
		if with > 1 {
			t.Errorf("%+v: %.2f blocks off, without corrections %.2f", w, with, without)
		}
		if math.Abs(float64(capacity-w.real)) > 0.1*float64(w.real) {
			t.Errorf("%+v: capacity %d", w, capacity)
		}
	}
}

// A prompt that misses what was idle for less long than what another just found is
// not what it is taken for, or the whole cache is lost: then no other finds more.
func TestAMissThatAHitSpeaksAgainstIsDisputedUntilItIsNotAlone(t *testing.T) {
	x, h, now := tenPrompts(t)
	report := func(id, found int) Correction {
		*now += time.Second
		p := x.Pin(h, 0, prompt([2]int{id, 10}))
		defer x.Done(&p)
		if found == 10 {
			x.Met(&p)
			return Agreed
		}
		return x.Missed(&p, found)
	}
	report(3, 10)
	if got := report(8, 0); got != Disputed {
		t.Fatal(got)
	}
	wantHeld(t, x, prompt([2]int{0, 10}), 10)
	for range doubts - 2 {
		report(8, 0)
	}
	report(2, 10) // older yet: the cache is not lost
	for i := range doubts {
		want := Disputed
		if i == doubts-1 {
			want = Shortened
		}
		if got := report(8, 0); got != want {
			t.Fatalf("miss %d in a row: %v", i, got)
		}
	}
	wantHeld(t, x, prompt([2]int{0, 10}), 0)
}
