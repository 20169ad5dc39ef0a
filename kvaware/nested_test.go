// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// everyPoolIsIdle checks the pools that wantIdle does not look at.
func everyPoolIsIdle(t testing.TB) {
	t.Helper()
	eachPool(func(pl *pool) {
		eventually(t, "every charge is given back", func() bool { return pl.live.Load() == 0 && pl.budget.held.Load() == 0 })
	})
}

func TestAProxyInTheResponseRoutesOfAnotherIsObservedByItsOwnPolicy(t *testing.T) {
	const outerKV, innerKV = "lb_policy kv_aware {\n\t\t\tpool outer\n\t\t}", "lb_policy kv_aware {\n\t\t\tpool inner\n\t\t\tresponse_headers\n\t\t}"
	for name, policies := range map[string][2]string{
		"both":       {outerKV, innerKV},
		"only outer": {outerKV, stock},
		"only inner": {stock, innerKV},
	} {
		t.Run(name, func(t *testing.T) {
			outer := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(503)
				_, _ = io.WriteString(w, "busy")
			})
			inner := proxytest.NewEngine(t, proxytest.Tokens(5))
			// Without this policy, the outer proxy leaves nothing of the body
			// but to a route that does not need it.
			bodyless := ""
			if policies[0] == stock {
				bodyless = "method GET"
			}
			c := proxytest.Start(t, "", plain(proxy(outer.Addr(), policies[0], bodyless+"\n\t\t@down status 503\n\t\thandle_response @down {\n"+
				proxy(inner.Addr(), policies[1], "")+"\t\t}")))
			body := chat(prose("nest", 300), true)
			res := c.Post("/v1/chat/completions", body)
			text := proxytest.ReadAll(t, res)
			seen := inner.Requests()
			if res.StatusCode != 200 || !strings.Contains(text, "[DONE]") || len(seen) != 1 || seen[0].Body != body {
				t.Fatalf("got %d %q; the inner upstream %d requests", res.StatusCode, text, len(seen))
			}
			everyPoolIsIdle(t)
			want := map[string][2]int64{"outer": {0, 1}, "inner": {5, 0}} // tokens generated, failures
			eachPool(func(pl *pool) {
				for _, u := range pl.all() {
					s := pl.ledger.Snapshot(u.load)
					if got := [2]int64{s.GeneratedTokens, s.Failures}; got != want[pl.name] {
						t.Errorf("pool %s saw %v tokens and failures, want %v", pl.name, got, want[pl.name])
					}
				}
			})
		})
	}
}

func TestAnAuthorizingProxyInFrontLeavesTheBodyToTheNextOne(t *testing.T) {
	auth := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-User", "me")
		_, _ = io.WriteString(w, "welcome")
	})
	engine := proxytest.NewEngine(t, proxytest.Tokens(4))
	then := proxy(engine.Addr(), kvAware, "")
	for name, first := range map[string]string{
		"forward_auth":           "forward_auth " + auth.Addr() + " {\n\turi /auth\n\tcopy_headers X-User\n}\n",
		"forward_auth, kv_aware": "forward_auth " + auth.Addr() + " {\n\turi /auth\n\tcopy_headers X-User\n\tlb_policy kv_aware\n}\n",
		"by POST, kv_aware":      "reverse_proxy " + auth.Addr() + " {\n\tlb_policy kv_aware\n\t@ok status 2xx\n\thandle_response @ok {\n\t\trequest_header X-User {rp.header.X-User}\n\t}\n}\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := proxytest.Start(t, "", plain("route {\n"+first+then+"}\n"))
			before := len(engine.Requests())
			body := chat(prose("auth", 200), true)
			res := c.Post("/v1/chat/completions", body)
			text := proxytest.ReadAll(t, res)
			seen := engine.Requests()[before:]
			if res.StatusCode != 200 || !strings.Contains(text, "[DONE]") || len(seen) != 1 || seen[0].Body != body || seen[0].Header.Get("X-User") != "me" {
				t.Fatalf("got %d %q; the upstream %v", res.StatusCode, text, seen)
			}
			if res.Header.Get("X-KV-Aware-Upstream") != engine.Addr() {
				t.Errorf("answered by %q", res.Header.Get("X-KV-Aware-Upstream"))
			}
			wantIdle(t)
		})
	}
}

