// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/tokenize/chattemplate"
)

// readFor reads a body as one of the OpenAI API.
func readFor(t testing.TB, rd *Reader, path, body string) *Request {
	t.Helper()
	req, err := rd.Read(KindOfPath(path), path, []byte(body))
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return req
}

const (
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"
)

func TestAQuestionHoldsWhatDecidesThePromptAndNothingElse(t *testing.T) {
	for _, c := range []struct {
		path, body, want string
		renderOnly       bool
	}{
		{chatPath, `{"stream":true,"messages":[ {"role":"user", "content":"a\u00e9\n"} ],"model":"m","max_tokens":5,"temperature":0.5,"user":"u","cache_salt":"s"}`,
			`{"model":"m","messages":[ {"role":"user", "content":"a\u00e9\n"} ],"add_special_tokens":false}`, false},
		{chatPath, `{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}],"tool_choice":"auto","chat_template":"x","chat_template_kwargs":{"a":[1]},"add_generation_prompt":false,"continue_final_message":true,"add_special_tokens":true}`,
			`{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}],"tool_choice":"auto","chat_template":"x","chat_template_kwargs":{"a":[1]},"add_generation_prompt":false,"continue_final_message":true,"add_special_tokens":true}`, false},
		{chatPath, `{"messages":[{"role":"user","content":"a"}],"tools":[],"tool_choice":"none"}`,
			`{"messages":[{"role":"user","content":"a"}],"tools":[],"tool_choice":"none","add_special_tokens":false}`, true},
		{chatPath, `{"messages":[{"role":"user","content":"a"}],"tools":[],"tool_choice":{"type":"function"}}`,
			`{"messages":[{"role":"user","content":"a"}],"tools":[],"tool_choice":{"type":"function"},"add_special_tokens":false}`, true},
		{chatPath, `{"messages":[{"role":"user","content":"a"}],"reasoning_effort":"low","documents":[{"text":"d"}],"response_format":{"type":"json_object"}}`,
			`{"messages":[{"role":"user","content":"a"}],"documents":[{"text":"d"}],"reasoning_effort":"low","response_format":{"type":"json_object"},"add_special_tokens":false}`, true},
		{chatPath, `{"messages":[{"role":"user","content":"b"}],"messages":[{"role":"user","content":"a"}]}`,
			`{"messages":[{"role":"user","content":"a"}],"add_special_tokens":false}`, false},
		{chatPath, `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning_content":"r"}]}`,
			`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning_content":"r"}],"add_special_tokens":false}`, true},
		{chatPath, `{"messages":[{"role":"assistant","content":"b","reasoning":"r","reasoning_content":null}]}`,
			`{"messages":[{"role":"assistant","content":"b","reasoning":"r","reasoning_content":null}],"add_special_tokens":false}`, false},
		{completionsPath, `{"model":"m","prompt":"a \"b\"","max_tokens":5}`, `{"model":"m","prompt":"a \"b\"","add_special_tokens":true}`, false},
		{completionsPath, `{"prompt":["a","b"],"add_special_tokens":false}`, `{"prompt":["a","b"],"add_special_tokens":false}`, true},
		{completionsPath, `{"prompt":[1,2,3]}`, `{"prompt":[1,2,3],"add_special_tokens":true}`, true},
	} {
		rd := NewReader()
		req := readFor(t, rd, c.path, c.body)
		q, ok := rd.AppendQuestion(nil, req)
		if !ok || string(q.Body) != c.want || q.RenderOnly != c.renderOnly {
			t.Errorf("%s\n got %s, %v, %v\nwant %s, %v", c.body, q.Body, q.RenderOnly, ok, c.want, c.renderOnly)
		}
		if !json.Valid(q.Body) {
			t.Errorf("%s is no JSON", q.Body)
		}
	}
}

