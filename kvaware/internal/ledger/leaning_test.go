// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// Upstreams that are as fast as the prior never look like anything else, not even
// while that is being learnt.
func TestAPaceThatIsReadWhileItIsFirstLearntIsNoOther(t *testing.T) {
	pool := newPoolPace()
	for range 20_000 {
		l := &leaningPace{pool: pool}
		learnt := make(chan struct{})
		go func() {
			l.learn(keep, 60, 60)
			close(learnt)
		}()
		for done := false; !done; {
			select {
			case <-learnt:
				done = true
			default:
			}
			if got := l.load(); math.Abs(got-1) > 1e-9 {
				t.Fatalf("pace %v of an upstream as fast as the prior", got)
			}
		}
	}
}

// Whatever durations are observed, at however many upstreams that come and go.
func TestPacesAreFiniteAndPositiveWhateverIsObserved(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	extremes := []time.Duration{1, 2, time.Microsecond, time.Second, 24 * time.Hour, math.MaxInt64}
	for range 20 {
		pool := newPoolPace()
		ups := make([]*leaningPace, 1+rnd.IntN(1000))
		for i := range ups {
			ups[i] = &leaningPace{pool: pool}
		}
		tends := rnd.IntN(3)
		for range 5000 {
			i := rnd.IntN(len(ups))
			if rnd.IntN(20) == 0 {
				ups[i] = &leaningPace{pool: pool}
			}
			took, base := extremes[rnd.IntN(len(extremes))], extremes[rnd.IntN(len(extremes)-1)]
			switch tends {
			case 1:
				took = 1
			case 2:
				base = 1
			}
			ups[i].learn([]float64{keep, keepFirstTokens}[rnd.IntN(2)], took.Seconds(), base.Seconds())
			for _, got := range []float64{ups[i].load(), pool.load()} {
				if !(got > 0) || math.IsInf(got, 0) || !(1/got > 0) || math.IsInf(1/got, 0) {
					t.Fatalf("pace %v after %v instead of %v", got, took, base)
				}
			}
		}
	}
}
