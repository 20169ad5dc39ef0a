// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

var defaults = Weights{Prefill: 1, Decode: 1}

// script answers IntN from a list and remembers what was asked.
type script struct {
	answers []int
	asked   []int
}

func (s *script) IntN(n int) int {
	s.asked = append(s.asked, n)
	a := s.answers[0]
	s.answers = s.answers[1:]
	return a
}

func TestLoadIsTheDocumentedSum(t *testing.T) {
	c := Candidate{Prefill: 1000, Decode: 5000, Running: 3, Uncached: 700}
	for _, tt := range []struct {
		w    Weights
		want float64
	}{
		{defaults, 6700},
		{Weights{Prefill: 2, Decode: 0.5, Request: 100}, 2*1700 + 2500 + 300},
		{Weights{Request: 1}, 3},
		{Weights{}, 0},
	} {
		if got := Load(tt.w, c); got != tt.want {
			t.Errorf("Load(%+v) = %v, want %v", tt.w, got, tt.want)
		}
		if got := Cost(tt.w, c); got != tt.want {
			t.Errorf("Cost(%+v) without failures = %v, want the load %v", tt.w, got, tt.want)
		}
	}
}

func TestFailuresWeighInTheCostButNotInTheLoad(t *testing.T) {
	c := Candidate{Prefill: 10, Ghosts: 1.5, GhostTokens: 3072}
	for _, tt := range []struct {
		w          Weights
		load, cost float64
	}{
		{defaults, 10, 3082},
		{Weights{Decode: 2}, 0, 6144},
		{Weights{Prefill: 1, Decode: 0, Request: 4}, 10, 10 + 3072 + 6},
		{Weights{Request: 1}, 0, 1.5},
	} {
		if load, cost := Load(tt.w, c), Cost(tt.w, c); load != tt.load || cost != tt.cost {
			t.Errorf("%+v: load %v cost %v, want %v and %v", tt.w, load, cost, tt.load, tt.cost)
		}
	}
}

func TestNoCandidateIsMinusOne(t *testing.T) {
	excluded := []Candidate{{Excluded: true}, {Excluded: true}}
	for _, cands := range [][]Candidate{nil, {}, excluded} {
		if i := Least(defaults, cands, nil); i != -1 {
			t.Errorf("Least(%v) = %d, want -1", cands, i)
		}
		if i := LeastRunning(defaults, cands, nil); i != -1 {
			t.Errorf("LeastRunning(%v) = %d, want -1", cands, i)
		}
	}
}

func TestLeastTakesTheLeastLoadNotTheBestCache(t *testing.T) {
	cands := []Candidate{
		{Prefill: 0, Decode: 50_000, Uncached: 100}, // holds the prefix, but is loaded
		{Prefill: 0, Decode: 1_000, Uncached: 20_000},
		{Excluded: true},
	}
	if i := Least(defaults, cands, nil); i != 1 {
		t.Errorf("chose %d, want 1", i)
	}
	cands[1].Decode = 40_000
	if i := Least(defaults, cands, nil); i != 0 {
		t.Errorf("chose %d, want the holder of the prefix once loads are alike", i)
	}
}

func TestEqualLoadsAreBrokenByFewerRunningThenByChance(t *testing.T) {
	cands := []Candidate{
		{Decode: 100, Running: 3},
		{Decode: 100, Running: 1},
		{Decode: 100, Running: 1, Excluded: true},
		{Prefill: 60, Decode: 40, Running: 1},
		{Decode: 101},
		{Decode: 100, Running: 1},
	}
	for k, want := range []int{1, 3, 5} {
		s := &script{answers: []int{k}}
		if i := Least(defaults, cands, s); i != want {
			t.Errorf("drawing %d chose %d, want %d", k, i, want)
		}
		if len(s.asked) != 1 || s.asked[0] != 3 {
			t.Errorf("asked chance for %v, want once for 3", s.asked)
		}
	}
}

