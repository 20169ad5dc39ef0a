// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"slices"
	"strings"
)

// Form is what an engine makes of a request's messages and tools before it
// hands them to the template.
type Form uint8

const (
	// VLLM rebuilds each message from the members it knows, joins or wraps
	// content by what the template loops over, parses tool call arguments, and
	// fills in a tool's missing description and parameters with null.
	// Source: vllm/entrypoints/chat_utils.py and renderers/hf.py.
	VLLM Form = iota
	// SGLang rebuilds them from the members it knows too, joins content by spaces,
	// reads tool_choice, has the user say a last answer, and encodes one that is to
	// be continued apart from what comes before. Source:
	// sglang/srt/entrypoints/openai/{protocol,serving_chat}.py and
	// parser/jinja_template_utils.py (0.5.23).
	SGLang
	// AsGiven passes both on as they are, as apply_chat_template does.
	AsGiven
)

// vllm is the making of that form, in an arena.
type vllm struct{ *arena }

// messages rebuilds messages for a template. One that loops over content gets
// lists of parts; else it gets strings.
func (a vllm) messages(messages []Value, of *program) ([]Value, error) {
	first, merge := len(a.openItems), false
	defer func() { a.openItems = a.openItems[:first] }()
	for i := range messages {
		m, err := a.message(&messages[i], of.parts.vllm)
		if err != nil {
			return nil, err
		}
		if !of.developer && roleOf(m) == "developer" {
			merge = true
			m = a.with(&m, "role", Text("system"))
			m.keys, m.items = m.keys[:len(m.keys)-1], m.items[:len(m.items)-1] // its tools
		}
		a.openItems = append(a.openItems, m)
	}
	if merge {
		a.mergeSystem(first)
	}
	return copied(&a.items, a.openItems[first:]), nil
}

// mergeSystem makes one message, the first, of all of the system's, unless that is
// the only one and there already. The messages are the open ones from first on.
func (a vllm) mergeSystem(first int) {
	messages := a.openItems[first:]
	if !slices.ContainsFunc(messages[1:], func(m Value) bool { return roleOf(m) == "system" }) {
		return
	}
	var texts []string
	others := messages[:0]
	for _, m := range messages {
		if roleOf(m) != "system" {
			others = append(others, m)
			continue
		}
		content := m.Get("content")
		if content.kind == List {
			content = a.joined(content.items, '\n', true)
		}
		if content.text != "" {
			texts = append(texts, content.text)
		}
	}
	merged := a.dict([]string{"role", "content"}, []Value{Text("system"), Text(strings.Join(texts, "\n\n"))})
	a.openItems = slices.Insert(a.openItems[:first+len(others)], first, merged)
}

func (a vllm) message(m *Value, parts bool) (Value, error) {
	role := m.Get("role")
	if role.kind != String {
		return Value{}, fail(ReasonShape, "a message without a role")
	}
	given := m.Get("content")
	if role.text == "system" {
		given = a.withoutBilling(given)
	}
	content, err := a.content(given, parts, role.text == "tool")
	if err != nil {
		return Value{}, err
	}
	out := a.open()
	out.add("role", role)
	out.add("content", content)
	switch role.text {
	case "assistant":
		if calls := m.Get("tool_calls"); !calls.absent() && calls.kind != List {
			return Value{}, fail(ReasonShape, "tool_calls is no list")
		} else if len(calls.items) > 0 {
			if calls, err = a.calls(calls); err != nil {
				return Value{}, err
			}
			out.add("tool_calls", calls)
		}
		reasoning := m.Get("reasoning")
		if reasoning.absent() {
			reasoning = m.Get("reasoning_content")
		}
		if !reasoning.absent() {
			out.add("reasoning", reasoning)
			out.add("reasoning_content", reasoning)
		}
	case "tool":
		if id := m.Get("tool_call_id"); id.kind != Undefined {
			out.add("tool_call_id", id)
		}
	}
	for _, key := range [...]string{"name", "task"} {
		if v := m.Get(key); v.kind == String {
			out.add(key, v)
		}
	}
	if role.text == "developer" {
		tools := m.Get("tools")
		if tools.kind == Undefined {
			tools.kind = Null
		}
		out.add("tools", tools)
	}
	return out.close(), nil
}

// billingHeader begins a line that a coding client puts before its system prompt.
// It has another value in each request.
const billingHeader = "x-anthropic-billing-header"

// withoutBilling drops that line.
func (a vllm) withoutBilling(content Value) Value {
	_, rest, _ := strings.Cut(content.text, "\n")
	switch {
	case content.kind == String && strings.HasPrefix(content.text, billingHeader):
		return Text(rest)
	case content.kind != List:
		return content
	}
	headed := func(part Value) bool {
		text := part
		if part.Get("type").text == "text" {
			text = part.Get("text")
		}
		return text.kind == String && strings.HasPrefix(text.text, billingHeader)
	}
	if !slices.ContainsFunc(content.items, headed) {
		return content
	}
	var parts []Value
	for _, part := range content.items {
		if !headed(part) {
			parts = append(parts, part)
			continue
		}
		text := part
		if part.kind == Dict {
			text = part.Get("text")
		}
		if _, rest, _ := strings.Cut(text.text, "\n"); rest != "" {
			parts = append(parts, a.textPart(Text(rest)))
		}
	}
	return Value{kind: List, items: parts}
}

