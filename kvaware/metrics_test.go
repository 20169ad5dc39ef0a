// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// scrape reads Caddy's own metrics endpoint.
func scrape(t testing.TB, c *proxytest.Caddy) string {
	t.Helper()
	return insist(t, c, "admin", "http://127.0.0.1/metrics", "")
}

// insist sends a request until it is answered: as both servers accept on one
// unix socket for a moment during a reload, the one that shuts down may take a
// connection and close it unread.
func insist(t testing.TB, c *proxytest.Caddy, socket, url, body string) (answer string) {
	t.Helper()
	eventually(t, "the new server takes the connection", func() bool {
		var res *http.Response
		var err error
		if body == "" {
			res, err = c.Client(socket).Get(url)
		} else {
			res, err = c.Client(socket).Post(url, "application/json", strings.NewReader(body))
		}
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		if answer = proxytest.ReadAll(t, res); res.StatusCode != 200 {
			t.Fatalf("%s answers %d: %s", url, res.StatusCode, answer)
		}
		return true
	})
	return answer
}

// series gives the value of a series, written as it is exposed; -1 if it is not
// there.
func series(t testing.TB, c *proxytest.Caddy, name string) float64 {
	t.Helper()
	for _, line := range strings.Split(scrape(t, c), "\n") {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(rest, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	return -1
}

// of names a series of an upstream of the pool without a name; label is "" if it
// has no further one. Labels are exposed in the order of their names.
func of(metric string, e *proxytest.Engine, label, value string) string {
	labels := []string{`pool=""`, fmt.Sprintf("upstream=%q", e.Addr())}
	if label != "" {
		labels = append(labels, fmt.Sprintf("%s=%q", label, value))
		slices.Sort(labels)
	}
	return "caddy_kv_aware_" + metric + "{" + strings.Join(labels, ",") + "}"
}

func TestMetricsAreNamedByTheBookAndConsistent(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", twoSites(engine.Addr(), engine.Addr()))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("hello", true)))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", "broken"))
	wantIdle(t)
	reg := prometheus.NewPedanticRegistry()
	if err := registerMetrics(reg); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) < 20 {
		t.Errorf("%d metrics only", len(families))
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "caddy_kv_aware_") {
			t.Errorf("%s", f.GetName())
		}
	}
}

func TestRegisteringTwiceWithOneRegistryIsNoError(t *testing.T) {
	reg := prometheus.NewRegistry()
	for range 2 {
		if err := registerMetrics(reg); err != nil {
			t.Error(err)
		}
	}
}

func TestCountsGoOnOverReloads(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	config := site(engine.Addr(), "", "")
	c := proxytest.Start(t, "\tmetrics\n", config)
	var previous map[string]float64
	choicesBefore := series(t, c, `caddy_kv_aware_select_duration_seconds_count{stage="choose"}`)
	for load := 1; load <= 3; load++ {
		insist(t, c, "site", "http://site/v1/chat/completions", chat(prose("a", 100), true))
		insist(t, c, "site", "http://site/v1/chat/completions", "broken")
		wantIdle(t)
		n := float64(load)
		got := map[string]float64{}
		for name, want := range map[string]float64{
			of("requests_total", engine, "reason", "load"):                 n,
			of("requests_total", engine, "reason", "no_tokens"):            n,
			of("attempts_total", engine, "outcome", "completed"):           2 * n,
			of("generated_tokens_total", engine, "", ""):                   6 * n,
			`caddy_kv_aware_fallbacks_total{pool="",reason="not_json"}`:    n,
			of("time_to_first_token_seconds_count", engine, "", ""):        n,
			of("time_to_first_output_seconds_count", engine, "", ""):       n,
			`caddy_kv_aware_select_duration_seconds_count{stage="choose"}`: choicesBefore + 2*n,
			of("inflight_requests", engine, "", ""):                        0,
			of("running_sequences", engine, "", ""):                        0,
			of("load_tokens", engine, "kind", "prefill"):                   0,
			of("load_tokens", engine, "kind", "decode"):                    0,
			of("index_blocks", engine, "state", "pinned"):                  0,
			of("index_capacity_blocks", engine, "", ""):                    25000,
			`caddy_kv_aware_buffered_bytes{pool=""}`:                       0,
		} {
			if v := series(t, c, name); v != want {
				t.Errorf("with configuration %d, %s is %v, want %v", load, name, v, want)
			}
		}
		for _, name := range []string{"prompt_tokens_total", "cached_tokens_total", "uncached_tokens_total"} {
			got[name] = series(t, c, of(name, engine, "", ""))
			if got[name] < previous[name] || got[name] < 0 {
				t.Errorf("%s went from %v to %v over a reload", name, previous[name], got[name])
			}
		}
		if got["prompt_tokens_total"] != got["cached_tokens_total"]+got["uncached_tokens_total"] {
			t.Errorf("cached and uncached do not make up the prompt tokens: %v", got)
		}
		if load > 1 && got["cached_tokens_total"] == 0 {
			t.Error("a prompt that was held before the reload is not cached after it")
		}
		previous = got
		c.Reload("\tmetrics\n", config)
	}
}

