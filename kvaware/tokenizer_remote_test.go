// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
	"github.com/kvaware/caddy-kvaware/tokenize/remote"
)

// rendering answers a question with n ids.
func rendering(w http.ResponseWriter, n int) {
	ids := strings.TrimSuffix(strings.Repeat("17,", n), ",")
	_, _ = io.WriteString(w, `{"request_id":"chatcmpl-1","token_ids":[`+ids+`],"features":null,"stream":false}`)
}

// remotely counts what became of the requests of the pool without a name.
func remotely(t *testing.T, result string) int {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(defaultPool(t).metrics.asked)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "result" && label.GetValue() == result {
					return int(m.GetCounter().GetValue())
				}
			}
		}
	}
	return 0
}

func TestTokensAreTheOnesThatAnEngineAnswers(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	asked := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		rendering(w, 1234)
	})
	t.Setenv("KV_AWARE_TEST_KEY", "secret")
	c := proxytest.Start(t, "", site(engine.Addr(), "tokenizer remote "+asked.URL+` {
		timeout 10s
		header_up Authorization "Bearer {env.KV_AWARE_TEST_KEY}"
	}`, ""))
	body := `{"model":"m","stream":true,"temperature":1,"messages":[{"role":"user","content":"How high is the tide?"}]}`
	for i := range 3 {
		res := c.Post("/v1/chat/completions", body)
		proxytest.ReadAll(t, res)
		cached := "0"
		if i > 0 {
			cached = "1232"
		}
		if h := res.Header; h.Get("X-KV-Aware-Prompt-Tokens") != "1234" || h.Get("X-KV-Aware-Cached-Tokens") != cached {
			t.Errorf("request %d: %v", i, h)
		}
	}
	seen := asked.Requests()
	if len(seen) != 1 || seen[0].Path != "/v1/chat/completions/render" || seen[0].Body != `{"model":"m","messages":[{"role":"user","content":"How high is the tide?"}],"add_special_tokens":false}` {
		t.Errorf("asked: %+v", seen)
	}
	if a, b := remotely(t, "answered"), remotely(t, "cached"); a != 1 || b != 2 {
		t.Errorf("%d answered, %d cached", a, b)
	}
	_, _, answer := c.Admin("POST", "/kv_aware/explain", body)
	if !strings.Contains(answer, `"exact":true`) || !strings.Contains(answer, `"tokenizer":"remote `+asked.URL+` (cached)"`) {
		t.Errorf("explained: %s", answer)
	}
	_, _, answer = c.Admin("POST", "/kv_aware/tokenize", body)
	if !strings.Contains(answer, `"exact":true`) || !strings.Contains(answer, `"tokens":1234,"blocks":77,"messages":null`) {
		t.Errorf("tokenized: %s", answer)
	}
	// What no engine is asked for is counted in our own way, and nobody waits.
	image := `{"model":"m","stream":true,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x/y.png"}}]}]}`
	if n := promptTokens(t, c, image); n == 0 || n == 1234 {
		t.Errorf("a chat with an image has %d tokens", n)
	}
	if n := remotely(t, "unsupported"); n != 1 {
		t.Errorf("%d unsupported", n)
	}
	_, _, answer = c.Admin("POST", "/kv_aware/explain", image)
	if !strings.Contains(answer, `"exact":false`) || !strings.Contains(answer, ` (unsupported: o200k_base instead)"`) {
		t.Errorf("explained: %s", answer)
	}
	if strings.Contains(answer, "secret") {
		t.Error("the key is shown")
	}
	wantIdle(t)
}

func TestWithoutAnAnswerRequestsAreCountedAsByAuto(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	body := chat(prose("harbour ", 500), true)
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	want := promptTokens(t, c, body)
	c.Stop()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := listener.Addr().String()
	_ = listener.Close()
	gate := make(chan struct{})
	silent := proxytest.NewEngine(t, func(http.ResponseWriter, *http.Request) { <-gate })
	t.Cleanup(func() { close(gate) })
	for result, url := range map[string]string{"unreachable": "http://" + dead, "timeout": silent.URL} {
		c := proxytest.Start(t, "", site(engine.Addr(), "tokenizer remote "+url+" {\n\ttimeout 20ms\n}", ""))
		start := time.Now()
		for range 50 {
			if n := promptTokens(t, c, body); n < want*9/10 || n > want*11/10 {
				t.Fatalf("%s: %d tokens, auto counts %d", result, n, want)
			}
		}
		// Were each of them to wait, it would be 50 times 20 ms.
		if n, open := remotely(t, result), remotely(t, "circuit_open"); n+open != 50 || n > 15 {
			t.Errorf("%s: %d, circuit open: %d, in %v", result, n, open, time.Since(start))
		}
		wantIdle(t)
		c.Stop()
	}
}

