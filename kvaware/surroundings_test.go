// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestAsTheFallbackOfAnotherPolicyItWorksWithoutAWriter(t *testing.T) {
	a, b := proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil)
	for _, outer := range []string{"header X-Session", "query session", "cookie lb"} {
		t.Run(outer, func(t *testing.T) {
			c := proxytest.Start(t, "", fmt.Sprintf(`http://site {
	bind {SITE}
	reverse_proxy %s {
		lb_policy %s {
			fallback kv_aware {
				response_headers
			}
		}
	}
}`, addrs(a, b), outer))
			body := chat(prose(outer[:3], 200), true)
			first := c.Post("/v1/chat/completions", body)
			proxytest.ReadAll(t, first)
			second := c.Post("/v1/chat/completions", body)
			proxytest.ReadAll(t, second)
			if first.Header.Get("X-KV-Aware-Upstream") != second.Header.Get("X-KV-Aware-Upstream") || second.Header.Get("X-KV-Aware-Cached-Tokens") == "0" {
				t.Errorf("the prefix was not found again: %v, %v", first.Header, second.Header)
			}
			wantIdle(t)
		})
	}
}

func TestTheFallbackTakesRequestsWithoutTokensAndTheyAreCharged(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	a := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			close(arrived)
			<-release
		}
	})
	b := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(addrs(a, b), "fallback first", ""))
	done := make(chan struct{})
	go func() {
		defer close(done)
		res, err := c.Client("site").Get("http://site/v1/models")
		if err != nil {
			t.Error(err)
			return
		}
		proxytest.ReadAll(t, res)
	}()
	<-arrived
	if s := loads(t); s.Running != 1 || s.PrefillTokens != 0 {
		t.Errorf("a GET weighs %+v", s)
	}
	close(release)
	<-done
	wantIdle(t)
	// With tokens the policy itself decides: the other one is not always passed by.
	for i := range 30 {
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose(fmt.Sprint("z", i), 50), true)))
	}
	if len(b.Requests()) == 0 {
		t.Error("prompts went by the fallback policy")
	}
}

func TestAWebSocketPassesUntouchedAndItsChargeEndsWithTheHandshake(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		_ = rw.Flush()
		for {
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = rw.WriteString("echo " + line)
			_ = rw.Flush()
		}
	}))
	t.Cleanup(upstream.Close)
	c := proxytest.Start(t, "", site(strings.TrimPrefix(upstream.URL, "http://"), "", ""))
	conn := c.Dial("site")
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET /v1/realtime HTTP/1.1\r\nHost: site\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\n\r\n")
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != 101 {
		t.Fatalf("handshake: %v %v", res, err)
	}
	for _, word := range []string{"one", "two"} {
		_, _ = io.WriteString(conn, word+"\n")
		if line, err := r.ReadString('\n'); line != "echo "+word+"\n" {
			t.Fatalf("got %q, %v", line, err)
		}
	}
	wantIdle(t)
}

func TestTheFirstByteOfAStreamIsNotHeldBack(t *testing.T) {
	gate := make(chan struct{})
	engine := proxytest.NewEngine(t, gated(gate))
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	res := c.Post("/v1/chat/completions", chat("hi", true))
	r := bufio.NewReader(res.Body)
	// The engine goes on only after this has arrived.
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, `"content":"a"`) {
		t.Fatalf("got %q, %v", line, err)
	}
	close(gate)
	if rest, err := io.ReadAll(r); err != nil || !strings.Contains(string(rest), "[DONE]") {
		t.Fatalf("got %q, %v", rest, err)
	}
	wantIdle(t)
}

