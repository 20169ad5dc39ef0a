// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kvaware/caddy-kvaware/kvaware"
)

// fleetView says how a snapshot is shown as text.
type fleetView struct {
	width   int // of the lines, in characters
	colored bool
	sorted  int // by which of the columns
	reverse bool
}

// widest is the width where nothing bounds it.
const widest = 250

// column is one of the table of upstreams.
type column struct {
	title string
	// rank says which columns are left out where there is no room: the highest.
	rank int
	text func(*kvaware.UpstreamSnapshot) string
	// value is what is sorted by, the largest first; without one, by address.
	value func(*kvaware.UpstreamSnapshot) float64
}

// columns are in the order in which they are shown. The bar of the load stands behind
// the first.
var columns = []column{
	{"upstream", 0, func(u *kvaware.UpstreamSnapshot) string { return shown(u.Address) }, nil},
	amounts("load", 1, func(u *kvaware.UpstreamSnapshot) float64 { return u.Load }),
	amounts("prefill", 8, func(u *kvaware.UpstreamSnapshot) float64 { return float64(u.PrefillTokens) }),
	amounts("decode", 9, func(u *kvaware.UpstreamSnapshot) float64 { return float64(u.DecodeTokens) }),
	amounts("running", 2, func(u *kvaware.UpstreamSnapshot) float64 { return float64(u.Sequences) }),
	shares("KV used", 4, func(u *kvaware.UpstreamSnapshot) *float64 { return share(u.RunningKVTokens, u.CacheTokens) }),
	shares("held", 13, func(u *kvaware.UpstreamSnapshot) *float64 {
		return share(u.RunningKVTokens+u.IdleKVTokens, u.CacheTokens)
	}),
	shares("hit rate", 3, func(u *kvaware.UpstreamSnapshot) *float64 { return u.HitRate }),
	times("TTFT", 6, func(u *kvaware.UpstreamSnapshot) *kvaware.Percentiles { return u.FirstToken }, false),
	times("p99", 7, func(u *kvaware.UpstreamSnapshot) *kvaware.Percentiles { return u.FirstToken }, true),
	times("ITL", 10, func(u *kvaware.UpstreamSnapshot) *kvaware.Percentiles { return u.InterToken }, false),
	times("p99", 11, func(u *kvaware.UpstreamSnapshot) *kvaware.Percentiles { return u.InterToken }, true),
	amounts("tokens/s", 5, func(u *kvaware.UpstreamSnapshot) float64 { return u.GeneratedTokensPerSecond }),
	amounts("requests/s", 14, func(u *kvaware.UpstreamSnapshot) float64 { return u.RequestsPerSecond }),
	amounts("failing", 12, func(u *kvaware.UpstreamSnapshot) float64 { return u.FailureScore }),
	{"events", 15, events, nil},
}

// events tells how far an upstream's KV events are followed, if they are.
func events(u *kvaware.UpstreamSnapshot) string {
	if u.Events == nil {
		return "-"
	}
	return shown(u.Events.State)
}

// byLoad is the column of the load.
const byLoad = 1

func amounts(title string, rank int, value func(*kvaware.UpstreamSnapshot) float64) column {
	return column{title, rank, func(u *kvaware.UpstreamSnapshot) string { return amount(value(u)) }, value}
}

func shares(title string, rank int, of func(*kvaware.UpstreamSnapshot) *float64) column {
	return column{title, rank,
		func(u *kvaware.UpstreamSnapshot) string { return percent(of(u)) },
		func(u *kvaware.UpstreamSnapshot) float64 {
			if s := of(u); s != nil {
				return *s
			}
			return -1
		}}
}

func times(title string, rank int, of func(*kvaware.UpstreamSnapshot) *kvaware.Percentiles, tail bool) column {
	ms := func(p *kvaware.Percentiles) float64 {
		switch {
		case p == nil:
			return -1
		case tail:
			return p.P99
		}
		return p.P50
	}
	return column{title, rank,
		func(u *kvaware.UpstreamSnapshot) string { return milliseconds(ms(of(u))) },
		func(u *kvaware.UpstreamSnapshot) float64 { return ms(of(u)) }}
}

// poolLines is a pool as text, of lines without line breaks.
type poolLines struct{ head, rows, decisions []string }

