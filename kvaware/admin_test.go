// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// ask calls the admin API, expects a status, and decodes a JSON answer into v
// unless that is nil.
func ask(t testing.TB, c *proxytest.Caddy, method, path, body string, status int, v any) (http.Header, string) {
	t.Helper()
	code, header, answer := c.Admin(method, path, body)
	if code != status {
		t.Fatalf("%s %s answers %d, want %d: %s", method, path, code, status, answer)
	}
	if got := header.Get("Content-Type"); got != "application/json" {
		t.Errorf("%s %s answers with Content-Type %q", method, path, got)
	}
	if v != nil {
		if err := json.Unmarshal([]byte(answer), v); err != nil {
			t.Fatalf("%s %s: %v in %s", method, path, err, answer)
		}
	}
	return header, answer
}

// twoSites are proxies over two pools: a nameless one and "big".
func twoSites(a, b string) string {
	return site(a, "", "") + fmt.Sprintf(`
http://site2 {
	bind {SITE2}
	reverse_proxy %s {
		lb_policy kv_aware {
			pool big
			block_size 32
			weights {
				prefill 2
				decode 0.5
				request 100
			}
		}
	}
}`, b)
}

func TestUpstreamsAreShownByPoolAndAddressWithTheAddressFirst(t *testing.T) {
	engines := []*proxytest.Engine{proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil)}
	c := proxytest.Start(t, "", twoSites(addrs(engines[:2]...), engines[2].Addr()))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("a", 100), true)))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("a", 100), true)))
	wantIdle(t)

	var states []upstreamState
	header, text := ask(t, c, "GET", "/kv_aware/upstreams", "", 200, &states)
	if !strings.HasPrefix(text, `[{"address":"`) {
		t.Errorf("the address does not come first: %.60s", text)
	}
	if header.Get("Cache-Control") != "no-store" {
		t.Errorf("Cache-Control is %q", header.Get("Cache-Control"))
	}
	if len(states) != 3 {
		t.Fatalf("%d upstreams are shown, want 3", len(states))
	}
	if states[0].Address >= states[1].Address || states[0].Pool != "" || states[1].Pool != "" || states[2].Pool != "big" {
		t.Errorf("not sorted by pool and address: %s", text)
	}
	served := states[0]
	if served.AttemptsTotal == 0 {
		served = states[1]
	}
	if served.AttemptsTotal != 2 || served.GeneratedTokensTotal != 6 || served.PromptTokensTotal < 200 {
		t.Errorf("totals of two requests: %+v", served)
	}
	if served.CachedTokens < 90 || served.CachedTokensTotal < 90 || served.HitRate <= 0.4 || served.HitRate >= 0.5 {
		t.Errorf("the second of two equal prompts was held, but shown is %+v", served)
	}
	if served.OutputTokens == 0 || served.CacheTokens != DefaultCacheTokens || !served.Configured {
		t.Errorf("room: %+v", served)
	}
	if served.PrefillTokensPerSecond <= 0 || served.TokenGapMilliseconds <= 0 || served.TokensPerDelta <= 0 {
		t.Errorf("what was learnt: %+v", served)
	}

	var big []upstreamState
	ask(t, c, "GET", "/kv_aware/upstreams?pool=big", "", 200, &big)
	if len(big) != 1 || big[0].Address != engines[2].Addr() {
		t.Errorf("the pool big is %+v", big)
	}
	var nameless []upstreamState
	ask(t, c, "GET", "/kv_aware/upstreams?pool=", "", 200, &nameless)
	if len(nameless) != 2 {
		t.Errorf("the pool without a name is %+v", nameless)
	}
}

