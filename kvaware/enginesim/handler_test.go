// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

func (s serving) get(path string) (int, string, http.Header) {
	s.Helper()
	res, err := http.DefaultClient.Do(s.request(http.MethodGet, path, ""))
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.Fatal(err)
	}
	return res.StatusCode, string(body), res.Header
}

const hello = `{"messages":[{"role":"user","content":"hello"}]}`

func TestBadRequestsAreAnsweredAsVLLMDoes(t *testing.T) {
	s := serve(t, &Handler{KVTokens: 1600, MaxModelLen: 100})
	long := strings.Repeat("word", 100)
	for _, c := range []struct {
		path, body      string
		status          int
		kind, says, par string
	}{
		{chatPath, `{"messages":`, 400, "Bad Request", "JSON decode error", ""},
		{chatPath, ``, 400, "Bad Request", "JSON decode error", ""},
		{chatPath, hello + `x`, 400, "Bad Request", "JSON decode error", ""},
		{chatPath, `null`, 400, "Bad Request", "Field required", ""},
		{chatPath, `[]`, 400, "Bad Request", "wrong type", ""},
		{chatPath, `{}`, 400, "Bad Request", "'messages'", ""},
		{completionsPath, `{}`, 400, "Bad Request", "'prompt'", ""},
		{completionsPath, `{"prompt":{"a":1}}`, 400, "Bad Request", "should be a string", ""},
		{completionsPath, `{"prompt":""}`, 400, "BadRequestError", "non-empty", "prompt"},
		{chatPath, `{"messages":[{"role":"user","content":7}]}`, 400, "Bad Request", "content", ""},
		{chatPath, `{"max_tokens":1.5,"messages":[]}`, 400, "Bad Request", "max_tokens", ""},
		{chatPath, `{"max_tokens":0,"messages":[]}`, 400, "BadRequestError", "must be at least 1, got 0", "max_tokens"},
		{chatPath, `{"n":0,"messages":[]}`, 400, "BadRequestError", "n must be at least 1", "n"},
		{chatPath, `{"n":1000000,"messages":[]}`, 400, "BadRequestError", "at most", "n"},
		{chatPath, `{"stream_options":{},"messages":[]}`, 400, "BadRequestError", "stream=True", "stream_options"},
		{completionsPath, `{"prompt":"` + long + `"}`, 400, "BadRequestError", "maximum context length is 100 tokens", "input_tokens"},
		{completionsPath, `{"prompt":"word","max_tokens":100}`, 400, "BadRequestError", "you requested 100 output tokens and your prompt contains 1 input tokens", "input_tokens"},
		{completionsPath, `{"prompt":` + strings.Repeat("[", 20_000) + `}`, 400, "Bad Request", "JSON", ""},
	} {
		status, answer, err := s.post(c.path, c.body)
		if err != nil {
			t.Fatal(err)
		}
		r := decode(t, answer)
		if status != c.status || r.Error == nil || r.Error.Code != c.status || r.Error.Type != c.kind || !strings.Contains(r.Error.Message, c.says) {
			t.Errorf("%.60s: status %d, %s", c.body, status, answer)
		} else if par := r.Error.Param; (par == nil) != (c.par == "") || par != nil && *par != c.par {
			t.Errorf("%.60s: param in %s", c.body, answer)
		}
		if strings.Contains(string(answer), "word") {
			t.Errorf("%.60s: the prompt is in the answer", c.body)
		}
	}
	if st, _ := s.handler.replica.stats(); st.Running+st.Waiting != 0 || st.QueriedTokens != 0 {
		t.Errorf("a bad request came to the engine: %+v", st)
	}
}

func TestOtherPathsAndMethodsAreRefused(t *testing.T) {
	s := serve(t, &Handler{})
	if status, body, _ := s.get("/v1/nothing"); status != 404 || body != `{"detail":"Not Found"}` {
		t.Errorf("%d %s", status, body)
	}
	if status, body, header := s.get(chatPath); status != 405 || header.Get("Allow") != "POST" {
		t.Errorf("%d %s", status, body)
	}
	if status, _, err := s.post("/health", ""); err != nil || status != 405 {
		t.Errorf("%d %v", status, err)
	}
}

