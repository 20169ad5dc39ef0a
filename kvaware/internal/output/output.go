// SPDX-License-Identifier: Apache-2.0

// Package output learns how long outputs are, and how much of one is still to
// come when so much of it was generated.
package output

import (
	"math/bits"
	"sync"
)

const (
	// Bins is the number of stages that Stage tells apart.
	Bins = 42

	// keep is what is left of older outputs with each new one: the last 500
	// decide.
	keep = 1 - 1./512
	// The guess before anything is known, and how many outputs it weighs: 256
	// tokens, and of one that is longer as much again as it has.
	priorTokens = 256
	priorWeight = 4
	// maxTokens bounds what one output can say.
	maxTokens = 1 << 20
)

// Stage says how far an output of so many tokens is, on a logarithmic scale with
// two stages to each doubling: from 0 to Bins − 1.
func Stage(tokens int64) int {
	if tokens <= 0 {
		return 0
	}
	n := uint64(min(tokens, maxTokens))
	log := bits.Len64(n) - 1
	half := 0
	if n*n >= 1<<(2*log+1) { // beyond √2 · 2^log
		half = 1
	}
	return min(Bins-1, 1+2*log+half)
}

// Lengths is what is known of the lengths of outputs. Its zero value has seen
// none. It is safe for concurrent use; its lock is the innermost and held for a
// short loop at most.
type Lengths struct {
	mu    sync.Mutex    // guards all below
	count [Bins]float64 // outputs by the stage at which they ended, in units of scale
	sum   [Bins]float64 // their tokens, likewise
	// scale is the weight of the next output. It grows instead of all sums
	// being made less each time.
	scale     float64       // 0 means 1
	outputs   float64       // all of count
	tokens    float64       // all of sum
	remaining [Bins]float64 // as in Outlook; zero before it was worked out
	fresh     int           // outputs since then
}

// refresh is how many outputs are taken in until what remains is worked out anew.
const refresh = 16

// Learn takes in an output that has ended.
func (l *Lengths) Learn(tokens int64) {
	if tokens <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.scale == 0 {
		l.scale = 1
	}
	l.scale /= keep
	i, n := Stage(tokens), float64(min(tokens, maxTokens))
	l.count[i] += l.scale
	l.sum[i] += n * l.scale
	l.outputs += l.scale
	l.tokens += n * l.scale
	if l.scale > 1e12 {
		l.rescale()
	}
	if l.fresh++; l.fresh >= refresh {
		l.estimate()
	}
}

func (l *Lengths) rescale() {
	l.outputs, l.tokens = 0, 0
	for i := range l.count {
		l.count[i] /= l.scale
		l.sum[i] /= l.scale
		l.outputs += l.count[i]
		l.tokens += l.sum[i]
	}
	l.scale = 1
}

// mean is the mean length of an output. l.mu is held.
func (l *Lengths) mean() float64 {
	scale := max(l.scale, 1)
	return (l.tokens/scale + priorWeight*priorTokens) / (l.outputs/scale + priorWeight)
}

// Outlook is what was known of outputs at one time, in tokens.
type Outlook struct {
	Mean float64 // length of an output
	// Remaining is, by the stage that an output is at, how much of it is still to
	// come on average: E[output − generated | output > generated].
	Remaining [Bins]float64
}

// Look fills o with what is known now.
func (l *Lengths) Look(o *Outlook) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.remaining[0] == 0 {
		l.estimate()
	}
	o.Mean, o.Remaining = l.mean(), l.remaining
}

// estimate works out what remains at each stage. l.mu is held.
func (l *Lengths) estimate() {
	scale := max(l.scale, 1)
	var count, sum float64 // of outputs that end at a later stage
	for i := Bins - 1; i >= 0; i-- {
		at := middle(i)
		guess := max(priorTokens, at)
		// Half of those that end at this very stage are past its middle, by a
		// quarter of its width on average.
		half := l.count[i] / 2
		beyond := max(0, sum-count*at) + half*at*0.09
		l.remaining[i] = (beyond/scale + priorWeight*guess) / ((count+half)/scale + priorWeight)
		count += l.count[i]
		sum += l.sum[i]
	}
	l.fresh = 0
}

// middle is the middle of a stage, in tokens.
func middle(stage int) float64 {
	if stage == 0 {
		return 0
	}
	low := float64(uint64(1) << ((stage - 1) / 2))
	if (stage-1)%2 == 0 {
		return low * 1.19
	}
	return low * 1.68
}
