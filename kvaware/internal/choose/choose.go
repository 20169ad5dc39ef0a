// SPDX-License-Identifier: Apache-2.0

// Package choose decides which upstream takes a request, by one of two objectives:
// the latency ([Latency]) or the token load ([Load]).
//
// It is a pure function of plain values and of chance, which the caller
// injects: it reads no clock, takes no lock, and allocates nothing. The caller
// holds whatever lock makes choosing and charging one step.
package choose

import (
	"math"
	"math/rand/v2"
)

// Weights turn a candidate's state into its token load. All are finite and not
// negative; the defaults are 1, 1, 0.
type Weights struct {
	Prefill float64 // per uncached prompt token waiting or asked for
	Decode  float64 // per KV token held by a running decode
	Request float64 // per running sequence
}

// Candidate is one available upstream as a request sees it.
type Candidate struct {
	Prefill  int64 // P: uncached prompt tokens charged there, not yet prefilled
	Decode   int64 // D: KV tokens held by the decodes running there
	Running  int64 // R: sequences running there
	Uncached int64 // n − c: prompt tokens of this request it would have to compute

	// Ghosts says how many more requests like this one the upstream counts as
	// running because it failed lately, and GhostTokens how many tokens they
	// weigh together. Both are zero for an upstream that did not fail.
	Ghosts      float64
	GhostTokens float64

	// Excluded takes the candidate out of this choice, for a limit that only
	// the caller knows (max_requests reached, failed in this very request).
	Excluded bool
}

// Rand is the chance that breaks ties: IntN returns a uniform integer in
// [0, n) for n >= 1. *rand.Rand of math/rand/v2 is one. Nil means the top-level
// source of math/rand/v2.
type Rand interface {
	IntN(n int) int
}

// Load is the candidate's token load once it has taken the request:
//
//	load = prefill·(P + n − c) + decode·D + request·R
//
// the sum that Ray Serve LLM's KVAwareRouter minimises, in tokens instead of
// KV blocks, without what recent failures add to it.
func Load(w Weights, c Candidate) float64 {
	return w.Prefill*float64(c.Prefill+c.Uncached) + w.Decode*float64(c.Decode) + w.Request*float64(c.Running)
}

// Cost is what Least minimises: the load, and what recent failures weigh.
// A ghost weighs by the greater token weight, so that it keeps its meaning when
// one of the two is zero.
func Cost(w Weights, c Candidate) float64 {
	return cost(w, &c)
}

func cost(w Weights, c *Candidate) float64 {
	sum := Load(w, *c)
	if c.Ghosts > 0 {
		sum += max(w.Prefill, w.Decode)*c.GhostTokens + w.Request*c.Ghosts
	}
	return sum
}

// running counts ghosts as whole sequences: one failure weighs as much as one
// running request, however far it has faded.
func running(c *Candidate) int64 {
	return c.Running + int64(math.Ceil(c.Ghosts))
}

// Least returns the index of the candidate of least cost; equal costs are
// broken by fewer running sequences, then uniformly at random. It returns -1 if
// there is no candidate or all are excluded.
func Least(w Weights, cands []Candidate, rnd Rand) int {
	best, ties := -1, 0
	var least float64
	for i := range cands {
		c := &cands[i]
		if c.Excluded {
			continue
		}
		x := cost(w, c)
		switch {
		case best < 0 || x < least || x == least && c.Running < cands[best].Running:
			best, least, ties = i, x, 1
		case x == least && c.Running == cands[best].Running:
			ties++
		}
	}
	if ties < 2 {
		return best
	}
	// One draw for all ties, and a second look to find the one drawn: cheaper
	// than a draw for each tie when a large fleet is idle.
	skip := intN(rnd, ties)
	for i := best; i < len(cands); i++ {
		c := &cands[i]
		if c.Excluded || c.Running != cands[best].Running || cost(w, c) != least {
			continue
		}
		if skip == 0 {
			return i
		}
		skip--
	}
	return best
}

// LeastRunning is the choice for a request that carries no tokens: the fewest
// running sequences, recent failures counted as running, then the least cost,
// then uniformly at random. It returns -1 if there is no candidate or all are
// excluded.
func LeastRunning(w Weights, cands []Candidate, rnd Rand) int {
	best, ties := -1, 0
	var fewest int64
	var least float64
	for i := range cands {
		c := &cands[i]
		if c.Excluded {
			continue
		}
		r := running(c)
		if best >= 0 && r > fewest {
			continue
		}
		x := cost(w, c)
		switch {
		case best < 0 || r < fewest || x < least:
			best, fewest, least, ties = i, r, x, 1
		case x == least:
			ties++
		}
	}
	if ties < 2 {
		return best
	}
	skip := intN(rnd, ties)
	for i := best; i < len(cands); i++ {
		c := &cands[i]
		if c.Excluded || running(c) != fewest || cost(w, c) != least {
			continue
		}
		if skip == 0 {
			return i
		}
		skip--
	}
	return best
}

func intN(rnd Rand, n int) int {
	if rnd == nil {
		return rand.IntN(n)
	}
	return rnd.IntN(n)
}
