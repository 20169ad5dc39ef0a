// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
)

// SVG writes one drawing of all cells: a row for each policy, the best first, a dot
// for each cell at its score over the best peer's there, and a bar at the geometric
// mean. The scale is logarithmic, and what lies beyond four times the best is drawn
// at its edge. It is legible on light and on dark pages.
func (r *Replay) SVG(w io.Writer) error {
	const (
		left, right, top, row = 190, 730, 46, 22
		least, most           = 0.5, 4.0
	)
	a := analyse(r)
	at := func(ratio float64) float64 {
		x := math.Log(max(least, min(ratio, most))/least) / math.Log(most/least)
		return left + x*(right-left)
	}
	peer := make(map[string]bool)
	for _, p := range r.Policies {
		peer[p.Name] = p.Peer
	}
	height := top + row*len(a.totals) + 14

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 %d" width="800" height="%d" role="img" font-family="system-ui, sans-serif" font-size="13">`, height, height)
	b.WriteString(`<title>Scores of routing policies over the best peer's of each cell; less is better</title>`)
	b.WriteString(`<style>text{fill:#333}.g{stroke:#ccc}.one{stroke:#777}.d{fill:#8a8a8a;fill-opacity:.55}.m{stroke:#555;stroke-width:3}.o .d{fill:#0072b2;fill-opacity:.7}.o .m{stroke:#0072b2}.o text{font-weight:700}` +
		`@media(prefers-color-scheme:dark){text{fill:#ddd}.g{stroke:#444}.one{stroke:#999}.d{fill:#aaa}.m{stroke:#ccc}.o .d{fill:#56b4e9}.o .m{stroke:#56b4e9}}</style>`)
	for _, tick := range []float64{0.5, 0.7, 1, 1.4, 2, 2.8, 4} {
		class := "g"
		if tick == 1 {
			class = "one"
		}
		fmt.Fprintf(&b, `<line class="%s" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, class, at(tick), at(tick), top-6, height-8)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%g</text>`, at(tick), top-12, tick)
	}
	fmt.Fprintf(&b, `<text x="%d" y="16">score over the best peer's of each cell: less is better</text>`, left)
	for i, t := range a.totals {
		y := top + row*i + row/2
		class := "p"
		if !peer[t.Policy] {
			class = "o"
		}
		fmt.Fprintf(&b, `<g class="%s"><text x="%d" y="%d" text-anchor="end">`, class, left-12, y+4)
		if err := xml.EscapeText(&b, []byte(printable(t.Policy))); err != nil {
			return err
		}
		b.WriteString(`</text>`)
		for _, c := range a.cells {
			for _, row := range c.Rows {
				if row.Name == t.Policy && row.Score.Ratio > 0 {
					fmt.Fprintf(&b, `<circle class="d" cx="%.1f" cy="%d" r="4"/>`, at(row.Score.Ratio), y)
				}
			}
		}
		fmt.Fprintf(&b, `<line class="m" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, at(t.Ratio), at(t.Ratio), y-8, y+8)
		fmt.Fprintf(&b, `<text x="%d" y="%d">%.2f</text></g>`, right+14, y+4, t.Ratio)
	}
	b.WriteString("</svg>\n")
	_, err := w.Write(b.Bytes())
	return err
}
