// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"cmp"
	"math"
	"slices"
)

// Cell names what policies are compared on.
type Cell struct {
	Trace string  `json:"trace"`
	Fleet string  `json:"fleet"`
	Load  float64 `json:"load"`
	// Rate, Clients and Routers are as in Result: they tell cells apart that have no
	// load, or the same.
	Rate    float64 `json:"rate"`
	Clients int     `json:"clients,omitempty"`
	Routers Routers `json:"routers,omitzero"`
}

// Cell is the one that the result is of.
func (r *Result) Cell() Cell {
	return Cell{Trace: r.Trace, Fleet: r.Fleet, Load: r.Load, Rate: r.Rate, Clients: r.Clients, Routers: r.Routers}
}

// CellScore is a policy's score in a cell.
type CellScore struct {
	Cell
	Policy string  `json:"policy"`
	Score  float64 `json:"score_ms"` // geometric mean over seeds of Result.Score
	// Ratio is the score over the best peer's of the cell; Low and High bound the
	// mean of the seeds' ratios with 95 % confidence, by Student's t of the
	// logarithms, and are equal to it if there is one seed.
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Best  string  `json:"best_peer"`
	Seeds int     `json:"seeds"`
}

// PolicyScore is a policy's over all cells.
type PolicyScore struct {
	Policy string  `json:"policy"`
	Ratio  float64 `json:"ratio"` // geometric mean of the cells' ratios
	Worst  float64 `json:"worst"` // greatest of them
	Lost   int     `json:"lost"`  // cells with a ratio above 1
	Cells  int     `json:"cells"` // in which it ran
	// Over holds the geometric mean of the score over that of each policy alone, in
	// the cells that both have.
	Over map[string]float64 `json:"over"`
}

// Compare scores policies against the best peer of each cell. Results of one cell
// and seed have equal arrivals.
func Compare(results []*Result, peer func(policy string) bool) ([]CellScore, []PolicyScore) {
	type key struct {
		Cell
		policy string
	}
	logs := make(map[key]map[uint64]float64)
	var cells []Cell
	var policies []string
	for _, r := range results {
		k := key{r.Cell(), r.Policy}
		if !(r.Score() > 0) { // nothing measured
			continue
		}
		if logs[k] == nil {
			logs[k] = make(map[uint64]float64)
		}
		logs[k][r.Seed] = math.Log(r.Score())
		if !slices.Contains(cells, k.Cell) {
			cells = append(cells, k.Cell)
		}
		if !slices.Contains(policies, r.Policy) {
			policies = append(policies, r.Policy)
		}
	}
	var scores []CellScore
	for _, c := range cells {
		best, bestScore := "", math.Inf(1)
		for _, p := range policies {
			if m, ok := logs[key{c, p}]; ok && peer(p) {
				if mean, _ := meanAndError(values(m)); mean < bestScore {
					best, bestScore = p, mean
				}
			}
		}
		for _, p := range policies {
			m, ok := logs[key{c, p}]
			if !ok {
				continue
			}
			mean, _ := meanAndError(values(m))
			s := CellScore{Cell: c, Policy: p, Score: math.Exp(mean), Best: best, Seeds: len(m)}
			if best != "" {
				s.Ratio = math.Exp(mean - bestScore)
				var ratios []float64
				other := logs[key{c, best}]
				for _, seed := range seeds(m) {
					if x, ok := other[seed]; ok {
						ratios = append(ratios, m[seed]-x)
					}
				}
				centre, wide := meanAndError(ratios)
				s.Low, s.High = math.Exp(centre-wide), math.Exp(centre+wide)
			}
			scores = append(scores, s)
		}
	}
	var totals []PolicyScore
	for _, p := range policies {
		t := PolicyScore{Policy: p, Over: make(map[string]float64)}
		sum := 0.0
		for _, s := range scores {
			if s.Policy != p || s.Best == "" {
				continue
			}
			t.Cells++
			sum += math.Log(s.Ratio)
			t.Worst = max(t.Worst, s.Ratio)
			if s.Ratio > 1 {
				t.Lost++
			}
		}
		if t.Cells > 0 {
			t.Ratio = math.Exp(sum / float64(t.Cells))
		}
		for _, other := range policies {
			var ratios []float64
			for _, c := range cells {
				a, b := logs[key{c, p}], logs[key{c, other}]
				if a != nil && b != nil {
					x, _ := meanAndError(values(a))
					y, _ := meanAndError(values(b))
					ratios = append(ratios, x-y)
				}
			}
			if len(ratios) > 0 {
				mean, _ := meanAndError(ratios)
				t.Over[other] = math.Exp(mean)
			}
		}
		totals = append(totals, t)
	}
	slices.SortStableFunc(totals, func(a, b PolicyScore) int { return cmp.Compare(a.Ratio, b.Ratio) })
	return scores, totals
}

