// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/trace"
)

func TestQuantilesAreExactOfFewAndNearOfMany(t *testing.T) {
	shares := []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999, 1}
	for _, n := range []int{1, 2, 10, 1000, sketchExact, 4 * sketchExact} {
		rng := rand.New(rand.NewPCG(uint64(n), 1))
		var s sketch
		var all []float64
		sum := 0.0
		for range n {
			x := math.Exp(2*rng.NormFloat64()) / 10
			s.add(x)
			all = append(all, x)
			sum += x
		}
		slices.Sort(all)
		for i, got := range s.quantiles(shares...) {
			want := all[max(int(math.Ceil(shares[i]*float64(n))), 1)-1]
			tolerance := 1e-6
			if n > sketchExact {
				tolerance = 0.0026
			}
			if math.Abs(got/want-1) > tolerance {
				t.Errorf("of %d: quantile %v is %v, want %v", n, shares[i], got, want)
			}
		}
		if math.Abs(s.mean()/(sum/float64(n))-1) > 1e-9 || s.max != all[n-1] {
			t.Errorf("of %d: mean %v, max %v", n, s.mean(), s.max)
		}
	}
	var none sketch
	if got := none.times(); got.Mean != 0 || got.P99 != 0 {
		t.Errorf("of nothing: %+v", got)
	}
	for _, x := range []float64{0, 1e-12, 1e12} {
		if b := bucketOf(x); b < 0 || b >= sketchSize {
			t.Errorf("%v seconds go to bucket %d of %d", x, b, sketchSize)
		}
	}
}

