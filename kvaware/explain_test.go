// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestExplainNamesTheUpstreamThatThenTakesTheRequest(t *testing.T) {
	engines := []*proxytest.Engine{proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil)}
	c := proxytest.Start(t, "", site(addrs(engines...), "objective token_load", ""))
	home := c.Post("/v1/chat/completions", chat(prose("a", 200), true))
	proxytest.ReadAll(t, home)
	wantIdle(t)

	body := chat(prose("a", 200)+prose("b", 50), true)
	var e explanation
	ask(t, c, "POST", "/kv_aware/explain", body, 200, &e)
	if len(e.Upstreams) != 3 || e.Tied != 1 || e.Reason != "load" || e.API != "openai_chat" || e.Prompts != 1 || e.Sequences != 1 {
		t.Fatalf("explained as %+v", e)
	}
	first := e.Upstreams[0]
	if first.Address != home.Header.Get("X-KV-Aware-Upstream") || !first.Chosen || e.Upstreams[1].Chosen || e.Upstreams[2].Chosen {
		t.Errorf("the prefix is at %s, but candidates are %+v", home.Header.Get("X-KV-Aware-Upstream"), e.Upstreams)
	}
	if first.CachedTokens < 190 || first.CachedTokens%16 != 0 || e.Upstreams[1].CachedTokens != 0 {
		t.Errorf("cached tokens: %+v", e.Upstreams)
	}
	for _, u := range e.Upstreams {
		if u.CachedTokens+u.UncachedTokens != e.PromptTokens {
			t.Errorf("%d cached and %d uncached tokens of %d", u.CachedTokens, u.UncachedTokens, e.PromptTokens)
		}
		if u.Load != float64(u.PrefillTokens+u.UncachedTokens+u.DecodeTokens) || u.Cost != u.Load+u.FailurePenalty {
			t.Errorf("terms do not add up: %+v", u)
		}
	}

	res := c.Post("/v1/chat/completions", body)
	proxytest.ReadAll(t, res)
	for header, want := range map[string]string{
		"X-KV-Aware-Upstream":      first.Address,
		"X-KV-Aware-Prompt-Tokens": fmt.Sprint(e.PromptTokens),
		"X-KV-Aware-Cached-Tokens": fmt.Sprint(first.CachedTokens),
		"X-KV-Aware-Load":          fmt.Sprint(first.Load),
	} {
		if got := res.Header.Get(header); got != want {
			t.Errorf("explained %s, then was %s: %s", want, got, header)
		}
	}
}

func TestExplainMarksAllThatTie(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1 127.0.0.1:2 127.0.0.1:3", "", ""))
	var e explanation
	ask(t, c, "POST", "/kv_aware/explain", chat("hello", false), 200, &e)
	if e.Tied != 3 || !e.Upstreams[0].Chosen || !e.Upstreams[2].Chosen {
		t.Errorf("three idle upstreams are told as %+v", e)
	}
	ask(t, c, "POST", "/kv_aware/explain?limit=2", chat("hello", false), 200, &e)
	if e.Tied != 3 || len(e.Upstreams) != 2 || !e.Truncated {
		t.Errorf("with limit 2: %+v", e)
	}
}

func TestExplainChargesPinsAndCountsNothing(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("a", 100), true)))
	wantIdle(t)
	pl := defaultPool(t)
	type state struct {
		load  ledger.Snapshot
		held  prefix.Stats
		size  prefix.Size
		known int
	}
	look := func() state {
		u := pl.all()[0]
		load, held, _ := pl.state(u)
		return state{load, held, pl.index.Size(), len(pl.all())}
	}
	counts := func() (lines string) {
		for _, line := range strings.Split(scrape(t, c), "\n") {
			if strings.HasPrefix(line, "caddy_kv_aware_") {
				lines += line + "\n"
			}
		}
		return lines
	}
	before, countsBefore := look(), counts()
	for _, body := range []string{chat(prose("a", 100), true), chat(prose("new", 300), true), "broken", ""} {
		c.Admin("POST", "/kv_aware/explain", body)
	}
	if after := look(); after != before {
		t.Errorf("explaining changed the pool from\n%+v to\n%+v", before, after)
	}
	if after := counts(); after != countsBefore {
		t.Errorf("explaining changed the metrics from\n%s to\n%s", countsBefore, after)
	}
	if pl.budget.held.Load() != 0 || pl.live.Load() != 0 {
		t.Errorf("%d bytes and %d holds are left", pl.budget.held.Load(), pl.live.Load())
	}
	if n := len(engine.Requests()); n != 1 {
		t.Errorf("the engine saw %d requests", n)
	}
}