func TestLoadIsShownByTheWeightsOfThePoolWhileARequestRuns(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-release
		proxytest.Tokens(1)(w, r)
	})
	c := proxytest.Start(t, "", strings.ReplaceAll(twoSites("127.0.0.1:1", engine.Addr()), "{SITE2}", "{SITE3}"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		res, err := c.Client("site3").Post("http://site2/v1/chat/completions", "application/json", strings.NewReader(chat(prose("w", 500), true)))
		if err != nil {
			t.Error(err)
			return
		}
		proxytest.ReadAll(t, res)
	}()
	<-arrived
	var states []upstreamState
	ask(t, c, "GET", "/kv_aware/upstreams?pool=big", "", 200, &states)
	s := states[0]
	if s.Requests != 1 || s.Sequences != 1 || s.PrefillTokens < 450 {
		t.Errorf("a request in prefill is shown as %+v", s)
	}
	if want := 2*float64(s.PrefillTokens) + 0.5*float64(s.DecodeTokens) + 100*float64(s.Sequences); s.Load != want {
		t.Errorf("load %v, by the weights it is %v", s.Load, want)
	}
	close(release)
	<-done
}

func TestTheIndexIsShownWithinItsLimit(t *testing.T) {
	engines := []*proxytest.Engine{proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil)}
	c := proxytest.Start(t, "", twoSites(addrs(engines[:2]...), engines[2].Addr()))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("a", 100), true)))
	wantIdle(t)

	var all indexState
	ask(t, c, "GET", "/kv_aware/index", "", 200, &all)
	if len(all.Pools) != 2 || all.Truncated {
		t.Fatalf("pools: %+v", all)
	}
	one, big := all.Pools[0], all.Pools[1]
	if one.BlockSize != 16 || big.BlockSize != 32 || one.Cache != DefaultCacheTokens || big.Pool != "big" {
		t.Errorf("parameters: %+v", all)
	}
	if one.Blocks < 6 || one.Nodes == 0 || one.Spans == 0 || one.Bytes == 0 || big.Blocks != 0 {
		t.Errorf("sizes: %+v", all)
	}
	held := one.Upstreams[0]
	if held.Held == 0 {
		held = one.Upstreams[1]
	}
	if held.Idle < 6 || held.Pinned != 0 || held.Output != 1 || held.Held != held.Idle+held.Output || held.Capacity != 25000 {
		t.Errorf("after a prompt of 100 words the upstream holds %+v", held)
	}

	var cut indexState
	ask(t, c, "GET", "/kv_aware/index?limit=1", "", 200, &cut)
	if !cut.Truncated || len(cut.Pools) != 2 || len(cut.Pools[0].Upstreams) != 1 || len(cut.Pools[1].Upstreams) != 0 || cut.Pools[0].Known != 2 {
		t.Errorf("with limit 1: %+v", cut)
	}
	for _, bad := range []string{"-1", "x", "10001", ""} {
		ask(t, c, "GET", "/kv_aware/index?limit="+bad, "", 400, nil)
	}
}

func TestForgettingDropsWhatIsBelievedCachedThereAndNothingElse(t *testing.T) {
	a, b := proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", twoSites(a.Addr(), b.Addr()))
	big := func(text string) {
		t.Helper()
		res, err := c.Client("site2").Post("http://site2/v1/chat/completions", "application/json", strings.NewReader(chat(text, true)))
		if err != nil {
			t.Fatal(err)
		}
		proxytest.ReadAll(t, res)
	}
	fill := func() {
		t.Helper()
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("a", 100), true)))
		big(prose("a", 100))
		wantIdle(t)
	}
	cached := func() (one, two int64) {
		t.Helper()
		var states []upstreamState
		ask(t, c, "GET", "/kv_aware/upstreams", "", 200, &states)
		return states[0].CachedTokens, states[1].CachedTokens
	}
	var got forgotten

	fill()
	ask(t, c, "DELETE", "/kv_aware/index?address="+a.Addr(), "", 200, &got)
	if one, two := cached(); one != 0 || two == 0 || got.Upstreams != 1 || got.Blocks == 0 || got.Tokens != int64(got.Blocks)*16 {
		t.Errorf("after forgetting one address, %d and %d tokens are held; told %+v", one, two, got)
	}
	fill()
	ask(t, c, "DELETE", "/kv_aware/index?pool=big", "", 200, &got)
	if one, two := cached(); one == 0 || two != 0 || got.Upstreams != 1 {
		t.Errorf("after forgetting one pool, %d and %d tokens are held; told %+v", one, two, got)
	}
	fill()
	ask(t, c, "DELETE", "/kv_aware/index", "", 200, &got)
	if one, two := cached(); one != 0 || two != 0 || got.Upstreams != 2 {
		t.Errorf("after forgetting all, %d and %d tokens are held; told %+v", one, two, got)
	}

	fill()
	ask(t, c, "DELETE", "/kv_aware/index?address=10.9.8.7:6", "", 404, nil)
	ask(t, c, "DELETE", "/kv_aware/index?pool=big&address="+a.Addr(), "", 404, nil)
	ask(t, c, "DELETE", "/kv_aware/index?address=", "", 404, nil)
	if one, two := cached(); one == 0 || two == 0 {
		t.Errorf("a refused call forgot: %d and %d tokens are held", one, two)
	}
}

