// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// kvAware and stock are what a site's proxy says of its policy, so that a test
// can compare the two.
const (
	kvAware = "lb_policy kv_aware {\n\t\t\tresponse_headers\n\t\t}"
	// byTokens leaves the choice of idle upstreams to chance, whatever their paces
	// were seen to be.
	byTokens = "lb_policy kv_aware {\n\t\t\tobjective token_load\n\t\t\tresponse_headers\n\t\t}"
	stock    = "lb_policy random"
)

// proxy is a reverse_proxy directive.
func proxy(upstreams, policy, directives string) string {
	return fmt.Sprintf("\treverse_proxy %s {\n\t\t%s\n\t\t%s\n\t}\n", upstreams, policy, directives)
}

// plain is a site without TLS that holds the given directives.
func plain(directives string) string { return "http://site {\n\tbind {SITE}\n" + directives + "\n}\n" }

// post makes a JSON request; of unknown length if chunked.
func post(t testing.TB, url, body string, chunked bool) *http.Request {
	t.Helper()
	req, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if chunked {
		req.ContentLength = -1
		req.Body = io.NopCloser(strings.NewReader(body)) // nothing tells its length
	}
	return req
}

// do sends a request and fails the test if no answer comes.
func do(t testing.TB, client *http.Client, req *http.Request) *http.Response {
	t.Helper()
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestClientsOfEveryHTTPVersionAreRoutedByTheirPrompt(t *testing.T) {
	a, b := proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil)
	secure := proxytest.NewSecure(t)
	proxytest.Start(t, "", secure.Site(proxy(addrs(a, b), kvAware, "")))
	for _, version := range []string{"1", "2", "3"} {
		client := secure.Client(version)
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("HTTP %s chunked=%v", version, chunked), func(t *testing.T) {
				body := chat(prose(fmt.Sprint("v", version, chunked), 2000), true)
				var home string
				for turn := range 2 {
					res := do(t, client, post(t, secure.URL()+"/v1/chat/completions", body, chunked))
					text := proxytest.ReadAll(t, res)
					if res.StatusCode != 200 || !strings.Contains(text, "[DONE]") || fmt.Sprint(res.ProtoMajor) != version {
						t.Fatalf("got %s %d %q", res.Proto, res.StatusCode, text)
					}
					if home == "" {
						home = res.Header.Get("X-KV-Aware-Upstream")
					}
					if got := res.Header.Get("X-KV-Aware-Upstream"); got != home {
						t.Errorf("turn %d went to %s, the prefix is at %s", turn, got, home)
					}
					if cached := res.Header.Get("X-KV-Aware-Cached-Tokens"); (cached == "0") != (turn == 0) {
						t.Errorf("turn %d found %s cached tokens", turn, cached)
					}
					engine := a
					if home == b.Addr() {
						engine = b
					}
					seen := engine.Requests()
					last := seen[len(seen)-1]
					if last.Body != body || last.ReadError != nil {
						t.Errorf("the upstream got %d of %d bytes, %v", len(last.Body), len(body), last.ReadError)
					}
					if want := int64(len(body)); !chunked && last.Length != want || chunked && last.Length != -1 {
						t.Errorf("the upstream was told a length of %d", last.Length)
					}
				}
				wantIdle(t)
			})
		}
	}
}

func TestAStreamPassesEventByEventToClientsOfEveryHTTPVersion(t *testing.T) {
	gates := make(chan chan struct{}, 1)
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) { gated(<-gates)(w, r) })
	secure := proxytest.NewSecure(t)
	proxytest.Start(t, "", secure.Site(proxy(engine.Addr(), kvAware, "")))
	for _, version := range []string{"1", "2", "3"} {
		t.Run("HTTP "+version, func(t *testing.T) {
			gate := make(chan struct{})
			gates <- gate
			res := do(t, secure.Client(version), post(t, secure.URL()+"/v1/chat/completions", chat("hi", true), false))
			r := bufio.NewReader(res.Body)
			if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, `"content":"a"`) {
				t.Fatalf("got %q, %v", line, err)
			}
			close(gate)
			if rest, err := io.ReadAll(r); err != nil || !strings.Contains(string(rest), "[DONE]") {
				t.Fatalf("got %q, %v", rest, err)
			}
			wantIdle(t)
		})
	}
}

// unanswered sends a request that its client gives up. It fails if nothing came
// of that; the proxy's own answer that the client has left (499) may still get
// through.
func unanswered(client *http.Client, req *http.Request) error {
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	// The proxy's answer to a client that has gone may still reach it.
	if res.StatusCode >= 400 {
		return fmt.Errorf("answered with %d", res.StatusCode)
	}
	return nil
}