func TestWhatNoEngineCanTellIsNotAsked(t *testing.T) {
	for _, c := range [][2]string{
		{chatPath, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x/y.png"}}]}]}`},
		{chatPath, `{"messages":[{"role":"user","content":[{"type":"new","new":"x"}]}]}`},
		{chatPath, `{"messages":[{"role":"user","content":"a"}],"truncate_prompt_tokens":5}`},
		{chatPath, `{"messages":[{"role":"user","content":"a"}],"add_special_tokens":"perhaps"}`},
		{completionsPath, `{"prompt":"a","suffix":"b"}`},
		{completionsPath, `{"prompt":"a","truncate_prompt_tokens":5}`},
		{"/v1/responses", `{"input":"a"}`},
		{"/v1/embeddings", `{"input":"a"}`},
		{"/v1/messages", `{"messages":[{"role":"user","content":"a"}]}`},
		{"/api/chat", `{"messages":[{"role":"user","content":"a"}]}`},
		{"/generate", `{"text":"a"}`},
	} {
		rd := NewReader()
		if q, ok := rd.AppendQuestion(nil, readFor(t, rd, c[0], c[1])); ok {
			t.Errorf("%s: asks %s", c[1], q.Body)
		}
	}
}

func TestAnAnswersChainIsTheOneOfTheSameIDsMadeHere(t *testing.T) {
	tokenizer, template := exactParts(t)
	e := NewExact(tokenizer, template)
	for _, c := range [][2]string{
		{chatPath, `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("the tide rises ", 300) + `"}]}`},
		{chatPath, `{"model":"m","cache_salt":"s","lora_request":{"a":1},"messages":[{"role":"user","content":"` + strings.Repeat("the tide falls ", 300) + `"}]}`},
		{completionsPath, `{"model":"m","prompt":["` + strings.Repeat("one ", 100) + `","` + strings.Repeat("two ", 300) + `"]}`},
		{completionsPath, `{"model":"m","cache_salt":"s","prompt":"` + strings.Repeat("one ", 100) + `"}`},
	} {
		for _, blockSize := range []int{1, 16, 0} {
			rd := NewReader()
			req := readFor(t, rd, c[0], c[1])
			if !rd.ChainExact(context.Background(), req, e, tokenizer, blockSize) {
				t.Fatalf("not exact: %s", c[1])
			}
			want := chainsOf(req)
			// What the engine would answer: ids of which the same chains are made.
			var ids []uint32
			var ends []int
			for i := range req.Prompts {
				ids = append(ids, idsFor(t, e, c[0], c[1], i)...)
				ends = append(ends, len(ids))
			}
			cache := NewCache(1 << 20)
			if !rd.ChainAnswer(req, cache, 1, []byte("q"), ids, ends, blockSize) {
				t.Fatal("the answer is not taken")
			}
			if got := chainsOf(req); got != want {
				t.Errorf("blocks of %d: %.60s…\n got %.200s\nwant %.200s", blockSize, c[1], got, want)
			}
			if rd.ChainAnswer(req, cache, 1, []byte("q"), ids, append(ends, 0), blockSize) {
				t.Error("an answer to one more prompt is taken")
			}
		}
	}
}

// exactParts is a tokenizer and a template that tests of exact chains use.
func exactParts(t *testing.T) (*HFTokenizer, *chattemplate.Template) {
	t.Helper()
	tokenizer, err := LoadHF("../testdata/exact/chatml.json")
	if err != nil {
		t.Fatal(err)
	}
	template, err := chattemplate.Load(nil, "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}", chattemplate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tokenizer, template
}

// idsFor gives the ids of a prompt by encoding what the template makes of it.
func idsFor(t *testing.T, e *Exact, path, body string, prompt int) []uint32 {
	t.Helper()
	var in struct {
		Messages []struct{ Role, Content string }
		Prompt   any
	}
	if err := json.Unmarshal([]byte(body), &in); err != nil {
		t.Fatal(err)
	}
	before, after := e.tokenizer.Frame()
	text := ""
	switch p := in.Prompt.(type) {
	case string:
		text = p
	case []any:
		text = p[prompt].(string)
	default:
		before, after = nil, nil
		for _, m := range in.Messages {
			text += "<|im_start|>" + m.Role + "\n" + m.Content + "<|im_end|>\n"
		}
	}
	return append(e.tokenizer.AppendSpecial(slices.Clone(before), []byte(text)), after...)
}

// chainsOf writes down tokens and blocks of all prompts.
func chainsOf(req *Request) string {
	var b strings.Builder
	for i := range req.Prompts {
		fmt.Fprintln(&b, req.Prompts[i].Tokens, req.Prompts[i].Blocks)
	}
	return b.String()
}

func TestTheSameQuestionIsAnsweredFromMemoryAndNoOther(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	// Chains that fill no entry, one, one exactly, and several; caches with pages of any size.
	for _, memory := range []int64{1 << 14, 64 << 20} {
		for _, tokens := range []int{0, 1, 15, 16, 13 * 16, 100_000, 8189 * 16, 200_000} {
			cache := NewCache(memory)
			if tokens > 10_000 && memory < 1<<20 {
				continue
			}
			ids := make([]uint32, tokens)
			for i := range ids {
				ids[i] = rng.Uint32N(150_000)
			}
			rd := NewReader()
			body := `{"model":"m","prompt":"p"}`
			req := readFor(t, rd, completionsPath, body)
			question := []byte("the question")
			if rd.ChainAnswered(req, cache, 1, question, 16) {
				t.Fatal("known before it was asked")
			}
			rd.ChainAnswer(req, cache, 1, question, ids, []int{tokens}, 16)
			want := chainsOf(req)
			req = readFor(t, rd, completionsPath, body)
			if !rd.ChainAnswered(req, cache, 1, question, 16) {
				t.Errorf("%d tokens in %d bytes are not known again", tokens, memory)
				continue
			}
			if got := chainsOf(req); got != want {
				t.Errorf("%d tokens: got %.100s, want %.100s", tokens, got, want)
			}
			for what, known := range map[string]bool{
				"another question":   rd.ChainAnswered(req, cache, 1, []byte("the question!"), 16),
				"another engine":     rd.ChainAnswered(req, cache, 2, question, 16),
				"another block size": rd.ChainAnswered(req, cache, 1, question, 32),
				"another salt":       rd.ChainAnswered(readFor(t, rd, completionsPath, `{"model":"m","prompt":"p","cache_salt":"s"}`), cache, 1, question, 16),
			} {
				if known {
					t.Errorf("%d tokens: %s has the same answer", tokens, what)
				}
			}
		}
	}
}

func TestPromptsOfIDsNeedNoAnswer(t *testing.T) {
	tokenizer, _ := exactParts(t)
	e := NewExact(tokenizer, nil)
	for _, body := range []string{`{"prompt":[1,2,3,4,5]}`, `{"prompt":[[1,2,3,4,5],[6,7,8,9]],"cache_salt":"s"}`} {
		rd := NewReader()
		req := readFor(t, rd, completionsPath, body)
		if !rd.ChainExact(context.Background(), req, e, tokenizer, 2) {
			t.Fatal("not exact")
		}
		want := chainsOf(req)
		if !rd.ChainIDs(req, 2) || chainsOf(req) != want {
			t.Errorf("%s: got %s, want %s", body, chainsOf(req), want)
		}
	}
	for _, c := range [][2]string{{completionsPath, `{"prompt":"a"}`}, {completionsPath, `{"prompt":["a"]}`}, {completionsPath, `{"prompt":[1],"truncate_prompt_tokens":1}`}, {chatPath, `{"messages":[{"role":"user","content":"a"}]}`}} {
		rd := NewReader()
		if rd.ChainIDs(readFor(t, rd, c[0], c[1]), 2) {
			t.Errorf("%s is taken for ids", c[1])
		}
	}
}

// FuzzQuestion: a question is JSON that the request's own members are in.
func FuzzQuestion(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m","messages":[{"role":"user","content":"a\u00e9"}],"tools":[{}],"tool_choice":"auto","add_special_tokens":true}`,
		`{"prompt":"a","model":null}`, `{"prompt":["a",[1]]}`, "\xef\xbb\xbf{\"prompt\":\"a\"}", `{"prom\u0070t":"a"}`,
		`{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":NaN},"model":7}`,
	} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	rd := NewReader()
	f.Fuzz(func(t *testing.T, body string, chat bool) {
		path := completionsPath
		if chat {
			path = chatPath
		}
		req, err := rd.Read(KindOfPath(path), path, []byte(body))
		if err != nil {
			return
		}
		q, ok := rd.AppendQuestion(nil, req)
		if !ok || !json.Valid([]byte(body)) {
			return
		}
		var given, asked map[string]json.RawMessage
		if json.Unmarshal([]byte(body), &given) != nil || json.Unmarshal(q.Body, &asked) != nil {
			t.Fatalf("%s becomes %s", body, q.Body)
		}
		for name, value := range asked {
			if name != "add_special_tokens" && string(value) != string(given[name]) && !strings.Contains(body, "\\u") {
				t.Fatalf("%s: %s becomes %s", body, given[name], value)
			}
		}
	})
}

func BenchmarkAnswered(b *testing.B) {
	for _, tokens := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(tokens), func(b *testing.B) {
			body := []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("tide", tokens) + `"}]}`)
			cache, rd := NewCache(64<<20), NewReader()
			ask := func(req *Request, buffer []byte) ([]byte, bool) {
				q, _ := rd.AppendQuestion(buffer[:0], req)
				return q.Body, rd.ChainAnswered(req, cache, 1, q.Body, 16)
			}
			req, err := rd.Read(OpenAIChat, chatPath, body)
			if err != nil {
				b.Fatal(err)
			}
			buffer, _ := ask(req, nil)
			rd.ChainAnswer(req, cache, 1, buffer, make([]uint32, tokens), []int{tokens}, 16)
			b.ReportAllocs()
			for b.Loop() {
				req, _ := rd.Read(OpenAIChat, chatPath, body)
				var known bool
				if buffer, known = ask(req, buffer); !known {
					b.Fatal("not known")
				}
			}
		})
	}
}