func TestForgettingWhileARequestRunsLeavesItsLoadRight(t *testing.T) {
	streaming, release := make(chan struct{}), make(chan struct{})
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		proxytest.Event(w, `{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"}}]}`)
		close(streaming)
		<-release
		proxytest.Tokens(40)(w, r)
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	done := make(chan struct{})
	go func() {
		defer close(done)
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("a", 200), true)))
	}()
	<-streaming
	eventually(t, "the stream's first token is seen", func() bool { return loads(t).DecodeTokens > 0 })
	ask(t, c, "DELETE", "/kv_aware/index", "", 200, nil)
	if s := loads(t); s.DecodeTokens == 0 || s.Live != 1 {
		t.Errorf("forgetting the index changed the load to %+v", s)
	}
	close(release)
	<-done
	wantIdle(t)
}

func TestAWrongMethodIs405AndTheAllowedOnesAreNamed(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1", "", ""))
	for path, allow := range map[string]string{
		"/kv_aware/upstreams": "GET, HEAD",
		"/kv_aware/index":     "GET, HEAD, DELETE",
		"/kv_aware/explain":   "POST",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			code, header, body := c.Admin(method, path, "")
			if strings.Contains(", "+allow+",", ", "+method+",") {
				if code == 405 {
					t.Errorf("%s %s is not allowed", method, path)
				}
				continue
			}
			if code != 405 || header.Get("Allow") != allow {
				t.Errorf("%s %s answers %d with Allow %q, want 405 with %q", method, path, code, header.Get("Allow"), allow)
			}
			if method != "HEAD" && !strings.Contains(body, `"error"`) {
				t.Errorf("%s %s answers %s", method, path, body)
			}
		}
	}
}

func TestHeadAnswersAsGetDoesWithoutABody(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1", "", ""))
	for _, path := range []string{"/kv_aware/upstreams", "/kv_aware/index"} {
		code, header, body := c.Admin("HEAD", path, "")
		if code != 200 || header.Get("Content-Type") != "application/json" || body != "" {
			t.Errorf("HEAD %s answers %d, %v, %q", path, code, header, body)
		}
	}
}

func TestAnUnknownPoolIs404AndTheKnownOnesAreNamed(t *testing.T) {
	c := proxytest.Start(t, "", twoSites("127.0.0.1:1", "127.0.0.1:2"))
	for method, path := range map[string]string{
		"GET": "/kv_aware/upstreams?pool=bog", "POST": "/kv_aware/explain?pool=bog", "DELETE": "/kv_aware/index?pool=bog",
	} {
		_, body := ask(t, c, method, path, "", 404, nil)
		if !strings.Contains(body, `\"\", \"big\"`) {
			t.Errorf("%s %s does not name the pools there are: %s", method, path, body)
		}
	}
}

func TestWithoutAProxyThereIsNothingToShow(t *testing.T) {
	c := proxytest.Start(t, "", "http://site {\n\tbind {SITE}\n\trespond ok\n}")
	if _, body := ask(t, c, "GET", "/kv_aware/upstreams", "", 200, nil); body != "[]\n" {
		t.Errorf("upstreams are %s", body)
	}
	ask(t, c, "POST", "/kv_aware/explain", chat("x", true), 404, nil)
}

