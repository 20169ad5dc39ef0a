// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestTokenizeShowsWhatExplainCounts(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1", "", ""))
	for _, tc := range []struct {
		query, body string
		roles       string
	}{
		{"", chat(prose("a", 100), true), "user"},
		{"", `{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"What do the tides do?"},{"role":"my name","content":"x"}]}`, "system user other"},
		{"", `{"prompt":["a b c","d"]}`, ""},
		{"?path=/v1/messages", `{"system":"s","messages":[{"role":"user","content":"a"}],"max_tokens":5}`, "system user"},
	} {
		var e explanation
		var got Tokenized
		ask(t, c, "POST", "/kv_aware/explain"+tc.query, tc.body, 200, &e)
		ask(t, c, "POST", "/kv_aware/tokenize"+tc.query, tc.body, 200, &got)
		if got.API != e.API || got.Tokenizer != e.Tokenizer || got.Exact != e.Exact || got.TokenRatio != e.TokenRatio ||
			got.PromptTokens != e.PromptTokens || got.BlockSize != e.BlockSize || len(got.Prompts) != e.Prompts || got.Truncated {
			t.Errorf("%s: %+v, explained as %+v", tc.body, got, e)
		}
		var roles []string
		blocks, tokens := 0, 0
		for _, p := range got.Prompts {
			blocks += p.Blocks
			tokens += p.Tokens
			for i, m := range p.Messages {
				roles = append(roles, m.Role)
				if i > 0 && m.Start != p.Messages[i-1].Start+p.Messages[i-1].Tokens || m.Block != m.Start/got.BlockSize {
					t.Errorf("messages %+v", p.Messages)
				}
			}
		}
		if blocks != e.Blocks || int64(tokens) != e.PromptTokens || strings.Join(roles, " ") != tc.roles {
			t.Errorf("%s: %+v", tc.body, got)
		}
	}
}

func TestTokenizeListsNoMoreThanTheLimit(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1", "", ""))
	two := `{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`
	for _, tc := range []struct {
		limit, body       string
		prompts, messages int
		truncated         bool
	}{
		{"2", two, 1, 2, false}, {"1", two, 1, 1, true}, {"0", two, 0, 0, true},
		{"2", `{"prompt":["a","b"]}`, 2, 0, false}, {"1", `{"prompt":["a","b"]}`, 1, 0, true},
	} {
		var got Tokenized
		ask(t, c, "POST", "/kv_aware/tokenize?limit="+tc.limit, tc.body, 200, &got)
		messages := 0
		for _, p := range got.Prompts {
			messages += len(p.Messages)
		}
		if len(got.Prompts) != tc.prompts || messages != tc.messages || got.Truncated != tc.truncated {
			t.Errorf("limit %s of %s: %+v", tc.limit, tc.body, got)
		}
	}
	ask(t, c, "POST", "/kv_aware/tokenize?limit=x", two, 400, nil)
}

func TestTokenizeChargesAndTellsNothing(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1", "max_body 2000", ""))
	_, answer := ask(t, c, "POST", "/kv_aware/tokenize", `{"messages":[{"role":"Geheimnis","name":"Geheimnis","content":"Geheimnis"}],"cache_salt":"Geheimnis"}`, 200, nil)
	if strings.Contains(answer, "Geheimnis") {
		t.Errorf("the prompt is in %s", answer)
	}
	_, answer = ask(t, c, "POST", "/kv_aware/tokenize", `{"Geheimnis":"Geheimnis"}`, 400, nil)
	if strings.Contains(answer, "Geheimnis") || !strings.Contains(answer, "no_prompt") {
		t.Errorf("answers %s", answer)
	}
	ask(t, c, "POST", "/kv_aware/tokenize", chat(strings.Repeat("x", 2000), true), 413, nil)
	ask(t, c, "GET", "/kv_aware/tokenize", "", 405, nil)
	if left := leftBehind(defaultPool(t)); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

// tinyModel is a tokenizer of testdata with a template that a built-in renderer
// stands for, as files of a directory.
func tinyModel(t *testing.T) (tokenizer, template string) {
	t.Helper()
	text, err := os.ReadFile("../testdata/templates/texts/qwen3.jinja")
	if err != nil {
		t.Fatal(err)
	}
	template = filepath.Join(t.TempDir(), "chat_template.jinja")
	if err := os.WriteFile(template, text, 0o600); err != nil {
		t.Fatal(err)
	}
	tokenizer, err = filepath.Abs("../testdata/exact/chatml.json")
	if err != nil {
		t.Fatal(err)
	}
	return tokenizer, template
}

func TestTheRunningInstanceShowsWhatIsMadeOffline(t *testing.T) {
	tokenizer, template := tinyModel(t)
	hf := "hf " + tokenizer + " {\n\tchat_template " + template + "\n}"
	body := `{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"What do the tides do?"}]}`
	for _, config := range []string{"auto", "tiktoken cl100k_base", hf} {
		c := proxytest.Start(t, "", site("127.0.0.1:1", "tokenizer "+config+"\nblock_size 4", ""))
		var running Tokenized
		ask(t, c, "POST", "/kv_aware/tokenize", body, 200, &running)
		tok, err := ParseTokenizer(config)
		if err != nil {
			t.Fatal(err)
		}
		var ids int
		offline, err := tok.Tokenize(context.Background(), "", []byte(body), 4, func(some []uint32) { ids += len(some) })
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(running, *offline) || ids != running.Prompts[0].Tokens || running.Exact != (config == hf) || len(running.Prompts[0].Messages) != 2 {
			t.Errorf("%s: running %+v, offline %+v, %d ids", config, running, offline, ids)
		}
		c.Stop()
	}
}

func TestATokenizerIsParsedAsInACaddyfile(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "has no value",
		"auto b":              "2 values",
		"tiktoken x":          "no encoding",
		"nonsense":            "bad value",
		"auto\nestimate":      "unexpected",
		"hf a b":              "3 values",
		`hf "a b" { x }`:      "chat_template",
		"estimate":            "",
		"tiktoken o200k_base": "",
	} {
		_, err := ParseTokenizer(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", text, err)
		}
	}
	tok, err := ParseTokenizer(`hf "/a b/t.json"`)
	if err != nil || tok.File != "/a b/t.json" {
		t.Errorf("%+v, %v", tok, err)
	}
}
