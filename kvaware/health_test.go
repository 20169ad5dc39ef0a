// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// checked is an engine whose health checks are counted and can be failed.
type checked struct {
	*proxytest.Engine
	sick   atomic.Bool
	checks atomic.Int64
}

func newChecked(t testing.TB, handler http.HandlerFunc) *checked {
	e := new(checked)
	e.Engine = proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			e.checks.Add(1)
			if e.sick.Load() {
				w.WriteHeader(503)
			}
			return
		}
		handler(w, r)
	})
	return e
}

// available reports whether the running proxy takes an upstream for healthy.
func (e *checked) available(t testing.TB) bool {
	pl := defaultPool(t)
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	for _, u := range pl.explainer.proxy.Upstreams {
		if u.Dial == e.Addr() {
			return u.Available()
		}
	}
	return false
}

// prompts counts the requests that are no health checks.
func (e *checked) prompts() (n int) {
	for _, seen := range e.Requests() {
		if seen.Path != "/health" {
			n++
		}
	}
	return n
}

func TestActiveHealthChecksPassThroughAndOnlyHealthyUpstreamsAreChosen(t *testing.T) {
	a, b := newChecked(t, proxytest.Tokens(3)), newChecked(t, proxytest.Tokens(3))
	c := proxytest.Start(t, "", plain(proxy(a.Addr()+" "+b.Addr(), kvAware, "health_uri /health\n\t\thealth_interval 10ms\n\t\thealth_timeout 5s")))
	// A prompt that is held by one of them.
	prompt := chat(prose("held", 300), true)
	res := c.Post("/v1/chat/completions", prompt)
	proxytest.ReadAll(t, res)
	home, other := a, b
	if res.Header.Get("X-KV-Aware-Upstream") == b.Addr() {
		home, other = b, a
	}
	eventually(t, "both are checked again and again", func() bool { return a.checks.Load() > 3 && b.checks.Load() > 3 })
	wantIdle(t)
	pl := defaultPool(t)
	var charged int64
	for _, u := range pl.all() {
		charged += pl.ledger.Snapshot(u.load).PromptTokens
	}
	if charged == 0 || charged > 1000 {
		t.Errorf("%d prompt tokens were charged for one prompt and many health checks", charged)
	}
	held := pl.index.Stats(pl.lookup(home.Addr(), nil).slot).Blocks

	home.sick.Store(true)
	eventually(t, "the sick one is out", func() bool { return !home.available(t) })
	before := home.prompts()
	for range 10 {
		res := c.Post("/v1/chat/completions", prompt)
		proxytest.ReadAll(t, res)
		if got := res.Header.Get("X-KV-Aware-Upstream"); res.StatusCode != 200 || got != other.Addr() {
			t.Fatalf("got %d from %s, which is sick", res.StatusCode, got)
		}
	}
	if home.prompts() != before {
		t.Error("a sick upstream got a prompt")
	}
	if n := pl.index.Stats(pl.lookup(home.Addr(), nil).slot).Blocks; n != held {
		t.Errorf("a failed health check changed what is believed held from %d to %d blocks", held, n)
	}

	// Both are sick: as without the policy.
	other.sick.Store(true)
	eventually(t, "both are out", func() bool { return !other.available(t) })
	if res := c.Post("/v1/chat/completions", prompt); res.StatusCode != 503 {
		t.Errorf("with no healthy upstream the client got %d", res.StatusCode)
	}

	home.sick.Store(false)
	eventually(t, "the first one is back", func() bool { return home.available(t) })
	res = c.Post("/v1/chat/completions", prompt)
	proxytest.ReadAll(t, res)
	if res.Header.Get("X-KV-Aware-Upstream") != home.Addr() || res.Header.Get("X-KV-Aware-Cached-Tokens") == "0" {
		t.Errorf("what it held was forgotten: %v", res.Header)
	}
	wantIdle(t)
}

func TestPassiveHealthChecksTakeAnUpstreamOutAsWithStockCaddy(t *testing.T) {
	for name, test := range map[string]struct {
		bad        http.HandlerFunc
		directives string
	}{
		"unhealthy_status":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, "unhealthy_status 5xx"},
		"unhealthy_latency": {proxytest.Tokens(1), "unhealthy_latency 1ns"},
		"no answer":         {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, policy := range []string{stock, kvAware} {
				bad := proxytest.NewEngine(t, test.bad)
				c := proxytest.Start(t, "", plain(proxy(bad.Addr(), policy, "fail_duration 10m\n\t\tmax_fails 2\n\t\t"+test.directives)))
				for i := range 4 {
					res := c.Post("/v1/chat/completions", chat(fmt.Sprint("p", i), true))
					_, _ = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
					if out := i >= 2; (res.StatusCode == 503) != out {
						t.Errorf("%s: request %d got %d", policy, i, res.StatusCode)
					}
				}
				if n := len(bad.Requests()); n != 2 {
					t.Errorf("%s: the upstream got %d requests, and counts as down after 2 failures", policy, n)
				}
			}
			wantIdle(t)
		})
	}
}