func TestHealthModelsAndMetricsAreServed(t *testing.T) {
	s := serve(t, &Handler{Model: `llama "70b"`, BlockSize: 32, KVTokens: 64_010})
	if status, body, _ := s.get("/health"); status != 200 || body != "" {
		t.Errorf("health: %d %q", status, body)
	}
	if _, body, _ := s.get("/v1/models"); !strings.Contains(body, `"id":"llama \"70b\""`) || !strings.Contains(body, `"max_model_len":64000`) {
		t.Errorf("models: %s", body)
	}
	long := `{"prompt":"` + strings.Repeat("abcd", 70) + `","max_tokens":10}`
	s.complete(completionsPath, long)
	s.complete(completionsPath, long)
	_, body, header := s.get("/metrics")
	if !strings.HasPrefix(header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Errorf("metrics of type %s", header.Get("Content-Type"))
	}
	const labels = `{engine="0",model_name="llama \"70b\""} `
	for _, line := range []string{
		"vllm:num_requests_running" + labels + "0",
		"vllm:num_requests_waiting" + labels + "0",
		"vllm:kv_cache_usage_perc" + labels + "0",
		"vllm:gpu_cache_usage_perc" + labels + "0",
		"vllm:prefix_cache_queries_total" + labels + "140",
		"vllm:prefix_cache_hits_total" + labels + "64",
		"vllm:num_preemptions_total" + labels + "0",
		"vllm:prompt_tokens_total" + labels + "140",
		"vllm:generation_tokens_total" + labels + "20",
		`vllm:request_success_total{engine="0",finished_reason="length",model_name="llama \"70b\""} 2`,
		`vllm:cache_config_info{block_size="32",enable_prefix_caching="True",engine="0",kv_cache_size_tokens="64000",num_gpu_blocks="2000"} 1`,
		`vllm:engine_sleep_state{engine="0",model_name="llama \"70b\"",sleep_state="awake"} 1`,
		`vllm:engine_sleep_state{engine="0",model_name="llama \"70b\"",sleep_state="weights_offloaded"} 0`,
		"process_start_time_seconds 1",
	} {
		if !strings.Contains(body, "\n"+line) {
			t.Errorf("no metric %s in\n%s", line, body)
		}
	}
	if status, _, err := s.post("/reset_prefix_cache", ""); err != nil || status != 200 {
		t.Errorf("reset: %d %v", status, err)
	}
	s.complete(completionsPath, long)
	if st, _ := s.handler.replica.stats(); st.HitTokens != 64 {
		t.Errorf("%d tokens hit after a reset, want the 64 of before", st.HitTokens)
	}
}

func TestAskedFailuresHappen(t *testing.T) {
	s := serve(t, &Handler{})
	const stream = `{"stream":true,"max_tokens":50,"ignore_eos":true,"messages":[{"role":"user","content":"hello"}]}`

	if _, _, err := s.post(chatPath, stream, failHeader, "refuse"); err == nil {
		t.Error("refuse: answered")
	}
	if status, answer, err := s.post(chatPath, stream, failHeader, "500"); err != nil || status != 500 || decode(t, answer).Error.Type != "InternalServerError" {
		t.Errorf("500: %d %v %s", status, err, answer)
	}
	status, answer, err := s.post(chatPath, stream, failHeader, "die:5")
	if err == nil || status != 200 {
		t.Errorf("die: status %d, ended with %v", status, err)
	}
	if got := events(t, answer); len(got) != 1+5 {
		t.Errorf("die:5: %d events, want the role and 5 tokens: %q", len(got), got)
	}
	if status, answer, err = s.post(chatPath, stream, failHeader, "die:0"); err == nil || status != 200 || len(answer) != 0 {
		t.Errorf("die:0: status %d, %q, ended with %v", status, answer, err)
	}
	if _, _, err = s.post(chatPath, hello, failHeader, "die:1"); err == nil {
		t.Error("die of a whole answer: answered")
	}
	if status, answer, err = s.post(chatPath, stream, failHeader, "explode"); err != nil || status != 400 || !strings.Contains(string(answer), "explode") {
		t.Errorf("unknown: %d %v %s", status, err, answer)
	}
	s.idle()
}

// idle fails unless the engine has nothing to do, or soon has.
func (s serving) idle() {
	s.Helper()
	for {
		s.handler.replica.mu.Lock()
		busy, stepping := s.handler.replica.engine.Busy(), s.handler.replica.stepping
		s.handler.replica.mu.Unlock()
		if !busy && !stepping {
			return
		}
		if s.Context().Err() != nil {
			s.Fatal("the engine does not become idle")
		}
	}
}

func TestAStallLastsUntilTheClientLeaves(t *testing.T) {
	s := serve(t, &Handler{Speed: 10_000})
	ctx, leave := context.WithCancel(t.Context())
	res, err := http.DefaultClient.Do(s.request(http.MethodPost, chatPath,
		`{"stream":true,"max_tokens":50,"ignore_eos":true,"messages":[]}`, failHeader, "stall:3").WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	reader := bufio.NewReader(res.Body)
	for range 2 * 4 { // role, three tokens, each with a blank line
		if _, err := reader.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	s.idle() // the engine goes on and ends, and yet nothing more is sent
	leave()
	if rest, err := io.ReadAll(reader); err == nil || len(rest) != 0 {
		t.Errorf("%q came, ended with %v", rest, err)
	}
}

func TestConfiguredFailuresHappenAtTheirRate(t *testing.T) {
	half := 0.5
	h := provision(t, &Handler{Fail: "500", FailRate: &half})
	rolls := []float64{0.49, 0.5, 0.1, 0.9}
	h.chance = func() float64 {
		defer func() { rolls = rolls[1:] }()
		return rolls[0]
	}
	for _, want := range []int{500, 200, 500, 200} {
		rec := httptest.NewRecorder()
		if err := h.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, chatPath, strings.NewReader(hello)), nil); err != nil || rec.Code != want {
			t.Errorf("status %d, %v; want %d", rec.Code, err, want)
		}
	}
	// A refusing engine does not answer health checks either.
	h = provision(t, &Handler{Fail: "refuse"})
	defer func() {
		if recover() != http.ErrAbortHandler {
			t.Error("a refusing engine is healthy")
		}
	}()
	_ = h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/health", nil), nil)
}

