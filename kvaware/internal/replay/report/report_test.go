// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// times are those of a distribution whose median is so many milliseconds.
func times(median float64) replay.Times {
	t := replay.Times{Mean: median * 1.2, P50: median, P90: median * 2, P99: median * 4, P999: median * 6, Max: median * 9}
	for _, share := range replay.CDFShares {
		t.CDF = append(t.CDF, median*math.Exp(probit(min(share, 0.9999))))
	}
	return t
}

// result is one with everything in it, the worse the greater slow is.
func result(c Cell, policy string, seed uint64, slow float64, replicas, points int) *replay.Result {
	r := &replay.Result{
		Trace: c.Trace, Fleet: c.Fleet, Load: c.Load, Rate: c.Rate, Clients: c.Clients, Routers: c.Routers, Policy: policy, Seed: seed,
		Requests: 100, Measured: 800, TTFT: times(50 * slow), ITL: times(20 * slow), E2E: times(3000 * slow),
		TokensPerSecond: 1000 / slow, Seconds: 60, HitRate: 0.8 / slow, Imbalance: slow, Attained: 1 / slow, Fairness: 1,
	}
	for i := range points {
		r.Times = append(r.Times, 0.1*float64(i+1))
	}
	for n := range replicas {
		replica := replay.ReplicaResult{Machine: "h100", Requests: 100 / replicas}
		for i := range points {
			replica.Points = append(replica.Points, replay.Point{Running: (i*7 + n) % 30, Waiting: i % 3})
		}
		r.Replicas = append(r.Replicas, replica)
	}
	for i := range 80 {
		r.Records = append(r.Records, replay.Record{ID: 20 + i, TTFT: 0.05 * slow, ITL: 0.02 * slow, E2E: 3 * slow})
	}
	return r
}

// example has ours, two peers and one that is none, in two cells, each with its own
// best peer.
func example(seeds int) *Replay {
	r := &Replay{
		Traces: []Trace{{Name: "chat", Requests: 100, Prompt: 1000, Output: 200}},
		Fleets: []Fleet{{Name: "4xh100", Replicas: 4, Summary: "four of them"}},
		Policies: []Policy{
			{Name: "ours", Summary: "least"},
			{Name: "fast", Peer: true},
			{Name: "slow", Peer: true},
			{Name: "bound"},
		},
		BlockSize: 64, SLO: replay.SLO{TTFT: 2000, ITL: 100}, Ours: "ours",
	}
	for n := range seeds {
		seed := uint64(n + 1)
		r.Seeds = append(r.Seeds, seed)
		noise := 1 + 0.01*float64(n)
		for i, c := range []Cell{{Trace: "chat", Fleet: "4xh100", Load: 0.6, Rate: 6}, {Trace: "chat", Fleet: "4xh100", Load: 0.9, Rate: 9}} {
			for p, slow := range [][]float64{{0.9, 1, 2, 0.5}, {1.5, 2, 1.25, 0.5}}[i] {
				r.Results = append(r.Results, result(c, r.Policies[p].Name, seed, slow*noise*float64(i+1), 4, 50))
			}
		}
	}
	return r
}

