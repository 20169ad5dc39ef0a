// SPDX-License-Identifier: Apache-2.0

package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageStyle string

var page = template.Must(template.New("page").Parse(pageText))

// colours is how many policies have a colour of their own. More could not be told
// apart; the others are grey, and stand out when they are picked.
const colours = 7

// Points is how many points a replica's series needs at most, so that the page stays
// within a few megabytes.
func Points(cells, policies, replicas int) int {
	const bytes, perPoint, kept = 1_500_000, 6, 2_000_000
	panels := max(cells*policies, 1)
	n := min(bytes/(panels*min(max(replicas, 1), maxLines)*perPoint), kept/(panels*max(replicas, 1)), 200)
	if n < 8 { // it would show nothing
		return 0
	}
	return n
}

// The view models below hold what the template prints, ready but for escaping.

type viewPage struct {
	Style  template.CSS
	Replay *Replay
	Legend []viewPolicy
	Matrix viewMatrix
	Totals []viewTotal
	Cells  []viewCell
	Pairs  []viewPair
	Ours   string
	Notes  []string
}

// viewPolicy is a policy as it is drawn, in every cell alike.
type viewPolicy struct {
	Policy
	Number int
	Class  string // its colour
}

type viewMatrix struct {
	Heads []viewHead
	Rows  []viewMatrixRow
}

type viewHead struct {
	Anchor, Trace, Fleet, Pressure string
}

type viewMatrixRow struct {
	viewPolicy
	Mean  viewRatio
	Cells []viewRatio
}

// viewRatio is a score over the best peer's.
type viewRatio struct {
	Text, Class, Title string
	Best               bool
}

type viewTotal struct {
	viewPolicy
	Mean, Worst, Lost, Ahead, WorstCell string
}

type viewPair struct {
	Anchor, Cell, Peer, Requests, TTFT, TTFTBetween, E2E, E2EBetween, Sooner string
}

type viewCell struct {
	Anchor, Title string
	Open          bool
	Groups        []viewGroup
	Rows          []viewRow
	CDFs          []plot
	Hits          plot
	Loads         []loadPanel
	LoadNote      string
}

type viewRow struct {
	viewPolicy
	Figures []viewFigure
	Ratio   viewRatio
}

type viewGroup struct {
	Head  string
	Heads []string
}

type viewFigure struct{ Text, Spread string }

// HTML writes a page that needs nothing else.
func (r *Replay) HTML(w io.Writer) error {
	a := analyse(r)
	p := viewPage{Style: template.CSS(pageStyle), Replay: r, Ours: r.Ours} //nolint:gosec // our own file
	drawn := a.draw()
	for _, d := range drawn {
		p.Legend = append(p.Legend, *d)
	}
	slices.SortFunc(p.Legend, func(x, y viewPolicy) int { return x.Number - y.Number })
	byName := make(map[string]*viewPolicy)
	for _, d := range drawn {
		byName[d.Name] = d
	}
	p.Matrix = a.matrix(drawn)
	for _, t := range a.totals {
		if t.Cells == 0 {
			continue
		}
		v := viewTotal{
			viewPolicy: *byName[t.Policy], Mean: ratio(t.Ratio), Worst: ratio(t.Worst),
			Lost: fmt.Sprintf("%d of %d", t.Lost, t.Cells), Ahead: "–", WorstCell: t.WorstCell.String(),
		}
		if t.Ahead > 0 && t.Policy != r.Ours {
			v.Ahead = ratio(t.Ahead)
		}
		p.Totals = append(p.Totals, v)
	}
	for i, c := range a.cells {
		p.Cells = append(p.Cells, a.viewCell(i, c, byName))
		if d := c.Pair; d != nil {
			p.Pairs = append(p.Pairs, viewPair{
				Anchor: anchor(i), Cell: c.String(), Peer: d.Peer, Requests: fmt.Sprint(d.Pairs),
				TTFT: signed(d.TTFT.Mean), TTFTBetween: between(d.TTFT),
				E2E: signed(d.E2E.Mean), E2EBetween: between(d.E2E), Sooner: percent(d.Faster),
			})
		}
	}
	p.Notes = a.notes()
	if len(r.Seeds) > 1 {
		p.Notes = append(p.Notes, fmt.Sprintf("Figures are means over %d seeds, with the 95 %% interval below.", len(r.Seeds)))
	}
	return page.Execute(w, p)
}

func anchor(i int) string { return fmt.Sprintf("cell-%d", i+1) }

// draw numbers the policies, the best over all cells first, and gives ours and the
// best of the others a colour.
func (a *analysis) draw() []*viewPolicy {
	var drawn []*viewPolicy
	add := func(p Policy) {
		if !slices.ContainsFunc(drawn, func(d *viewPolicy) bool { return d.Name == p.Name }) {
			drawn = append(drawn, &viewPolicy{Policy: p, Number: len(drawn), Class: "other"})
		}
	}
	find := func(name string) Policy {
		for _, p := range a.Policies {
			if p.Name == name {
				return p
			}
		}
		return Policy{Name: name}
	}
	for _, t := range a.totals {
		add(find(t.Policy))
	}
	for _, c := range a.cells {
		for _, r := range c.Rows {
			add(r.Policy)
		}
	}
	next := 0
	colour := func(d *viewPolicy) {
		if d.Class == "other" && next < colours {
			d.Class = fmt.Sprintf("c%d", next)
			next++
		}
	}
	for _, d := range drawn {
		if d.Name == a.Ours {
			colour(d)
		}
	}
	for _, d := range drawn {
		colour(d)
	}
	return drawn
}