func TestTheAdminAPIIsReadWhileRequestsRun(t *testing.T) {
	engines := []*proxytest.Engine{proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil)}
	c := proxytest.Start(t, "", site(addrs(engines...), "", ""))
	var traffic sync.WaitGroup
	for worker := range 4 {
		traffic.Go(func() {
			for i := range 20 {
				proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose(fmt.Sprint("w", worker, i%3), 60), true)))
			}
		})
	}
	over := make(chan struct{})
	go func() { traffic.Wait(); close(over) }()
	for running := true; running; {
		select {
		case <-over:
			running = false
		default:
		}
		ask(t, c, "GET", "/kv_aware/upstreams", "", 200, nil)
		ask(t, c, "GET", "/kv_aware/index", "", 200, nil)
		ask(t, c, "POST", "/kv_aware/explain", chat(prose("w00", 60), true), 200, nil)
		ask(t, c, "DELETE", "/kv_aware/index", "", 200, nil)
		c.Admin("GET", "/metrics", "")
	}
	wantIdle(t)
}

// Prompt text must not be found anywhere outside: a word of it is sent in every
// way, and then looked for wherever something can be seen.
func TestNoWordOfAPromptIsShownAnywhere(t *testing.T) {
	const secret = "xyzzyplugh"
	var echo http.HandlerFunc = func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/fail") {
			http.Error(w, secret, http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		proxytest.Event(w, `{"object":"chat.completion.chunk","id":"`+secret+`","choices":[{"index":0,"delta":{"content":"`+secret+`"}}]}`)
		proxytest.Event(w, `{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":`+secret) // broken
	}
	engine := proxytest.NewEngine(t, echo)
	logs := filepath.Join(t.TempDir(), "log")
	c := proxytest.Start(t,
		"\tmetrics\n\tdebug\n\tlog {\n\t\toutput file "+logs+"\n\t\tlevel DEBUG\n\t}\n",
		strings.Replace(site(engine.Addr(), "", ""), "bind {SITE}", "bind {SITE}\n\tlog", 1))

	bodies := map[string]string{
		"chat":       chat(secret+" "+prose(secret, 50), true),
		"completion": `{"prompt":["` + secret + `"],"model":"m"}`,
		"responses":  `{"input":"` + secret + `","previous_response_id":"resp_` + secret + `"}`,
		"truncated":  `{"messages":[{"role":"user","content":"` + secret,
		"key":        `{"` + secret + `":1}`,
		"not json":   secret,
		"trailing":   chat(secret, true) + secret,
		"deep":       strings.Repeat("[", 5000) + secret,
		"salt":       `{"cache_salt":"` + secret + `","messages":[{"role":"` + secret + `","content":[{"type":"image_url","image_url":{"url":"` + secret + `"}}]}]}`,
	}
	var seen strings.Builder
	for name, body := range bodies {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate", "/fail"} {
			proxytest.ReadAll(t, c.Post(path, body))
			code, header, answer := c.Admin("POST", "/kv_aware/explain?path="+path, body)
			fmt.Fprintln(&seen, name, path, code, header, answer)
		}
		_, header, answer := c.Admin("POST", "/kv_aware/explain", body)
		fmt.Fprintln(&seen, name, header, answer)
	}
	wantIdle(t)
	for _, call := range []string{"GET /kv_aware/upstreams", "GET /kv_aware/index", "DELETE /kv_aware/index", "GET /metrics"} {
		method, path, _ := strings.Cut(call, " ")
		code, header, answer := c.Admin(method, path, "")
		if code != 200 || len(answer) < 20 {
			t.Errorf("%s answers %d %s", call, code, answer)
		}
		fmt.Fprintln(&seen, call, header, answer)
	}
	data, err := os.ReadFile(logs)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), "chose upstream") || !strings.Contains(string(data), "kv_aware_prompt_tokens") {
		t.Error("the logs hold neither debug nor access entries: nothing was searched")
	}
	for where, text := range map[string]string{"an answer of the admin API": seen.String(), "the logs": string(data)} {
		for _, line := range strings.Split(text, "\n") {
			if strings.Contains(line, secret) {
				t.Errorf("a word of a prompt is in %s: %s", where, line)
			}
		}
	}
}