func table(t *testing.T, r *Replay) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.Table(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPoliciesAreSortedByScoreAgainstTheBestPeerOfTheirCell(t *testing.T) {
	text := table(t, example(1))
	want := [][]string{
		{"chat on 4xh100, load 0.6 (6 requests/s)"},
		{"policy", "TTFT"},
		{"bound", "0.500"}, {"ours", "0.900"}, {"fast", "1.000", "best peer"}, {"slow", "2.000"},
		{""},
		{"chat on 4xh100, load 0.9 (9 requests/s)"},
		{"policy"},
		{"bound", "0.400"}, {"slow", "1.000", "best peer"}, {"ours", "1.200"}, {"fast", "1.600"},
		{""},
		{"All cells"},
		{"policy", "ours over it"},
		{"bound"}, {"ours", "1.039", "1.200", "worst: chat on 4xh100, load 0.9"}, {"fast"}, {"slow"},
		{""},
		{"ours less the best peer"},
		{"cell"},
		{"load 0.6", "fast", "80", "-5.00"},
		{"load 0.9", "slow", "80", "+25.0"},
	}
	lines := strings.Split(text, "\n")
	if len(lines) < len(want) {
		t.Fatalf("%d lines:\n%s", len(lines), text)
	}
	for i, words := range want {
		for _, word := range words {
			if !strings.Contains(lines[i], word) || word == "" && lines[i] != "" {
				t.Errorf("line %d is %q, without %q", i+1, lines[i], word)
			}
		}
	}
}

func TestSeveralSeedsHaveIntervals(t *testing.T) {
	one, three := table(t, example(1)), table(t, example(3))
	if strings.Contains(one, "±") || !strings.Contains(three, "±") {
		t.Errorf("one seed:\n%s\nthree:\n%s", one, three)
	}
	if strings.Count(three, "[0.900, 0.900]") != 1 { // equal noise, equal ratio
		t.Errorf("no interval of the ratio:\n%s", three)
	}
}

func TestColumnsAreAligned(t *testing.T) {
	lines := strings.Split(table(t, example(3)), "\n")
	end := strings.Index(lines[1], "vs best peer") + len("vs best peer")
	for _, line := range lines[2:6] {
		// Bytes would count the ± of the head twice.
		if r := []rune(line); string(r[len([]rune(lines[1][:end]))-1]) == " " {
			t.Errorf("%q does not end its ratio where %q does", line, lines[1])
		}
	}
}

func TestCellsWithoutALoadAreToldApart(t *testing.T) {
	r := example(1)
	r.Results = nil
	for i, c := range []Cell{{Trace: "a", Rate: 1}, {Trace: "a", Rate: 2}, {Trace: "a", Clients: 3}, {Trace: "a", Clients: 3, Routers: replay.Routers{N: 2}}, {Trace: "a"}} {
		r.Results = append(r.Results,
			result(c, "ours", 1, float64(i+1), 1, 0), result(c, "fast", 1, 1, 1, 0))
	}
	text := table(t, r)
	for _, want := range []string{"1 requests/s", "2 requests/s", "3 clients", "3 clients, 2 routers", "its own times", "4.000", "5.000"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

func TestWithoutPeersThereIsNoRatio(t *testing.T) {
	r := example(1)
	for i := range r.Policies {
		r.Policies[i].Peer = false
	}
	text := table(t, r)
	if strings.Contains(text, "All cells") || strings.Contains(text, "paired") || !strings.Contains(text, "-") {
		t.Errorf("scores against no peer:\n%s", text)
	}
}

func TestNothingMeasuredIsShownAsSuch(t *testing.T) {
	r := example(1)
	bare := *r.Results[0]
	bare.TTFT, bare.ITL, bare.E2E, bare.Measured, bare.Records, bare.Times = replay.Times{}, replay.Times{}, replay.Times{}, 0, nil, nil
	for i := range bare.Replicas {
		bare.Replicas[i].Points = nil
	}
	r.Results = []*replay.Result{&bare}
	table(t, r)
	for _, write := range []func(*Replay) []byte{htmlOf, jsonOf} {
		if out := write(r); bytes.Contains(out, []byte("NaN")) || bytes.Contains(out, []byte("Inf")) {
			t.Errorf("no numbers in\n%s", out)
		}
	}
	r.Results = nil
	table(t, r)
	htmlOf(r)
	jsonOf(r)
}

func TestWhatLimitsTheFiguresIsSaid(t *testing.T) {
	r := example(1)
	if notes := analyse(r).notes(); len(notes) > 0 {
		t.Errorf("of nothing: %v", notes)
	}
	r.Missing = 7
	r.Results[0].Rejected = 3
	r.Calibrations = []replay.Calibration{{Trace: "chat", Fleet: "4xh100", Rate: 10, UnloadedE2E: 800}}
	text := table(t, r)
	for _, want := range []string{
		"7 runs are missing", "load 0.6 (6 requests/s): 3 of 103 requests fit no replica",
		"load 0.9 (9 requests/s): all requests come within 11.1 s",
	} {
		if !strings.Contains(text, want) || !bytes.Contains(htmlOf(r), []byte(want)) {
			t.Errorf("%q is not said in\n%s", want, text)
		}
	}
	if strings.Contains(text, "load 0.6 (6 requests/s): all") {
		t.Errorf("said of what is long enough:\n%s", text)
	}
}

func TestNamesDoNotReachTheTerminalRaw(t *testing.T) {
	r := example(1)
	for _, result := range r.Results {
		result.Trace = "a\x1b[2Jb\nc"
	}
	if text := table(t, r); strings.Contains(text, "\x1b") || strings.Contains(text, "b\nc") {
		t.Errorf("control characters in %q", text)
	}
}

func TestSeedsUnderWhichOnlySomeRanDoNotCount(t *testing.T) {
	r := example(2)
	whole := example(1)
	whole.Seeds = r.Seeds
	r.Results = r.Results[:len(whole.Results)+3]
	want := table(t, whole)
	if got := table(t, r); got != want {
		t.Errorf("with three more runs\n%s\nnot\n%s", got, want)
	}
	var out struct{ Cells []any }
	if err := json.Unmarshal(jsonOf(r), &out); err != nil || len(out.Cells) != len(r.Results) {
		t.Errorf("%d cells in JSON, error %v", len(out.Cells), err)
	}
}

func TestPairsCoverAllSeeds(t *testing.T) {
	a := analyse(example(3))
	p := a.cells[0].Pair
	if p == nil || p.Pairs != 240 || p.Peer != "fast" || p.Policy != "ours" {
		t.Fatalf("pair %+v", p)
	}
	// 10 % of a time of 50, 50.5 and 51 ms.
	if math.Abs(p.TTFT.Mean+5.05) > 1e-9 || p.Faster != 1 {
		t.Errorf("difference %+v", p)
	}
}

func jsonOf(r *Replay) []byte {
	var b bytes.Buffer
	if err := r.JSON(&b); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func TestJSONHasTheCellsAndWhatFollows(t *testing.T) {
	var out map[string]any
	data := jsonOf(example(2))
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	cells := out["cells"].([]any)
	if len(cells) != 16 {
		t.Fatalf("%d cells", len(cells))
	}
	one := cells[0].(map[string]any)
	for _, key := range []string{"trace", "fleet", "load", "policy", "seed", "requests", "ttft_ms", "itl_ms", "e2e_ms", "tokens_per_s", "hit_rate", "preemptions"} {
		if _, ok := one[key]; !ok {
			t.Errorf("a cell has no %s", key)
		}
	}
	for _, key := range []string{"ttft_ms", "itl_ms", "e2e_ms"} {
		for _, figure := range []string{"mean", "p50", "p90", "p99", "p99_9"} {
			if x, ok := one[key].(map[string]any)[figure].(float64); !ok || x <= 0 {
				t.Errorf("%s has %s %v", key, figure, x)
			}
		}
	}
	if n := len(out["scores"].([]any)); n != 8 {
		t.Errorf("%d scores", n)
	}
	if s := out["scores"].([]any)[0].(map[string]any); s["load"] != 0.6 || s["best_peer"] != "fast" {
		t.Errorf("first score %v", s)
	}
	if n := len(out["paired"].([]any)); n != 2 {
		t.Errorf("%d pairs", n)
	}
	if n := len(out["totals"].([]any)); n != 4 {
		t.Errorf("%d totals", n)
	}
	if bytes.Contains(data, []byte("running")) {
		t.Error("the points of the plots are in it")
	}
}

func TestEqualResultsGiveEqualBytes(t *testing.T) {
	for name, write := range map[string]func(*Replay) []byte{
		"HTML": htmlOf, "JSON": jsonOf, "table": func(r *Replay) []byte { return []byte(table(t, r)) },
	} {
		a, b := write(example(3)), write(example(3))
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs", name)
		}
		if year := fmt.Sprint(time.Now().Year()); bytes.Contains(a, []byte(year+"-")) {
			t.Errorf("%s has a date", name)
		}
	}
}

func TestAP99OfFewIsCalledOne(t *testing.T) {
	for measured, want := range map[int]string{0: "", 1: "the slowest one", 199: "the slowest one", 200: "the 2 slowest", 499: "the 4 slowest", 500: ""} {
		r := example(1)
		for _, result := range r.Results {
			result.Measured = measured
		}
		text := table(t, r)
		if got := strings.Contains(text, "p99 rests on"); got != (want != "") || !strings.Contains(text, want) {
			t.Errorf("%d measured:\n%s", measured, text)
		}
	}
}
