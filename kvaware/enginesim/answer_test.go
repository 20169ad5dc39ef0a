// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

const (
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"
)

// shape is a JSON text without its contents: keys in their order, and the kinds
// of values. Lists have the shape of their first item.
func shape(t *testing.T, text string) string {
	t.Helper()
	if text == "[DONE]" {
		return text
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	var walk func() string
	walk = func() string {
		token, err := decoder.Token()
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		switch v := token.(type) {
		case json.Delim:
			var parts []string
			for decoder.More() {
				if v == '{' {
					key, _ := decoder.Token()
					parts = append(parts, fmt.Sprint(key, ":", walk()))
				} else {
					parts = append(parts, walk())
				}
			}
			_, _ = decoder.Token()
			return fmt.Sprint(v, strings.Join(parts, " "))
		case nil:
			return "null"
		default:
			return fmt.Sprintf("%T", v)
		}
	}
	return walk()
}

func TestAStreamHasTheShapeOfVLLMs(t *testing.T) {
	s := serve(t, &Handler{})
	for file, body := range map[string]string{
		"vllm_chat_usage_final":                  `{"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`,
		"vllm_chat_no_usage":                     `{"stream":true,"messages":[{"role":"user","content":"hi"}]}`,
		"vllm_chat_continuous_usage_spec_decode": `{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"messages":[{"role":"user","content":"hi"}]}`,
	} {
		recorded, err := os.ReadFile("../../testdata/streams/" + file + ".sse")
		if err != nil {
			t.Fatal(err)
		}
		shapes := func(stream []byte) (first, last string, all map[string]bool) {
			all = map[string]bool{}
			for i, event := range events(t, stream) {
				last = shape(t, event)
				// Whether cached tokens are told is a flag of the real server.
				last = strings.Replace(last, " prompt_tokens_details:{cached_tokens:float64", "", 1)
				if all[last] = true; i == 0 {
					first = last
				}
			}
			return first, last, all
		}
		first, last, all := shapes(s.complete(chatPath, body))
		wantFirst, wantLast, want := shapes(recorded)
		if first != wantFirst || last != wantLast {
			t.Errorf("%s: begins with %s and ends with %s,\nwant %s and %s", file, first, last, wantFirst, wantLast)
		}
		for sh := range want {
			if !all[sh] {
				t.Errorf("%s: no event of the shape %s", file, sh)
			}
		}
		for sh := range all {
			if !want[sh] {
				t.Errorf("%s: vLLM sends no event of the shape %s", file, sh)
			}
		}
	}
}

func TestStreamedAndWholeAnswersSayTheSame(t *testing.T) {
	s := serve(t, &Handler{})
	const messages = `"messages":[{"role":"user","content":"tell me of tides"}]`
	plain := decode(t, s.complete(chatPath, `{"model":"any/name",`+messages+`}`))
	stream := events(t, s.complete(chatPath, `{"model":"any/name","stream":true,"stream_options":{"include_usage":true},`+messages+`}`))

	text, deltas, finish := "", 0, ""
	var last reply
	for i, event := range stream {
		if event == "[DONE]" {
			if i != len(stream)-1 {
				t.Error("[DONE] is not the end")
			}
			continue
		}
		last = decode(t, []byte(event))
		if last.Model != "any/name" || last.Object != "chat.completion.chunk" || !strings.HasPrefix(last.ID, "chatcmpl-") {
			t.Fatalf("event %s", event)
		}
		for _, c := range last.Choices {
			text += c.Delta.Content
			if c.Delta.Role != "" && i != 0 {
				t.Error("the role is not in the first event")
			}
			if c.Delta.Role == "" {
				deltas++
			}
			if c.FinishReason != nil {
				finish += *c.FinishReason
			}
		}
	}
	if len(plain.Choices) != 1 || plain.Choices[0].Message.Content != text || plain.Choices[0].Message.Role != "assistant" {
		t.Errorf("whole %+v, streamed %q", plain.Choices, text)
	}
	if finish != "stop" || *plain.Choices[0].FinishReason != "stop" {
		t.Errorf("finish reasons %q and %q", finish, *plain.Choices[0].FinishReason)
	}
	if plain.Usage.Completion != deltas || last.Usage.Completion != deltas || plain.Usage.Prompt != last.Usage.Prompt ||
		plain.Usage.Total != plain.Usage.Prompt+plain.Usage.Completion {
		t.Errorf("usage %+v and %+v after %d deltas", plain.Usage, last.Usage, deltas)
	}
}

func TestEachTurnOfAConversationFindsTheOneBeforeInTheCache(t *testing.T) {
	s := serve(t, &Handler{BlockSize: 16})
	type msg struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := []msg{{"system", strings.Repeat("You keep the harbour's log. ", 20)}}
	held := 0 // tokens whose KV the turn before left
	for turn := range 10 {
		messages = append(messages, msg{"user", fmt.Sprintf("What of day %d?", turn)})
		body, _ := json.Marshal(map[string]any{"messages": messages})
		r := decode(t, s.complete(chatPath, string(body)))
		if want := held / 16 * 16; r.Usage.Details.Cached != want {
			t.Fatalf("turn %d: %d of %d prompt tokens cached, want %d", turn, r.Usage.Details.Cached, r.Usage.Prompt, want)
		}
		// The last token's KV is computed only when it is read again.
		held = r.Usage.Prompt + r.Usage.Completion - 1
		messages = append(messages, msg{"assistant", r.Choices[0].Message.Content})
	}
	if held < 500 {
		t.Fatalf("only %d tokens: nothing was tested", held)
	}
}

func TestOtherSaltsAndModelsShareNoPrefix(t *testing.T) {
	s := serve(t, &Handler{})
	content := strings.Repeat("same ", 100)
	for _, extra := range []string{``, `"cache_salt":"a",`, `"model":"adapter",`, `"cache_salt":"b",`} {
		for again := range 2 {
			r := decode(t, s.complete(chatPath, `{`+extra+`"messages":[{"role":"user","content":"`+content+`"}]}`))
			if hit := r.Usage.Details.Cached > 0; hit != (again == 1) {
				t.Errorf("%s time %d: %d tokens cached", extra, again, r.Usage.Details.Cached)
			}
		}
	}
	r := decode(t, s.complete(chatPath, `{"prompt_logprobs":1,"messages":[{"role":"user","content":"`+content+`"}]}`))
	if r.Usage.Details.Cached != 0 {
		t.Errorf("%d tokens cached of a prompt that must be computed", r.Usage.Details.Cached)
	}
}

func TestALimitEndsAnAnswerAndIgnoreEOSFillsIt(t *testing.T) {
	s := serve(t, &Handler{})
	for _, c := range []struct {
		path, body string
		tokens     int
		finish     string
	}{
		{chatPath, `{"max_tokens":5,"messages":[{"role":"user","content":"a"}]}`, 5, "length"},
		{chatPath, `{"max_tokens":900,"max_completion_tokens":4.0,"messages":[{"role":"user","content":"a"}]}`, 4, "length"},
		{chatPath, `{"max_tokens":700,"ignore_eos":true,"messages":[{"role":"user","content":"a"}]}`, 700, "length"},
		{chatPath, `{"max_tokens":1,"messages":[{"role":"user","content":"a"}]}`, 1, "length"},
		{chatPath, `{"min_tokens":400,"messages":[{"role":"user","content":"a"}]}`, 400, "stop"},
		{completionsPath, `{"prompt":"a"}`, 16, "length"},
		{completionsPath, `{"prompt":[1,2,3],"max_tokens":3}`, 3, "length"},
	} {
		r := decode(t, s.complete(c.path, c.body))
		if r.Usage.Completion != c.tokens || *r.Choices[0].FinishReason != c.finish {
			t.Errorf("%s: %d tokens, %s; want %d, %s", c.body, r.Usage.Completion, *r.Choices[0].FinishReason, c.tokens, c.finish)
		}
	}
}

func TestABatchWithSeveralChoicesIsSoManySequences(t *testing.T) {
	s := serve(t, &Handler{})
	const body = `"prompt":["one two three","four"],"n":3,"max_tokens":6`
	whole := decode(t, s.complete(completionsPath, `{`+body+`}`))
	texts := make([]string, 6)
	finished := 0
	for _, event := range events(t, s.complete(completionsPath, `{"stream":true,`+body+`}`)) {
		if event == "[DONE]" {
			continue
		}
		r := decode(t, []byte(event))
		if len(r.Choices) != 1 || r.Object != "text_completion" || !strings.HasPrefix(r.ID, "cmpl-") {
			t.Fatalf("event %s", event)
		}
		texts[r.Choices[0].Index] += r.Choices[0].Text
		if r.Choices[0].FinishReason != nil {
			finished++
		}
	}
	if len(whole.Choices) != 6 || finished != 6 {
		t.Fatalf("%d choices, %d finished in the stream", len(whole.Choices), finished)
	}
	seen := map[string]bool{}
	for i, c := range whole.Choices {
		if c.Index != i || c.Text != texts[i] || len(c.Text) != 4*6 {
			t.Errorf("choice %d: %+v, streamed %q", i, c, texts[i])
		}
		seen[c.Text] = true
	}
	if len(seen) < 5 {
		t.Errorf("choices are alike: %v", seen)
	}
	// 13 and 4 bytes.
	if u := whole.Usage; u.Prompt != 4+1 || u.Completion != 36 {
		t.Errorf("usage %+v", u)
	}
	roles := 0
	for _, event := range events(t, s.complete(chatPath, `{"stream":true,"n":2,"messages":[]}`))[:2] {
		if decode(t, []byte(event)).Choices[0].Delta.Role == "assistant" {
			roles++
		}
	}
	if roles != 2 {
		t.Errorf("%d of the first 2 events of a chat with 2 choices say the role", roles)
	}
}

func TestPartsToolsAndImagesBelongToThePrompt(t *testing.T) {
	tokens := func(body string) (int, uint64) {
		c, err := reading{blockSize: 4}.readCall(chat, strings.NewReader(body))
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		p := c.prompts[0]
		return p.tokens, p.identity()
	}
	text, a := tokens(`{"messages":[{"role":"user","content":"look at it"}]}`)
	parts, b := tokens(`{"messages":[{"role":"user","content":[{"type":"text","text":"look at it"}]}]}`)
	if text != parts || a != b {
		t.Error("text as a part is another prompt")
	}
	one, c := tokens(`{"messages":[{"role":"user","content":[{"type":"text","text":"look at it"},{"type":"image_url","image_url":{"url":"https://x/1"}}]}]}`)
	other, d := tokens(`{"messages":[{"role":"user","content":[{"type":"text","text":"look at it"},{"type":"image_url","image_url":{"url":"https://x/2"}}]}]}`)
	if one != text+tokensPerImage || other != one || c == d {
		t.Errorf("images: %d and %d tokens beside %d", one, other, text)
	}
	if with, _ := tokens(`{"tools":[{"type":"function"}],"messages":[{"role":"user","content":"look at it"}]}`); with <= text {
		t.Error("tools are not in the prompt")
	}
	if open, _ := tokens(`{"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"user","content":"look at it"}]}`); open >= text {
		t.Error("a continued message is closed")
	}
}

func TestWordsAreTokens(t *testing.T) {
	for _, w := range words {
		if len(w) != 3 || strings.ToLower(w) != w {
			t.Errorf("%q would shift the tokens behind it", w)
		}
	}
	sum := 0
	const mean = 100
	for seed := range uint64(4000) {
		sum += invent(&call{}, mix(seed, 9), mean, 1<<20).tokens
	}
	if got := sum / 4000; got < mean-5 || got > mean+5 {
		t.Errorf("answers are %d tokens long in the mean, want %d", got, mean)
	}
}