func seeds(m map[uint64]float64) []uint64 {
	var s []uint64
	for seed := range m {
		s = append(s, seed)
	}
	slices.Sort(s)
	return s
}

func values(m map[uint64]float64) []float64 {
	var v []float64
	for _, seed := range seeds(m) {
		v = append(v, m[seed])
	}
	return v
}

// Interval is a mean with what bounds it with 95 % confidence.
type Interval struct {
	Mean float64 `json:"mean"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Confidence bounds the mean of independent values by Student's t.
func Confidence(x []float64) Interval {
	mean, wide := meanAndError(x)
	return Interval{mean, mean - wide, mean + wide}
}

// meanAndError returns the mean of values and half the width of its 95 % interval,
// 0 of fewer than two.
func meanAndError(x []float64) (mean, wide float64) {
	n := float64(len(x))
	if n == 0 {
		return 0, 0
	}
	for _, v := range x {
		mean += v
	}
	mean /= n
	if n < 2 {
		return mean, 0
	}
	for _, v := range x {
		wide += (v - mean) * (v - mean)
	}
	return mean, student(len(x)-1) * math.Sqrt(wide/(n-1)/n)
}

// student is the 0.975 quantile of Student's t.
func student(freedom int) float64 {
	table := []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228}
	if freedom <= len(table) {
		return table[freedom-1]
	}
	// Cornish and Fisher's expansion around the normal quantile.
	z, v := 1.959964, float64(freedom)
	return z + (z*z*z+z)/(4*v) + (5*math.Pow(z, 5)+16*z*z*z+3*z)/(96*v*v)
}

// Difference is of two policies on the same requests, in milliseconds: negative
// where the first is faster.
type Difference struct {
	Pairs int      `json:"pairs"`
	TTFT  Interval `json:"ttft_ms"`
	E2E   Interval `json:"e2e_ms"`
	// Faster is the share of requests that the first answered sooner, of those that
	// did not take equally long.
	Faster float64 `json:"faster"`
}

// Paired compares two results that have records, request by request. The intervals
// are those of means of batches of consecutive requests, since requests that meet
// the same queue are alike.
func Paired(a, b *Result) Difference {
	var ttft, e2e []float64
	var d Difference
	faster, unequal := 0, 0
	for i, j := 0, 0; i < len(a.Records) && j < len(b.Records); {
		x, y := a.Records[i], b.Records[j]
		switch {
		case x.ID < y.ID:
			i++
			continue
		case x.ID > y.ID:
			j++
			continue
		}
		i++
		j++
		ttft = append(ttft, (x.TTFT-y.TTFT)*1e3)
		e2e = append(e2e, (x.E2E-y.E2E)*1e3)
		if x.E2E != y.E2E {
			unequal++
			if x.E2E < y.E2E {
				faster++
			}
		}
	}
	d.Pairs = len(ttft)
	d.TTFT, d.E2E = Confidence(batches(ttft)), Confidence(batches(e2e))
	if unequal > 0 {
		d.Faster = float64(faster) / float64(unequal)
	}
	return d
}

// batches returns the means of 20 parts of a series, as even as they can be.
func batches(x []float64) []float64 {
	const parts = 20
	if len(x) < 2*parts {
		return x
	}
	out := make([]float64, 0, parts)
	for i := range parts {
		mean, _ := meanAndError(x[i*len(x)/parts : (i+1)*len(x)/parts])
		out = append(out, mean)
	}
	return out
}
