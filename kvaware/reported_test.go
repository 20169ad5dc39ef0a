// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// reporter is an engine whose answers end with the usage that is set.
type reporter struct {
	*proxytest.Engine
	usage, more string
}

func newReporter(t *testing.T) *reporter {
	r := new(reporter)
	r.Engine = proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		proxytest.Event(w, `{"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}`)
		proxytest.Event(w, fmt.Sprintf(`{"choices":[],"usage":{%s}%s}`, r.usage, r.more))
		proxytest.Event(w, "[DONE]")
	})
	return r
}

// reports sets what the next answers say of a prompt of 200 tokens.
func (r *reporter) reports(cached int) {
	r.usage = `"prompt_tokens":200,"completion_tokens":1`
	if cached >= 0 {
		r.usage += fmt.Sprintf(`,"prompt_tokens_details":{"cached_tokens":%d}`, cached)
	}
}

// asks is a completion of 200 token ids that depend on the first.
func asks(first int, more string) string {
	return fmt.Sprintf(`{"model":"m","stream":true,"prompt":%s%s}`, ids(first*1000, 200), more)
}

func TestReportedCachedTokensCorrectWhatIsBelieved(t *testing.T) {
	e := newReporter(t)
	c := proxytest.Start(t, "", site(e.Addr(), "cache_tokens 16000", ""))
	e.reports(0)
	for first := 1; first <= 3; first++ {
		cachedTokens(t, c, "/v1/completions", asks(first, ""))
	}
	e.reports(192)
	if cached, _ := cachedTokens(t, c, "/v1/completions", asks(3, "")); cached != 192 {
		t.Fatalf("%d cached", cached)
	}
	if got := series(t, c, of("corrections_total", e.Engine, "kind", "shortened")); got != 0 {
		t.Fatalf("%v corrections of what was as predicted", got)
	}
	e.reports(0)
	cachedTokens(t, c, "/v1/completions", asks(2, ""))
	for name, want := range map[string]float64{
		of("corrections_total", e.Engine, "kind", "shortened"): 1,
		of("corrections_total", e.Engine, "kind", "extended"):  0,
		of("predicted_cached_tokens_total", e.Engine, "", ""):  384,
		of("reported_cached_tokens_total", e.Engine, "", ""):   192,
	} {
		if got := series(t, c, name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if capacity := series(t, c, of("index_capacity_blocks", e.Engine, "", "")); capacity >= 1000 || capacity < 800 {
		t.Errorf("capacity %v", capacity)
	}
	if cached, _ := cachedTokens(t, c, "/v1/completions", asks(1, "")); cached != 0 {
		t.Errorf("%d tokens are believed cached of what is older than what was gone", cached)
	}
}

// Engines leave a zero out, and some never say anything.
func TestAUsageWithoutCachedTokensMeansNoneWhereTheyWereReported(t *testing.T) {
	e := newReporter(t)
	c := proxytest.Start(t, "", site(e.Addr(), "", ""))
	// Which of the two it is depends on how fast requests follow each other here.
	corrected := func() float64 {
		return series(t, c, of("corrections_total", e.Engine, "kind", "shortened")) + series(t, c, of("corrections_total", e.Engine, "kind", "disputed"))
	}
	e.reports(-1)
	for range 3 {
		cachedTokens(t, c, "/v1/completions", asks(1, ""))
	}
	if n := corrected(); n != 0 {
		t.Fatalf("%v corrections by an engine that says nothing", n)
	}
	e.reports(192)
	cachedTokens(t, c, "/v1/completions", asks(1, ""))
	e.reports(-1)
	cachedTokens(t, c, "/v1/completions", strings.Replace(asks(1, ""), `"stream":true,`, "", 1)) // not said of whole answers
	if n := corrected(); n != 0 {
		t.Fatalf("%v corrections by an engine that says nothing in another form", n)
	}
	for range impliedZeros + 5 {
		cachedTokens(t, c, "/v1/completions", asks(1, ""))
	}
	if n := corrected(); n != impliedZeros {
		t.Errorf("%v corrections", n)
	}
}

func TestWhatSaysNothingOfAnUpstreamsCacheCorrectsNothing(t *testing.T) {
	e := newReporter(t)
	c := proxytest.Start(t, "", site(e.Addr(), "", ""))
	e.reports(192)
	cachedTokens(t, c, "/v1/completions", asks(1, ""))
	e.reports(0)
	for _, more := range []string{`,"n":2`, `,"kv_transfer_params":{"do_remote_prefill":true}`, `,"prompt_logprobs":0`} {
		cachedTokens(t, c, "/v1/completions", asks(1, more))
	}
	e.more = `,"kv_transfer_params":{"remote_host":"a"}`
	cachedTokens(t, c, "/v1/completions", asks(1, ""))
	e.more = ""
	e.usage = `"prompt_tokens":400,"completion_tokens":1`
	batch := ids(1000, 200)
	cachedTokens(t, c, "/v1/completions", fmt.Sprintf(`{"model":"m","stream":true,"prompt":[%s,%s]}`, batch, batch))
	if n := series(t, c, of("corrections_total", e.Engine, "kind", "shortened")); n != 0 {
		t.Errorf("%v corrections", n)
	}
	if n := series(t, c, of("reported_cached_tokens_total", e.Engine, "", "")); n != 192 {
		t.Errorf("%v cached tokens were taken in", n)
	}
	e.reports(0)
	cachedTokens(t, c, "/v1/completions", asks(1, ""))
	if n := series(t, c, of("corrections_total", e.Engine, "kind", "shortened")); n != 1 {
		t.Errorf("%v corrections by what can be compared", n)
	}
}

func TestBlocksOfAnEngineAreLearntFromWhatItReports(t *testing.T) {
	var r reporting
	for _, x := range []struct{ stated, block int }{{0, 0}, {3200, 1024}, {192, 64}, {128, 64}, {-1, 64}, {0, 64}, {144, 16}, {7, 1}} {
		if _, block, _ := r.take(1, x.stated, 100); block != x.block {
			t.Errorf("%d reported: blocks of %d, want %d", x.stated, block, x.block)
		}
	}
}

// A conversation of 161 ids, 80 tokens of answer, and 240 more ids behind them.
func TestWhatAnAnswerAddedCountsOnceItWasReported(t *testing.T) {
	e := newReporter(t)
	c := proxytest.Start(t, "", site(e.Addr(), "", ""))
	turns := func(first int) (cached int) {
		body := func(n int) string {
			return fmt.Sprintf(`{"model":"m","stream":true,"prompt":%s}`, ids(first*1000, n))
		}
		e.usage = `"prompt_tokens":161,"completion_tokens":80`
		cachedTokens(t, c, "/v1/completions", body(161))
		e.usage = `"prompt_tokens":401,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":240}`
		cached, _ = cachedTokens(t, c, "/v1/completions", body(401))
		return cached
	}
	if cached := turns(1); cached != 160 {
		t.Errorf("%d cached before anything is known", cached)
	}
	for first := 2; first < 40; first++ {
		turns(first)
	}
	if cached := turns(41); cached != 240 {
		t.Errorf("%d cached", cached)
	}
}

// The first attempt may have left there what the second one finds.
func TestAnAnswerToARequestThatWasSentBeforeCorrectsNothing(t *testing.T) {
	var fails atomic.Bool
	var cached atomic.Int32
	e := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		if fails.Swap(false) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		proxytest.Event(w, `{"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}`)
		proxytest.Event(w, fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":200,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":%d}}}`, cached.Load()))
		proxytest.Event(w, "[DONE]")
	})
	c := proxytest.Start(t, "", site(e.Addr(), "", "lb_retries 2\nlb_retry_match {\nexpression `{rp.status_code} == 503`\n}"))
	cached.Store(192)
	for range 2 {
		cachedTokens(t, c, "/v1/completions", asks(1, ""))
	}
	cached.Store(0)
	fails.Store(true)
	cachedTokens(t, c, "/v1/completions", asks(1, ""))
	if n := len(e.Requests()); n != 4 {
		t.Fatalf("%d requests", n)
	}
	if n := series(t, c, of("corrections_total", e, "kind", "shortened")); n != 0 {
		t.Errorf("%v corrections", n)
	}
	cachedTokens(t, c, "/v1/completions", asks(1, ""))
	if n := series(t, c, of("corrections_total", e, "kind", "shortened")); n != 1 {
		t.Errorf("%v corrections by a request that was sent once", n)
	}
}
