// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"
)

// pairOf loads a template twice: with its built-in renderer and without.
type pairOf struct {
	name       string
	fast, slow *Template
}

func templatePairs(t testing.TB, form Form) []pairOf {
	t.Helper()
	g, _ := goldens(t)
	var out []pairOf
	for name, want := range g.Templates {
		text := textOf(name)
		if _, ok := builtins[want.SHA256]; !ok || text == "" {
			continue
		}
		options := Options{Form: form, Now: goldenClock(t, g), MaxTime: time.Minute}
		fast, err := Load(want.Tokens, text, options)
		if err != nil {
			t.Fatal(err)
		}
		options.NoBuiltin = true
		slow, err := Load(want.Tokens, text, options)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, pairOf{name, fast, slow})
	}
	if len(out) < 4 {
		t.Fatalf("only %d templates with a built-in renderer", len(out))
	}
	return out
}

// A request is never harmed, and what a built-in renderer writes is what the
// Jinja engine writes.
func FuzzRender(f *testing.F) {
	_, chats := goldens(f)
	for i := range chats {
		in := chats[i].input()
		f.Add(in.Messages, in.Tools, in.Arguments, in.AddGenerationPrompt, in.ContinueFinalMessage)
	}
	f.Add([]byte(`[{"role":"user","content":{"a":1}},{"role":1}]`), []byte(`[1]`), []byte(`{"bos_token":null}`), true, false)
	f.Add([]byte(`[{"role":"assistant","tool_calls":[{"function":{"name":null,"arguments":[]}}],"content":"</think><think>"}]`), []byte(`[{}]`), []byte(`{"messages":[]}`), true, true)
	given, vllm, sglang := templatePairs(f, AsGiven), templatePairs(f, VLLM), templatePairs(f, SGLang)
	f.Fuzz(func(t *testing.T, messages, tools, arguments []byte, generate, open bool) {
		in := Input{Messages: messages, Tools: tools, Arguments: arguments, AddGenerationPrompt: generate, ContinueFinalMessage: open}
		for _, list := range [...][]pairOf{given, vllm, sglang} {
			for _, p := range list {
				out, err := p.fast.Render(context.Background(), nil, in)
				checkStarts(t, out, in)
				var typed *Error
				if err != nil && !errors.As(err, &typed) {
					t.Fatalf("%s: untyped error %v", p.name, err)
				}
				informed := in
				informed.Strings = stringsIn(messages, 1+len(messages)%3)
				again, err := p.fast.Render(context.Background(), nil, informed)
				if json.Valid(messages) && reasonOf(err) != ReasonDeadline && string(again.Text) != string(out.Text) {
					t.Fatalf("%s\n%q with strings that are known, else %q (%v)", p.name, again.Text, out.Text, err)
				}
				if !out.Builtin {
					continue
				}
				want, err := p.slow.Render(context.Background(), nil, in)
				if reasonOf(err) == ReasonUnsupported {
					continue
				}
				if err != nil || string(want.Text) != string(out.Text) {
					t.Fatalf("%s\nbuilt-in %q\n   Jinja %q, %v", p.name, out.Text, want.Text, err)
				}
			}
		}
	})
}

// Templates are configuration, but a broken one must not break the start.
func FuzzLoad(f *testing.F) {
	for _, name := range []string{"qwen3", "openai-gpt-oss-120b", "mistralai-Mistral-Nemo-Instruct-2407", "GLM-4.6"} {
		f.Add(textOf(name))
	}
	for _, text := range []string{
		"{% for x in y %}", "{{", "{% raw %}{{{% endraw %}", "{#-#}", "{{ 'a\\x41' }}", "{% macro m(a=[]) %}{{ m(a) }}{% endmacro %}{{ m() }}",
		"{% for m in messages %}{% for n in messages %}{{ m }}{% endfor %}{% endfor %}", "{% set a = a %}{{ a.items }}", "{{ a is not iterable }}",
	} {
		f.Add(text)
	}
	in := Input{Messages: []byte(`[{"role":"user","content":"x"}]`)}
	f.Fuzz(func(t *testing.T, text string) {
		tmpl, err := Load(nil, text, Options{MaxTime: 100 * time.Millisecond, MaxOutput: 1 << 20})
		if err == nil {
			_, err = tmpl.Render(context.Background(), nil, in)
		}
		var typed *Error
		if err != nil && !errors.As(err, &typed) {
			t.Fatalf("untyped error %v", err)
		}
	})
}
