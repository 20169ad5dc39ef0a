// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"math"
	"sync"
	"testing"
)

func near(t *testing.T, r *Ratios, key RatioKey, want, off float64) {
	t.Helper()
	if got := r.Ratio(key); math.Abs(got-want) > off {
		t.Errorf("ratio is %v, want %v", got, want)
	}
}

func teach(r *Ratios, key RatioKey, times, counted, reported int) {
	for range times {
		r.Learn(key, counted, reported)
	}
}

func TestARatioIsOneUntilEnoughWasReported(t *testing.T) {
	r, key := NewRatios(), RatioKey{Model: 1}
	near(t, r, key, 1, 0)
	teach(r, key, ratioLeastReports-1, 1000, 1300)
	near(t, r, key, 1, 0)
	teach(r, key, 1, 1000, 1300)
	near(t, r, key, 1.3, 1e-9)
}

func TestARatioIsLearntForOneModelAndScript(t *testing.T) {
	r := NewRatios()
	teach(r, RatioKey{1, ASCIIScript}, 10, 1000, 1100)
	teach(r, RatioKey{1, OtherScript}, 10, 1000, 1700)
	near(t, r, RatioKey{1, ASCIIScript}, 1.1, 1e-9)
	near(t, r, RatioKey{1, OtherScript}, 1.7, 1e-9)
	near(t, r, RatioKey{2, ASCIIScript}, 1, 0)
}

func TestARatioFollowsWhatIsReportedNow(t *testing.T) {
	r, key := NewRatios(), RatioKey{}
	teach(r, key, 1000, 1000, 1500)
	teach(r, key, 300, 1000, 1000)
	near(t, r, key, 1, 0.01)
	teach(r, key, 300, 1000, 3000)
	near(t, r, key, 3, 0.05)
}

func TestLongPromptsWeighMoreButDoNotDecideAlone(t *testing.T) {
	r, key := NewRatios(), RatioKey{}
	teach(r, key, 20, 100, 150)
	teach(r, key, 20, 1000, 1100)
	if got := r.Ratio(key); got > 1.2 {
		t.Errorf("ratio is %v", got)
	}
	r = NewRatios()
	teach(r, key, 40, 8000, 8000)
	teach(r, key, 1, 1_000_000, 1_900_000)
	if got := r.Ratio(key); got > 1.05 {
		t.Errorf("ratio is %v after one prompt", got)
	}
}

func TestReportsOfAPartOfThePromptTeachNothing(t *testing.T) {
	r, key := NewRatios(), RatioKey{}
	teach(r, key, 50, 1000, 1200)
	teach(r, key, 20, 30_000, 2048) // cut to the context window
	teach(r, key, 20, 5000, 12)     // all but a little was cached
	near(t, r, key, 1.2, 1e-9)
	teach(r, RatioKey{Model: 2}, 50, 5000, 12)
	near(t, r, RatioKey{Model: 2}, 1, 0)
}

func TestARatioThatNoReportBearsOutIsForgotten(t *testing.T) {
	r, key := NewRatios(), RatioKey{}
	teach(r, key, 1000, 1000, 2000)
	near(t, r, key, 2, 0.02)
	teach(r, key, 1000, 1000, 900) // another model under the same name
	near(t, r, key, 0.9, 0.01)
}

func TestAnOutlierShiftsARatioALittle(t *testing.T) {
	r, key := NewRatios(), RatioKey{}
	teach(r, key, 100, 1000, 1000)
	teach(r, key, 1, 1000, math.MaxInt)
	near(t, r, key, 1, 0.05)
}

func TestNonsenseTeachesNothing(t *testing.T) {
	r, key := NewRatios(), RatioKey{}
	for _, n := range []int{math.MinInt, -1, 0, 1, ratioLeastCounted - 1} {
		teach(r, key, 10, n, 500)
	}
	for _, n := range []int{math.MinInt, -1, 0} {
		teach(r, key, 10, 1000, n)
	}
	near(t, r, key, 1, 0)
	if len(r.known) != 0 {
		t.Errorf("%d models known", len(r.known))
	}
}

func TestARatioStaysWithinBounds(t *testing.T) {
	r, key := NewRatios(), RatioKey{}
	teach(r, key, 1000, 1000, math.MaxInt)
	near(t, r, key, ratioMost, 1e-9)
	r = NewRatios()
	for range 1000 {
		r.Learn(key, 1_000_000, int(r.Ratio(key)*500_001))
	}
	if got := r.Ratio(key); got < 1./ratioMost || got > 1 {
		t.Errorf("ratio is %v", got)
	}
}

func TestNamesMadeUpByClientsPushOutEachOther(t *testing.T) {
	r := NewRatios()
	const real = 100
	for m := range uint64(real) {
		teach(r, RatioKey{Model: m}, 10, 1000, 1500)
	}
	for m := range uint64(20 * maxRatios) {
		teach(r, RatioKey{Model: real + m}, 1, 1000, 1500)
		if len(r.known) > maxRatios {
			t.Fatalf("%d models known", len(r.known))
		}
	}
	lost := 0
	for m := range uint64(real) {
		if r.Ratio(RatioKey{Model: m}) == 1 {
			lost++
		}
	}
	if lost > 1 {
		t.Errorf("%d of %d models forgotten", lost, real)
	}
}

func TestModelsNotAskedForAreForgottenFirst(t *testing.T) {
	r := NewRatios()
	const used = 100
	for m := range uint64(3 * maxRatios) {
		teach(r, RatioKey{Model: m}, ratioLeastReports, 1000, 1500)
		for u := range uint64(used) {
			r.Ratio(RatioKey{Model: u})
		}
	}
	kept := 0
	for m := range uint64(used) {
		if r.Ratio(RatioKey{Model: m}) != 1 {
			kept++
		}
	}
	if kept < used-5 {
		t.Errorf("%d of %d models in use kept", kept, used)
	}
}

func TestRatiosAreLearntConcurrently(t *testing.T) {
	r := NewRatios()
	var wg sync.WaitGroup
	for g := range uint64(8) {
		wg.Go(func() {
			for i := range uint64(5000) {
				key := RatioKey{Model: i % 50}
				if g%2 == 0 {
					key.Model += i << 8 // evictions meanwhile
				}
				r.Learn(key, 1000, 1250)
				if v := r.Ratio(key); v != 1 && math.Abs(v-1.25) > 1e-9 {
					t.Errorf("ratio is %v", v)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestAskingForARatioAllocatesNothing(t *testing.T) {
	r, key := NewRatios(), RatioKey{Model: 1}
	teach(r, key, 10, 1000, 1500)
	if n := testing.AllocsPerRun(100, func() { r.Learn(key, 1000, 1500); r.Ratio(key); r.Ratio(RatioKey{Model: 2}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRatio(b *testing.B) {
	r := NewRatios()
	for m := range uint64(maxRatios) {
		teach(r, RatioKey{Model: m}, 10, 1000, 1500)
	}
	b.Run("ask", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				r.Ratio(RatioKey{Model: 7})
			}
		})
	})
	b.Run("learn", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				r.Learn(RatioKey{Model: 7}, 1000, 1500)
			}
		})
	})
	b.Run("learn/evicting", func(b *testing.B) {
		b.ReportAllocs()
		m := uint64(maxRatios)
		for b.Loop() {
			m++
			r.Learn(RatioKey{Model: m}, 1000, 1500)
		}
	})
}