func TestGaugesKeepAStreamThatIsOpenOverAReload(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		proxytest.Event(w, `{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"}}]}`)
		close(started)
		<-release
		proxytest.Tokens(2)(w, r)
	})
	config := site(engine.Addr(), "", "")
	c := proxytest.Start(t, "\tmetrics\n", config)
	res := c.Post("/v1/chat/completions", chat(prose("a", 100), true))
	<-started
	eventually(t, "the first token is seen", func() bool { return loads(t).DecodeTokens > 0 })
	for reload := range 3 {
		for name, least := range map[string]float64{
			of("inflight_requests", engine, "", ""):                 1,
			of("running_sequences", engine, "", ""):                 1,
			of("load_tokens", engine, "kind", "decode"):             90,
			of("index_blocks", engine, "state", "pinned"):           6,
			of("time_to_first_token_seconds_count", engine, "", ""): 1,
		} {
			if v := series(t, c, name); v < least {
				t.Errorf("after %d reloads with a stream open, %s is %v", reload, name, v)
			}
		}
		c.Reload("\tmetrics\n", config+fmt.Sprintf("\n# %d", reload))
	}
	close(release)
	if _, err := io.ReadAll(res.Body); err != nil {
		t.Error(err)
	}
	res.Body.Close()
	wantIdle(t)
	if v := series(t, c, of("inflight_requests", engine, "", "")); v != 0 {
		t.Errorf("after its end %v requests are in flight", v)
	}
	if v := series(t, c, of("time_to_first_token_seconds_count", engine, "", "")); v != 1 {
		t.Errorf("its first token was counted %v times", v)
	}
}

func TestFallbacksAreCountedByReason(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "max_body 500", ""))
	post := func(path, body, header, value string) {
		t.Helper()
		req, err := http.NewRequest("POST", "http://site"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(header, value)
		res, err := c.Client("site").Do(req)
		if err != nil {
			t.Fatal(err)
		}
		proxytest.ReadAll(t, res)
	}
	post("/v1/chat/completions", "{", "X-A", "b")
	post("/v1/chat/completions", "[]", "X-A", "b")
	post("/v1/chat/completions", strings.Repeat("x", 501), "X-A", "b")
	post("/v1/chat/completions", "\x1f\x8b", "Content-Encoding", "gzip")
	post("/v1/rerank", "{}", "X-A", "b")
	post("/upload", "abc", "Content-Type", "image/png")
	post("/v1/chat/completions", chat("fine", true), "X-A", "b")
	wantIdle(t)
	for reason, want := range map[string]float64{
		"truncated": 1, "not_object": 1, "too_long": 1, "compressed": 1, "unlisted": 1, "not_llm": 1,
		"empty": -1, "load": -1,
	} {
		if got := series(t, c, fmt.Sprintf(`caddy_kv_aware_fallbacks_total{pool="",reason=%q}`, reason)); got != want {
			t.Errorf("%s was counted %v times, want %v", reason, got, want)
		}
	}
	if got := series(t, c, of("requests_total", engine, "reason", "no_tokens")); got != 6 {
		t.Errorf("%v requests without tokens", got)
	}
	if got := series(t, c, of("requests_total", engine, "reason", "load")); got != 1 {
		t.Errorf("%v requests by load", got)
	}
}