func TestWithAllUpstreamsDownARequestWaitsForOneToComeUp(t *testing.T) {
	for _, policy := range []string{"lb_policy least_conn", kvAware} {
		address := proxytest.Refused(t)
		c := proxytest.Start(t, "", plain(proxy(address+" "+proxytest.Refused(t), policy, "lb_try_duration 1m\n\t\tlb_try_interval 5ms\n\t\tfail_duration 10ms")))
		body := chat(prose("wait", 400), true)
		answer := make(chan *http.Response)
		go func() {
			res, err := c.Client("site").Do(post(t, "http://site/v1/chat/completions", body, true))
			if err != nil {
				t.Error(err)
			}
			answer <- res
		}()
		if policy == kvAware {
			eventually(t, "several attempts have failed", func() bool {
				failures := int64(0)
				for _, u := range defaultPool(t).all() {
					failures += defaultPool(t).ledger.Snapshot(u.load).Failures
				}
				return failures > 3
			})
		}
		engine := proxytest.NewEngineAs(t, nil, func(s *httptest.Server) { listenAt(t, s, address) })
		res := <-answer
		if res == nil {
			t.FailNow()
		}
		text := proxytest.ReadAll(t, res)
		if res.StatusCode != 200 || len(engine.Requests()) != 1 || engine.Requests()[0].Body != body {
			t.Errorf("%s: got %d %s; the upstream %d requests", policy, res.StatusCode, text, len(engine.Requests()))
		}
		if policy == kvAware {
			wantIdle(t)
		}
	}
}

// listenAt starts a server at an address that was free a moment ago.
func listenAt(t testing.TB, s *httptest.Server, address string) {
	_ = s.Listener.Close()
	eventually(t, "the address can be listened at", func() bool {
		l, err := net.Listen("tcp", address)
		s.Listener = l
		return err == nil
	})
	s.Start()
}

func TestRetriesEndWhereTheyAreConfiguredToEnd(t *testing.T) {
	for _, policy := range []string{stock, kvAware} {
		cut := proxytest.NewEngine(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		c := proxytest.Start(t, "", plain(proxy(cut.Addr(), policy, "lb_retries 2\n\t\tlb_retry_match {\n\t\t\tmethod POST\n\t\t\tpath /v1/chat/*\n\t\t}\n\t\trequest_buffers 1MiB")))
		for path, want := range map[string]int{"/v1/chat/completions": 3, "/v1/messages": 1} {
			before := len(cut.Requests())
			body := chat(prose("r", 200), true)
			res := c.Post(path, body)
			proxytest.ReadAll(t, res)
			seen := cut.Requests()[before:]
			if res.StatusCode != 502 || len(seen) != want {
				t.Errorf("%s %s: got %d after %d attempts, want %d", policy, path, res.StatusCode, len(seen), want)
			}
			for i, attempt := range seen {
				if attempt.Body != body {
					t.Errorf("%s %s: attempt %d brought %d of %d bytes", policy, path, i, len(attempt.Body), len(body))
				}
			}
		}
	}
	wantIdle(t)
}

func TestACutConnectionIsRetriedElsewhereWithTheWholeBodyWhereAMatcherAllows(t *testing.T) {
	cut := proxytest.NewEngine(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	good := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", plain(proxy(addrs(cut, good), byTokens, "lb_retries 1\n\t\tlb_retry_match {\n\t\t\tmethod POST\n\t\t}")))
	for i := range 30 {
		body := chat(prose(fmt.Sprint("cut", i), 100), true)
		res := do(t, c.Client("site"), post(t, "http://site/v1/chat/completions", body, i%2 == 0))
		proxytest.ReadAll(t, res)
		seen := good.Requests()
		if res.StatusCode != 200 || seen[len(seen)-1].Body != body {
			t.Fatalf("request %d got %d", i, res.StatusCode)
		}
	}
	if len(cut.Requests()) == 0 {
		t.Error("nothing was retried")
	}
	wantIdle(t)
}

func TestTheLimitOfOneUpstreamHoldsDuringABurst(t *testing.T) {
	release := make(chan struct{})
	var arrived sync.WaitGroup
	hold := func(w http.ResponseWriter, r *http.Request) {
		arrived.Done()
		<-release
		proxytest.Tokens(1)(w, r)
	}
	small, large := proxytest.NewEngine(t, hold), proxytest.NewEngine(t, hold)
	c := proxytest.Start(t, "", plain("respond wait"))
	c.ReloadJSON("", plain(proxy(addrs(small, large), kvAware, "")),
		fmt.Sprintf(`{"dial":%q}`, small.Addr()), fmt.Sprintf(`{"dial":%q,"max_requests":2}`, small.Addr()))
	const n = 12
	arrived.Add(n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			res := do(t, c.Client("site"), post(t, "http://site/v1/chat/completions", chat(prose(fmt.Sprint("m", i), 50), true), false))
			if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != 200 {
				t.Errorf("got %d, %v", res.StatusCode, err)
			}
			_ = res.Body.Close()
		})
	}
	arrived.Wait()
	if s, l := len(small.Requests()), len(large.Requests()); s != 2 || l != n-2 {
		t.Errorf("an upstream of at most 2 requests got %d, the other %d", s, l)
	}
	close(release)
	all.Wait()
	wantIdle(t)
}

func TestAHealthCheckOverTLSUsesTheWrappedTransport(t *testing.T) {
	e := new(checked)
	e.Engine = proxytest.NewEngineAs(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			e.checks.Add(1)
			return
		}
		proxytest.Tokens(1)(w, r)
	}, startTLS)
	c := proxytest.Start(t, "", plain(proxy("https://"+e.Addr(), kvAware,
		"transport http {\n\t\t\ttls_insecure_skip_verify\n\t\t}\n\t\thealth_uri /health\n\t\thealth_interval 10ms")))
	eventually(t, "it is checked by TLS", func() bool { return e.checks.Load() > 2 })
	res := c.Post("/v1/chat/completions", chat("hi", true))
	if text := proxytest.ReadAll(t, res); res.StatusCode != 200 || !strings.Contains(text, "[DONE]") {
		t.Errorf("got %d %q", res.StatusCode, text)
	}
	wantIdle(t)
}