func TestAClientOfAnyHTTPVersionThatLeavesGivesEverythingBack(t *testing.T) {
	arrived, canceled := make(chan struct{}, 100), make(chan struct{}, 100)
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		w.Header().Set("Content-Type", "text/event-stream")
		if strings.HasPrefix(r.URL.Path, "/v1/chat") {
			proxytest.Event(w, `{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}`)
		}
		<-r.Context().Done()
		canceled <- struct{}{}
	})
	secure := proxytest.NewSecure(t)
	proxytest.Start(t, "", secure.Site(proxy(engine.Addr(), kvAware, "")))
	for _, version := range []string{"1", "2", "3"} {
		client := secure.Client(version)
		t.Run("HTTP "+version+" mid-stream", func(t *testing.T) {
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			res := do(t, client, post(t, secure.URL()+"/v1/chat/completions", chat(prose("mid", 300), true), false).WithContext(ctx))
			if line, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
				t.Fatalf("got %q, %v", line, err)
			}
			eventually(t, "the stream decodes", func() bool { s := loads(t); return s.DecodeTokens > 0 && s.PrefillTokens == 0 })
			leave()
			_ = res.Body.Close()
			<-arrived
			<-canceled
			wantIdle(t)
		})
		t.Run("HTTP "+version+" during prefill", func(t *testing.T) {
			ctx, leave := context.WithCancel(context.Background())
			failed := make(chan error)
			go func() {
				failed <- unanswered(client, post(t, secure.URL()+"/v1/completions", `{"model":"m","prompt":"`+prose("pre", 300)+`"}`, false).WithContext(ctx))
			}()
			<-arrived
			if n := loads(t).PrefillTokens; n < 200 {
				t.Errorf("%d prompt tokens wait", n)
			}
			leave()
			if err := <-failed; err == nil {
				t.Error("the client got an answer")
			}
			<-canceled
			wantIdle(t)
		})
		t.Run("HTTP "+version+" while it sends", func(t *testing.T) {
			ctx, leave := context.WithCancel(context.Background())
			body, sending := io.Pipe()
			req := post(t, secure.URL()+"/v1/chat/completions", "", false).WithContext(ctx)
			req.Body, req.ContentLength = body, 100_000
			failed := make(chan error)
			go func() {
				failed <- unanswered(client, req)
			}()
			if _, err := sending.Write(make([]byte, 50_000)); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the body is being read", func() bool { return defaultPool(t).budget.held.Load() > 0 })
			leave()
			_ = sending.CloseWithError(context.Canceled)
			if err := <-failed; err == nil {
				t.Error("the client got an answer")
			}
			wantIdle(t)
			for _, seen := range engine.Requests() {
				if len(seen.Body) == 50_000 && seen.ReadError == nil {
					t.Error("the upstream took half a body for a whole one")
				}
			}
			for _, u := range defaultPool(t).all() {
				if s := defaultPool(t).ledger.Snapshot(u.load); s.Failures != 0 {
					t.Errorf("the upstream is blamed for %d failures of the client's", s.Failures)
				}
			}
		})
	}
}

func TestTrailersOfARequestReachTheUpstreamAsWithStockCaddy(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	seen := make(map[string]proxytest.Seen)
	for _, policy := range []string{stock, kvAware} {
		secure := proxytest.NewSecure(t)
		proxytest.Start(t, "", secure.Site(proxy(engine.Addr(), policy, "")))
		for _, version := range []string{"1", "2", "3"} {
			client := secure.Client(version)
			for _, known := range []bool{false, true} {
				if known && version == "1" {
					continue // HTTP/1 carries trailers behind chunks only
				}
				req := post(t, secure.URL()+"/v1/chat/completions", chat(prose("trail", 500), true), !known)
				req.Trailer = http.Header{"X-Checksum": nil}
				req.Body = &trailing{ReadCloser: req.Body, req: req}
				proxytest.ReadAll(t, do(t, client, req))
				all := engine.Requests()
				last := all[len(all)-1]
				key := fmt.Sprint(version, known)
				if policy == stock {
					seen[key] = last
					continue
				}
				want := seen[key]
				if last.Body != want.Body || last.Length != want.Length || !reflect.DeepEqual(last.Trailer, want.Trailer) {
					t.Errorf("HTTP %s known=%v: the upstream got %d bytes (length %d) and trailers %v, without the policy %d (%d) and %v",
						version, known, len(last.Body), last.Length, last.Trailer, len(want.Body), want.Length, want.Trailer)
				}
				if version != "3" && last.Trailer.Get("X-Checksum") != "abc" {
					t.Errorf("HTTP %s known=%v: no trailer came through: %v", version, known, last.Trailer)
				}
			}
		}
		if policy == kvAware {
			wantIdle(t)
		}
	}
}

// trailing sets the trailer of its request at the body's end.
type trailing struct {
	io.ReadCloser
	req *http.Request
}

func (b *trailing) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.req.Trailer.Set("X-Checksum", "abc")
	}
	return n, err
}

func TestErrorRoutesFindTheBodyOfClientsOfEveryHTTPVersion(t *testing.T) {
	backup := proxytest.NewEngine(t, nil)
	secure := proxytest.NewSecure(t)
	proxytest.Start(t, "", secure.Site(proxy(proxytest.Refused(t), kvAware, "")+
		"\thandle_errors {\n"+proxy(backup.Addr(), stock, "")+"\t}\n"))
	for _, version := range []string{"1", "2", "3"} {
		for _, chunked := range []bool{false, true} {
			body := chat(prose("err", 1500), true)
			res := do(t, secure.Client(version), post(t, secure.URL()+"/v1/chat/completions", body, chunked))
			text := proxytest.ReadAll(t, res)
			seen := backup.Requests()
			if len(seen) == 0 {
				t.Fatalf("HTTP %s chunked=%v: the backup was not asked: %d %s", version, chunked, res.StatusCode, text)
			}
			if last := seen[len(seen)-1]; last.Body != body || last.ReadError != nil {
				t.Errorf("HTTP %s chunked=%v: the backup got %d of %d bytes, %v", version, chunked, len(last.Body), len(body), last.ReadError)
			}
			wantIdle(t)
		}
	}
}