// A request alone on an engine of which everything is known takes what can be
// computed by hand.
func TestWhatIsMeasuredIsWhatTheModelSays(t *testing.T) {
	text := []trace.Segment{{Seed: 1, Tokens: 1000}}
	turns := func() []trace.Turn { return []trace.Turn{{Prompt: 1000, Output: 101, Text: text}} }
	tr, err := trace.Of("mine", []*trace.Session{{Turns: turns()}, {Start: time.Minute, Turns: turns()}})
	if err != nil {
		t.Fatal(err)
	}
	r := simulated(t, Config{Trace: tr, Fleet: fleet(t, "h100"), Policy: roundRobin(), WarmUp: -1, Records: true, BlockSize: 16})
	const a, b, c, d = 12e-3, 50e-6, 30e-9, 1e-9
	decode := 0.0
	for i := range 100 {
		decode += a + b + c*float64(1001+i)
	}
	first := a + b*1000 + d*1000*1000/2
	second := a + b*8 + d*8*(992+1000)/2 // 62 whole blocks are cached
	near := func(what string, got, want float64) {
		if math.Abs(got/want-1) > 1e-6 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	near("TTFT of the first", r.Records[0].TTFT, first)
	near("TTFT of the second", r.Records[1].TTFT, second)
	near("mean TTFT", r.TTFT.Mean, (first+second)/2*1e3)
	near("end to end", r.Records[0].E2E, first+decode)
	near("between tokens", r.Records[0].ITL, decode/100)
	near("hit rate", r.HitRate, 992.0/2000)
	near("throughput", r.TokensPerSecond, 202/(60+second+decode))
	if r.Attained != 1 || r.Imbalance != 0 && r.Imbalance != 1 || r.Requests != 2 || r.Measured != 2 {
		t.Errorf("%+v", r)
	}
}

func TestJainsIndexIsOneOfEqualsAndOneNthOfOneThatHasAll(t *testing.T) {
	var equal, one moments
	for i := range 8 {
		equal.add(3)
		one.add(float64(min(i, 1) ^ 1))
	}
	if math.Abs(equal.jain()-1) > 1e-12 || math.Abs(one.jain()-1.0/8) > 1e-12 {
		t.Errorf("%v and %v", equal.jain(), one.jain())
	}
}

func TestASlowReplicaASlowFleetAndAnUpdateCostWhatTheyShould(t *testing.T) {
	c := Config{Trace: workload(t, "chat", 1500), Fleet: fleet(t, "4xh100"), Policy: sticky(), Rate: 8}
	base := simulated(t, c)
	c.Events = []Event{{Kind: Slow, Replica: 1, After: 0.3, Factor: 4}}
	slow := simulated(t, c)
	c.Events = []Event{{Kind: Update, After: 0.5}, {Kind: Update, After: 0.6}, {Kind: Update, After: 0.7}, {Kind: Update, After: 0.8}}
	update := simulated(t, c)
	c.Events = nil
	c.Fleet = fleet(t, "4xh100@0.5")
	half := simulated(t, c)
	if slow.E2E.P99 < 1.5*base.E2E.P99 || update.HitRate > base.HitRate-0.03 || half.ITL.P50 < 1.8*base.ITL.P50 {
		t.Errorf("base %v %v %v; slow %v; hit rate with updates %v; half speed %v", base.E2E.P99, base.HitRate, base.ITL.P50, slow.E2E.P99, update.HitRate, half.ITL.P50)
	}
}

func TestLoadOneIsWhereTheBetterReferenceReachesTheMultiple(t *testing.T) {
	c := Config{Trace: workload(t, "hot_prefix", 800), Fleet: fleet(t, "2xh100"), Seed: 1}
	ctx := context.Background()
	full, err := Calibrate(ctx, c, atRandom(), sticky())
	if err != nil {
		t.Fatal(err)
	}
	alone, err := Calibrate(ctx, c, atRandom())
	if err != nil || alone.Rate > full.Rate {
		t.Errorf("%v requests a second with random routing only, %v with a better one as well; %v", alone.Rate, full.Rate, err)
	}
	again, _ := Calibrate(ctx, c, atRandom(), sticky())
	if again != full {
		t.Errorf("%+v, then %+v", full, again)
	}
	within := func(rate float64) bool {
		c.Rate = rate
		for _, p := range []Spec{atRandom(), sticky()} {
			c.Policy = p
			if r := simulated(t, c); r.TTFT.Mean <= Saturation*full.UnloadedTTFT && r.E2E.Mean <= Saturation*full.UnloadedE2E {
				return true
			}
		}
		return false
	}
	if !within(full.Rate) || within(full.Rate*1.02) {
		t.Errorf("at %v: %v, 2 %% above: %v", full.Rate, within(full.Rate), within(full.Rate*1.02))
	}
	few, err := trace.Of("few", []*trace.Session{{Turns: []trace.Turn{{Prompt: 10, Output: 2}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Calibrate(ctx, Config{Trace: few, Fleet: c.Fleet}, atRandom()); !errors.Is(err, ErrTooShort) {
		t.Error(err)
	}
}

func TestScoresAreRatiosToTheBestPeerOfEachCell(t *testing.T) {
	result := func(trace, policy string, seed uint64, ms float64) *Result {
		x := Times{Mean: ms, P99: ms}
		return &Result{Trace: trace, Policy: policy, Seed: seed, TTFT: x, E2E: x}
	}
	results := []*Result{
		result("a", "ours", 1, 80), result("a", "ours", 2, 90), result("a", "x", 1, 100), result("a", "x", 2, 100), result("a", "y", 1, 200), result("a", "y", 2, 200),
		result("b", "ours", 1, 120), result("b", "x", 1, 400), result("b", "y", 1, 100),
	}
	// Cells without a load are told apart by what stands for it.
	for _, r := range results {
		if r.Trace == "b" {
			r.Trace, r.Clients = "a", 4
		}
	}
	scores, totals := Compare(results, func(p string) bool { return p != "ours" })
	if len(scores) != 6 || scores[0].Policy != "ours" || scores[0].Best != "x" || scores[0].Seeds != 2 {
		t.Fatalf("%+v", scores)
	}
	a := math.Sqrt(0.8 * 0.9)
	if math.Abs(scores[0].Ratio-a) > 1e-9 || scores[0].Low >= a || scores[0].High <= a || scores[3].Low != scores[3].Ratio || scores[3].Best != "y" {
		t.Errorf("%+v", scores)
	}
	ours := totals[0]
	if ours.Policy != "ours" || math.Abs(ours.Ratio-math.Sqrt(a*1.2)) > 1e-9 || math.Abs(ours.Worst-1.2) > 1e-9 || ours.Lost != 1 || ours.Cells != 2 {
		t.Errorf("%+v", ours)
	}
	if got, want := ours.Over["x"], math.Sqrt(a*0.3); math.Abs(got-want) > 1e-9 {
		t.Errorf("%v of x alone, want %v", got, want)
	}
}

func TestPairsAreOfTheSameRequests(t *testing.T) {
	a, b := &Result{}, &Result{}
	for i := range 100 {
		if i%10 != 3 {
			a.Records = append(a.Records, Record{ID: i, TTFT: 1, E2E: float64(2 + i)})
		}
		if i%10 != 4 {
			b.Records = append(b.Records, Record{ID: i, TTFT: 1.5, E2E: float64(3 + i)})
		}
	}
	d := Paired(a, b)
	if d.Pairs != 80 || d.TTFT != (Interval{-500, -500, -500}) || math.Abs(d.E2E.Mean+1000) > 1e-9 || d.Faster != 1 {
		t.Errorf("%+v", d)
	}
	if d := Paired(a, &Result{}); d.Pairs != 0 {
		t.Errorf("%+v", d)
	}
}

func TestStudentsQuantilesAreThoseOfTables(t *testing.T) {
	for freedom, want := range map[int]float64{1: 12.706, 10: 2.228, 11: 2.201, 19: 2.093, 30: 2.042, 120: 1.980} {
		if got := student(freedom); math.Abs(got-want) > 3e-3 {
			t.Errorf("%d degrees of freedom: %v, want %v", freedom, got, want)
		}
	}
}

func TestResultsMarshalToTheReportsNames(t *testing.T) {
	r := simulated(t, Config{Trace: workload(t, "uniform", 200), Fleet: fleet(t, "2"), Policy: roundRobin(), Rate: 50})
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"trace", "fleet", "load", "policy", "seed", "requests", "ttft_ms", "itl_ms", "e2e_ms", "tokens_per_s", "hit_rate", "preemptions"} {
		if _, ok := m[key]; !ok {
			t.Errorf("no %s in %s", key, text)
		}
	}
	for _, key := range []string{"mean", "p50", "p90", "p99"} {
		if _, ok := m["ttft_ms"].(map[string]any)[key]; !ok {
			t.Errorf("no ttft_ms.%s", key)
		}
	}
}

func TestMemoryDoesNotGrowWithTheTrace(t *testing.T) {
	heap := func(requests int) uint64 {
		most := uint64(0)
		simulated(t, Config{Trace: workload(t, "uniform:input=16,output=8", requests), Fleet: fleet(t, "2"), Policy: roundRobin(), Rate: 100, Points: 100,
			Progress: func(ended, _ int) {
				if ended%8192 == 0 {
					var m runtime.MemStats
					runtime.GC()
					runtime.ReadMemStats(&m)
					most = max(most, m.HeapAlloc)
				}
			}})
		return most
	}
	// Both are more than are kept exactly.
	if few, many := heap(70_000), heap(180_000); many > few+few/4 {
		t.Errorf("%d bytes with 70,000 requests, %d with 180,000", few, many)
	}
}

func TestRecordsAreOfTheSameRequestsUnderEveryPolicy(t *testing.T) {
	c := Config{Trace: workload(t, "chat", 600), Fleet: fleet(t, "3"), Rate: 8, Seed: 1, Records: true, RecordEvery: 7}
	var ids [2][]int
	for i, p := range []Spec{roundRobin(), sticky()} {
		c.Policy = p
		for _, rec := range simulated(t, c).Records {
			if rec.ID%7 != 0 {
				t.Fatalf("a record of request %d", rec.ID)
			}
			ids[i] = append(ids[i], rec.ID)
		}
	}
	if len(ids[0]) < 50 || len(ids[0]) > 600/7+1 {
		t.Errorf("%d records of one in 7 of 600", len(ids[0]))
	}
	both := 0
	for _, id := range ids[1] {
		if slices.Contains(ids[0], id) {
			both++
		}
	}
	if both < len(ids[0])*9/10 { // the warm-up ends at another request where answers take longer
		t.Errorf("%d in common of %d", both, len(ids[0]))
	}
}
