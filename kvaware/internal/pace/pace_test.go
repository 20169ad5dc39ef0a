// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"math"
	"testing"
)

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-12*math.Max(1, math.Abs(b)) }

func TestPrefillTimeIsTheSumOfItsSteps(t *testing.T) {
	c := Constants{Step: 1, Token: 0.1, Context: 7, Pair: 0.01}
	for _, tt := range []struct {
		from, to int64
		want     float64
	}{
		{0, 0, 0},
		{5, 5, 0},
		{9, 5, 0},
		{0, 10, 1 + 1 + 0.01*10*5},
		{10, 20, 1 + 1 + 0.01*10*15},
		{0, StepTokens, 1 + 0.1*StepTokens + 0.01*StepTokens*StepTokens/2},
		{0, StepTokens + 1, 2 + 0.1*(StepTokens+1) + 0.01*(StepTokens+1)*(StepTokens+1)/2},
	} {
		if got := c.Prefill(tt.from, tt.to); !near(got, tt.want) {
			t.Errorf("Prefill(%d, %d) = %v, want %v", tt.from, tt.to, got, tt.want)
		}
	}
}

func TestRecomputedPartsAddUpToTheWhole(t *testing.T) {
	c := Prior
	whole := c.Recompute(0, 4*StepTokens)
	var parts float64
	for i := int64(0); i < 64; i++ {
		parts += c.Recompute(i*StepTokens/16, (i+1)*StepTokens/16)
	}
	if !near(whole, parts) || !near(whole, c.Prefill(0, 4*StepTokens)) {
		t.Errorf("parts take %v, the whole %v, its prefill %v", parts, whole, c.Prefill(0, 4*StepTokens))
	}
	if got := c.Recompute(3, 3); got != 0 {
		t.Errorf("nothing takes %v", got)
	}
}

func TestDecodeStepGrowsWithSequencesAndContexts(t *testing.T) {
	c := Constants{Step: 1, Token: 0.1, Context: 0.001}
	if got := c.Decode(10, 1000); !near(got, 3) {
		t.Errorf("Decode = %v, want 3", got)
	}
}
