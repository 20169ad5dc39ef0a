// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"testing"
)

// chatsOf draws chats whose shapes are mostly right and sometimes odd.
type chatsOf struct{ *rand.Rand }

func (r chatsOf) pick(words ...string) string { return words[r.IntN(len(words))] }

func (r chatsOf) text() string {
	s := ""
	for range r.IntN(4) {
		s += r.pick("a", "Hi there", "\n", " ", "\t", "<think>", "</think>", "\n\n", "<tool_response>", "</tool_response>",
			"é", "\u2028", "\x1c", "\u00a0", "<|im_end|>", "\"", "\\", "'", "<b>&", "{{ x }}", "<|channel|>final<|message|>", "🚀", "\x00")
	}
	return s
}

func (r chatsOf) content() any {
	switch r.IntN(24) {
	case 0:
		return nil
	case 1:
		return []any{map[string]any{"type": "text", "text": r.text()}, map[string]any{"type": "text", "text": r.text()}}
	case 2:
		return []any{map[string]any{"type": "image"}}
	case 3:
		return r.text() + r.pick("</think>", "<think>x</think>\n\ny")
	case 4:
		return r.pick("", "<tool_response>x</tool_response>")
	}
	return r.text()
}

func (r chatsOf) any(depth int) any {
	switch n := r.IntN(9); {
	case n < 3 || depth > 2:
		return r.text()
	case n == 3:
		return r.IntN(1e6)
	case n == 4:
		return r.NormFloat64() * 1e3
	case n == 5:
		return nil
	case n == 6:
		return r.IntN(2) == 0
	case n == 7:
		return []any{r.any(depth + 1), r.any(depth + 1)}
	}
	return map[string]any{"type": r.any(depth + 1), "k" + r.text(): r.any(depth + 1)}
}

func (r chatsOf) message(role string) map[string]any {
	m := map[string]any{"role": role, "content": r.content()}
	if role == "assistant" && r.IntN(3) == 0 {
		m[r.pick("reasoning_content", "reasoning", "thinking")] = r.text()
	}
	if role == "assistant" && r.IntN(3) == 0 {
		var calls []any
		for range r.IntN(3) {
			var arguments any = map[string]any{"x": r.any(0), "y": r.any(0)}
			if r.IntN(3) == 0 {
				arguments = r.pick("", "{}", `{"b":1,"a":[1.0]}`, "nonsense")
			}
			calls = append(calls, map[string]any{
				"id": r.pick("123456789", "abcdefghé", "short"), "type": "function",
				"function": map[string]any{"name": r.pick("f", "get"), "arguments": arguments},
			})
		}
		m["tool_calls"] = calls
	}
	if role == "tool" {
		m["tool_call_id"] = r.pick("123456789", "123456789", "x")
	}
	if r.IntN(40) == 0 {
		delete(m, r.pick("role", "content"))
	}
	return m
}

func (r chatsOf) input(t *testing.T) Input {
	var messages []any
	if r.IntN(2) == 0 {
		messages = append(messages, r.message(r.pick("system", "system", "developer")))
	}
	for i := range r.IntN(7) {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		if r.IntN(6) == 0 {
			role = r.pick("tool", "user", "assistant", "system", "ipython", "other")
		}
		messages = append(messages, r.message(role))
		for role == "assistant" && r.IntN(3) == 0 {
			messages = append(messages, r.message("tool"))
		}
	}
	in := Input{AddGenerationPrompt: r.IntN(4) != 0}
	in.ContinueFinalMessage = !in.AddGenerationPrompt && r.IntN(3) == 0
	in.Messages = raw(t, messages)
	if messages == nil {
		in.Messages = []byte("[]")
	}
	if r.IntN(4) == 0 {
		in.Tools = raw(t, []any{map[string]any{"type": "function", "function": map[string]any{
			"name": "f", "description": r.text(), "parameters": map[string]any{"type": "object", "properties": r.any(0)},
		}}})
	}
	if r.IntN(4) == 0 {
		in.Arguments = raw(t, map[string]any{
			r.pick("enable_thinking", "date_string", "reasoning_effort", "bos_token", "eos_token", "builtin_tools", "model_identity", "add_generation_prompt"): r.any(1),
		})
	}
	return in
}

// stringsIn returns every step-th string of a JSON text.
func stringsIn(text []byte, step int) (spans []Span) {
	found := 0
	for i := 0; i < len(text); i++ {
		if text[i] != '"' {
			continue
		}
		s := Span{Start: uint32(i + 1)}
		for i++; i < len(text) && text[i] != '"'; i++ {
			s.NonASCII = s.NonASCII || text[i] >= 0x80
			if text[i] == '\\' {
				s.Escaped = true
				i++
			}
		}
		s.End = uint32(min(i, len(text)))
		if found++; found%step == 0 {
			spans = append(spans, s)
		}
	}
	return spans
}

func raw(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBuiltinRenderersAgreeWithTheJinjaEngineOnRandomChats(t *testing.T) {
	rounds := 400
	if testing.Short() {
		rounds = 50
	}
	for _, form := range []Form{AsGiven, VLLM, SGLang} {
		pairs := templatePairs(t, form)
		done := map[string]int{}
		r := chatsOf{rand.New(rand.NewPCG(1, uint64(form)))}
		for range rounds {
			in := r.input(t)
			for _, p := range pairs {
				out, err := p.fast.Render(context.Background(), nil, in)
				if err != nil || !out.Builtin {
					continue
				}
				checkStarts(t, out, in)
				informed := in
				informed.Strings, informed.Starts = stringsIn(in.Messages, 1+r.IntN(3)), out.Starts
				again, err := p.fast.Render(context.Background(), []byte("x"), informed)
				if err != nil || string(again.Text) != "x"+string(out.Text) {
					t.Fatalf("%s: %s\n%q with strings that are known, else %q (%v)", p.name, in.Messages, again.Text, out.Text, err)
				}
				checkStarts(t, again, in)
				want, err := p.slow.Render(context.Background(), nil, in)
				if err != nil || string(want.Text) != string(out.Text) {
					t.Fatalf("%s: %s\n%s\n%s\nbuilt-in %q\n   Jinja %q, %v", p.name, in.Messages, in.Tools, in.Arguments, out.Text, want.Text, err)
				}
				done[p.name]++
			}
		}
		for _, p := range pairs {
			if done[p.name] < rounds/50 {
				t.Errorf("%s took only %d of %d chats", p.name, done[p.name], rounds)
			}
		}
		t.Log(done)
	}
}