// pool shows a pool. At most maxShownDecisions of its decisions are listed.
func (v fleetView) pool(p *kvaware.PoolSnapshot) (lines poolLines) {
	name := "the pool without a name"
	if p.Pool != "" {
		name = "pool " + shown(p.Pool)
	}
	lines.head = append(lines.head, v.style(bold, v.cut(fmt.Sprintf("%s: %s, %s", name, counted(p.UpstreamsTotal, "upstream"), counted(p.Totals.Requests, "request")))))
	for _, line := range totals(&p.Totals) {
		lines.head = append(lines.head, v.cut(line))
	}
	lines.head = append(lines.head, "")

	upstreams := slices.Clone(p.Upstreams)
	v.sort(upstreams)
	header, rows := v.table(upstreams)
	lines.head = append(lines.head, header)
	lines.rows = rows

	const maxShownDecisions = 5
	for i := range p.Decisions[:min(len(p.Decisions), maxShownDecisions)] {
		d := &p.Decisions[i]
		what := fmt.Sprintf("%s  %s  ", d.Time.Local().Format("15:04:05"), shown(d.Upstream))
		if d.PromptTokens > 0 {
			what += fmt.Sprintf("%s, %s cached: ", counted(d.PromptTokens, "token"), amount(float64(d.CachedTokens)))
		}
		lines.decisions = append(lines.decisions, v.cut(what+shown(d.Why)))
	}
	if len(p.Upstreams) == 0 {
		lines.rows = []string{"No upstream is known yet."}
	}
	switch {
	case len(p.Decisions) > 0:
		lines.decisions = append([]string{"", v.style(bold, v.cut("Last decisions"))}, lines.decisions...)
	case p.Totals.AttemptsTotal == 0:
		lines.decisions = []string{"", v.cut("Nothing has been routed yet.")}
	}
	return lines
}

// totals words the figures of a whole pool.
func totals(f *kvaware.Figures) []string {
	lines := []string{fmt.Sprintf("%s requests/s, %s tokens/s prefilled, %s generated; hit rate %s, %s tokens of prefill saved",
		amount(f.RequestsPerSecond), amount(f.PrefillTokensPerSecond), amount(f.GeneratedTokensPerSecond), percent(f.HitRate), amount(float64(f.CachedTokensTotal)))}
	if f.FirstToken != nil {
		line := fmt.Sprintf("time to first token %s, p99 %s", milliseconds(f.FirstToken.P50), milliseconds(f.FirstToken.P99))
		if f.InterToken != nil {
			line += fmt.Sprintf("; between tokens %s, p99 %s", milliseconds(f.InterToken.P50), milliseconds(f.InterToken.P99))
		}
		lines = append(lines, line)
	}
	return lines
}

// sort orders upstreams by the view's column.
func (v fleetView) sort(upstreams []kvaware.UpstreamSnapshot) {
	c := columns[v.sorted]
	slices.SortFunc(upstreams, func(a, b kvaware.UpstreamSnapshot) int {
		order := 0
		if c.value != nil {
			order = cmp.Compare(c.value(&b), c.value(&a))
		}
		order = cmp.Or(order, cmp.Compare(a.Address, b.Address))
		if v.reverse {
			return -order
		}
		return order
	})
}

// The bar of the load takes what is left of the width within these, and parts are
// told apart by shape, not by color alone.
const (
	shortestBar, longestBar = 8, 40
	prefillMark, decodeMark = "█", "▒"
	gap                     = "  "
)

