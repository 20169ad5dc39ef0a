// SPDX-License-Identifier: Apache-2.0

package reuse

import (
	"math"
	"math/rand/v2"
	"testing"
)

const second = 8 // ticks

func TestAgesFallIntoEverGrowingBins(t *testing.T) {
	for age, want := range map[Age]int{0: 0, 1: 1, 2: 3, 3: 4, 4: 5, 5: 5, 6: 6, 8: 7, 11: 7, 12: 8, math.MaxUint32: bins - 1} {
		if got := bin(age); got != want {
			t.Errorf("bin(%d) = %d, want %d", age, got, want)
		}
	}
	last := 0
	for age := Age(0); age < 1<<21; age += 1 + age/64 {
		b := bin(age)
		if b < last || b > last+1 && age > 4 || b >= bins {
			t.Fatalf("bin(%d) = %d after %d", age, b, last)
		}
		last = b
	}
}

func TestBeforeAnyTrafficTheChanceIsModestAndFallsWithAge(t *testing.T) {
	var h History
	last := 1.0
	for _, age := range []Age{0, second, 10 * second, 100 * second, 1000 * second, 100_000 * second} {
		c := h.Chance(age)
		if c < 0 || c > 0.5 || c > last {
			t.Errorf("after %d ticks the chance is %v, before %v", age, c, last)
		}
		last = c
	}
}

// Prefixes of which half come back after a time that is exponentially
// distributed, and all others never: eviction at 100 s hides nothing of it.
func TestTheChanceIsWhatItWasThoughEvictionCensors(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const mean, evicted = 10.0, 100.0
	var h History
	for range 200_000 {
		at := math.Inf(1)
		if rnd.IntN(2) == 0 {
			at = rnd.ExpFloat64() * mean
		}
		if leaves := evicted * (0.5 + rnd.Float64()); at > leaves {
			h.Lost(Age(leaves*second), 1)
		} else {
			h.Reused(Age(at*second), 1)
		}
	}
	for _, age := range []float64{0.2, 5, 10, 20} {
		left := 0.5 * math.Exp(-age/mean)
		want := left / (left + 0.5)
		if got := h.Chance(Age(age * second)); math.Abs(got-want) > 0.08 {
			t.Errorf("idle for %v s: chance %.3f, want %.3f", age, got, want)
		}
	}
	if got := h.Chance(90 * second); got > 0.05 {
		t.Errorf("long idle: chance %.3f, want next to none", got)
	}
}

func TestWhatIsLearntFollowsTheTraffic(t *testing.T) {
	var h History
	for range 1000 {
		h.Reused(5*second, 1000)
	}
	if got := h.Chance(second); got < 0.95 {
		t.Errorf("all were asked for, chance %v", got)
	}
	for range 1000 {
		h.Lost(50*second, 1000)
	}
	if got := h.Chance(second); got > 0.2 {
		t.Errorf("none is asked for any more, chance %v", got)
	}
}

func TestAnyHistoryGivesChances(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var h History
		for range rnd.IntN(300) {
			if rnd.IntN(2) == 0 {
				h.Reused(rnd.Uint32()>>rnd.IntN(32), rnd.IntN(1<<rnd.IntN(30))-1)
			} else {
				h.Lost(rnd.Uint32()>>rnd.IntN(32), rnd.IntN(1<<rnd.IntN(30))-1)
			}
		}
		h.estimate()
		for i := range bins {
			if c := h.chance[i]; !(c >= 0 && c <= 1) {
				t.Fatalf("chance %v", c)
			}
		}
	}
}

func BenchmarkReused(b *testing.B) {
	var h History
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		h.Reused(Age(i%10_000), 26)
	}
}

func BenchmarkChance(b *testing.B) {
	var h History
	h.Reused(80, 1000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		h.Chance(Age(i % 10_000))
	}
}