// content gives content as the template expects it.
func (a vllm) content(content Value, parts, tool bool) (Value, error) {
	first := len(a.openItems)
	defer func() { a.openItems = a.openItems[:first] }()
	switch content.kind {
	case Undefined, Null:
	case String:
		if !parts || tool {
			return content, nil
		}
		a.openItems = append(a.openItems, a.textPart(content))
	case List:
		for i := range content.items {
			part, err := a.part(&content.items[i])
			if err != nil {
				return Value{}, err
			}
			if part.kind != Undefined {
				a.openItems = append(a.openItems, part)
			}
		}
	default:
		return Value{}, fail(ReasonShape, "content is neither text nor a list")
	}
	list := a.openItems[first:]
	media := slices.ContainsFunc(list, func(part Value) bool { return !part.Has("text") })
	if parts && (!tool || media) {
		return a.list(list), nil
	}
	if media {
		// The model, not the template, says where its placeholders go.
		return Value{}, fail(ReasonUnsupported, "media in a template that takes text")
	}
	// Only of a list for the template are texts joined that are empty.
	return a.joined(list, '\n', parts), nil
}

// joined joins the texts of parts; those that are empty count with empty only.
func (a *arena) joined(parts []Value, separator byte, empty bool) Value {
	size := 0
	for i := range parts {
		size += len(parts[i].Get("text").text) + 1
	}
	a.reserve(size)
	at, texts := len(a.bytes), 0
	for i := range parts {
		text := parts[i].Get("text")
		if text.kind != String || text.text == "" && !empty {
			continue
		}
		if texts > 0 {
			a.bytes = append(a.bytes, separator)
		}
		a.bytes = append(a.bytes, text.text...)
		texts++
	}
	return Text(a.textFrom(at))
}

func (a *arena) textPart(text Value) Value {
	return Value{kind: Dict, keys: textKeys, items: copied(&a.items, []Value{Text("text"), text})}
}

var (
	textKeys = []string{"type", "text"}
	typeKeys = []string{"type"}
)

func (a *arena) mediaPart(kind string) Value {
	return Value{kind: Dict, keys: typeKeys, items: copied(&a.items, []Value{Text(kind)})}
}

// part gives a part as the template sees it; Undefined is left out.
func (a vllm) part(part *Value) (Value, error) {
	if part.kind == String {
		return a.textPart(*part), nil
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
			return a.textPart(text), nil
		case Undefined, Null:
			return Value{}, nil
		}
	case "image_url", "input_image", "image_pil", "image_embeds":
		return a.mediaPart("image"), nil
	case "audio_url", "input_audio", "audio_embeds":
		return a.mediaPart("audio"), nil
	case "video_url":
		return a.mediaPart("video"), nil
	}
	return Value{}, fail(ReasonShape, "a content part of no known type")
}

// calls parses the arguments of tool calls.
func (a vllm) calls(calls Value) (Value, error) {
	first := len(a.openItems)
	defer func() { a.openItems = a.openItems[:first] }()
	for i := range calls.items {
		call := &calls.items[i]
		function := call.Get("function")
		if function.kind != Dict {
			return Value{}, fail(ReasonShape, "a tool call without a function")
		}
		arguments := function.Get("arguments")
		if arguments.kind == String {
			parsed, err := a.parse(arguments.text, nil)
			if e, ok := err.(*Error); ok && e.Reason == ReasonTooLarge {
				return Value{}, err
			}
			arguments = parsed
		}
		if arguments.kind != Dict {
			arguments = Value{kind: Dict}
		}
		f := a.known(&function, "arguments", "name")
		f.items[0] = arguments
		c := a.known(call, "id", "function", "type")
		c.items[slices.Index(c.keys, "function")] = f
		a.openItems = append(a.openItems, c)
	}
	return a.list(a.openItems[first:]), nil
}

// known returns those members of a call or its function that the engine knows, in
// its order; arguments are there in any case.
func (a *arena) known(v *Value, names ...string) Value {
	out := a.open()
	for _, name := range names {
		if item := v.Get(name); item.kind != Undefined || name == "arguments" {
			out.add(name, item)
		}
	}
	return out.close()
}

// tools gives tools as pydantic dumps them: the members that it knows, in its order,
// a missing description or parameters as null.
func (a vllm) tools(tools Value) (Value, error) {
	if tools.kind != List {
		return tools, nil
	}
	first := len(a.openItems)
	defer func() { a.openItems = a.openItems[:first] }()
	for i := range tools.items {
		tool := &tools.items[i]
		function := tool.Get("function")
		if function.kind != Dict || function.Get("name").kind != String {
			return Value{}, fail(ReasonShape, "a tool without a function")
		}
		if !tool.Get("defer_loading").absent() || !function.Get("defer_loading").absent() {
			return Value{}, fail(ReasonUnsupported, "a tool that is loaded later")
		}
		keys := [...]string{"name", "description", "parameters", "strict"}
		items := [...]Value{
			function.Get("name"), orNull(function.Get("description")), orNull(function.Get("parameters")), function.Get("strict"),
		}
		n := len(keys)
		if items[n-1].absent() {
			n--
		}
		kind := tool.Get("type")
		if kind.kind != String {
			kind = Text("function")
		}
		a.openItems = append(a.openItems, a.dict([]string{"type", "function"}, []Value{kind, a.dict(keys[:n], items[:n])}))
	}
	return a.list(a.openItems[first:]), nil
}

// orNull returns null for what is undefined.
func orNull(v Value) Value {
	if v.kind == Undefined {
		v.kind = Null
	}
	return v
}
