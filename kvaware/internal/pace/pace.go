// SPDX-License-Identifier: Apache-2.0

// Package pace says how long an inference engine computes, in seconds.
//
// A step of an engine that batches continuously takes
//
//	a + b·(new tokens) + c·(KV tokens read by decodes) + d·Σ(chunk · mean context of the chunk)
//
// whatever the model and the accelerator are; they differ in the four constants.
package pace

import "math"

// Constants of the step time, all in seconds.
type Constants struct {
	Step    float64 // a, per step: the weights read from memory once
	Token   float64 // b, per new token: the weights' FLOPs
	Context float64 // c, per KV token that a decode reads
	Pair    float64 // d, per pair of a prefilled token and a token of its context
}

// Prior is a 70B model in 16 bits on four H100: 140 GB of weights over
// 4 × 3.35 TB/s, 2 × 70e9 FLOPs over the 2.8 PFLOP/s reached in practice, 320 KiB
// of KV per token over that bandwidth, and 4 × 80 × 8192 FLOPs of attention per
// pair, each with a margin for what a kernel does not reach. Only their relation
// to each other matters where one upstream is compared with another; by how much
// an upstream is slower or faster is learnt (package ledger).
var Prior = Constants{Step: 12e-3, Token: 50e-6, Context: 30e-9, Pair: 1e-9}

// StepTokens is the most that an engine prefills in one step, vLLM's default.
const StepTokens = 8192

// Prefill is the time to compute the tokens of a prompt from one position to
// another, those before it being cached. It is 0 if there are none.
func (c *Constants) Prefill(from, to int64) float64 {
	if to <= from {
		return 0
	}
	return c.Steps(to-from) + c.Compute(from, to)
}

// Steps is the part of a prefill of so many tokens that is there in each step,
// whatever it computes.
func (c *Constants) Steps(tokens int64) float64 {
	return math.Ceil(float64(tokens)/StepTokens) * c.Step
}

// Compute is a prefill without that part.
func (c *Constants) Compute(from, to int64) float64 {
	if to <= from {
		return 0
	}
	return float64(to-from) * (c.Token + c.Pair*float64(from+to)/2)
}

// Recompute is the time to compute a part of a prompt as a part of longer
// prefills: the steps' own time is shared in proportion.
func (c *Constants) Recompute(from, to int64) float64 {
	if to <= from {
		return 0
	}
	return float64(to-from)*c.Step/StepTokens + c.Compute(from, to)
}

// Decode is the time of a step in which so many sequences decode that have so
// many tokens of context together.
func (c *Constants) Decode(sequences, contexts float64) float64 {
	return c.Step + c.Token*sequences + c.Context*contexts
}