func TestChanceIsNotAskedWithoutATie(t *testing.T) {
	s := &script{}
	if i := Least(defaults, []Candidate{{Decode: 2}, {Decode: 1}}, s); i != 1 {
		t.Errorf("chose %d, want 1", i)
	}
	if i := LeastRunning(defaults, []Candidate{{Running: 2}, {Running: 1}}, s); i != 1 {
		t.Errorf("chose %d, want 1", i)
	}
}

func TestRequestsWithoutTokensGoToTheFewestRunning(t *testing.T) {
	cands := []Candidate{
		{Decode: 0, Running: 4},
		{Decode: 90_000, Running: 2},
		{Decode: 80_000, Running: 2},
		{Decode: 80_000, Running: 2},
		{Running: 1, Ghosts: 1.2, GhostTokens: 2400}, // counts as three
	}
	for k, want := range []int{2, 3} {
		if i := LeastRunning(defaults, cands, &script{answers: []int{k}}); i != want {
			t.Errorf("drawing %d chose %d, want %d", k, i, want)
		}
	}
}

func TestTiesAreUniform(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	cands := make([]Candidate, 7)
	cands[3].Decode, cands[3].Running = 1, 1
	const draws = 60_000
	for name, pick := range map[string]func() int{
		"Least":        func() int { return Least(defaults, cands, rnd) },
		"LeastRunning": func() int { return LeastRunning(defaults, cands, rnd) },
	} {
		var seen [7]int
		for range draws {
			seen[pick()]++
		}
		for i, n := range seen {
			// Six ties: 10 000 each, standard deviation 91.
			if i == 3 && n != 0 || i != 3 && (n < 9_500 || n > 10_500) {
				t.Errorf("%s: candidate %d drawn %d times of %d", name, i, n, draws)
			}
		}
	}
}

func TestTheChosenCostIsLeastAmongTheAvailable(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		w := Weights{rnd.Float64() * 2, float64(rnd.IntN(3)), float64(rnd.IntN(2)) * 100}
		cands := make([]Candidate, 1+rnd.IntN(9))
		available := 0
		for i := range cands {
			cands[i] = Candidate{
				Prefill: int64(rnd.IntN(4)), Decode: int64(rnd.IntN(4)), Running: int64(rnd.IntN(3)),
				Uncached: int64(rnd.IntN(3)), Excluded: rnd.IntN(4) == 0,
			}
			if rnd.IntN(3) == 0 {
				cands[i].Ghosts, cands[i].GhostTokens = 2, 4
			}
			if !cands[i].Excluded {
				available++
			}
		}
		l, r := Least(w, cands, rnd), LeastRunning(w, cands, rnd)
		if available == 0 {
			if l != -1 || r != -1 {
				t.Fatalf("chose %d and %d of none", l, r)
			}
			continue
		}
		if cands[l].Excluded || cands[r].Excluded {
			t.Fatalf("chose an excluded candidate of %+v", cands)
		}
		for i := range cands {
			c := &cands[i]
			if c.Excluded {
				continue
			}
			if Cost(w, *c) < Cost(w, cands[l]) ||
				Cost(w, *c) == Cost(w, cands[l]) && c.Running < cands[l].Running {
				t.Fatalf("Least chose %d, but %d is less: %+v", l, i, cands)
			}
			if running(c) < running(&cands[r]) ||
				running(c) == running(&cands[r]) && Cost(w, *c) < Cost(w, cands[r]) {
				t.Fatalf("LeastRunning chose %d, but %d is less: %+v", r, i, cands)
			}
		}
	}
}

func BenchmarkLeast(b *testing.B) {
	for _, n := range []int{3, 64, 1000} {
		cands := make([]Candidate, n)
		b.Run(fmt.Sprintf("upstreams=%d/idle", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Least(defaults, cands, nil)
			}
		})
		loaded := make([]Candidate, n)
		for i := range loaded {
			loaded[i] = Candidate{Prefill: int64(i*7919%1000) * 100, Decode: int64(i*104729%1000) * 1000, Running: int64(i % 64)}
		}
		b.Run(fmt.Sprintf("upstreams=%d/loaded", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Least(defaults, loaded, nil)
			}
		})
	}
}
