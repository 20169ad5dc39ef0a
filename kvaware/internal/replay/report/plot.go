// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// plot is a drawing in units of its own, which the page scales.
type plot struct {
	Title         string
	Width, Height int
	// The frame of the data.
	Left, Top, Right, Bottom int
	XTicks, YTicks           []tick
	Lines                    []line
	Bars                     []bar
}

type tick struct {
	At   int
	Text string
}

// line is a policy's.
type line struct {
	viewPolicy
	Path string
	Best bool
	Note string // for who points at it
}

type bar struct {
	viewPolicy
	Y, Mid, Height, Width int
	TextX                 int
	Text                  string
	Low, High             int // of the 95 % interval; equal if there is none
}

// probit is the quantile of the normal distribution: the scale on which a log-normal
// latency is a straight line, which shows the body and the tail alike.
func probit(share float64) float64 { return math.Sqrt2 * math.Erfinv(2*share-1) }

// cdf draws how the times of each policy are distributed, by the mean over its seeds
// of each quantile.
func (c *cell) cdf(title string, drawn map[string]*viewPolicy, of func(*replay.Result) replay.Times) plot {
	const least, most = 0.01, 0.999
	p := plot{Title: title, Width: 420, Height: 300, Left: 48, Top: 10, Right: 398, Bottom: 262}
	type curve struct {
		r     *row
		times []float64
	}
	var curves []curve
	low, high := math.Inf(1), 0.0
	for _, r := range c.Rows {
		times := make([]float64, len(replay.CDFShares))
		n := 0
		for _, result := range r.results {
			if cdf := of(result).CDF; len(cdf) == len(times) && cdf[len(cdf)-1] > 0 {
				n++
				for i, t := range cdf {
					times[i] += t
				}
			}
		}
		if n == 0 {
			continue
		}
		for i, share := range replay.CDFShares {
			times[i] = max(times[i]/float64(n), 1e-3)
			if share >= least && share <= most {
				low, high = min(low, times[i]), max(high, times[i])
			}
		}
		curves = append(curves, curve{r, times})
	}
	if len(curves) == 0 {
		return p
	}
	if high < low*1.5 {
		low, high = low/1.25, high*1.25
	}
	x := scale(math.Log(low), math.Log(high), p.Left, p.Right)
	y := scale(probit(least), probit(most), p.Bottom, p.Top)
	p.XTicks = timeTicks(low, high, x)
	for _, share := range []float64{0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999} {
		p.YTicks = append(p.YTicks, tick{at(y(probit(share))), strconv.FormatFloat(100*share, 'g', 4, 64) + " %"})
	}
	for _, v := range slices.Backward(curves) { // the best is drawn last, over the others
		var d path
		for i, share := range replay.CDFShares {
			if share >= least && share <= most {
				d.to(at(x(math.Log(v.times[i]))), at(y(probit(share))))
			}
		}
		p.Lines = append(p.Lines, line{
			viewPolicy: *drawn[v.r.Name], Path: d.String(), Best: v.r.Best,
			Note: v.r.Name + ": median " + period(v.times[slices.Index(replay.CDFShares, 0.5)]) +
				", p99 " + period(v.times[slices.Index(replay.CDFShares, 0.99)]),
		})
	}
	return p
}

func at(x float64) int { return int(math.Round(x)) }

// scale maps [from, to] to [low, high].
func scale(from, to float64, low, high int) func(float64) float64 {
	k := float64(high-low) / max(to-from, 1e-12)
	return func(x float64) float64 { return float64(low) + (x-from)*k }
}

// period is a time for people to read.
func period(ms float64) string {
	switch {
	case ms >= 120e3:
		return strconv.FormatFloat(ms/60e3, 'g', 3, 64) + " min"
	case ms >= 1e3:
		return strconv.FormatFloat(ms/1e3, 'g', 3, 64) + " s"
	}
	return strconv.FormatFloat(ms, 'g', 3, 64) + " ms"
}

// steps are round numbers from 0 on, at most so many, the last of which is at most the
// end.
func steps(end float64, most int) []float64 {
	for size := math.Pow(10, math.Floor(math.Log10(end))-1); ; size *= 10 {
		for _, k := range []float64{1, 2, 5} {
			if step := k * size; end/step <= float64(most) {
				var all []float64
				for x := 0.0; x <= end*(1+1e-9); x += step {
					all = append(all, x)
				}
				return all
			}
		}
	}
}

// clock is a time of a run.
func clock(seconds float64) string {
	if seconds == 0 {
		return "0"
	}
	return strconv.FormatFloat(seconds, 'f', -1, 64) + " s"
}

// timeTicks are round times with room for their text between them.
func timeTicks(low, high float64, x func(float64) float64) []tick {
	const room = 46
	for _, steps := range [][]float64{{1, 1.5, 2, 3, 4, 5, 6, 8}, {1, 2, 3, 5}, {1, 2, 5}, {1, 3}, {1}} {
		var ticks []tick
		crowded := false
		for e := math.Floor(math.Log10(low)); e <= math.Log10(high); e++ {
			for _, s := range steps {
				t := s * math.Pow(10, e)
				if t < low*0.999 || t > high*1.001 {
					continue
				}
				text := strconv.FormatFloat(t, 'g', 3, 64) + " ms"
				if t >= 999 {
					text = strconv.FormatFloat(t/1e3, 'g', 4, 64) + " s"
				}
				next := tick{at(x(math.Log(t))), text}
				crowded = crowded || len(ticks) > 0 && next.At-ticks[len(ticks)-1].At < room
				ticks = append(ticks, next)
			}
		}
		if !crowded {
			return ticks
		}
	}
	return nil
}

// path is an SVG path of straight lines, with relative coordinates to be short.
type path struct {
	d    []byte
	x, y int
}