func TestAClientThatLeavesTakesItsRequestAlong(t *testing.T) {
	for name, c := range map[string]struct {
		speed float64
		body  string
		lines int // to read before leaving
	}{
		"in prefill":              {0.001, `{"stream":true,"messages":[{"role":"user","content":"hello"}]}`, 0},
		"mid-stream":              {100, `{"stream":true,"max_tokens":100000,"ignore_eos":true,"messages":[]}`, 10},
		"before the whole answer": {0.001, hello, -1},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, &Handler{Speed: c.speed})
			ctx, leave := context.WithCancel(t.Context())
			req := s.request(http.MethodPost, chatPath, c.body).WithContext(ctx)
			if c.lines < 0 {
				go func() {
					for {
						if st, _ := s.handler.replica.stats(); st.Running == 1 {
							leave()
							return
						}
					}
				}()
			}
			res, err := http.DefaultClient.Do(req)
			if err == nil {
				defer res.Body.Close()
				lines := bufio.NewReader(res.Body)
				for range c.lines {
					if _, err := lines.ReadString('\n'); err != nil {
						t.Fatal(err)
					}
				}
			}
			leave()
			s.idle()
			if st, _ := s.handler.replica.stats(); st.Finished != 0 || st.UsedBlocks != 0 {
				t.Errorf("left over: %+v", st)
			}
		})
	}
}

func TestAnEngineSurvivesReloadsAndEndsWithItsLastHandler(t *testing.T) {
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	load := func(change func(*Handler)) *Handler {
		h := &Handler{Name: t.Name(), Speed: 1000}
		if change != nil {
			change(h)
		}
		if err := h.Provision(ctx); err != nil {
			t.Fatal(err)
		}
		return h
	}
	cached := func(h *Handler) int {
		rec := httptest.NewRecorder()
		body := `{"prompt":"` + strings.Repeat("abcd", 100) + `"}`
		if err := h.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, completionsPath, strings.NewReader(body)), nil); err != nil {
			t.Fatal(err)
		}
		return decode(t, rec.Body.Bytes()).Usage.Details.Cached
	}
	first := load(nil)
	if got := cached(first); got != 0 {
		t.Errorf("%d tokens cached at first", got)
	}
	second := load(func(h *Handler) { h.Output, h.Fail = 7, "die" })
	second.fail = failure{}
	if err := first.Cleanup(); err != nil {
		t.Fatal(err)
	}
	if got := cached(second); got != 96 {
		t.Errorf("%d tokens cached after a reload, want 96", got)
	}
	if got := cached(first); got != 96 {
		t.Errorf("%d tokens cached for a request of the old config, want 96", got)
	}
	other := load(func(h *Handler) { h.BlockSize = 32 })
	if got := cached(other); got != 0 {
		t.Errorf("%d tokens cached in an engine with other parameters", got)
	}
	for _, h := range []*Handler{second, other} {
		if err := h.Cleanup(); err != nil {
			t.Fatal(err)
		}
	}
	third := load(nil)
	if got := cached(third); got != 0 {
		t.Errorf("%d tokens cached though every handler had gone", got)
	}
	if err := third.Cleanup(); err != nil {
		t.Fatal(err)
	}
}

func TestAConfigThatFailsTakesNoEngine(t *testing.T) {
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	rate := 1.5
	for name, h := range map[string]*Handler{
		"speed":         {Speed: -1},
		"block size":    {BlockSize: -1},
		"cache":         {KVTokens: 3},
		"seqs":          {MaxNumSeqs: -1},
		"budget":        {MaxNumBatchedTokens: 1},
		"model length":  {KVTokens: 160, MaxModelLen: 161},
		"output":        {Output: -1},
		"fail":          {Fail: "often"},
		"fail tokens":   {Fail: "die:x"},
		"fail nothing":  {Fail: "500:3"},
		"fail rate":     {Fail: "500", FailRate: &rate},
		"negative pace": {Pace: &Pace{Token: -1}},
		"event port":    {KVEvents: &KVEvents{Endpoint: "tcp://127.0.0.1"}},
		"event shape":   {KVEvents: &KVEvents{Shape: "round"}},
		"event topic":   {KVEvents: &KVEvents{Topic: strings.Repeat("x", 257)}},
		"event buffer":  {KVEvents: &KVEvents{BufferSteps: -1}},
		"event hwm":     {KVEvents: &KVEvents{HWM: -1}},
	} {
		h.Name = t.Name()
		if err := h.Provision(ctx); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if err := h.Cleanup(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	replicas.Range(func(key, _ any) bool {
		if key.(poolKey).name == t.Name() {
			t.Errorf("left in the pool: %+v", key)
		}
		return true
	})
}
