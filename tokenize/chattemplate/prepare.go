// SPDX-License-Identifier: Apache-2.0

package chattemplate

// Form is what an engine makes of a request's messages and tools before it
// hands them to the template.
type Form uint8

const (
	// VLLM rebuilds each message from the members it knows, joins or wraps
	// content by what the template loops over, parses tool call arguments, and
	// fills in a tool's missing description and parameters with null.
	// Source: vllm/entrypoints/chat_utils.py and renderers/hf.py.
	VLLM Form = iota
	// AsGiven passes both on as they are, as apply_chat_template does.
	AsGiven
)

// vllmMessages rebuilds messages. With parts, the template loops over content
// and gets a list of parts; else it gets a string.
func vllmMessages(messages Value, parts bool) (Value, error) {
	out := Value{kind: List, items: make([]Value, 0, len(messages.items))}
	for _, m := range messages.items {
		role := m.Get("role")
		if role.kind != String {
			return Value{}, fail(ReasonShape, "a message without a role")
		}
		content, err := vllmContent(m.Get("content"), parts, role.text == "tool")
		if err != nil {
			return Value{}, err
		}
		n := Value{kind: Dict, keys: make([]string, 0, 3), items: make([]Value, 0, 3)}
		n.set("role", role)
		n.set("content", content)
		switch role.text {
		case "assistant":
			if calls := m.Get("tool_calls"); !calls.absent() && calls.kind != List {
				return Value{}, fail(ReasonShape, "tool_calls is no list")
			} else if len(calls.items) > 0 {
				if calls, err = vllmCalls(calls); err != nil {
					return Value{}, err
				}
				n.set("tool_calls", calls)
			}
			reasoning := m.Get("reasoning")
			if reasoning.absent() {
				reasoning = m.Get("reasoning_content")
			}
			if !reasoning.absent() {
				n.set("reasoning", reasoning)
				n.set("reasoning_content", reasoning)
			}
		case "tool":
			if id := m.Get("tool_call_id"); id.kind != Undefined {
				n.set("tool_call_id", id)
			}
		}
		for _, key := range [...]string{"name", "task"} {
			if v := m.Get(key); v.kind == String {
				n.set(key, v)
			}
		}
		if role.text == "developer" {
			tools := m.Get("tools")
			if tools.kind == Undefined {
				tools.kind = Null
			}
			n.set("tools", tools)
		}
		out.items = append(out.items, n)
	}
	return out, nil
}

// vllmContent gives content as the template expects it.
func vllmContent(content Value, parts, tool bool) (Value, error) {
	var list []Value
	switch content.kind {
	case Undefined, Null:
	case String:
		if !parts || tool {
			return content, nil
		}
		list = []Value{textPart(content)}
	case List:
		list = make([]Value, 0, len(content.items))
		for _, part := range content.items {
			part, err := vllmPart(part)
			if err != nil {
				return Value{}, err
			}
			if part.kind != Undefined {
				list = append(list, part)
			}
		}
	default:
		return Value{}, fail(ReasonShape, "content is neither text nor a list")
	}
	media := false
	for _, part := range list {
		media = media || !part.Has("text")
	}
	if parts && (!tool || media) {
		return Value{kind: List, items: list}, nil
	}
	if media {
		// The model, not the template, says where its placeholders go.
		return Value{}, fail(ReasonUnsupported, "media in a template that takes text")
	}
	var joined []byte
	for i, part := range list {
		if i > 0 {
			joined = append(joined, '\n')
		}
		joined = append(joined, part.Get("text").text...)
	}
	return Text(string(joined)), nil
}

func textPart(text Value) Value {
	return Value{kind: Dict, keys: textKeys, items: []Value{Text("text"), text}}
}

var (
	textKeys = []string{"type", "text"}
	typeKeys = []string{"type"}
)

func mediaPart(kind string) Value {
	return Value{kind: Dict, keys: typeKeys, items: []Value{Text(kind)}}
}

// vllmPart gives a part as the template sees it; Undefined is left out.
func vllmPart(part Value) (Value, error) {
	if part.kind == String {
		return textPart(part), nil
	}
	kind := part.Get("type")
	name := kind.text
	if kind.kind == Undefined || !part.Get("uuid").absent() {
		for _, key := range [...]string{"image_url", "image_pil", "image_embeds", "audio_embeds", "audio_url", "input_audio", "video_url"} {
			if part.Has(key) {
				name = key
				break
			}
		}
	}
	member := "text"
	switch name {
	case "refusal", "thinking":
		member = name
		fallthrough
	case "text", "input_text", "output_text":
		switch text := part.Get(member); text.kind {
		case String:
			return textPart(text), nil
		case Undefined, Null:
			return Value{}, nil
		}
	case "image_url", "input_image", "image_pil", "image_embeds":
		return mediaPart("image"), nil
	case "audio_url", "input_audio", "audio_embeds":
		return mediaPart("audio"), nil
	case "video_url":
		return mediaPart("video"), nil
	}
	return Value{}, fail(ReasonShape, "a content part of no known type")
}

// vllmCalls parses the arguments of tool calls.
func vllmCalls(calls Value) (Value, error) {
	out := Value{kind: List, items: make([]Value, 0, len(calls.items))}
	for _, call := range calls.items {
		function := call.Get("function")
		if function.kind != Dict {
			return Value{}, fail(ReasonShape, "a tool call without a function")
		}
		arguments := function.Get("arguments")
		switch arguments.kind {
		case Dict, List:
		case String:
			parsed, err := FromJSON([]byte(arguments.text))
			if e, ok := err.(*Error); ok && e.Reason == ReasonTooLarge {
				return Value{}, err
			}
			if arguments = parsed; parsed.kind == Undefined {
				arguments.kind = Dict
			}
		default:
			arguments = Value{kind: Dict}
		}
		out.items = append(out.items, call.with("function", function.with("arguments", arguments)))
	}
	return out, nil
}

// vllmTools gives tools as pydantic dumps them: members it knows first, in its
// order, missing ones as null.
func vllmTools(tools Value) (Value, error) {
	if tools.kind != List {
		return tools, nil
	}
	out := Value{kind: List, items: make([]Value, 0, len(tools.items))}
	for _, tool := range tools.items {
		function := tool.Get("function")
		if function.kind != Dict || function.Get("name").kind != String {
			return Value{}, fail(ReasonShape, "a tool without a function")
		}
		f := reordered(function, "name", "description", "parameters")
		t := reordered(tool, "type", "function")
		if t.items[0].kind != String {
			t.items[0] = Text("function")
		}
		t.items[1] = f
		out.items = append(out.items, t)
	}
	return out, nil
}

func reordered(v Value, first ...string) Value {
	out := Value{kind: Dict}
	for _, key := range first {
		item := v.Get(key)
		if item.kind == Undefined {
			item.kind = Null
		}
		out.set(key, item)
	}
next:
	for i, key := range v.keys {
		for _, f := range first {
			if key == f {
				continue next
			}
		}
		out.set(key, v.items[i])
	}
	return out
}
