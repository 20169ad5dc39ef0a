// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/fcgi"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pires/go-proxyproto"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func startTLS(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() }

func startH2C(s *httptest.Server) {
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
}

// startBehindPROXY serves only connections that begin with a PROXY header.
func startBehindPROXY(s *httptest.Server) {
	s.Listener = &proxyproto.Listener{Listener: s.Listener, ConnPolicy: func(proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
		return proxyproto.REQUIRE, nil
	}}
	s.Start()
}

func TestUpstreamsOfEveryKindGetWhatStockCaddySendsThem(t *testing.T) {
	for name, kind := range map[string]struct {
		start      func(*httptest.Server)
		scheme     string
		directives string
		proto      string
	}{
		"plain":                    {(*httptest.Server).Start, "", "", "HTTP/1.1"},
		"TLS":                      {(*httptest.Server).StartTLS, "https://", "transport http {\n\t\t\ttls_insecure_skip_verify\n\t\t}", "HTTP/1.1"},
		"HTTP/2":                   {startTLS, "", "transport http {\n\t\t\ttls\n\t\t\ttls_insecure_skip_verify\n\t\t\tversions 2\n\t\t}", "HTTP/2.0"},
		"h2c by scheme":            {startH2C, "h2c://", "", "HTTP/2.0"},
		"h2c by version":           {startH2C, "", "transport http {\n\t\t\tversions h2c\n\t\t}", "HTTP/2.0"},
		"PROXY protocol":           {startBehindPROXY, "", "transport http {\n\t\t\tproxy_protocol v2\n\t\t}", "HTTP/1.1"},
		"no keep-alive":            {(*httptest.Server).Start, "", "transport http {\n\t\t\tkeepalive off\n\t\t\tcompression off\n\t\t\tdial_timeout 20s\n\t\t\tresponse_header_timeout 20s\n\t\t}", "HTTP/1.1"},
		"flushed and buffered":     {(*httptest.Server).Start, "", "flush_interval -1\n\t\trequest_buffers 1KiB\n\t\tresponse_buffers 64KiB", "HTTP/1.1"},
		"buffered without a limit": {(*httptest.Server).Start, "", "request_buffers 1MiB\n\t\tresponse_buffers 100", "HTTP/1.1"},
		"rewritten":                {(*httptest.Server).Start, "", "rewrite /x/v1/chat/completions?x=1\n\t\theader_up X-To {upstream_hostport}", "HTTP/1.1"},
	} {
		t.Run(name, func(t *testing.T) {
			engine := proxytest.NewEngineAs(t, nil, kind.start)
			want := make(map[bool]proxytest.Seen)
			texts := make(map[bool]string)
			for _, policy := range []string{stock, kvAware} {
				// A port of its own: a reload may cut connections that wait at the old
				// configuration's listener.
				secure := proxytest.NewSecure(t)
				proxytest.Start(t, "", secure.Site(proxy(kind.scheme+engine.Addr(), policy, kind.directives)))
				client := secure.Client("1")
				for _, chunked := range []bool{false, true} {
					body := chat(prose("kind", 800), true)
					res := do(t, client, post(t, secure.URL()+"/v1/chat/completions", body, chunked))
					text := proxytest.ReadAll(t, res)
					seen := engine.Requests()
					if len(seen) == 0 || res.StatusCode != 200 {
						t.Fatalf("%s chunked=%v: got %d %s", policy, chunked, res.StatusCode, text)
					}
					last := seen[len(seen)-1]
					last.Header.Del("X-Forwarded-Host") // the site's port
					if policy == stock {
						want[chunked], texts[chunked] = last, text
						continue
					}
					ref := want[chunked]
					if last.Body != body || ref.Body != body || last.ReadError != nil {
						t.Errorf("chunked=%v: the upstream got %d of %d bytes, %v", chunked, len(last.Body), len(body), last.ReadError)
					}
					if last.Proto != kind.proto || last.Proto != ref.Proto || last.Length != ref.Length || last.Path != ref.Path || fmt.Sprint(last.Header) != fmt.Sprint(ref.Header) {
						t.Errorf("chunked=%v: the upstream got %s %s, length %d, %v\nwithout the policy %s %s, length %d, %v",
							chunked, last.Proto, last.Path, last.Length, last.Header, ref.Proto, ref.Path, ref.Length, ref.Header)
					}
					if text != texts[chunked] {
						t.Errorf("chunked=%v: the client got %q, without the policy %q", chunked, text, texts[chunked])
					}
					if res.Header.Get("X-KV-Aware-Prompt-Tokens") == "0" {
						t.Errorf("chunked=%v: the prompt was not read", chunked)
					}
				}
			}
			wantIdle(t)
			if s := loads(t); s.GeneratedTokens != 6 {
				t.Errorf("%d tokens were counted in two streams of 3", s.GeneratedTokens)
			}
		})
	}
}