func TestExplainTellsTheAPIByShapeUnlessAPathIsGiven(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1", "", ""))
	for _, tc := range []struct {
		query, body, api string
		prompts          int
		sequences        int
	}{
		{"", `{"messages":[{"role":"user","content":"a"}],"n":3}`, "openai_chat", 1, 3},
		{"", `{"prompt":["a","b"]}`, "openai_completions", 2, 2},
		{"", `{"input":"a"}`, "openai_responses", 1, 1},
		{"", `{"text":"a"}`, "sglang_generate", 1, 1},
		{"", `{"inputs":"a"}`, "tgi", 1, 1},
		{"?path=/v1/embeddings", `{"input":["a","b","c"]}`, "openai_embeddings", 3, 3},
		{"?path=/v1/messages", `{"messages":[{"role":"user","content":"a"}],"max_tokens":5}`, "anthropic_messages", 1, 1},
		{"?path=/api/generate", `{"prompt":"a"}`, "ollama_generate", 1, 1},
		{"?path=/any", `{"messages":[{"role":"user","content":"a"}]}`, "openai_chat", 1, 1},
	} {
		var e explanation
		ask(t, c, "POST", "/kv_aware/explain"+tc.query, tc.body, 200, &e)
		if e.API != tc.api || e.Prompts != tc.prompts || e.Sequences != tc.sequences {
			t.Errorf("%s%s is told as %+v", tc.body, tc.query, e)
		}
		if reuses := tc.api != "openai_embeddings"; e.ReusesCache != reuses {
			t.Errorf("%s: reuses_cache is %v", tc.api, e.ReusesCache)
		}
	}
}

func TestExplainTellsTheExpectedOutputOnlyIfThereIsOne(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1", "", ""))
	_, body := ask(t, c, "POST", "/kv_aware/explain", chat("a", true), 200, nil)
	if !strings.Contains(body, `"expected_output_tokens":null`) {
		t.Errorf("without max_tokens: %s", body)
	}
	_, body = ask(t, c, "POST", "/kv_aware/explain", `{"max_tokens":7,"messages":[{"role":"user","content":"a"}]}`, 200, nil)
	if !strings.Contains(body, `"expected_output_tokens":7`) {
		t.Errorf("with max_tokens 7: %s", body)
	}
}

func TestExplainSaysWhyABodyWasNotReadAndWhatToDo(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1", "max_body 1000", ""))
	for _, tc := range []struct {
		query, body string
		status      int
		want        []string
	}{
		{"", "", 400, []string{"empty", "send the body"}},
		{"", "{]", 400, []string{"not_json at byte 1", "JSON"}},
		{"", `{"messages":`, 400, []string{"truncated", "send all of it"}},
		{"", `[]`, 400, []string{"not_object"}},
		{"", `{} {}`, 400, []string{"trailing_data"}},
		{"", `{"n":1}`, 400, []string{"no_prompt", "?path="}},
		{"?path=/v1/rerank", `{"query":"a"}`, 400, []string{"unlisted", "by their length"}},
		{"?path=/", `{"prompt":"a"}`, 400, []string{"unlisted", "/v1/chat/completions"}},
		{"", chat(strings.Repeat("x", 1000), true), 413, []string{"too_long", "1000 bytes", "max_body"}},
	} {
		_, answer := ask(t, c, "POST", "/kv_aware/explain"+tc.query, tc.body, tc.status, nil)
		for _, want := range tc.want {
			if !strings.Contains(answer, want) {
				t.Errorf("explaining %.20q%s: %q is not in %s", tc.body, tc.query, want, answer)
			}
		}
	}
	for reason, remedy := range remedies {
		if remedy == "" {
			t.Errorf("%s has no remedy", reason)
		}
	}
}

// A chunked body does not tell its length and is found too long while it is read.
func TestExplainIsBoundedForBodiesOfUnknownLength(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1", "max_body 1000", ""))
	post := func(body string) int {
		t.Helper()
		req, err := http.NewRequest("POST", "http://127.0.0.1/kv_aware/explain", struct{ *strings.Reader }{strings.NewReader(body)})
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Client("admin").Do(req)
		if err != nil {
			t.Fatal(err)
		}
		proxytest.ReadAll(t, res)
		return res.StatusCode
	}
	if code := post(chat(strings.Repeat("x", 2000), true)); code != 413 {
		t.Errorf("2000 bytes at max_body 1000 answer %d", code)
	}
	if code := post(chat(strings.Repeat("x", 200), true)); code != 200 {
		t.Errorf("200 bytes at max_body 1000 answer %d", code)
	}
	if n := defaultPool(t).budget.held.Load(); n != 0 {
		t.Errorf("%d bytes of the budget are kept", n)
	}
}

