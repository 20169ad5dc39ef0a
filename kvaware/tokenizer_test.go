// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
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

// The image processor is found beside the template, and the engine says what a last
// answer becomes.
func TestATemplateIsReadForItsEngineAndWithTheImageProcessorBesideIt(t *testing.T) {
	directory := t.TempDir()
	template := filepath.Join(directory, "chat_template.jinja")
	for name, from := range map[string]string{
		"chat_template.jinja": "../testdata/templates/texts/Qwen3-VL-30B-A3B-Instruct-Q8_0.jinja",
		"tokenizer.json":      "../testdata/exact/vision.json",
	} {
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(directory, name), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	exact := func(engine, processor, body string) (tokens int, exact bool) {
		if processor != "" {
			if err := os.WriteFile(filepath.Join(directory, "preprocessor_config.json"), []byte(processor), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		tk := Tokenizer{File: filepath.Join(directory, "tokenizer.json"), ChatTemplate: template, Engine: engine}
		made, err := tk.provision(caddy.NewReplacer())
		if err != nil {
			t.Fatal(err)
		}
		rd := tokenize.NewReader()
		req, err := rd.Read(tokenize.OpenAIChat, "", []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		exact = rd.ChainExact(context.Background(), req, made.exact, made.fixed, 16)
		return req.Prompts[0].Tokens, exact
	}
	// A PNG of 280 by 280 pixels by its header, which is 100 tokens.
	image := `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAARgAAAEY"}}]}]}`
	processor := `{"image_processor_type":"Qwen2VLImageProcessor","patch_size":14,"merge_size":2,"min_pixels":3136,"max_pixels":12845056}`
	if _, ok := exact("", "", image); ok {
		t.Error("an image is exact without an image processor")
	}
	if _, ok := exact("", `{"image_processor_type":"another"}`, image); ok {
		t.Error("an image is exact with an unknown image processor")
	}
	if n, ok := exact("vllm", processor, image); !ok || n < 100 || n > 130 {
		t.Errorf("%d tokens of an image of 100, exact: %t", n, ok)
	}
	answered := `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`
	of, ok := exact("vllm", "", answered)
	said, ok2 := exact("sglang", "", answered)
	if !ok || !ok2 || of == said {
		t.Errorf("%d tokens for vLLM, %d for SGLang", of, said)
	}
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
		"unknown kind":              {Kind: "magic"},
		"belongs to kind tiktoken":  {Kind: "estimate", Encoding: "o200k_base"},
		"belongs to kind hf":        {Kind: "auto", File: "x.json"},
		"needs the path":            {Kind: "hf"},
		"known are":                 {Kind: "tiktoken", Encoding: "o300k_base"},
		"nowhere.json":              {File: "nowhere.json"},
		"chat_template \"c\"":       {Kind: "auto", ChatTemplate: "c"},
		"expecting vllm or sglang":  {File: "x.json", ChatTemplate: "c", Engine: "tgi"},
		"belongs to a chat_templat": {File: "x.json", Engine: "vllm"},
		"nowhere.jinja":             {File: "../testdata/exact/chatml.json", ChatTemplate: "nowhere.jinja"},
	} {
		if _, err := tk.provision(caddy.NewReplacer()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want an error with %q", tk, err, want)
		}
	}
}
