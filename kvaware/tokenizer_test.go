// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

// promptTokens sends a chat and gives the prompt tokens that were counted.
func promptTokens(t *testing.T, c *proxytest.Caddy, body string) (n int) {
	t.Helper()
	res := c.Post("/v1/chat/completions", body)
	proxytest.ReadAll(t, res)
	_, _ = fmt.Sscan(res.Header.Get("X-KV-Aware-Prompt-Tokens"), &n)
	return n
}

func TestEveryKindOfTokenizerCountsAndFindsPrefixesAgain(t *testing.T) {
	file, err := filepath.Abs("../testdata/tokens/hf/tiny/gpt2.json")
	if err != nil {
		t.Fatal(err)
	}
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		proxytest.Event(w, `{"choices":[{"index":0,"delta":{"content":"a"}}]}`) // no usage: nothing to correct by
	})
	counts := make(map[string]int)
	for _, tokenizer := range []string{"auto", "tiktoken cl100k_base", "tiktoken o200k_base", "estimate", "hf " + file} {
		if strings.HasPrefix(tokenizer, "hf") {
			if _, err := os.Stat(file); err != nil {
				t.Fatal(err)
			}
		}
		c := proxytest.Start(t, "", site(engine.Addr(), "tokenizer "+tokenizer, ""))
		body := chat(prose("kinds ", 200), true)
		kind, _, _ := strings.Cut(tokenizer, " ")
		counts[kind] = promptTokens(t, c, body)
		res := c.Post("/v1/chat/completions", body)
		proxytest.ReadAll(t, res)
		var cached int
		_, _ = fmt.Sscan(res.Header.Get("X-KV-Aware-Cached-Tokens"), &cached)
		if cached < counts[kind]-2*DefaultBlockSize {
			t.Errorf("%s: %d of %d tokens were found again", tokenizer, cached, counts[kind])
		}
		wantIdle(t)
		c.Stop()
	}
	if a, b := counts["auto"], counts["tiktoken"]; a != b {
		t.Errorf("auto counts %d tokens, its stand-in %d", a, b)
	}
	if e, o := counts["estimate"], counts["tiktoken"]; e < o/2 || e > 2*o {
		t.Errorf("the estimate is %d tokens, o200k_base counts %d", e, o)
	}
}

func TestWithTheModelsOwnTemplateCountsAreTheEnginesOwn(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	abs := func(path string) string {
		full, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		return full
	}
	tokenizer, template := abs("../testdata/exact/chatml.json"), abs("../testdata/templates/texts/Qwen-Qwen2.5-7B-Instruct.jinja")
	c := proxytest.Start(t, "", site(engine.Addr(), "tokenizer hf "+tokenizer+" {\n\tchat_template "+template+"\n}", ""))
	hf, err := tokenize.LoadHF(tokenizer)
	if err != nil {
		t.Fatal(err)
	}
	want := len(hf.AppendSpecial(nil, []byte("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHow high is the tide?<|im_end|>\n<|im_start|>assistant\n")))
	body := `{"model":"m","stream":true,"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"How high is the tide?"}]}`
	if n := promptTokens(t, c, body); n != want {
		t.Errorf("%d tokens were counted, the template makes %d", n, want)
	}
	_, _, answer := c.Admin("POST", "/kv_aware/explain", body)
	if !strings.Contains(answer, `"exact":true`) {
		t.Errorf("explained: %s", answer)
	}
	// What the template cannot serve is rendered in our own way, and routed.
	image := `{"model":"m","stream":true,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x/y.png"}}]}]}`
	if n := promptTokens(t, c, image); n == 0 {
		t.Error("a chat with an image has no tokens")
	}
	wantIdle(t)
}

func TestCountsAreCorrectedByWhatResponsesReport(t *testing.T) {
	// The engine counts half as many tokens again as any encoding of ours.
	counted := make(chan int, 1)
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		proxytest.Event(w, `{"choices":[{"index":0,"delta":{"content":"a"}}]}`)
		n := <-counted
		proxytest.Event(w, fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":1}}`, n))
		proxytest.Event(w, "[DONE]")
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	body := chat(prose("ratio", 400), true)
	counted <- 0
	ours := promptTokens(t, c, body)
	for range 20 {
		counted <- ours * 3 / 2
		promptTokens(t, c, body)
	}
	counted <- 0
	if n := promptTokens(t, c, body); n < ours*14/10 || n > ours*16/10 {
		t.Errorf("%d tokens of ours are corrected to %d, the engine says %d", ours, n, ours*3/2)
	}
	// What is learnt of one tokenizer's counts says nothing of another's.
	for tokenizer, want := range map[string]string{"auto": `"token_ratio":1.4`, "estimate": `"token_ratio":1,`} {
		c.Reload("", site(engine.Addr(), "tokenizer "+tokenizer, ""))
		if _, _, answer := c.Admin("POST", "/kv_aware/explain", body); !strings.Contains(answer, want) {
			t.Errorf("tokenizer %s: want %s in %s", tokenizer, want, answer)
		}
	}
	c.Reload("", site(engine.Addr(), "", ""))
	// Another model is another tokenizer.
	counted <- 0
	if n := promptTokens(t, c, strings.Replace(body, `"model":"m"`, `"model":"other"`, 1)); n != ours {
		t.Errorf("a model of which nothing was reported counts %d, want %d", n, ours)
	}
	wantIdle(t)
}

func TestAutoTakesAnotherEncodingWithoutMakingARequestWaitForIt(t *testing.T) {
	tokens, err := new(Tokenizer).provision(caddy.NewReplacer())
	if err != nil {
		t.Fatal(err)
	}
	if e, ok := tokens.encoder("my-own-model", nil).(*tokenize.Encoding); !ok || e.Name() != standInEncoding {
		t.Errorf("an unknown model is encoded with %v", e)
	}
	// Whichever it is at first, in the end it is the model's own.
	eventually(t, "the model's own encoding is there", func() bool {
		e, ok := tokens.encoder("gpt-4", nil).(*tokenize.Encoding)
		return ok && e.Name() == "cl100k_base"
	})
}

func TestTokenizersThatMakeNoSenseAreRefusedWithTheRemedy(t *testing.T) {
	for want, tk := range map[string]Tokenizer{
		"unknown kind":             {Kind: "magic"},
		"belongs to kind tiktoken": {Kind: "estimate", Encoding: "o200k_base"},
		"belongs to kind hf":       {Kind: "auto", File: "x.json"},
		"needs the path":           {Kind: "hf"},
		"known are":                {Kind: "tiktoken", Encoding: "o300k_base"},
		"nowhere.json":             {File: "nowhere.json"},
		"chat_template \"c\"":      {Kind: "auto", ChatTemplate: "c"},
		"nowhere.jinja":            {File: "../testdata/exact/chatml.json", ChatTemplate: "nowhere.jinja"},
	} {
		if _, err := tk.provision(caddy.NewReplacer()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want an error with %q", tk, err, want)
		}
	}
}