func TestOneHandlerReachedTwiceByARequestHasTheBodyBothTimes(t *testing.T) {
	var engine *proxytest.Engine
	engine = proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if len(engine.Requests()) == 1 {
			panic(http.ErrAbortHandler)
		}
		proxytest.Tokens(2)(w, r)
	})
	// A named route is provisioned once, however many routes invoke it.
	c := proxytest.Start(t, "", "&(engines) {\n"+proxy(engine.Addr(), kvAware, "")+"}\n"+
		plain("invoke engines\nhandle_errors {\n\tinvoke engines\n}"))
	body := chat(prose("twice", 200), true)
	res := c.Post("/v1/chat/completions", body)
	text := proxytest.ReadAll(t, res)
	seen := engine.Requests()
	if len(seen) != 2 || seen[0].Body != body || seen[1].Body != body || !strings.Contains(text, "[DONE]") {
		t.Errorf("got %d %q after %d attempts", res.StatusCode, text, len(seen))
	}
	wantIdle(t)
}

func TestResponseHandlersInFrontAndBehindChangeNothingOfTheCount(t *testing.T) {
	engine := proxytest.NewEngine(t, proxytest.Tokens(6))
	for name, conf := range map[string]string{
		"copy_response": proxy(engine.Addr(), kvAware, "@ok status 2xx\n\t\thandle_response @ok {\n\t\t\theader X-Route taken\n\t\t\tcopy_response_headers\n\t\t\tcopy_response\n\t\t}"),
		"replaced status": proxy(engine.Addr(), kvAware, "@ok status 2xx\n\t\treplace_status @ok 203") +
			"\theader X-Route taken\n",
		"intercept": "\tintercept {\n\t\t@no status 418\n\t\thandle_response @no {\n\t\t\trespond never\n\t\t}\n\t}\n\theader X-Route taken\n" + proxy(engine.Addr(), kvAware, ""),
		"encode":    "\tencode gzip {\n\t\tmatch status 200\n\t}\n\theader X-Route taken\n" + proxy(engine.Addr(), kvAware, ""),
	} {
		t.Run(name, func(t *testing.T) {
			c := proxytest.Start(t, "", plain(conf))
			before := loads(t).GeneratedTokens
			req := post(t, "http://site/v1/chat/completions", chat(prose(name, 100), true), false)
			req.Header.Set("Accept-Encoding", "gzip")
			res := do(t, c.Client("site"), req)
			if res.Header.Get("Content-Encoding") == "gzip" {
				unpacked, err := gzip.NewReader(res.Body)
				if err != nil {
					t.Fatal(err)
				}
				res.Body = io.NopCloser(unpacked)
			} else if name == "encode" {
				t.Errorf("the answer was not compressed: %v", res.Header)
			}
			text := proxytest.ReadAll(t, res)
			if want := "[DONE]\n\n"; !strings.HasSuffix(text, want) || strings.Count(text, `"content":"t`) != 6 || res.Header.Get("X-Route") != "taken" {
				t.Errorf("got %d %v %q", res.StatusCode, res.Header, text)
			}
			wantIdle(t)
			if n := loads(t).GeneratedTokens - before; n != 6 {
				t.Errorf("%d of 6 tokens were counted", n)
			}
		})
	}
}

func TestErrorRoutesFindTheBodyBehindHandlersThatWrapIt(t *testing.T) {
	backup := proxytest.NewEngine(t, nil)
	for name, first := range map[string]string{
		"an access log":             "log {\n\toutput file {DIR}/access.log\n}",
		"an access log and tracing": "log {\n\toutput file {DIR}/access.log\n}\ntracing",
		"a limit and an access log": "request_body {\n\tmax_size 1MB\n}\nlog {\n\toutput file {DIR}/access.log\n}",
	} {
		for _, policy := range []string{stock, kvAware} {
			t.Run(fmt.Sprint(name, " ", policy == kvAware), func(t *testing.T) {
				c := proxytest.Start(t, "", plain(first+"\n"+proxy(proxytest.Refused(t), policy, "")+"handle_errors {\n"+proxy(backup.Addr(), stock, "")+"}"))
				before := len(backup.Requests())
				body := chat(prose("log", 1000), true)
				res := c.Post("/v1/chat/completions", body)
				proxytest.ReadAll(t, res)
				seen := backup.Requests()[before:]
				if res.StatusCode != 502 && res.StatusCode != 200 || len(seen) != 1 || seen[0].Body != body || seen[0].ReadError != nil {
					t.Errorf("got %d; the backup %d requests", res.StatusCode, len(seen))
				}
				if policy == kvAware {
					wantIdle(t)
				}
			})
		}
	}
}
