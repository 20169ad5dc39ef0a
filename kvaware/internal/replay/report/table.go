// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// figures are the columns of a cell's table.
var figures = []struct {
	head   string
	of     func(*replay.Result) float64
	show   func(float64) string
	spread bool // with several seeds, how uncertain the mean is
}{
	{"TTFT", func(r *replay.Result) float64 { return r.TTFT.Mean }, number, true},
	{"p99", func(r *replay.Result) float64 { return r.TTFT.P99 }, number, true},
	{"ITL", func(r *replay.Result) float64 { return r.ITL.Mean }, number, false},
	{"E2E", func(r *replay.Result) float64 { return r.E2E.Mean }, number, true},
	{"p99", func(r *replay.Result) float64 { return r.E2E.P99 }, number, true},
	{"tok/s", func(r *replay.Result) float64 { return r.TokensPerSecond }, whole, false},
	{"hit %", func(r *replay.Result) float64 { return 100 * r.HitRate }, tenths, false},
	{"preempt", func(r *replay.Result) float64 { return float64(r.Preemptions) }, whole, false},
	{"imbal", func(r *replay.Result) float64 { return r.Imbalance }, number, false},
	{"SLO %", func(r *replay.Result) float64 { return 100 * r.Attained }, tenths, false},
}

func whole(x float64) string  { return fmt.Sprintf("%.0f", x) }
func tenths(x float64) string { return fmt.Sprintf("%.1f", x) }
func ratio(x float64) string  { return fmt.Sprintf("%.3f", x) }

// Table prints a table of each cell, one over all cells, and the differences by
// request.
func (r *Replay) Table(w io.Writer) error {
	return analyse(r).print(w, func(b *bytes.Buffer, line string) { fmt.Fprintln(b, line) }, align)
}

// print writes everything, its lines and tables each in their own way.
func (a *analysis) print(w io.Writer, line func(b *bytes.Buffer, text string), table func(b *bytes.Buffer, rows [][]string)) error {
	var b bytes.Buffer
	for _, c := range a.Calibrations {
		line(&b, fmt.Sprintf("%s on %s: load 1.0 is %s requests/s; unloaded TTFT %s, E2E %s",
			printable(c.Trace), printable(c.Fleet), number(c.Rate), milliseconds(c.UnloadedTTFT), milliseconds(c.UnloadedE2E)))
	}
	for _, note := range a.notes() {
		line(&b, printable(note))
	}
	if b.Len() > 0 {
		b.WriteByte('\n')
	}
	titled := func(title string, rows [][]string) {
		if rows != nil {
			line(&b, printable(title))
			table(&b, rows)
			b.WriteByte('\n')
		}
	}
	for _, c := range a.cells {
		titled(c.String(), a.cellRows(c))
	}
	titled("All cells: score over the best peer's of each cell", a.totalRows())
	titled(a.Ours+" less the best peer, paired by request: negative is sooner", a.pairRows())
	_, err := w.Write(b.Bytes())
	return err
}

// cellRows are a head and a row for each policy.
func (a *analysis) cellRows(c *cell) [][]string {
	several := len(a.Seeds) > 1
	head := []string{"policy"}
	for _, f := range figures {
		head = append(head, f.head)
		if several && f.spread {
			head = append(head, "±")
		}
	}
	head = append(head, "score")
	rows := [][]string{append(head, "vs best peer", "")}
	for _, r := range c.Rows {
		line := []string{r.Name}
		for _, f := range figures {
			x := r.of(f.of)
			line = append(line, f.show(x.Mean))
			if several && f.spread {
				spread := "-"
				if len(r.results) > 1 {
					spread = number(x.High - x.Mean)
				}
				line = append(line, spread)
			}
		}
		line = append(line, number(r.Score.Score))
		if r.Score.Best == "" {
			line = append(line, "-", "")
		} else {
			line = append(line, ratio(r.Score.Ratio))
			switch {
			case r.Best:
				line = append(line, "best peer")
			case several && r.Score.Seeds > 1:
				line = append(line, "["+ratio(r.Score.Low)+", "+ratio(r.Score.High)+"]")
			default:
				line = append(line, "")
			}
		}
		rows = append(rows, line)
	}
	return rows
}

// totalRows are those of the policies over all cells, nil if none has a score.
func (a *analysis) totalRows() [][]string {
	if !slices.ContainsFunc(a.totals, func(t total) bool { return t.Cells > 0 }) {
		return nil
	}
	head := []string{"policy", "mean", "worst", "lost", "cells"}
	if a.Ours != "" {
		head = append(head, a.Ours+" over it")
	}
	rows := [][]string{append(head, "")}
	for _, t := range a.totals {
		if t.Cells == 0 {
			continue
		}
		line := []string{t.Policy, ratio(t.Ratio), ratio(t.Worst), fmt.Sprint(t.Lost), fmt.Sprint(t.Cells)}
		if a.Ours != "" {
			ahead := "-"
			if t.Ahead > 0 && t.Policy != a.Ours {
				ahead = ratio(t.Ahead)
			}
			line = append(line, ahead)
		}
		if len(a.cells) > 1 {
			line = append(line, "  worst: "+t.WorstCell.Trace+" on "+t.WorstCell.Fleet+", "+t.WorstCell.Pressure())
		} else {
			line = append(line, "")
		}
		rows = append(rows, line)
	}
	return rows
}

// pairRows are those of the differences to the best peers, nil if there are none.
func (a *analysis) pairRows() [][]string {
	rows := [][]string{{"cell", "best peer", "requests", "TTFT ms", "95 %", "E2E ms", "95 %", "sooner %"}}
	for _, c := range a.cells {
		if p := c.Pair; p != nil {
			rows = append(rows, []string{
				c.Trace + " on " + c.Fleet + ", " + c.Pressure(), p.Peer, fmt.Sprint(p.Pairs),
				signed(p.TTFT.Mean), between(p.TTFT), signed(p.E2E.Mean), between(p.E2E), tenths(100 * p.Faster),
			})
		}
	}
	if len(rows) == 1 {
		return nil
	}
	return rows
}

func signed(x float64) string {
	if x > 0 {
		return "+" + number(x)
	}
	return number(x)
}

func between(x replay.Interval) string { return "[" + signed(x.Low) + ", " + signed(x.High) + "]" }

// printable makes names from outside fit for a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// align writes rows of equal length in columns, the first to the left and the others
// to the right, but a last one without a head to the left too.
func align(b *bytes.Buffer, rows [][]string) {
	wide := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, text := range r {
			text = printable(text)
			r[i] = text
			wide[i] = max(wide[i], utf8.RuneCountInString(text))
		}
	}
	for _, r := range rows {
		line := ""
		for i, text := range r {
			space := strings.Repeat(" ", wide[i]-utf8.RuneCountInString(text))
			switch {
			case i == 0:
				line = text + space
			case i == len(r)-1 && rows[0][i] == "":
				line += "  " + text
			default:
				line += "  " + space + text
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
}