func TestWhatAnEngineAnswersOutlivesReloads(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	var questions atomic.Int32
	asked := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		questions.Add(1)
		rendering(w, 320)
	})
	asking := func(more string) string {
		return site(engine.Addr(), "tokenizer remote "+asked.URL+" {\n\ttimeout 10s\n"+more+"\n}", "")
	}
	c := proxytest.Start(t, "", asking(""))
	body := chat("a tide", true)
	promptTokens(t, c, body)
	c.Reload("", asking("max_concurrent 3"))
	res := c.Post("/v1/chat/completions", body)
	proxytest.ReadAll(t, res)
	if got := res.Header.Get("X-KV-Aware-Cached-Tokens"); got != "304" || questions.Load() != 1 {
		t.Errorf("after a reload %s tokens are cached; %d questions", got, questions.Load())
	}
	wantIdle(t)
}

func TestTheREADMENamesWhatBecomesOfAsking(t *testing.T) {
	text := between(t, readme(t), "### Asking the engines", "\n### ") + between(t, readme(t), "| `remote_tokenizations_total`", "\n")
	results := []string{remoteAnswered, remoteCached, remoteIDs}
	for _, reason := range remote.Reasons {
		results = append(results, string(reason))
	}
	for _, result := range results {
		if !strings.Contains(text, "`"+result+"`") {
			t.Errorf("%s is not in the README", result)
		}
	}
}

func TestWithoutARunningInstanceNoEngineIsAsked(t *testing.T) {
	tk, err := ParseTokenizer("remote http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tk.Tokenize(t.Context(), "/v1/chat/completions", []byte(chat("a", false)), 16, nil); err == nil || !strings.Contains(err.Error(), "running instance") {
		t.Errorf("got %v", err)
	}
}

func TestHandlersOfAPoolAskInOneWay(t *testing.T) {
	for _, other := range []string{
		"tokenizer remote http://127.0.0.1:2",
		"tokenizer remote http://127.0.0.1:1 {\n\ttimeout 1s\n}",
		"tokenizer remote http://127.0.0.1:1 {\n\tapi render\n}",
		"tokenizer remote http://127.0.0.1:1 {\n\theader_up Authorization hidden\n}",
		"tokenizer auto",
	} {
		var p, q Policy
		for policy, options := range map[*Policy]string{&p: "tokenizer remote http://127.0.0.1:1", &q: other} {
			if err := policy.UnmarshalCaddyfile(caddyfile.NewTestDispenser("kv_aware {\n" + options + "\n}")); err != nil {
				t.Fatal(err)
			}
			if err := policy.resolveOptions(); err != nil {
				t.Fatal(err)
			}
		}
		option, a, b := p.params.difference(q.params)
		if option != "tokenizer" || a == b || strings.Contains(a+b, "hidden") {
			t.Errorf("%s: %s differs: %s, %s", other, option, a, b)
		}
	}
}

func TestRemoteTokenizersThatMakeNoSenseAreRefusedWithTheRemedy(t *testing.T) {
	ok := []string{"http://10.0.0.1:8000"}
	for want, r := range map[string]*RemoteTokenizer{
		"needs the base URL":            {},
		"engine 1: first path segment":  {Engines: []string{"10.0.0.1:8000"}},
		"engine 2: expecting":           {Engines: []string{ok[0], "http://x/tokenize"}},
		"as a header instead":           {Engines: []string{"http://u:hidden@x"}},
		"expecting at most 64":          {Engines: slices.Repeat(ok, 65)},
		"api \"magic\"":                 {Engines: ok, API: "magic"},
		"timeout 20s":                   {Engines: ok, Timeout: caddy.Duration(20 * time.Second)},
		"timeout -1ns":                  {Engines: ok, Timeout: -1},
		"max_concurrent 2000":           {Engines: ok, MaxConcurrent: 2000},
		"is empty":                      {Engines: ok, Headers: http.Header{"A": {"Bearer {env.KV_AWARE_NO_SUCH}"}}},
		"no name of a header":           {Engines: ok, Headers: http.Header{"A b": {"x"}}},
		"only global placeholders":      {Engines: ok, Headers: http.Header{"A": {"{http.request.host}"}}},
		"bytes that no header may have": {Engines: ok, Headers: http.Header{"A": {"hidden\n"}}},
	} {
		tk := Tokenizer{Remote: r}
		_, err := tk.provision(caddy.NewReplacer())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(fmt.Sprint(err), "hidden") {
			t.Errorf("%+v: got %v, want an error with %q", r, err, want)
		}
	}
	for want, tk := range map[string]Tokenizer{
		"remote belongs to kind remote": {Kind: "auto", Remote: &RemoteTokenizer{}},
		"needs the base URL":            {Kind: "remote"},
	} {
		if _, err := tk.provision(caddy.NewReplacer()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want an error with %q", tk, err, want)
		}
	}
}
