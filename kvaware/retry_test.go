// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestRetryAfterADialErrorReachesTheNextUpstreamWithTheWholeBody(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	// Nothing is known of either, so half of the first attempts go to the dead one.
	c := proxytest.Start(t, "", site(proxytest.Refused(t)+" "+engine.Addr(), "", "lb_retries 3"))
	for i := range 20 {
		body := chat(prose(fmt.Sprint("word", i), 200), true)
		for _, chunked := range []bool{false, true} {
			req, _ := http.NewRequest("POST", "http://site/v1/chat/completions", strings.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			if chunked {
				req.ContentLength = -1
			}
			res, err := c.Client("site").Do(req)
			if err != nil {
				t.Fatal(err)
			}
			proxytest.ReadAll(t, res)
			if res.StatusCode != 200 || res.Header.Get("X-KV-Aware-Upstream") != engine.Addr() {
				t.Fatalf("got %d from %q", res.StatusCode, res.Header.Get("X-KV-Aware-Upstream"))
			}
			seen := engine.Requests()
			if last := seen[len(seen)-1]; last.Body != body || last.ReadError != nil {
				t.Fatalf("chunked=%v: the upstream got %d bytes (%v) of %d", chunked, len(last.Body), last.ReadError, len(body))
			}
		}
	}
	wantIdle(t)
}

func TestAnUpstreamThatFailedInThisRequestIsNotTriedAgainWhileAnotherIsThere(t *testing.T) {
	failing := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	good := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(addrs(failing, good), "objective token_load", `
		lb_retries 1
		lb_retry_match {
			expression {rp.status_code} == 503
		}`))
	for i := range 30 {
		body := chat(prose(fmt.Sprint("w", i), 60), true)
		res := c.Post("/v1/chat/completions", body)
		proxytest.ReadAll(t, res)
		if res.StatusCode != 200 {
			t.Fatalf("request %d got %d although one upstream works", i, res.StatusCode)
		}
		seen := good.Requests()
		if got := seen[len(seen)-1].Body; got != body {
			t.Fatalf("the retried body has %d bytes, the client sent %d", len(got), len(body))
		}
	}
	if len(failing.Requests()) == 0 {
		t.Fatal("the failing upstream was never tried, so nothing was retried")
	}
	wantIdle(t)
}

func TestErrorRoutesWithABackupProxyStillFindTheBody(t *testing.T) {
	backup := proxytest.NewEngine(t, nil)
	for name, policy := range map[string]string{"plain backup": "", "kv_aware backup": "lb_policy kv_aware"} {
		for directive, first := range map[string]string{"alone": "", "behind tracing": "tracing", "with a size limit": "request_body {\n\t\tmax_size 1MB\n\t}"} {
			t.Run(name+" "+directive, func(t *testing.T) {
				c := proxytest.Start(t, "", fmt.Sprintf(`http://site {
	bind {SITE}
	%s
	reverse_proxy %s {
		lb_policy kv_aware
	}
	handle_errors {
		reverse_proxy %s {
			%s
		}
	}
}`, first, proxytest.Refused(t), backup.Addr(), policy))
				for _, chunked := range []bool{false, true} {
					if chunked && directive == "behind tracing" {
						continue // see body.go: a body of unknown length is not read through the replacer
					}
					body := chat(prose("x", 3000), true)
					req, _ := http.NewRequest("POST", "http://site/v1/chat/completions", strings.NewReader(body))
					req.Header.Set("Content-Type", "application/json")
					if chunked {
						req.ContentLength = -1
					}
					res, err := c.Client("site").Do(req)
					if err != nil {
						t.Fatal(err)
					}
					text := proxytest.ReadAll(t, res)
					seen := backup.Requests()
					if len(seen) == 0 {
						t.Fatalf("chunked=%v: the backup was not asked; the client got %d %s", chunked, res.StatusCode, text)
					}
					if last := seen[len(seen)-1]; last.Body != body || last.ReadError != nil {
						t.Fatalf("chunked=%v: the backup got %d bytes (%v) of %d", chunked, len(last.Body), last.ReadError, len(body))
					}
				}
				wantIdle(t)
			})
		}
	}
}

func TestTwoPoliciesTriedOneAfterTheOtherBothHaveTheBody(t *testing.T) {
	first := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	second := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", fmt.Sprintf(`http://site {
	bind {SITE}
	reverse_proxy %s {
		lb_policy kv_aware {
			pool one
		}
		@down status 503
		handle_response @down {
			reverse_proxy %s {
				lb_policy kv_aware {
					response_headers
				}
			}
		}
	}
}`, first.Addr(), second.Addr()))
	body := chat(prose("nested", 500), true)
	res := c.Post("/v1/chat/completions", body)
	proxytest.ReadAll(t, res)
	if res.StatusCode != 200 || res.Header.Get("X-KV-Aware-Upstream") != second.Addr() {
		t.Fatalf("got %d from %q", res.StatusCode, res.Header.Get("X-KV-Aware-Upstream"))
	}
	if got := second.Requests()[0].Body; got != body {
		t.Fatalf("the second upstream got %d bytes of %d", len(got), len(body))
	}
	wantIdle(t)
	eachPool(func(pl *pool) {
		if n := pl.live.Load(); n != 0 {
			t.Errorf("pool %q has %d charges", pl.name, n)
		}
	})
}

func TestAnEarlyAnswerWithoutReadingTheBodyReachesTheClient(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	early := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		_, _ = io.WriteString(w, "too large")
	})}
	engine.Config.Handler = early.Handler
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	res := c.Post("/v1/chat/completions", chat(prose("big", 20_000), true))
	if text := proxytest.ReadAll(t, res); res.StatusCode != 413 || text != "too large" {
		t.Fatalf("got %d %q", res.StatusCode, text)
	}
	wantIdle(t)
	pl := defaultPool(t)
	for _, u := range pl.all() {
		if n := pl.index.Stats(u.slot).Blocks; n != 0 {
			t.Errorf("a refused prompt left %d blocks in the index", n)
		}
	}
}

func TestARefusedConnectionForgetsWhatTheUpstreamHeld(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	other := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(addrs(engine, other), "", `
		lb_retries 2
		transport http {
			keepalive off
		}`))
	prompt := prose("remember", 300)
	res := c.Post("/v1/chat/completions", chat(prompt, true))
	proxytest.ReadAll(t, res)
	holder := res.Header.Get("X-KV-Aware-Upstream")
	wantIdle(t)
	gone, stays := engine, other
	if holder == other.Addr() {
		gone, stays = other, engine
	}
	u := defaultPool(t).lookup(holder, nil)
	if n := defaultPool(t).index.Stats(u.slot).Blocks; n < 10 {
		t.Fatalf("%d blocks are held after a prompt of 300 words", n)
	}
	gone.Close()
	res = c.Post("/v1/chat/completions", chat(prompt, true))
	proxytest.ReadAll(t, res)
	if res.StatusCode != 200 || res.Header.Get("X-KV-Aware-Upstream") != stays.Addr() {
		t.Fatalf("got %d from %q", res.StatusCode, res.Header.Get("X-KV-Aware-Upstream"))
	}
	if n := defaultPool(t).index.Stats(u.slot).Blocks; n != 0 {
		t.Errorf("%d blocks are believed held by an upstream that is gone", n)
	}
	wantIdle(t)
}
