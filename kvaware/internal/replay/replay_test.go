// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/trace"
)

// sticky keeps a session where it began, at the replica with the fewest requests
// then and, of those, the fewest so far.
func sticky() Spec {
	return Spec{Name: "sticky", New: func(Setting) Policy {
		return &leastAtFirst{at: map[uint64]int{}, load: map[int]int{}, ever: map[int]int{}}
	}}
}

type leastAtFirst struct {
	at         map[uint64]int
	load, ever map[int]int
}

func (l *leastAtFirst) Route(_ time.Duration, r *Request, up []int) int {
	pick, ok := l.at[r.Session]
	if !ok || !slices.Contains(up, pick) {
		pick = up[0]
		for _, i := range up {
			if l.load[i] < l.load[pick] || l.load[i] == l.load[pick] && l.ever[i] < l.ever[pick] {
				pick = i
			}
		}
		if r.Session != 0 {
			l.at[r.Session] = pick
		}
	}
	l.load[pick]++
	l.ever[pick]++
	return pick
}
func (l *leastAtFirst) Started(time.Duration, *Request, int)       {}
func (l *leastAtFirst) Progress(time.Duration, *Request, int, int) {}
func (l *leastAtFirst) Ended(_ time.Duration, _ *Request, replica int, _ Outcome, _ Usage) {
	l.load[replica]--
}

func TestEqualRunsGiveEqualResults(t *testing.T) {
	for _, g := range trace.Generators {
		c := Config{Trace: workload(t, g.Name, 200), Fleet: fleet(t, "3xh100,h100@0.4"), Policy: atRandom(), Seed: 3, Points: 50, Records: true}
		c.Rate = c.Trace.Rate
		a, err := json.Marshal(simulated(t, c))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := json.Marshal(simulated(t, c))
		if string(a) != string(b) {
			t.Errorf("%s: two runs differ", g.Name)
		}
		c.Seed = 4
		if b, _ = json.Marshal(simulated(t, c)); string(a) == strings.Replace(string(b), `"seed":4`, `"seed":3`, 1) {
			t.Errorf("%s: seeds 3 and 4 give the same", g.Name)
		}
	}
}

func TestThePolicyThatKeepsConversationsWhereTheyAreIsBest(t *testing.T) {
	tr := workload(t, "chat", 1500)
	f := fleet(t, "2xh100")
	refs := []Spec{sticky(), atRandom()}
	c := Config{Trace: tr, Fleet: f, Seed: 1}
	full, err := Calibrate(context.Background(), c, refs...)
	if err != nil {
		t.Fatal(err)
	}
	var configs []Config
	for _, load := range []float64{0.6, 0.95} {
		for _, p := range []Spec{roundRobin(), atRandom(), sticky()} {
			for seed := uint64(1); seed <= 2; seed++ {
				c.Policy, c.Load, c.Rate, c.Seed, c.Records = p, load, load*full.Rate, seed, true
				configs = append(configs, c)
			}
		}
	}
	var results []*Result
	for _, c := range configs {
		results = append(results, simulated(t, c))
	}
	t.Logf("load 1.0 is %.2f requests/s, unloaded TTFT %.0f ms, end to end %.0f ms", full.Rate, full.UnloadedTTFT, full.UnloadedE2E)
	for _, r := range results {
		t.Logf("%.2f %-12s ttft %8.0f %8.0f  itl %5.1f  e2e %8.0f %8.0f  %6.0f tok/s  hit %.2f  imbalance %.2f  slo %.2f  fair %.2f",
			r.Load, r.Policy, r.TTFT.Mean, r.TTFT.P99, r.ITL.Mean, r.E2E.Mean, r.E2E.P99, r.TokensPerSecond, r.HitRate, r.Imbalance, r.Attained, r.Fairness)
	}
	_, totals := Compare(results, func(p string) bool { return p != "sticky" })
	for _, p := range totals {
		t.Logf("%-12s %.3f of the best peer, worst %.3f, over %v", p.Policy, p.Ratio, p.Worst, p.Over)
	}
	if totals[0].Policy != "sticky" {
		t.Errorf("on conversations %s is best, want the one that keeps them where they are", totals[0].Policy)
	}
	d := Paired(results[len(results)-3], results[0])
	if d.Pairs == 0 || math.IsNaN(d.TTFT.Mean) {
		t.Errorf("paired: %+v", d)
	}
}