func TestExplainRefusesACompressedBodyByName(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1", "", ""))
	req, err := http.NewRequest("POST", "http://127.0.0.1/kv_aware/explain", strings.NewReader("\x1f\x8b"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Encoding", "gzip")
	res, err := c.Client("admin").Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if answer := proxytest.ReadAll(t, res); res.StatusCode != 400 || !strings.Contains(answer, "compressed") {
		t.Errorf("answers %d %s", res.StatusCode, answer)
	}
}

func TestExplainAsksTheNamelessPoolOrTheOnlyOne(t *testing.T) {
	named := `http://site2 {
	bind {SITE2}
	reverse_proxy 127.0.0.1:2 {
		lb_policy kv_aware {
			pool %s
			weights {
				prefill 3
			}
		}
	}
}
`
	c := proxytest.Start(t, "", fmt.Sprintf(named, "big"))
	var e explanation
	ask(t, c, "POST", "/kv_aware/explain", chat("a", true), 200, &e)
	if e.Pool != "big" || e.Weights.Prefill != 3 || e.Weights.Decode != 1 || e.Upstreams[0].Load != 3*float64(e.PromptTokens) {
		t.Errorf("the only pool explains %+v", e)
	}
	c.Reload("", twoSites("127.0.0.1:1", "127.0.0.1:2"))
	ask(t, c, "POST", "/kv_aware/explain", chat("a", true), 200, &e)
	if e.Pool != "" {
		t.Errorf("beside a nameless pool, %q explains", e.Pool)
	}
	ask(t, c, "POST", "/kv_aware/explain?pool=big", chat("a", true), 200, &e)
	if e.Pool != "big" || e.BlockSize != 32 {
		t.Errorf("the pool that was named is told as %+v", e)
	}
	c.Reload("", fmt.Sprintf(named, "one")+strings.NewReplacer("{SITE2}", "{SITE3}", "site2", "site3").Replace(fmt.Sprintf(named, "two")))
	_, answer := ask(t, c, "POST", "/kv_aware/explain", chat("a", true), 400, nil)
	if !strings.Contains(answer, `\"one\", \"two\"`) {
		t.Errorf("of two named pools neither is told: %s", answer)
	}
}

func TestExplainFollowsTheUpstreamThatMadeTheResponse(t *testing.T) {
	answer := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"id":"resp_abc","object":"response","status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"x"}]}],"usage":{"input_tokens":5,"output_tokens":1}}`))
	}
	a, b := proxytest.NewEngine(t, answer), proxytest.NewEngine(t, answer)
	c := proxytest.Start(t, "", site(addrs(a, b), "", ""))
	res := c.Post("/v1/responses", `{"input":"hello"}`)
	proxytest.ReadAll(t, res)
	wantIdle(t)
	var e explanation
	ask(t, c, "POST", "/kv_aware/explain", `{"input":"go on","previous_response_id":"resp_abc"}`, 200, &e)
	if e.Reason != "affinity" || e.Tied != 1 || e.Upstreams[0].Address != res.Header.Get("X-KV-Aware-Upstream") || !e.Upstreams[0].Chosen {
		t.Errorf("the response was made by %s, but explained is %+v", res.Header.Get("X-KV-Aware-Upstream"), e)
	}
}

func TestExplainShowsWhatRecentFailuresWeigh(t *testing.T) {
	failing := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	for _, objective := range []string{"objective token_load", "objective latency"} {
		c := proxytest.Start(t, "", site(failing.Addr(), objective, ""))
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("a", 100), true)))
		wantIdle(t)
		var e explanation
		ask(t, c, "POST", "/kv_aware/explain", chat(prose("a", 100), true), 200, &e)
		u := e.Upstreams[0]
		if u.FailurePenalty <= 0 || u.Cost <= u.FailurePenalty || u.CachedTokens != 0 {
			t.Errorf("after a failure: %+v", u)
		}
	}
}

// The server would catch a panic as well, and log its value, which may quote the
// prompt.
func TestAPanicWhileExplainingIsAnsweredAndCounted(t *testing.T) {
	const secret = "xyzzyplugh"
	c := proxytest.Start(t, "", site("127.0.0.1:1", "", ""))
	pl := defaultPool(t)
	pl.mu.Lock()
	whole := pl.explainer
	broken := &Policy{
		MaxBody: whole.MaxBody, BlockSize: whole.BlockSize, pool: pl, params: whole.params,
		logger: whole.logger, tokens: &tokens{fixed: panickingEncoder{secret}},
	}
	pl.explainer = broken
	pl.mu.Unlock()
	before := series(t, c, `caddy_kv_aware_panics_total{where="explain"}`)
	_, answer := ask(t, c, "POST", "/kv_aware/explain", chat("hello", true), 500, nil)
	if strings.Contains(answer, secret) {
		t.Errorf("the panic's value is answered: %s", answer)
	}
	if got := series(t, c, `caddy_kv_aware_panics_total{where="explain"}`); got != before+1 {
		t.Errorf("counted %v panics, before %v", got, before)
	}
	if n := pl.budget.held.Load(); n != 0 {
		t.Errorf("%d bytes of the budget are kept", n)
	}
}

type panickingEncoder struct{ value any }

func (e panickingEncoder) Append([]uint32, []byte) []uint32 { panic(e.value) }