func TestARequestIsCountedOnceAndEachAttemptByItsOutcome(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	refused := proxytest.Refused(t)
	c := proxytest.Start(t, "", site(engine.Addr()+" "+refused, "objective token_load", "lb_retries 3"))
	const requests = 40 // of which the first to go wrong is left to chance
	for i := range requests {
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose(fmt.Sprint("p", i, "x"), 100), true)))
	}
	wantIdle(t)
	text := scrape(t, c)
	sum := func(prefix string) (total float64) {
		for _, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(line, prefix) {
				v, _ := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
				total += v
			}
		}
		return total
	}
	if n := sum("caddy_kv_aware_requests_total{"); n != requests {
		t.Errorf("%v requests are counted as %v", requests, n)
	}
	failed := series(t, c, `caddy_kv_aware_attempts_total{outcome="failed",pool="",upstream="`+refused+`"}`)
	if failed < 1 {
		t.Errorf("%v attempts failed where nothing listens", failed)
	}
	if n := sum("caddy_kv_aware_attempts_total{"); n != requests+failed {
		t.Errorf("%v attempts ended, %v of them failed", n, failed)
	}
	if n := sum("caddy_kv_aware_time_to_first_token_seconds_count{"); n != requests {
		t.Errorf("%v streams had %v first tokens", requests, n)
	}
}

func TestTimeToFirstTokenIsCountedOnceForManyChoices(t *testing.T) {
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 12 {
			proxytest.Event(w, fmt.Sprintf(`{"object":"chat.completion.chunk","choices":[{"index":%d,"delta":{"content":"x"}}]}`, i%4))
		}
		proxytest.Event(w, "[DONE]")
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", `{"n":4,"stream":true,"messages":[{"role":"user","content":"a"}]}`))
	wantIdle(t)
	for name, want := range map[string]float64{
		"time_to_first_token_seconds_count": 1, "time_to_first_output_seconds_count": 1,
		"inter_token_seconds_count": 8, "generated_tokens_total": 12,
	} {
		if got := series(t, c, of(name, engine, "", "")); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

func TestSeriesOfAnUpstreamThatLeftVanish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pl := acquirePool("leaving", poolParams{blockSize: 16, cacheTokens: 1600, maxBuffered: 1})
		defer pl.release()
		gone, stays := pl.lookup("10.0.0.1:80", nil), pl.lookup("10.0.0.2:80", nil)
		for _, u := range []*upstream{gone, stays} {
			u.labels.routed(0, "load", 0, 0)
			u.labels.routed(0, "no_tokens:not_json", 0, 0)
			u.labels.ended(0)
			u.labels.started(0, time.Second, true, true)
			u.labels.generated(0, time.Millisecond)
		}
		count := func(u *upstream) (n int) {
			t.Helper()
			reg := prometheus.NewPedanticRegistry()
			if err := registerMetrics(reg); err != nil {
				t.Fatal(err)
			}
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				for _, m := range f.GetMetric() {
					for _, l := range m.GetLabel() {
						if l.GetName() == "upstream" && l.GetValue() == u.address {
							n++
						}
					}
				}
			}
			return n
		}
		before := count(gone)
		if before < 20 || count(stays) != before {
			t.Fatalf("%d and %d series", before, count(stays))
		}
		time.Sleep(upstreamExpiry / 2) // the bubble's clock
		stays.lastSeen.Store(pl.now().UnixNano())
		time.Sleep(upstreamExpiry/2 + time.Minute)
		pl.expire()
		if n := count(gone); n != 0 {
			t.Errorf("%d series of an upstream that left", n)
		}
		if n := count(stays); n != before {
			t.Errorf("%d series of the one that stays, had %d", n, before)
		}
		again := pl.lookup("10.0.0.1:80", nil)
		if n := count(again); n != before {
			t.Errorf("%d series after it came back, want %d", n, before)
		}
	})
}

func TestSeriesOfAPoolEndWithIt(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", twoSites(engine.Addr(), engine.Addr()))
	if text := scrape(t, c); !strings.Contains(text, `pool="big"`) {
		t.Fatal("the pool big has no series")
	}
	c.Reload("", site(engine.Addr(), "", ""))
	eventually(t, "the series of the pool that is gone vanish", func() bool {
		return !strings.Contains(scrape(t, c), `pool="big"`)
	})
}

// Cached and prompt tokens are not read at one instant; what is collected as
// their difference must not fall, or it would be taken for a restart.
func TestUncachedTokensNeverFall(t *testing.T) {
	u := newPoolMetrics().upstream("", "a")
	for _, step := range []struct{ prompt, cached, want int64 }{
		{100, 50, 50}, {100, 950, 50}, {1100, 950, 150}, {1100, 0, 1100},
	} {
		if got := u.uncachedTotal(step.prompt, step.cached); got != step.want {
			t.Errorf("%d prompt and %d cached tokens are collected as %d, want %d", step.prompt, step.cached, got, step.want)
		}
	}
}
