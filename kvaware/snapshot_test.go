// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// snapshotOf asks the admin API.
func snapshotOf(t testing.TB, c *proxytest.Caddy, query string) (s Snapshot) {
	t.Helper()
	status, _, body := c.Admin("GET", "/kv_aware/snapshot"+query, "")
	if status != 200 {
		t.Fatalf("%d: %s", status, body)
	}
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestASnapshotShowsWhatRunsAndWhatWasDecided(t *testing.T) {
	gate := make(chan struct{})
	one, two := proxytest.NewEngine(t, gated(gate)), proxytest.NewEngine(t, gated(gate))
	c := proxytest.Start(t, "", site(addrs(one, two), "objective latency", ""))

	before := snapshotOf(t, c, "")
	if p := before.Pools[0]; len(p.Upstreams) != 2 || p.Totals.AttemptsTotal != 0 || len(p.Decisions) != 0 || p.Totals.HitRate != nil || p.Totals.FirstToken != nil {
		t.Errorf("before the first request: %+v", p)
	}

	const secret = "xylophone"
	res := c.Post("/v1/chat/completions", chat(secret+prose(secret, 300), true))
	status, _, body := c.Admin("GET", "/kv_aware/snapshot?history=1", "")
	if status != 200 || strings.Contains(body, secret) {
		t.Errorf("status %d, or it shows the prompt: %s", status, body)
	}
	running := snapshotOf(t, c, "?pool=").Pools[0]
	var u UpstreamSnapshot
	for _, u = range running.Upstreams {
		if u.Requests > 0 {
			break
		}
	}
	if u.Requests != 1 || u.Sequences != 1 || u.DecodeTokens+u.PrefillTokens < 300 || u.RunningKVTokens < 300 || u.CacheTokens != DefaultCacheTokens {
		t.Errorf("while it runs: %+v", u)
	}
	if running.Totals.Requests != 1 || running.Totals.CacheTokens != 2*DefaultCacheTokens {
		t.Errorf("of the pool, while it runs: %+v", running.Totals)
	}
	d := running.Decisions[0]
	if d.Upstream != u.Address || d.Reason != "load" || d.PromptTokens < 300 || d.CachedTokens != 0 || len(d.Candidates) != 2 || d.CandidatesTotal != 2 ||
		!d.Candidates[0].Chosen || d.Candidates[1].Chosen || d.Candidates[0].Address != u.Address || d.Candidates[0].Cost == nil ||
		d.Candidates[0].UncachedTokens != d.PromptTokens || d.Why != "No upstream holds any of the prompt; it costs least." {
		t.Errorf("the decision: %+v", d)
	}

	close(gate)
	proxytest.ReadAll(t, res)
	wantIdle(t)
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(secret+prose(secret, 300), true)))
	wantIdle(t)
	after := snapshotOf(t, c, "").Pools[0]
	if after.Totals.Requests != 0 || after.Totals.FirstToken == nil || after.Totals.HitRate == nil || after.Totals.FirstToken.Count < 1 || after.Totals.CachedTokensTotal < 250 || after.Totals.IdleKVTokens < 300 {
		t.Errorf("afterwards: %+v", after.Totals)
	}
	d = after.Decisions[0]
	if d.CachedTokens < 250 || d.Candidates[0].Cost == nil || *d.Candidates[0].Cost > *d.Candidates[1].Cost || d.Why != "It holds the most of the prompt, and costs least." {
		t.Errorf("the second decision: %+v", d)
	}
}

func TestDecisionsWithoutAPromptSayWhy(t *testing.T) {
	one, two := proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(addrs(one, two), "", ""))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", "{"))
	d := snapshotOf(t, c, "").Pools[0].Decisions[0]
	if !strings.HasPrefix(d.Reason, "no_tokens:") || d.PromptTokens != 0 || d.Candidates[0].Cost != nil || d.Candidates[0].UncachedTokens != 0 || !strings.Contains(d.Why, "fewest sequences") {
		t.Errorf("got %+v", d)
	}
}

func TestDecisionsAreKeptAtABoundedRate(t *testing.T) {
	var d decisions
	kept := 0
	for i := range 100_000 { // ten seconds of 10,000 requests each
		if d.due(time.Duration(i) * 100 * time.Microsecond) {
			kept++
		}
	}
	if want := keptDecisions + 10*decisionsPerSecond; kept < want-2 || kept > want+2 {
		t.Errorf("kept %d, want about %d", kept, want)
	}
	if !d.due(time.Hour) {
		t.Error("one an hour later is not kept")
	}
}

func TestTheCheapestCandidatesOfManyAreKept(t *testing.T) {
	var e decision
	e.list[0], e.shown = weighed{address: "winner", cost: 5}, 1
	for i := range 100 {
		e.insert(weighed{address: "loser", cost: float64(7 + (i*37)%100), excluded: i == 0})
	}
	if e.shown != keptCandidates || e.list[0].address != "winner" {
		t.Fatalf("got %+v", e)
	}
	for i, w := range e.list[1:] {
		if want := float64(8 + i); w.cost != want {
			t.Errorf("place %d: cost %v, want %v", i+1, w.cost, want)
		}
	}
}

func TestWhatCouldNotBeChosenIsNoReason(t *testing.T) {
	e := decision{reason: "load", costed: true}
	e.list[0], e.shown = weighed{address: "winner", cached: 10, cost: 5}, 1
	e.insert(weighed{address: "full", cached: 90, cost: 1, excluded: true})
	if why := e.why(); why != "The others are full, or have failed at this request." {
		t.Errorf("of one that is full: %s", why)
	}
	e.insert(weighed{address: "loser", cost: 7})
	if why := e.why(); why != "It holds the most of the prompt, and costs least." {
		t.Errorf("of one that is full and one that costs more: %s", why)
	}
}

func TestHistoryIsAlignedAtItsEndAndBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	pl := newPool("", poolParams{blockSize: 16, cacheTokens: 1 << 20}, func() time.Time { return now })
	first := pl.lookup("10.0.0.1:1", nil)
	for range 3 {
		pl.remember()
		pl.remember() // at once: one of two apps
		now = now.Add(historyStep)
	}
	second := pl.lookup("10.0.0.2:1", nil)
	pl.remember()
	if all := pl.history.all(); len(all.Times) != 4 || all.Times[3]-all.Times[0] != 3*historyStep.Milliseconds() || all.HitRate[0] != nil {
		t.Errorf("got %+v", all)
	}
	if a, b := pl.history.load(first), pl.history.load(second); len(a.DecodeTokens) != 4 || len(b.DecodeTokens) != 1 {
		t.Errorf("got %d and %d points", len(a.DecodeTokens), len(b.DecodeTokens))
	}
	for range 2 * historyPoints {
		now = now.Add(historyStep)
		pl.remember()
	}
	if all, a := pl.history.all(), pl.history.load(first); len(all.Times) != historyPoints || len(a.DecodeTokens) != historyPoints {
		t.Errorf("got %d and %d points", len(all.Times), len(a.DecodeTokens))
	}
	now = now.Add(2 * upstreamExpiry)
	pl.expire()
	pl.remember()
	if pl.history.load(first) != nil || len(pl.history.upstreams) != 0 {
		t.Error("an upstream that left is remembered")
	}
}
