// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestOptionsThatMakeNoSenseAreRefusedByName(t *testing.T) {
	zero, negative, endless, nan := 0., -1., math.Inf(1), math.NaN()
	for want, p := range map[string]*Policy{
		"block_size":                   {BlockSize: -1},
		"block_size 5000":              {BlockSize: 5000},
		"cache_tokens 8":               {CacheTokens: 8},
		"fewer than 2^30 blocks":       {CacheTokens: maxCacheTokens, BlockSize: 16},
		"cache_tokens auto needs":      {CacheTokens: AutoCacheTokens},
		"scrape 1ms":                   {Engine: &Engine{Scrape: caddy.Duration(time.Millisecond)}},
		"scrape 2h":                    {Engine: &Engine{Scrape: caddy.Duration(2 * time.Hour)}},
		"models \"on\"":                {Engine: &Engine{Models: "on"}},
		"leave one of them out":        {Engine: &Engine{Models: "off", ModelsPath: "/m"}},
		"metrics_path \"metrics\"":     {Engine: &Engine{MetricsPath: "metrics"}},
		"models_path \"http://x\"":     {Engine: &Engine{ModelsPath: "http://x"}},
		"no name of a header":          {Engine: &Engine{Headers: http.Header{"a b": {"c"}}}},
		"Authorization: unrecognized":  {Engine: &Engine{Headers: http.Header{"Authorization": {"{nothing}"}}}},
		"bytes that no header may":     {Engine: &Engine{Headers: http.Header{"X": {"a\nb"}}}},
		"max_body -1":                  {MaxBody: -1},
		"max_body 2147483648":          {MaxBody: 2 << 30},
		"max_buffered -1":              {MaxBuffered: -1},
		"token_cache -1":               {TokenCache: -1},
		"isolate_by \"X-Tenant\"":      {IsolateBy: "X-Tenant"},
		"only global placeholders":     {Pool: "{http.request.host}"},
		"is empty once":                {Pool: "{env.KV_AWARE_NO_SUCH_VARIABLE}"},
		"weights: prefill -1":          {Weights: Weights{Prefill: &negative}},
		"weights: decode +Inf":         {Weights: Weights{Decode: &endless}},
		"weights: request NaN":         {Weights: Weights{Request: &nan}},
		"all are 0":                    {Weights: Weights{Prefill: &zero, Decode: &zero}},
		"tokenizer: encoding \"{env.K": {Tokenizer: &Tokenizer{Encoding: "{env.KV_AWARE_NO_SUCH_VARIABLE}"}},
	} {
		if err := p.resolveOptions(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestCacheTokensIsANumberOrAuto(t *testing.T) {
	for text, want := range map[string]CacheTokens{`400000`: 400_000, `"auto"`: AutoCacheTokens, `0`: 0} {
		var got CacheTokens
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s is read as %d, %v", text, got, err)
		}
		if back, err := json.Marshal(want); err != nil || string(back) != text {
			t.Errorf("%d is written as %s, %v", want, back, err)
		}
	}
	for _, text := range []string{`-1`, `"400000"`, `"Auto"`, `1.5`, `{}`, `true`} {
		var got CacheTokens
		if err := json.Unmarshal([]byte(text), &got); err == nil || !strings.Contains(err.Error(), "cache_tokens") {
			t.Errorf("%s is read as %d, %v", text, got, err)
		}
	}
}

// brokenPolicy panics in Select.
type brokenPolicy struct{}

func (brokenPolicy) Select(reverseproxy.UpstreamPool, *http.Request, http.ResponseWriter) *reverseproxy.Upstream {
	panic("the secret of a prompt")
}

// breakPolicy breaks the policy that serves a running configuration in a way that
// no input can.
func breakPolicy(t *testing.T, how func(p *Policy)) {
	t.Helper()
	pl := defaultPool(t)
	pl.mu.Lock()
	defer pl.mu.Unlock()
	how(pl.explainer)
}

func TestAPanicInSelectIsRoutedAround(t *testing.T) {
	a, b := proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil)
	for what, how := range map[string]func(p *Policy){
		"while choosing": func(p *Policy) { p.fallback = brokenPolicy{} },
		"while reading":  func(p *Policy) { p.tokens = &tokens{fixed: panickingEncoder{"the secret of a prompt"}} },
	} {
		t.Run(what, func(t *testing.T) {
			c := proxytest.Start(t, "metrics", site(addrs(a, b), "", ""))
			breakPolicy(t, how)
			before := series(t, c, `caddy_kv_aware_panics_total{where="read"}`) + series(t, c, `caddy_kv_aware_panics_total{where="select"}`)
			body := chat(prose("panic", 50), true)
			for range 10 {
				res := c.Post("/v1/chat/completions", body)
				if text := proxytest.ReadAll(t, res); res.StatusCode != 200 || !strings.Contains(text, "[DONE]") {
					t.Fatalf("got %d %q", res.StatusCode, text)
				}
				get, err := c.Client("site").Get("http://site/v1/models")
				if err != nil {
					t.Fatal(err)
				}
				proxytest.ReadAll(t, get)
				if get.StatusCode != 200 {
					t.Fatalf("a GET got %d", get.StatusCode)
				}
			}
			wantIdle(t)
			after := series(t, c, `caddy_kv_aware_panics_total{where="read"}`) + series(t, c, `caddy_kv_aware_panics_total{where="select"}`)
			if after-before != 10 {
				t.Errorf("%v panics were counted, want one for each request that met it", after-before)
			}
		})
	}
	if x, y := len(a.Requests()), len(b.Requests()); x == 0 || y == 0 {
		t.Errorf("went %d and %d ways", x, y)
	}
	for _, e := range []*proxytest.Engine{a, b} {
		for _, seen := range e.Requests() {
			if seen.Method == "POST" && !strings.HasSuffix(seen.Body, "}") {
				t.Errorf("the upstream got %q", seen.Body)
			}
		}
	}
}
