// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"math"
	"slices"
)

// A sketch holds a distribution of times in bounded memory: exactly as long as there
// are few, then in buckets whose bounds grow by a constant factor (DDSketch: Masson,
// Rim, Lee 2019), so that a quantile is off by at most 0.25 %.
type sketch struct {
	n       int
	sum     float64 // of seconds
	max     float64
	exact   []float32
	buckets []uint32
}

const (
	sketchExact = 1 << 16
	sketchLeast = 1e-6 // seconds; less counts as that
	sketchMost  = 1e9
	sketchGrow  = 1.005
)

var (
	sketchScale = 1 / math.Log(sketchGrow)
	sketchSize  = int(math.Log(sketchMost/sketchLeast)*sketchScale) + 2
)

func (s *sketch) add(seconds float64) {
	s.n++
	s.sum += seconds
	s.max = max(s.max, seconds)
	if s.buckets == nil {
		if len(s.exact) < sketchExact {
			s.exact = append(s.exact, float32(seconds))
			return
		}
		s.buckets = make([]uint32, sketchSize)
		for _, x := range s.exact {
			s.buckets[bucketOf(float64(x))]++
		}
		s.exact = nil
	}
	s.buckets[bucketOf(seconds)]++
}

func bucketOf(seconds float64) int {
	seconds = min(max(seconds, sketchLeast), sketchMost)
	return int(math.Ceil(math.Log(seconds/sketchLeast) * sketchScale))
}

func (s *sketch) mean() float64 {
	if s.n == 0 {
		return 0
	}
	return s.sum / float64(s.n)
}

// quantiles returns the nearest-rank quantiles at the shares, which ascend.
func (s *sketch) quantiles(shares ...float64) []float64 {
	out := make([]float64, len(shares))
	if s.n == 0 {
		return out
	}
	rank := func(q float64) int { return min(max(int(math.Ceil(q*float64(s.n))), 1), s.n) }
	if s.buckets == nil {
		slices.Sort(s.exact)
		for i, q := range shares {
			out[i] = float64(s.exact[rank(q)-1])
		}
		return out
	}
	i, seen := 0, 0
	for b, n := range s.buckets {
		seen += int(n)
		for i < len(shares) && seen >= rank(shares[i]) {
			// The point from which both bounds of the bucket are equally far, by ratio.
			out[i] = sketchLeast * math.Pow(sketchGrow, float64(b)) * 2 / (1 + sketchGrow)
			i++
		}
	}
	return out
}

// Times are of a distribution, in milliseconds.
type Times struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	Max  float64 `json:"max"`
	// CDF holds the times at the shares of CDFShares.
	CDF []float64 `json:"cdf,omitempty"`
}

// CDFShares are the shares of requests at which Times.CDF gives times.
var CDFShares = []float64{0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.993, 0.995, 0.997, 0.999, 0.9995, 1}

func (s *sketch) times() Times {
	q := s.quantiles(0.5, 0.9, 0.99, 0.999)
	cdf := s.quantiles(CDFShares...)
	for i := range cdf {
		cdf[i] *= 1e3
	}
	return Times{Mean: s.mean() * 1e3, P50: q[0] * 1e3, P90: q[1] * 1e3, P99: q[2] * 1e3, P999: q[3] * 1e3, Max: s.max * 1e3, CDF: cdf}
}