func TestUnixAndIPv6AndPlaceholderUpstreams(t *testing.T) {
	sock := filepath.Join(shortDir(t), "engine")
	listener, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	unix := httptest.NewUnstartedServer(proxytest.Tokens(1))
	unix.Listener = listener
	unix.Start()
	t.Cleanup(unix.Close)
	plain := proxytest.NewEngine(t, nil)
	upstreams := map[string]string{"unix/" + sock: "unix/" + sock}
	if six, err := net.Listen("tcp", "[::1]:0"); err == nil {
		s := httptest.NewUnstartedServer(proxytest.Tokens(1))
		s.Listener = six
		s.Start()
		t.Cleanup(s.Close)
		upstreams[six.Addr().String()] = six.Addr().String()
	}
	_, port, _ := strings.Cut(plain.Addr(), ":")
	upstreams["{http.request.header.X-Host}:"+port] = plain.Addr()
	for dial, address := range upstreams {
		t.Run(dial, func(t *testing.T) {
			c := proxytest.Start(t, "", site(dial, "", ""))
			for turn := range 2 {
				req, _ := http.NewRequest("POST", "http://site/v1/chat/completions", strings.NewReader(chat(prose("addr", 100), true)))
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("X-Host", "127.0.0.1")
				res, err := c.Client("site").Do(req)
				if err != nil {
					t.Fatal(err)
				}
				text := proxytest.ReadAll(t, res)
				if res.StatusCode != 200 || res.Header.Get("X-KV-Aware-Upstream") != address {
					t.Fatalf("got %d from %q, want %q: %s", res.StatusCode, res.Header.Get("X-KV-Aware-Upstream"), address, text)
				}
				if cached := res.Header.Get("X-KV-Aware-Cached-Tokens"); (cached != "0") != (turn == 1) {
					t.Errorf("turn %d found %s cached tokens", turn, cached)
				}
			}
			wantIdle(t)
		})
	}
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestABodyBeyondALimitOfRequestBodyIsAnsweredAsWithoutThePolicy(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	answer := func(policy string, chunked bool) (int, string) {
		c := proxytest.Start(t, "", fmt.Sprintf(`http://site {
	bind {SITE}
	request_body {
		max_size 1KB
	}
	reverse_proxy %s {
		lb_policy %s
	}
}`, engine.Addr(), policy))
		req, _ := http.NewRequest("POST", "http://site/v1/chat/completions", strings.NewReader(chat(prose("big", 2000), true)))
		req.Header.Set("Content-Type", "application/json")
		if chunked {
			req.ContentLength = -1
		}
		res, err := c.Client("site").Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text := proxytest.ReadAll(t, res)
		if policy == "kv_aware" {
			wantIdle(t)
		}
		return res.StatusCode, text
	}
	for _, chunked := range []bool{false, true} {
		wantCode, wantText := answer("random", chunked)
		if code, text := answer("kv_aware", chunked); code != wantCode || text != wantText {
			t.Errorf("chunked=%v: got %d %q, without the policy %d %q", chunked, code, text, wantCode, wantText)
		}
	}
}

func TestBodiesBeyondTheBufferAreRoutedAndNotRefused(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "max_buffered 1KiB", ""))
	for _, n := range []int{10, 2000} {
		body := chat(prose("buf", n), true)
		res := c.Post("/v1/chat/completions", body)
		proxytest.ReadAll(t, res)
		seen := engine.Requests()
		if res.StatusCode != 200 || seen[len(seen)-1].Body != body {
			t.Fatalf("%d words: got %d, the upstream %d of %d bytes", n, res.StatusCode, len(seen[len(seen)-1].Body), len(body))
		}
		if tokens := res.Header.Get("X-KV-Aware-Prompt-Tokens"); (tokens != "0") != (len(body) < 1024) {
			t.Errorf("%d bytes: %s tokens were read", len(body), tokens)
		}
	}
	wantIdle(t)
}

func TestAResponseIsContinuedAndReadWhereItWasMade(t *testing.T) {
	made := func(id string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"id":%q,"object":"response","status":"completed","output":[],"usage":{"input_tokens":5,"output_tokens":1}}`, id)
		}
	}
	a, b := proxytest.NewEngine(t, made("resp_a")), proxytest.NewEngine(t, made("resp_b"))
	c := proxytest.Start(t, "", site(addrs(a, b), "objective token_load", ""))
	owner := make(map[string]string)
	for i := 0; len(owner) < 2 && i < 200; i++ {
		res := c.Post("/v1/responses", fmt.Sprintf(`{"model":"m","input":"%s"}`, prose(fmt.Sprint("r", i), 40)))
		text := proxytest.ReadAll(t, res)
		id := strings.Split(text, `"`)[3]
		owner[id] = res.Header.Get("X-KV-Aware-Upstream")
	}
	if owner["resp_a"] != a.Addr() || owner["resp_b"] != b.Addr() {
		t.Fatalf("made at %v", owner)
	}
	client := c.Client("site")
	for range 10 {
		for id, upstream := range owner {
			res := c.Post("/v1/responses", fmt.Sprintf(`{"model":"m","input":"go on","previous_response_id":%q}`, id))
			proxytest.ReadAll(t, res)
			if got := res.Header.Get("X-KV-Aware-Upstream"); got != upstream {
				t.Fatalf("%s was continued at %s, made at %s", id, got, upstream)
			}
			for _, call := range [][2]string{{"GET", ""}, {"POST", "/cancel"}} {
				req, _ := http.NewRequest(call[0], "http://site/v1/responses/"+id+call[1], nil)
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				proxytest.ReadAll(t, res)
				if got := res.Header.Get("X-KV-Aware-Upstream"); got != upstream {
					t.Fatalf("%s %s went to %s, made at %s", call[0], id, got, upstream)
				}
			}
		}
	}
	wantIdle(t)
}
