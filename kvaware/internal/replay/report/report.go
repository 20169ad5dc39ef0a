// SPDX-License-Identifier: Apache-2.0

// Package report shows what replays found: as a table, as JSON and as an HTML page
// that needs no network. Equal results give equal bytes.
package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// Replay is what was run and what came of it.
type Replay struct {
	Traces       []Trace              `json:"traces"`
	Fleets       []Fleet              `json:"fleets"`
	Policies     []Policy             `json:"policies"`
	Seeds        []uint64             `json:"seeds"`
	BlockSize    int                  `json:"block_size"` // tokens
	SLO          replay.SLO           `json:"slo"`
	Events       string               `json:"events,omitempty"`
	Hints        bool                 `json:"hints,omitempty"` // as in replay.Config
	Calibrations []replay.Calibration `json:"calibrations,omitempty"`
	// Missing is how many runs were asked for and not done.
	Missing int `json:"missing_runs,omitempty"`
	// Results are those of the runs. The points of one seed are enough.
	Results []*replay.Result `json:"cells"`
	// Ours is the policy that is paired with the best peer of each cell; "" if none.
	Ours string `json:"-"`
}

// Trace is a workload that was replayed.
type Trace struct {
	Name     string  `json:"name"`
	Requests int     `json:"requests"`
	Prompt   float64 `json:"prompt_tokens"` // mean
	Output   float64 `json:"output_tokens"` // mean
}

// Fleet is what a trace was replayed on.
type Fleet struct {
	Name     string `json:"name"`
	Replicas int    `json:"replicas"`
	Summary  string `json:"summary"`
}

// Policy is one that was compared.
type Policy struct {
	Name    string `json:"name"`
	Summary string `json:"summary"`
	// Peer says that it is another router's, against the best of which a cell is
	// scored.
	Peer bool `json:"peer"`
}

// Cell is what policies are compared on.
type Cell replay.Cell

func cellOf(r *replay.Result) Cell { return Cell(r.Cell()) }

// Pressure says how much comes, and to how many routers if it is not one.
func (c Cell) Pressure() string {
	if routers := c.Routers; routers.N > 1 {
		c.Routers = replay.Routers{}
		return c.Pressure() + ", " + routers.String()
	}
	switch {
	case c.Clients > 0:
		return strconv.Itoa(c.Clients) + " clients"
	case c.Load > 0:
		return "load " + strconv.FormatFloat(c.Load, 'g', 4, 64)
	case c.Rate > 0:
		return strconv.FormatFloat(c.Rate, 'g', 4, 64) + " requests/s"
	}
	return "its own times"
}

func (c Cell) String() string {
	s := c.Trace + " on " + c.Fleet + ", " + c.Pressure()
	if c.Load > 0 && c.Rate > 0 {
		s += " (" + strconv.FormatFloat(c.Rate, 'g', 4, 64) + " requests/s)"
	}
	return s
}

// row is a policy in a cell.
type row struct {
	Policy
	Ours    bool
	Best    bool // of the peers
	results []*replay.Result
	Score   replay.CellScore
}

// of gives a figure of the policy over its seeds.
func (r *row) of(figure func(*replay.Result) float64) replay.Interval {
	x := make([]float64, len(r.results))
	for i, result := range r.results {
		x[i] = figure(result)
	}
	return replay.Confidence(x)
}

// Pair is the difference between two policies on the requests of a cell.
type Pair struct {
	Cell
	Policy string `json:"policy"`
	Peer   string `json:"peer"`
	replay.Difference
}

// cell is a cell with its policies, the best first.
type cell struct {
	Cell
	Rows []*row
	Pair *Pair // nil if there are no two to compare
}

// total is a policy over all cells.
type total struct {
	replay.PolicyScore
	WorstCell Cell // where its ratio is greatest
	// Ahead is the score of Replay.Ours over this policy's, in the cells that both
	// have; 0 if there are none.
	Ahead float64
}

// analysis is what follows from the results.
type analysis struct {
	*Replay
	cells  []*cell
	totals []total // the best first
}

func analyse(r *Replay) *analysis {
	a := &analysis{Replay: r}
	peers := make(map[string]bool)
	policies := make(map[string]Policy)
	for _, p := range r.Policies {
		policies[p.Name] = p
		peers[p.Name] = p.Peer
	}
	places := make(map[Cell]int)
	results := shared(r.Results)
	for _, result := range results {
		c := cellOf(result)
		place, ok := places[c]
		if !ok {
			place = len(a.cells)
			places[c] = place
			a.cells = append(a.cells, &cell{Cell: c})
		}
		at := a.cells[place]
		j := slices.IndexFunc(at.Rows, func(r *row) bool { return r.Name == result.Policy })
		if j < 0 {
			j = len(at.Rows)
			p, ok := policies[result.Policy]
			if !ok {
				p.Name = result.Policy
			}
			at.Rows = append(at.Rows, &row{Policy: p, Ours: result.Policy == r.Ours})
		}
		at.Rows[j].results = append(at.Rows[j].results, result)
	}
	scores, totals := replay.Compare(results, func(p string) bool { return peers[p] })
	worst := make(map[string]replay.CellScore)
	for _, s := range scores {
		at := a.cells[places[Cell(s.Cell)]]
		for _, row := range at.Rows {
			if row.Name == s.Policy {
				row.Score = s
				row.Best = s.Policy == s.Best
			}
		}
		if w, ok := worst[s.Policy]; !ok || s.Ratio > w.Ratio {
			worst[s.Policy] = s
		}
	}
	for _, c := range a.cells {
		slices.SortStableFunc(c.Rows, func(x, y *row) int {
			if unscored := func(r *row) bool { return r.Score.Score == 0 }; unscored(x) != unscored(y) {
				if unscored(x) {
					return 1
				}
				return -1
			}
			return cmp.Compare(x.Score.Score, y.Score.Score)
		})
		c.Pair = c.pair(r.Ours)
	}
	for _, t := range totals {
		with := total{PolicyScore: t}
		if w, ok := worst[t.Policy]; ok {
			with.WorstCell = Cell(w.Cell)
		}
		for _, other := range totals {
			if other.Policy == r.Ours {
				with.Ahead = other.Over[t.Policy]
			}
		}
		a.totals = append(a.totals, with)
	}
	return a
}

