// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// withRanks gives the engines of the default pool that many ranks.
func withRanks(t testing.TB, n int) {
	t.Helper()
	pl := defaultPool(t)
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.params.ranks = n
	pl.rank()
}

func send(t testing.TB, c *proxytest.Caddy, body string, header ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequest("POST", "http://site/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := c.Client("site").Do(req)
	if err != nil {
		t.Fatal(err)
	}
	proxytest.ReadAll(t, res)
	return res
}

func TestEachRankHasACacheOfItsOwnAndTheEngineIsToldWhichOneWasChosen(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	withRanks(t, 3)
	ranks := make(map[string]bool)
	for i := range 30 {
		first := chat(prose(fmt.Sprint("word", i), 300), true)
		send(t, c, first)
		seen := engine.Requests()
		rank := seen[len(seen)-1].Header.Get(rankHeader)
		if !slices.Contains([]string{"0", "1", "2"}, rank) {
			t.Fatalf("the engine was told rank %q", rank)
		}
		ranks[rank] = true
		res := send(t, c, first)
		seen = engine.Requests()
		if again := seen[len(seen)-1].Header.Get(rankHeader); again != rank {
			t.Errorf("a prompt that rank %s holds went to rank %s", rank, again)
		}
		if cached := res.Header.Get("X-KV-Aware-Cached-Tokens"); cached == "0" {
			t.Error("nothing was cached of a prompt that was just answered")
		}
	}
	if len(ranks) != 3 {
		t.Errorf("prompts that nobody holds went to ranks %v only", ranks)
	}
	wantIdle(t)
}

func TestARankThatTheClientPinnedStays(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	for _, n := range []int{1, 4} {
		withRanks(t, n)
		for _, pin := range []string{"2", "0", "no rank", "-1", "7", "99999999999999999999"} {
			res := send(t, c, chat("hello "+pin, true), rankHeader, pin)
			seen := engine.Requests()
			got := seen[len(seen)-1].Header.Get(rankHeader)
			numbered := pin == "2" || pin == "0" || pin == "7"
			if (n == 1 || numbered) && got != pin {
				t.Errorf("of %d ranks, the client asked for %q and the engine was told %q", n, pin, got)
			}
			want := engine.Addr()
			if n == 4 && pin == "2" {
				want += "#2"
			}
			if at := res.Header.Get("X-KV-Aware-Upstream"); (n == 1 || pin == "2" || pin == "0") && at != want {
				t.Errorf("of %d ranks, pinned to %q, %s was charged", n, pin, at)
			}
		}
	}
	wantIdle(t)
}

func TestWithoutRanksTheEngineIsToldNone(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	send(t, c, chat("hello", true))
	if _, told := engine.Requests()[0].Header[rankHeader]; told {
		t.Error("an engine of one rank was told which one")
	}
}

func TestRanksOfOneEngineShareItsMaxRequests(t *testing.T) {
	gate := make(chan struct{})
	full, free := proxytest.NewEngine(t, gated(gate)), proxytest.NewEngine(t, gated(gate))
	c := proxytest.Start(t, "", site(addrs(full, free), "", "unhealthy_request_count 2"))
	withRanks(t, 4)
	done := make(chan struct{})
	for i := range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			send(t, c, chat(prose(fmt.Sprint("w", i), 40), true))
		}()
	}
	eventually(t, "four requests at the engines", func() bool { return len(full.Requests())+len(free.Requests()) == 4 })
	if a, b := len(full.Requests()), len(free.Requests()); a != 2 || b != 2 {
		t.Errorf("engines that take two requests got %d and %d", a, b)
	}
	close(gate)
	for range 4 {
		<-done
	}
	wantIdle(t)
}

func TestWhatFailedAtOneRankIsNotTriedAtAnother(t *testing.T) {
	failing := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	good := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(addrs(failing, good), "", `
		lb_retries 1
		lb_retry_match {
			expression {rp.status_code} == 503
		}`))
	withRanks(t, 8)
	for i := range 30 {
		if res := send(t, c, chat(prose(fmt.Sprint("w", i), 60), true)); res.StatusCode != 200 {
			t.Fatalf("request %d got %d although one engine works", i, res.StatusCode)
		}
	}
	wantIdle(t)
}

func TestEnginesGetAndLoseRanksWithTheConfiguration(t *testing.T) {
	now := time.Now()
	pl := newPool("", poolParams{tokenizer: "auto", blockSize: 16, cacheTokens: 1600, maxBuffered: 1, ranks: 2}, func() time.Time { return now })
	one := pl.lookup("10.0.0.1:8000", nil)
	if got := addressesOf(pl); !slices.Equal(got, []string{"10.0.0.1:8000", "10.0.0.1:8000#1"}) {
		t.Fatalf("two ranks are %v", got)
	}
	keys := pl.keys.Load()
	for _, n := range []int{4, 1, 0, 3, 2} {
		params := pl.params
		params.ranks = n
		pl.configure(&poolConfig{params: params, keys: keys, dials: []string{"10.0.0.1:8000"}})
		if got := addressesOf(pl); len(got) != max(1, n) {
			t.Errorf("%d ranks are %v", n, got)
		}
		seen := 0
		one.each(func(rank *upstream) {
			if rank.rank != seen || rank.engine != one || rank.removed.Load() || !rank.listed {
				t.Errorf("of %d ranks, number %d is %+v", n, seen, rank)
			}
			seen++
		})
		if seen != max(1, n) || pl.lookup("10.0.0.1:8000", nil) != one {
			t.Errorf("%d ranks: %d are listed", n, seen)
		}
	}
	pl.configure(&poolConfig{params: pl.params, keys: keys})
	now = now.Add(2 * upstreamExpiry)
	pl.expire()
	if got := addressesOf(pl); len(got) != 0 {
		t.Errorf("left are %v", got)
	}
}

func addressesOf(pl *pool) (all []string) {
	for _, u := range pl.all() {
		all = append(all, u.address)
	}
	slices.Sort(all)
	return all
}

func TestAnEngineThatHeedsNoRankIsKnownAndForgiven(t *testing.T) {
	var v rankVotes
	if v.ignored() {
		t.Error("nothing was seen yet")
	}
	for range 100 {
		v.vote(false)
	}
	if !v.ignored() {
		t.Error("blocks that turn up elsewhere a hundred times do not tell")
	}
	for range maxRankVotes {
		v.vote(true)
	}
	if v.ignored() {
		t.Error("an engine that was set up anew is not believed")
	}
}
