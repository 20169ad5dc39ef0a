// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"context"
	"testing"
)

// seen is a template that shows what it is given.
const (
	seenText  = `{{ messages | tojson }}|{{ tools | tojson }}`
	seenParts = `{% for m in messages %}{% for c in m['content'] | list %}{% endfor %}{% endfor %}` + seenText
)

func TestVLLMsFormOfMessages(t *testing.T) {
	for _, c := range []struct{ template, messages, want string }{
		{seenText, `[{"content":"a","role":"user","name":"n","extra":1}]`, `[{"role": "user", "content": "a", "name": "n"}]`},
		{seenText, `[{"role":"user","content":[{"type":"text","text":"a"},"b",{"type":"refusal","refusal":"c"},{"type":"text","text":null}]}]`,
			`[{"role": "user", "content": "a\nb\nc"}]`},
		{seenText, `[{"role":"assistant","content":null,"tool_calls":[]}]`, `[{"role": "assistant", "content": ""}]`},
		{seenText, `[{"role":"assistant","reasoning":"r","content":"x","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}}]}]`,
			`[{"role": "assistant", "content": "x", "tool_calls": [{"id": "1", "function": {"arguments": {"b": 1, "a": 2}, "name": "f"}}], "reasoning": "r", "reasoning_content": "r"}]`},
		{seenText, `[{"role":"assistant","tool_calls":[{"function":{"arguments":"x"}},{"function":{"name":"g"}}]}]`,
			`[{"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": {}}}, {"function": {"arguments": {}, "name": "g"}}]}]`},
		{seenText, `[{"role":"tool","tool_call_id":"7","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`,
			`[{"role": "tool", "content": "a\nb", "tool_call_id": "7"}]`},
		{seenText, `[{"role":"developer","content":"d"}]`, `[{"role": "system", "content": "d"}]`},
		{seenText + `{# "developer" #}`, `[{"role":"developer","content":"d"}]`, `[{"role": "developer", "content": "d", "tools": null}]`},
		{seenParts, `[{"role":"user","content":"a"},{"role":"system","content":["b","c"]},{"role":"developer","content":"d"},{"role":"system","content":""}]`,
			`[{"role": "system", "content": "b\nc\n\nd"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}]`},
		{seenText, `[{"role":"system","content":"a"},{"role":"user","content":"b"},{"role":"system","content":"c"}]`,
			`[{"role": "system", "content": "a"}, {"role": "user", "content": "b"}, {"role": "system", "content": "c"}]`},
		{seenText, `[{"role":"user","content":[{"type":"text","text":""},"b","",{"type":"text","text":"c"}]}]`, `[{"role": "user", "content": "b\nc"}]`},
		{seenText, `[{"role":"system","content":"x-anthropic-billing-header: 1\nb"}]`, `[{"role": "system", "content": "b"}]`},
		{seenText, `[{"role":"system","content":["x-anthropic-billing-header: 1",{"type":"text","text":"b"}]}]`, `[{"role": "system", "content": "b"}]`},
		{seenText, `[{"role":"assistant","content":"","tool_calls":[{"type":"function","index":0,"id":"1","function":{"name":"f","arguments":"[1]","x":2}}]}]`,
			`[{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"arguments": {}, "name": "f"}, "type": "function"}]}]`},
		{seenParts, `[{"role":"user","content":"a"}]`, `[{"role": "user", "content": [{"type": "text", "text": "a"}]}]`},
		{seenParts, `[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}},{"image_url":"u"},{"type":"input_audio","input_audio":{}},{"type":"video_url"},{"type":"text","text":"b"}]}]`,
			`[{"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "audio"}, {"type": "video"}, {"type": "text", "text": "b"}]}]`},
		{seenParts, `[{"role":"tool","content":"r"},{"role":"user","content":null}]`, `[{"role": "tool", "content": "r"}, {"role": "user", "content": []}]`},
	} {
		tmpl, err := Load(nil, c.template, Options{})
		if err != nil {
			t.Fatal(err)
		}
		out, err := tmpl.Render(context.Background(), nil, Input{Messages: []byte(c.messages)})
		if got := string(out.Text); err != nil || got != c.want+"|null" {
			t.Errorf("%s\n%s, %v\nwant %s", c.messages, got, err, c.want)
		}
	}
}