func (p *path) to(x, y int) {
	if len(p.d) == 0 {
		p.d = fmt.Appendf(p.d, "M%d %dl", x, y)
	} else {
		if dx := x - p.x; dx >= 0 && p.d[len(p.d)-1] != 'l' {
			p.d = append(p.d, ' ')
		}
		p.d = strconv.AppendInt(p.d, int64(x-p.x), 10)
		if y >= p.y {
			p.d = append(p.d, ' ')
		}
		p.d = strconv.AppendInt(p.d, int64(y-p.y), 10)
	}
	p.x, p.y = x, y
}

func (p *path) String() string {
	if n := len(p.d); n > 0 && p.d[n-1] == 'l' {
		return string(append(p.d, "0 0"...)) // a single point
	}
	return string(p.d)
}

// hits draws the share of prompt tokens found in caches.
func (c *cell) hits(drawn map[string]*viewPolicy) plot {
	const high = 20
	p := plot{Title: "Prefix hit rate", Width: 860, Left: 170, Top: 4, Right: 780}
	most := 0.0
	for _, r := range c.Rows {
		most = max(most, r.of(func(r *replay.Result) float64 { return r.HitRate }).High)
	}
	most = min(max(math.Ceil(most*10)/10, 0.1), 1)
	x := scale(0, most, p.Left, p.Right)
	for i, r := range c.Rows {
		rate := r.of(func(r *replay.Result) float64 { return r.HitRate })
		b := bar{
			viewPolicy: *drawn[r.Name], Y: p.Top + i*high + 3, Mid: p.Top + i*high + high/2, Height: high - 6,
			Width: at(x(rate.Mean)) - p.Left, Text: percent(rate.Mean),
			Low: at(x(max(rate.Low, 0))), High: at(x(min(rate.High, most))),
		}
		b.TextX = max(p.Left+b.Width, b.High) + 6
		p.Bars = append(p.Bars, b)
	}
	p.Bottom = p.Top + len(c.Rows)*high
	p.Height = p.Bottom + 22
	for _, share := range steps(100*most, 6) {
		p.XTicks = append(p.XTicks, tick{at(x(share / 100)), strconv.FormatFloat(share, 'f', -1, 64) + " %"})
	}
	return p
}

// loadPanel is the load of a policy's replicas over time.
type loadPanel struct {
	plot
	viewPolicy
	Note string
}

// maxLines is how many replicas are drawn one by one. Of a larger fleet the busiest,
// the median and the idlest are drawn.
const maxLines = 16

// loads draws for each policy how many requests are at each replica, on a scale of
// the logarithm of one more, the same for all policies.
func (c *cell) loads(drawn map[string]*viewPolicy) ([]loadPanel, string) {
	most, end := 1.0, 0.0
	replicas := 0
	for _, r := range c.Rows {
		for _, result := range r.results {
			for _, replica := range result.Replicas {
				for _, at := range replica.Points {
					most = max(most, float64(at.Running+at.Waiting))
				}
			}
			if n := len(result.Times); n > 0 {
				end = max(end, result.Times[n-1])
				replicas = len(result.Replicas)
			}
		}
	}
	if end == 0 {
		return nil, ""
	}
	var panels []loadPanel
	for _, r := range c.Rows {
		for _, result := range r.results {
			if len(result.Times) == 0 {
				continue
			}
			panel := loadPanel{viewPolicy: *drawn[r.Name]}
			panel.plot = plot{Title: r.Name, Width: 270, Height: 130, Left: 34, Top: 8, Right: 252, Bottom: 108}
			x := scale(0, end, panel.Left, panel.Right)
			y := scale(0, math.Log1p(most), panel.Bottom, panel.Top)
			for _, n := range []float64{0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 100000} {
				if n <= most {
					panel.YTicks = append(panel.YTicks, tick{at(y(math.Log1p(n))), strconv.FormatFloat(n, 'f', -1, 64)})
				}
			}
			for _, seconds := range steps(end, 3) {
				panel.XTicks = append(panel.XTicks, tick{at(x(seconds)), clock(seconds)})
			}
			for _, series := range seriesOf(result) {
				var d path
				for i, n := range series {
					d.to(at(x(result.Times[i])), at(y(math.Log1p(float64(n)))))
				}
				panel.Lines = append(panel.Lines, line{Path: d.String()})
			}
			panel.Note = fmt.Sprintf("at most %.0f requests at one of %d replicas; imbalance %s", peak(result), replicas, number(result.Imbalance))
			panels = append(panels, panel)
			break // one seed
		}
	}
	note := "A line for each replica: its requests, running and waiting."
	if replicas > maxLines {
		note = "The busiest, the median and the idlest replica at each time: their requests, running and waiting."
	}
	return panels, note
}

func peak(r *replay.Result) float64 {
	most := 0
	for _, replica := range r.Replicas {
		for _, at := range replica.Points {
			most = max(most, at.Running+at.Waiting)
		}
	}
	return float64(most)
}

func seriesOf(r *replay.Result) [][]int {
	if len(r.Replicas) <= maxLines {
		all := make([][]int, len(r.Replicas))
		for i, replica := range r.Replicas {
			for _, at := range replica.Points {
				all[i] = append(all[i], at.Running+at.Waiting)
			}
		}
		return all
	}
	three := make([][]int, 3)
	loads := make([]int, len(r.Replicas))
	for t := range r.Times {
		for i := range r.Replicas {
			at := r.Replicas[i].Points[t]
			loads[i] = at.Running + at.Waiting
		}
		slices.Sort(loads)
		for i, n := range []int{loads[len(loads)-1], loads[len(loads)/2], loads[0]} {
			three[i] = append(three[i], n)
		}
	}
	return three
}