func TestAFastCGIUpstreamGetsBodiesWithTheirLengthAndRefusesThoseWithout(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	bodies := make(chan string, 10)
	go func() {
		_ = fcgi.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			bodies <- string(body)
			proxytest.Tokens(3)(w, r)
		}))
	}()
	long := chat(prose("fcgi", 3000), true) // more than FastCGI's own buffer
	for _, test := range []struct {
		body    string
		chunked bool
	}{{chat("hi", true), false}, {chat("hi", true), true}, {long, false}, {long, true}} {
		codes := make(map[string]int)
		for _, policy := range []string{stock, kvAware} {
			c := proxytest.Start(t, "", plain(proxy(listener.Addr().String(), policy, "transport fastcgi {\n\t\t\troot /srv\n\t\t}")))
			res := do(t, c.Client("site"), post(t, "http://site/v1/chat/completions", test.body, test.chunked))
			proxytest.ReadAll(t, res)
			codes[policy] = res.StatusCode
			if res.StatusCode == 200 {
				if got := <-bodies; got != test.body {
					t.Errorf("chunked=%v: the upstream got %d of %d bytes", test.chunked, len(got), len(test.body))
				}
			}
		}
		if codes[stock] != codes[kvAware] {
			t.Errorf("%d bytes, chunked=%v: got %d, without the policy %d", len(test.body), test.chunked, codes[kvAware], codes[stock])
		}
		if (codes[stock] == 200) == (test.chunked && len(test.body) > 4096) {
			t.Errorf("%d bytes, chunked=%v: stock Caddy answers %d", len(test.body), test.chunked, codes[stock])
		}
	}
	wantIdle(t)
}

func TestAnUpstreamThatIsTooSlowIsAnsweredForAsByStockCaddy(t *testing.T) {
	engine := proxytest.NewEngine(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	codes := make(map[string]int)
	for _, policy := range []string{stock, kvAware} {
		c := proxytest.Start(t, "", plain(proxy(engine.Addr(), policy, "transport http {\n\t\t\tresponse_header_timeout 50ms\n\t\t}")))
		res := c.Post("/v1/chat/completions", chat("hi", true))
		proxytest.ReadAll(t, res)
		codes[policy] = res.StatusCode
	}
	if codes[stock] != 504 || codes[kvAware] != 504 {
		t.Errorf("got %v", codes)
	}
	wantIdle(t)
	for _, u := range defaultPool(t).all() {
		if s := defaultPool(t).ledger.Snapshot(u.load); s.Failures != 1 {
			t.Errorf("%d failures were noted", s.Failures)
		}
	}
}

func TestTrailersOfAResponseReachTheClient(t *testing.T) {
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		proxytest.Tokens(2)(w, r)
		w.Header().Set("X-Sum", "announced")
		w.Header().Set(http.TrailerPrefix+"X-Late", "not announced")
	})
	c := proxytest.Start(t, "", plain(proxy(engine.Addr(), kvAware, "")))
	res := c.Post("/v1/chat/completions", chat("hi", true))
	proxytest.ReadAll(t, res)
	if res.Trailer.Get("X-Sum") != "announced" || res.Trailer.Get("X-Late") != "not announced" {
		t.Errorf("the client got trailers %v", res.Trailer)
	}
	wantIdle(t)
}

func TestAnInformationalResponseReachesTheClientBeforeTheAnswer(t *testing.T) {
	gate := make(chan struct{})
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</x>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		<-gate
		proxytest.Tokens(1)(w, r)
	})
	c := proxytest.Start(t, "", plain(proxy(engine.Addr(), kvAware, "")))
	conn := c.Dial("site")
	defer conn.Close()
	body := chat("hi", true)
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: site\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	r := bufio.NewReader(conn)
	head, err := r.ReadString('\n')
	if err != nil || !strings.HasPrefix(head, "HTTP/1.1 103") {
		t.Fatalf("got %q, %v", head, err)
	}
	for head != "\r\n" {
		if head, err = r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(strings.ToLower(head), "x-kv-aware") {
			t.Errorf("a header of the final answer leaked into the hint: %q", head)
		}
	}
	close(gate)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != 200 || res.Header.Get("X-KV-Aware-Upstream") != engine.Addr() {
		t.Fatalf("got %v, %v", res, err)
	}
	proxytest.ReadAll(t, res)
	wantIdle(t)
}