func TestVLLMsFormOfTools(t *testing.T) {
	tmpl, err := Load(nil, seenText, Options{})
	if err != nil {
		t.Fatal(err)
	}
	tools := `[{"x":1,"function":{"strict":true,"parameters":{"b":1,"a":2},"name":"f"}},{"type":"function","function":{"name":"g","description":"d"}}]`
	want := `[]|[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"b": 1, "a": 2}, "strict": true}}, ` +
		`{"type": "function", "function": {"name": "g", "description": "d", "parameters": null}}]`
	out, err := tmpl.Render(context.Background(), nil, Input{Messages: []byte("[]"), Tools: []byte(tools)})
	if string(out.Text) != want || err != nil {
		t.Errorf("%s, %v", out.Text, err)
	}
}

func TestOddMessagesAreTypedErrors(t *testing.T) {
	tmpl, err := Load(nil, seenText, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]Reason{
		`{}`:                            ReasonShape,
		`[1]`:                           ReasonShape,
		`[{}]`:                          ReasonShape,
		`[{"role":"user","content":5}]`: ReasonShape,
		`[{"role":"user","content":[{"type":"mystery"}]}]`:                   ReasonShape,
		`[{"role":"user","content":[{"a":1}]}]`:                              ReasonShape,
		`[{"role":"user","content":[{"type":"image_url","image_url":"u"}]}]`: ReasonUnsupported,
		`[{"role":"assistant","tool_calls":{}}]`:                             ReasonShape,
		`[{"role":"assistant","tool_calls":[1]}]`:                            ReasonShape,
		`[{"role":"user","content":"a"}`:                                     ReasonJSON,
		``:                                                                   ReasonShape,
	} {
		if _, err := tmpl.Render(context.Background(), nil, Input{Messages: []byte(in)}); reasonOf(err) != want {
			t.Errorf("%s: %v, want %s", in, err, want)
		}
	}
}

func TestContentIsAListWhereTheTemplateLoopsOverIt(t *testing.T) {
	for text, want := range map[string]bool{
		"{% for m in messages %}{{ m.content }}{% endfor %}":                                                                                   false,
		"{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}":                                                              true,
		"{% for m in messages[1:] %}{% for c in m['content'] | selectattr('type', 'equalto', 'text') %}{% endfor %}{% endfor %}":               true,
		"{% set l = messages %}{% for m in l %}{% for c in m.content if c %}{% endfor %}{% endfor %}":                                          true,
		"{% set l = messages[0] %}{% for c in l.content %}{% endfor %}":                                                                        false,
		"{% for m in messages %}{% set content = m.content %}{% for c in content %}{% endfor %}{% endfor %}":                                   true,
		"{% macro r(x, y) %}{% for c in y %}{% endfor %}{% endmacro %}{% for m in messages %}{{ r(1, m.content) }}{% endfor %}":                true,
		"{% macro r(x, y=[]) %}{% for c in y %}{% endfor %}{% endmacro %}{% for m in messages %}{{ r(y=m['content'], x=f(1,2)) }}{% endfor %}": true,
		"{% macro r(x, y) %}{% for c in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ r(1, m.content) }}{% endfor %}":                false,
		"{% macro r(content) %}{% for c in content %}{% endfor %}{% endmacro %}{% for m in messages %}{{ r(m.name) }}{% endfor %}":             false,
		"{% for m in messages %}{% set x = m.content %}{% for c in x %}{% endfor %}{% endfor %}":                                               false,
		"{% for m in other %}{% for c in m.content %}{% endfor %}{% endfor %}":                                                                 false,
	} {
		p, err := compile(text)
		if err != nil {
			t.Fatal(err)
		}
		if p.parts.vllm != want {
			t.Errorf("%s: %v", text, p.parts)
		}
	}
}
