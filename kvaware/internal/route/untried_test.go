// SPDX-License-Identifier: Apache-2.0

package route

import (
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/pace"
)

// oneAfterTheOther sends distinct prompts, each once the one before has ended, and
// returns how many each upstream took. Upstream i needs times[i] as long as the
// prior says.
func oneAfterTheOther(t *testing.T, n int, times ...float64) []int {
	t.Helper()
	b := newBed(len(times), 100_000)
	used := make([]int, len(times))
	for k := range n {
		p, i := b.place(t, latency, asking(prompt(1000+k, 125)))
		used[i]++
		step := time.Duration(times[i] * pace.Prior.Decode(1, 2000) * float64(time.Second))
		b.at += time.Duration(times[i]*pace.Prior.Prefill(0, 2001)*float64(time.Second)) + step
		p.Started(0, b.at)
		for generated := range 5 {
			p.Generated(0, 1+generated, b.at)
			b.at += step
		}
		p.Release(ledger.Completed, true)
		b.at += time.Second
	}
	return used
}

// Else the first one that is used, of engines faster than the prior, takes every prompt
// for as long as only one comes at a time.
func TestEachOfEqualUpstreamsIsTriedIfRequestsComeOneAfterTheOther(t *testing.T) {
	for _, times := range []float64{0.05, 0.3, 0.9, 1, 3} {
		used := oneAfterTheOther(t, 120, times, times, times)
		for _, n := range used {
			if n < 2 {
				t.Errorf("%v times as long as by the prior: of 120 requests upstreams took %v", times, used)
				break
			}
		}
	}
}

// Else one that happens not to be tried is taken to be as slow as the mean of
// those that were, and stays idle however fast it is.
func TestTheFastestOfUnequalUpstreamsIsFoundWithoutLoad(t *testing.T) {
	for _, times := range [][]float64{{0.33, 2, 10}, {2, 0.33, 10}, {10, 2, 0.33}} {
		used := oneAfterTheOther(t, 300, times...)
		for i, x := range times {
			if x == 0.33 && used[i] < 150 {
				t.Errorf("of upstreams that take %v times as long, %v were used", times, used)
			}
		}
	}
}
