// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// calm is an idle candidate.
func calm() Terms {
	return Terms{Own: 0.1, Step: 0.012, Sequences: 1, KVUse: 0.01, Priced: true}
}

func TestLatencyIsTheDocumentedProduct(t *testing.T) {
	c := Terms{Own: 1, Queue: 2, Wait: 3, Delay: 6, Memory: 7, Eviction: 4, Step: 0.04, Sequences: 8, KVUse: 0.5, Ghosts: 1, GhostSeconds: 5, Priced: true}
	want := (2 + 1 + 0.04 + 3 + 6 + 7 + 1.5*4 + 5) * math.Sqrt(9*0.52*0.04)
	if got := Latency(&c); math.Abs(got-want) > 1e-9 {
		t.Errorf("Latency = %v, want %v", got, want)
	}
}

func TestTheRankIsInTheOrderOfTheLatency(t *testing.T) {
	rnd := rand.New(rand.NewPCG(9, 9))
	for range 1000 {
		c := Terms{Own: rnd.Float64(), Queue: 10 * rnd.Float64(), Step: rnd.Float64(), Sequences: 1 + 100*rnd.Float64(), KVUse: 2 * rnd.Float64(), Ghosts: rnd.Float64()}
		if got, want := math.Sqrt(c.rank()), Latency(&c); math.Abs(got-want) > 1e-9*want {
			t.Fatalf("rank of %+v: %v, want %v", c, got, want)
		}
	}
}

func TestEachTermMakesACandidateWorse(t *testing.T) {
	for name, worsen := range map[string]func(*Terms){
		"own":      func(t *Terms) { t.Own *= 2 },
		"queue":    func(t *Terms) { t.Queue = 0.1 },
		"wait":     func(t *Terms) { t.Wait = 0.1 },
		"delay":    func(t *Terms) { t.Delay = 0.1 },
		"memory":   func(t *Terms) { t.Memory = 0.1 },
		"eviction": func(t *Terms) { t.Eviction = 0.1 },
		"step":     func(t *Terms) { t.Step *= 2 },
		"running":  func(t *Terms) { t.Sequences++ },
		"kv use":   func(t *Terms) { t.KVUse *= 2 },
		"failures": func(t *Terms) { t.Ghosts, t.GhostSeconds = 1, 0.2 },
		"excluded": func(t *Terms) { t.Excluded = true },
	} {
		terms := []Terms{calm(), calm(), calm()}
		worsen(&terms[0])
		worsen(&terms[2])
		if i := LeastLatency(terms, nil, nil); i != 1 {
			t.Errorf("%s: chose %d", name, i)
		}
	}
}

func TestTheWaitIsTheLackingShareOfTheRemainingTime(t *testing.T) {
	for share, want := range map[float64]float64{-0.5: 0, 0: 0, 0.05: 0.05 * 400 * 0.02, 1.5: 1.5 * 400 * 0.02} {
		if got := Wait(share, 400, 0.02); math.Abs(got-want) > 1e-9 {
			t.Errorf("Wait(%v) = %v, want %v", share, got, want)
		}
	}
}

func TestAPrefillDelaysHalfOfThoseThatWait(t *testing.T) {
	if got := Delay(3, 0.2); math.Abs(got-0.3) > 1e-9 {
		t.Errorf("Delay = %v s, want 0.3", got)
	}
}

func TestMemoryHasAPriceWhereItIsShort(t *testing.T) {
	for use, want := range map[float64]float64{0: 0, 0.25: 4 * 0.01 * 50 / 256, 0.5: 4 * 0.01 * 50 / 16, 1: 4 * 0.01 * 50, 3: 4 * 0.01 * 50} {
		if got := Memory(0.01, use, 50); math.Abs(got-want) > 1e-9 {
			t.Errorf("a hundredth of a cache for 50 s at a use of %v costs %v s, want %v", use, got, want)
		}
	}
	if got := Memory(-0.01, 1, 50); got != 0 {
		t.Errorf("what is there already costs %v s", got)
	}
}

func TestNoCandidateForTheLatencyIsMinusOne(t *testing.T) {
	for _, terms := range [][]Terms{nil, {}, {{Excluded: true}, {Excluded: true}}} {
		if i := LeastLatency(terms, nil, nil); i != -1 {
			t.Errorf("chose %d of %v", i, terms)
		}
	}
}

func TestEvictionsArePricedOnlyWhereTheyMayDecide(t *testing.T) {
	terms := []Terms{calm(), calm(), calm(), calm()}
	terms[0].Priced, terms[1].Priced, terms[2].Priced = false, false, false
	terms[0].Queue = 60 // no price can make it the best
	asked := map[int]int{}
	price := func(i int) float64 {
		asked[i]++
		return []float64{0, 2, 1}[i]
	}
	if i := LeastLatency(terms, price, nil); i != 3 {
		t.Errorf("chose %d, want the one with room", i)
	}
	if asked[0] != 0 || asked[1] != 1 || asked[2] > 1 {
		t.Errorf("prices asked for: %v", asked)
	}
}

func TestEqualLatenciesAreDrawnUniformly(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	terms := make([]Terms, 7)
	for i := range terms {
		terms[i] = calm()
	}
	terms[3].Queue = 1
	var seen [7]int
	for range 60_000 {
		seen[LeastLatency(terms, nil, rnd)]++
	}
	for i, n := range seen {
		// Six ties: 10 000 each, standard deviation 91.
		if i == 3 && n != 0 || i != 3 && (n < 9_500 || n > 10_500) {
			t.Errorf("candidate %d drawn %d times", i, n)
		}
	}
}

func TestTheChosenLatencyIsLeastAmongTheAvailable(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		terms := make([]Terms, 1+rnd.IntN(9))
		prices := make([]float64, len(terms))
		available := 0
		for i := range terms {
			terms[i] = Terms{
				Own: rnd.Float64(), Queue: float64(rnd.IntN(3)), Wait: float64(rnd.IntN(2)), Delay: rnd.Float64(), Memory: float64(rnd.IntN(2)),
				Step: 0.01 + rnd.Float64()/100, Sequences: float64(1 + rnd.IntN(3)), KVUse: rnd.Float64(), Excluded: rnd.IntN(4) == 0,
			}
			prices[i] = float64(rnd.IntN(3))
			if terms[i].Priced = rnd.IntN(2) == 0; terms[i].Priced {
				prices[i] = 0
			}
			if !terms[i].Excluded {
				available++
			}
		}
		k := LeastLatency(terms, func(i int) float64 { return prices[i] }, rnd)
		if available == 0 {
			if k != -1 {
				t.Fatalf("chose %d of none", k)
			}
			continue
		}
		if terms[k].Excluded {
			t.Fatalf("chose an excluded candidate of %+v", terms)
		}
		for i := range terms {
			terms[i].Eviction = prices[i]
			if !terms[i].Excluded && Latency(&terms[i]) < Latency(&terms[k])*(1-1e-12) {
				t.Fatalf("chose %d, but %d is less: %+v", k, i, terms)
			}
		}
	}
}

func BenchmarkLeastLatency(b *testing.B) {
	for _, n := range []int{3, 64, 1000} {
		terms := make([]Terms, n)
		b.Run(fmt.Sprintf("upstreams=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for i := range terms {
					terms[i] = Terms{Own: 0.1, Queue: float64(i*7919%1000) / 100, Step: 0.02, Sequences: float64(1 + i%64), KVUse: float64(i%10) / 10}
				}
				LeastLatency(terms, func(int) float64 { return 1 }, nil)
			}
		})
	}
}