func (a *analysis) matrix(drawn []*viewPolicy) viewMatrix {
	var m viewMatrix
	for i, c := range a.cells {
		m.Heads = append(m.Heads, viewHead{anchor(i), c.Trace, c.Fleet, c.Pressure()})
	}
	for _, d := range drawn {
		row := viewMatrixRow{viewPolicy: *d, Mean: viewRatio{Text: "–"}}
		for _, t := range a.totals {
			if t.Policy == d.Name && t.Cells > 0 {
				row.Mean = viewRatio{Text: ratio(t.Ratio), Class: shade(t.Ratio)}
			}
		}
		for _, c := range a.cells {
			v := viewRatio{Text: "–"}
			for _, r := range c.Rows {
				if r.Name == d.Name {
					v = r.ratio()
				}
			}
			row.Cells = append(row.Cells, v)
		}
		m.Rows = append(m.Rows, row)
	}
	return m
}

func (r *row) ratio() viewRatio {
	if r.Score.Best == "" {
		return viewRatio{Text: "–"}
	}
	v := viewRatio{Text: ratio(r.Score.Ratio), Class: shade(r.Score.Ratio), Best: r.Best}
	if r.Score.Seeds > 1 && !r.Best {
		v.Title = "[" + ratio(r.Score.Low) + ", " + ratio(r.Score.High) + "]"
	}
	return v
}

// shade is the class of a ratio's colour: g1 to g4 the further below 1 it is, b1 to
// b4 the further above.
func shade(x float64) string {
	step := math.Abs(math.Log(x)) / math.Log(2) * 4
	if step < 0.03 { // 0.5 %
		return ""
	}
	n := min(1+int(step), 4)
	if x < 1 {
		return fmt.Sprintf("g%d", n)
	}
	return fmt.Sprintf("b%d", n)
}

// columns are those of a cell's table, in groups.
var columns = []struct {
	head string
	of   []column
}{
	{"Time to first token", latencies(func(r *replay.Result) replay.Times { return r.TTFT })},
	{"Between tokens", latencies(func(r *replay.Result) replay.Times { return r.ITL })},
	{"End to end", latencies(func(r *replay.Result) replay.Times { return r.E2E })},
	{"Service", []column{
		{"tokens/s", func(r *replay.Result) float64 { return r.TokensPerSecond }, whole},
		{"hit rate", func(r *replay.Result) float64 { return 100 * r.HitRate }, percentage},
		{"in SLO", func(r *replay.Result) float64 { return 100 * r.Attained }, percentage},
		{"fairness", func(r *replay.Result) float64 { return r.Fairness }, ratio},
	}},
	{"Replicas", []column{
		{"imbalance", func(r *replay.Result) float64 { return r.Imbalance }, number},
		{"preemptions", func(r *replay.Result) float64 { return float64(r.Preemptions) }, whole},
		{"retries", func(r *replay.Result) float64 { return float64(r.Retries) }, whole},
	}},
}

type column struct {
	head string
	of   func(*replay.Result) float64
	show func(float64) string
}

func latencies(of func(*replay.Result) replay.Times) []column {
	return []column{
		{"mean", func(r *replay.Result) float64 { return of(r).Mean }, number},
		{"p50", func(r *replay.Result) float64 { return of(r).P50 }, number},
		{"p90", func(r *replay.Result) float64 { return of(r).P90 }, number},
		{"p99", func(r *replay.Result) float64 { return of(r).P99 }, number},
		{"p99.9", func(r *replay.Result) float64 { return of(r).P999 }, number},
	}
}

func (a *analysis) viewCell(i int, c *cell, drawn map[string]*viewPolicy) viewCell {
	v := viewCell{Anchor: anchor(i), Title: c.String(), Open: i == 0}
	for _, g := range columns {
		group := viewGroup{Head: g.head}
		for _, col := range g.of {
			group.Heads = append(group.Heads, col.head)
		}
		v.Groups = append(v.Groups, group)
	}
	for _, r := range c.Rows {
		line := viewRow{viewPolicy: *drawn[r.Name], Ratio: r.ratio()}
		for _, g := range columns {
			for _, col := range g.of {
				x := r.of(col.of)
				f := viewFigure{Text: col.show(x.Mean)}
				if len(r.results) > 1 {
					f.Spread = col.show(x.High - x.Mean)
				}
				line.Figures = append(line.Figures, f)
			}
		}
		v.Rows = append(v.Rows, line)
	}
	v.CDFs = []plot{
		c.cdf("Time to first token", drawn, func(r *replay.Result) replay.Times { return r.TTFT }),
		c.cdf("Time between tokens", drawn, func(r *replay.Result) replay.Times { return r.ITL }),
		c.cdf("End-to-end latency", drawn, func(r *replay.Result) replay.Times { return r.E2E }),
	}
	v.Hits = c.hits(drawn)
	v.Loads, v.LoadNote = c.loads(drawn)
	return v
}
