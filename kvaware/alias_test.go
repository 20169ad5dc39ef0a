// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestAliasesThatContradictEachOtherAreRefused(t *testing.T) {
	for want, names := range map[string]map[string][]string{
		"without a name":                  {"": {"a"}},
		"no alias is given":               {"m": {}},
		`an alias of both "m" and "n"`:    {"m": {"a"}, "n": {"b", "a"}},
		`"n" is an alias of "m" and has`:  {"m": {"n"}, "n": {"a"}},
		`"m" is an alias of "m" and has`:  {"m": {"m"}},
		"is empty once":                   {"m": {"{env.KV_AWARE_NO_SUCH_VARIABLE}"}},
		"model_alias \"m\" is given twic": {"m": {"a"}, "{env.KV_AWARE_TEST_MODEL}": {"b"}},
	} {
		t.Setenv("KV_AWARE_TEST_MODEL", "m")
		if _, _, err := aliasesOf(caddy.NewReplacer(), names); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestEqualAliasesAreDescribedAlike(t *testing.T) {
	t.Setenv("KV_AWARE_TEST_MODEL", "m")
	aliases, one, err := aliasesOf(caddy.NewReplacer(), map[string][]string{"m": {"b", "a", "a"}, "n": {""}})
	if err != nil {
		t.Fatal(err)
	}
	same, other, err := aliasesOf(caddy.NewReplacer(), map[string][]string{"n": {""}, "{env.KV_AWARE_TEST_MODEL}": {"a", "b"}})
	if err != nil || one != other || !maps.Equal(aliases, same) {
		t.Errorf("%s and %s, %v", one, other, err)
	}
	if want := (modelAliases{"a": "m", "b": "m", "": "n"}); !maps.Equal(aliases, want) {
		t.Errorf("got %v", aliases)
	}
}

func TestAliasesShareWhatIsKnownOfTheirModel(t *testing.T) {
	// The engine counts three times as many tokens as we do, so the ratio moves.
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"object":"chat.completion","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":600,"completion_tokens":1}}`)
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "model_alias org/Qwen3-8B qwen3 gpt-4 \"\"\nmodel_alias other another", ""))
	body := func(members, text string) string {
		return `{` + members + `"messages":[{"role":"user","content":"` + prose(text, 100) + `"}]}`
	}
	post := func(body string) (cached string) {
		t.Helper()
		res := c.Post("/v1/chat/completions", body)
		if text := proxytest.ReadAll(t, res); res.StatusCode != 200 {
			t.Fatalf("got %d %s", res.StatusCode, text)
		}
		wantIdle(t)
		return res.Header.Get("X-KV-Aware-Cached-Tokens")
	}
	learnt := func(members string) bool {
		t.Helper()
		status, _, answer := c.Admin("POST", "/kv_aware/explain", body(members, "alias"))
		if status != 200 {
			t.Fatalf("explain: %d %s", status, answer)
		}
		return !strings.Contains(answer, `"token_ratio":1,`)
	}
	if post(body(`"model":"qwen3",`, "alias")) != "0" {
		t.Fatal("something is held already")
	}
	for i := range 8 { // a ratio wants to be seen a few times
		post(body(`"model":"qwen3",`, fmt.Sprint("learning", i)))
	}
	for _, members := range []string{`"model":"org/Qwen3-8B",`, `"model":"qwen3",`, `"model":"gpt-4",`, ``, `"model":"qwen3","model":"gpt-4",`} {
		if !learnt(members) {
			t.Errorf("%s does not share what was learnt of its model's counts", members)
		}
		if post(body(members, "alias")) == "0" {
			t.Errorf("%s does not find what its model holds", members)
		}
	}
	for _, members := range []string{`"model":"another",`, `"model":"QWEN3",`, `"model":"qwen3 ",`, `"model":"adapter",`, `"model":"qwen3","lora_path":"adapter",`} {
		if !strings.Contains(members, "lora") && learnt(members) {
			t.Errorf("%s knows another model's counts", members)
		}
		if post(body(members, "alias")) != "0" {
			t.Errorf("%s finds what another model holds", members)
		}
	}
	// The encoding is that of the model, whatever the alias is known for.
	_, _, answer := c.Admin("POST", "/kv_aware/explain", body(`"model":"gpt-4",`, "alias"))
	if !strings.Contains(answer, `"tokenizer":"auto (o200k_base)"`) || strings.Contains(answer, `"cached_tokens":0`) {
		t.Errorf("explained: %s", answer)
	}
	// Every byte goes to the engine as it came.
	for _, seen := range engine.Requests() {
		if strings.Contains(seen.Body, "org/Qwen3-8B") != strings.HasPrefix(seen.Body, `{"model":"org/`) {
			t.Errorf("the engine got %s", seen.Body)
		}
	}
}

func TestHandlersOfOnePoolMustShareAliases(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", "")
	second := strings.NewReplacer("//site", "//site2", "{SITE}", "{SITE2}").Replace(site(engine.Addr(), "model_alias m a", ""))
	err := c.TryReload("", site(engine.Addr(), "", "")+second)
	if err == nil || !strings.Contains(err.Error(), `model_alias of pool ""`) || !strings.Contains(err.Error(), `["a"] for "m"`) {
		t.Errorf("got %v", err)
	}
}