// table lays out the upstreams, with as many columns as there is room for.
func (v fleetView) table(upstreams []kvaware.UpstreamSnapshot) (header string, rows []string) {
	cells := make([][]string, len(columns))
	widths := make([]int, len(columns))
	for i, c := range columns {
		title := c.title
		if i == v.sorted {
			title += map[bool]string{false: "↓", true: "↑"}[v.reverse == (c.value != nil)]
		}
		cells[i] = append(cells[i], title)
		for j := range upstreams {
			cells[i] = append(cells[i], c.text(&upstreams[j]))
		}
		for _, cell := range cells[i] {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	widths[0] = min(widths[0], max(v.width/2, shortestBar), v.width)
	room := v.width - widths[0] - len(gap) - shortestBar
	chosen := make([]bool, len(columns))
	for rank := 1; rank < len(columns); rank++ {
		i := slices.IndexFunc(columns, func(c column) bool { return c.rank == rank })
		if c := columns[i]; c.value == nil && i != v.sorted && !slices.ContainsFunc(cells[i][1:], func(cell string) bool { return cell != "-" }) {
			continue // nobody has it
		}
		if room -= widths[i] + len(gap); room < 0 {
			room += widths[i] + len(gap)
			break
		}
		chosen[i] = true
	}
	long := max(0, min(shortestBar+room, longestBar))

	full := int64(0)
	for i := range upstreams {
		full = max(full, upstreams[i].PrefillTokens+upstreams[i].DecodeTokens)
	}
	for row := range len(upstreams) + 1 {
		line := fit(cells[0][row], widths[0], false)
		switch {
		case long == 0:
		case row == 0:
			line += gap + fit(prefillMark+" prefill "+decodeMark+" decode", long, false)
		default:
			line += gap + v.bar(&upstreams[row-1], full, long)
		}
		for i := 1; i < len(columns); i++ {
			if chosen[i] {
				line += gap + fit(cells[i][row], widths[i], true)
			}
		}
		switch {
		case row == 0:
			header = v.style(dim, line)
		case upstreams[row-1].FailureScore >= 1:
			rows = append(rows, v.style(red, line))
		default:
			rows = append(rows, line)
		}
	}
	return header, rows
}

// bar draws an upstream's load against the fullest one's.
func (v fleetView) bar(u *kvaware.UpstreamSnapshot, full int64, long int) string {
	cells := func(tokens int64) int {
		if tokens <= 0 || full <= 0 {
			return 0
		}
		return min(long, max(1, int(math.Round(float64(tokens)/float64(full)*float64(long)))))
	}
	prefill := cells(u.PrefillTokens)
	decode := min(cells(u.DecodeTokens), long-prefill)
	return v.style(yellow, strings.Repeat(prefillMark, prefill)) +
		v.style(cyan, strings.Repeat(decodeMark, decode)) +
		strings.Repeat(" ", long-prefill-decode)
}

// Styles, as a terminal takes them.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	yellow = "33"
	cyan   = "36"
)

// style gives text a style, if the view has any.
func (v fleetView) style(style, text string) string {
	if !v.colored || text == "" {
		return text
	}
	// What is styled within goes back to this.
	return "\x1b[" + style + "m" + strings.ReplaceAll(text, "\x1b[m", "\x1b[m\x1b["+style+"m") + "\x1b[m"
}

// cut makes text no longer than the view is wide.
func (v fleetView) cut(text string) string {
	if utf8.RuneCountInString(text) <= v.width {
		return text
	}
	return fit(text, v.width, false)
}

// fit makes text exactly so wide.
func fit(text string, width int, right bool) string {
	n := utf8.RuneCountInString(text)
	switch {
	case n > width && width > 0:
		return string([]rune(text)[:width-1]) + "…"
	case n > width:
		return ""
	case right:
		return strings.Repeat(" ", width-n) + text
	}
	return text + strings.Repeat(" ", width-n)
}

// amount is a number in few characters.
func amount(v float64) string {
	switch {
	case v == math.Trunc(v) && v < 1e4:
		return fmt.Sprintf("%.0f", v)
	case v < 9.95:
		return fmt.Sprintf("%.1f", v)
	case v < 1e4:
		return fmt.Sprintf("%.0f", v)
	}
	for _, unit := range []string{"k", "M", "G"} {
		switch v /= 1000; {
		case v < 99.95:
			return fmt.Sprintf("%.1f%s", v, unit)
		case v < 999.5:
			return fmt.Sprintf("%.0f%s", v, unit)
		}
	}
	return fmt.Sprintf("%.3g", v*1e9)
}

func share(part, whole int64) *float64 {
	if whole <= 0 {
		return nil
	}
	s := float64(part) / float64(whole)
	return &s
}

func percent(share *float64) string {
	if share == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", *share*100)
}

// milliseconds is a time in few characters; below 0 there is none.
func milliseconds(ms float64) string {
	switch {
	case ms < 0:
		return "-"
	case ms < 9.95:
		return fmt.Sprintf("%.1fms", ms)
	case ms < 999.5:
		return fmt.Sprintf("%.0fms", ms)
	case ms < 99950:
		return fmt.Sprintf("%.1fs", ms/1e3)
	}
	return fmt.Sprintf("%.0fs", ms/1e3)
}