// shared leaves out the results of seeds that not all policies of their cell have,
// since another seed is another cell to a policy: an interrupt leaves some.
func shared(results []*replay.Result) []*replay.Result {
	type run struct {
		Cell
		seed uint64
	}
	runs, most := make(map[run]int), make(map[Cell]int)
	for _, r := range results {
		k := run{cellOf(r), r.Seed}
		runs[k]++
		most[k.Cell] = max(most[k.Cell], runs[k])
	}
	var kept []*replay.Result
	for _, r := range results {
		if c := cellOf(r); runs[run{c, r.Seed}] == most[c] {
			kept = append(kept, r)
		}
	}
	return kept
}

// pair compares a policy with the best peer, over all seeds that both have.
func (c *cell) pair(ours string) *Pair {
	var us, best *row
	for _, r := range c.Rows {
		if r.Name == ours {
			us = r
		}
		if r.Best {
			best = r
		}
	}
	if us == nil || best == nil {
		return nil
	}
	var a, b replay.Result
	from := 0 // IDs of one seed's requests follow those of the other's
	for _, x := range us.results {
		for _, y := range best.results {
			if x.Seed != y.Seed {
				continue
			}
			last := from
			for _, of := range []struct {
				all *replay.Result
				one *replay.Result
			}{{&a, x}, {&b, y}} {
				for _, rec := range of.one.Records {
					rec.ID += from
					last = max(last, rec.ID+1)
					of.all.Records = append(of.all.Records, rec)
				}
			}
			from = last
		}
	}
	p := &Pair{Cell: c.Cell, Policy: us.Name, Peer: best.Name, Difference: replay.Paired(&a, &b)}
	if p.Pairs == 0 {
		return nil
	}
	return p
}

// notes say what a reader should know of the figures.
func (a *analysis) notes() []string {
	var notes []string
	if a.Hints {
		notes = append(notes, "Requests tell how long their answers will be.")
	}
	if a.Missing > 0 {
		notes = append(notes, fmt.Sprintf("Incomplete: %d runs are missing. Means are over the seeds under which all policies ran.", a.Missing))
	}
	for _, c := range a.cells {
		rejected, requests, measured := 0, 0, 0
		for _, r := range c.Rows {
			for _, result := range r.results {
				rejected = max(rejected, result.Rejected)
				requests = max(requests, result.Requests+result.Rejected)
				measured = max(measured, result.Measured)
			}
		}
		if measured > 0 && measured < fewMeasured {
			notes = append(notes, fmt.Sprintf("%v: %d requests of a run were measured, so p99 rests on %s.", c.Cell, measured, slowest(measured)))
		}
		if rejected > 0 {
			notes = append(notes, fmt.Sprintf("%v: %d of %d requests fit no replica, or none was in service any more, and are not counted.", c.Cell, rejected, requests))
		}
		for _, full := range a.Calibrations {
			if full.Trace != c.Trace || full.Fleet != c.Fleet || c.Rate == 0 {
				continue
			}
			// Much of the time the fleet fills up or runs empty, and bears more meanwhile
			// than it would for long.
			if seconds := float64(requests) / c.Rate; seconds*1e3 < 20*full.UnloadedE2E {
				notes = append(notes, fmt.Sprintf("%v: all requests come within %s, not much longer than some last, so load 1.0 is found too high; give more requests.",
					c.Cell, period(seconds*1e3)))
			}
		}
	}
	return notes
}

// fewMeasured is how many requests a run has at least for a p99 of five of them.
const fewMeasured = 500

func slowest(measured int) string {
	if measured < 200 {
		return "the slowest one"
	}
	return fmt.Sprintf("the %d slowest", measured/100)
}

// milliseconds is a time for people to read.
func milliseconds(ms float64) string { return number(ms) + " ms" }

// number has three digits or more.
func number(x float64) string {
	switch {
	case x >= 100 || x <= -100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10 || x <= -10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

func percent(share float64) string { return percentage(100 * share) }

func percentage(x float64) string { return fmt.Sprintf("%.1f %%", x) }
