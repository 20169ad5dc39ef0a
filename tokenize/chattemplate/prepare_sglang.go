// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"slices"
	"strings"
)

// sglang is the making of that form, in an arena.
type sglang struct{ *arena }

// sglangParts tells whether SGLang takes a template to want lists of parts: it
// has a word of media in it, or a loop over the content of what is named as a
// message is.
func sglangParts(template string, segments []segment) bool {
	for _, word := range [...]string{"image", "audio", "video", "vision"} {
		if strings.Contains(template, word) {
			return true
		}
	}
	names := []string{"message", "msg", "m"}
	for i := range segments {
		if _, iterable := loopOf(&segments[i]); accesses(iterable, names, "content") {
			return true
		}
	}
	return false
}

// sglangRoles are those besides the user that a message may have.
var sglangRoles = []string{"system", "assistant", "tool", "function", "developer", "latest_reminder", "root"}

// messages rebuilds messages.
func (a sglang) messages(messages []Value, parts bool) ([]Value, error) {
	first := len(a.openItems)
	defer func() { a.openItems = a.openItems[:first] }()
	for i := range messages {
		m, err := a.message(&messages[i], parts)
		if err != nil {
			return nil, err
		}
		a.openItems = append(a.openItems, m)
	}
	return copied(&a.items, a.openItems[first:]), nil
}

func (a sglang) message(m *Value, parts bool) (Value, error) {
	role := m.Get("role")
	if role.kind != String {
		return Value{}, fail(ReasonShape, "a message without a role")
	}
	content, moved, err := a.content(m.Get("content"), parts, role.text)
	if err != nil {
		return Value{}, err
	}
	out := a.open()
	if role.text == "user" {
		out.add("role", role)
		out.add("content", content)
		return out.close(), nil
	}
	if lower := strings.ToLower(role.text); lower != role.text {
		role = Text(lower)
	}
	if !slices.Contains(sglangRoles, role.text) {
		return Value{}, fail(ReasonShape, "a role that is unknown")
	}
	if prefix := m.Get("prefix"); prefix.truthy() || !m.Get("tools").absent() {
		return Value{}, fail(ReasonUnsupported, "a message with tools or a prefix")
	}
	out.add("role", role)
	if !moved {
		out.add("content", content)
	}
	for _, key := range [...]string{"tool_call_id", "name", "phase", "reasoning_content"} {
		switch v := m.Get(key); v.kind {
		case Undefined, Null:
		case String:
			out.add(key, v)
		default:
			return Value{}, fail(ReasonShape, key+" is no text")
		}
	}
	if calls := m.Get("tool_calls"); !calls.absent() {
		if calls, err = a.calls(&calls, role.text == "assistant"); err != nil {
			return Value{}, err
		}
		out.add("tool_calls", calls)
	}
	if prefix := m.Get("prefix"); prefix.kind == Bool {
		out.add("prefix", prefix)
	}
	if moved {
		out.add("content", content)
	}
	return out.close(), nil
}

// content gives content as the template expects it; moved tells that it has become
// the last member of its message.
func (a sglang) content(content Value, parts bool, role string) (_ Value, moved bool, err error) {
	switch content.kind {
	case String:
		return content, false, nil
	case Undefined, Null:
		if role == "user" {
			return Value{}, false, fail(ReasonShape, "a user's message without content")
		}
		return Text(""), false, nil
	case List:
	default:
		return Value{}, false, fail(ReasonShape, "content is neither text nor a list")
	}
	first, media := len(a.openItems), false
	defer func() { a.openItems = a.openItems[:first] }()
	for i := range content.items {
		part := &content.items[i]
		switch part.Get("type").text {
		case "text":
			text := part.Get("text")
			if text.kind != String {
				return Value{}, false, fail(ReasonShape, "a content part without its text")
			}
			a.openItems = append(a.openItems, a.textPart(text))
		case "image_url":
			media = true
			a.openItems = append(a.openItems, a.mediaPart("image"))
		default:
			return Value{}, false, fail(ReasonUnsupported, "a content part of no known type")
		}
	}
	list := a.openItems[first:]
	if parts && (role != "tool" || media) {
		return a.list(list), true, nil
	}
	if media {
		// The model, not the template, says where its placeholders go.
		return Value{}, false, fail(ReasonUnsupported, "media in a template that takes text")
	}
	return a.joined(list, ' ', true), parts, nil
}

// calls reads the calls of tools as SGLang does: arguments are parsed, missing
// members are null, and others are dropped.
func (a sglang) calls(calls *Value, parse bool) (Value, error) {
	if calls.kind != List {
		return Value{}, fail(ReasonShape, "tool_calls is no list")
	}
	first := len(a.openItems)
	defer func() { a.openItems = a.openItems[:first] }()
	for i := range calls.items {
		call := &calls.items[i]
		function := call.Get("function")
		if function.kind != Dict {
			return Value{}, fail(ReasonShape, "a tool call without a function")
		}
		arguments := function.Get("arguments")
		if arguments.kind == String && parse {
			var err error
			if arguments, err = a.parse(arguments.text, nil); err != nil || arguments.kind != Dict {
				return Value{}, fail(ReasonRefused, "arguments of a tool call that are no object")
			}
		}
		kind := call.Get("type")
		if kind.kind == Undefined {
			kind = Text("function")
		}
		f := a.dict([]string{"name", "arguments"}, []Value{orNull(function.Get("name")), orNull(arguments)})
		a.openItems = append(a.openItems, a.dict(
			[]string{"id", "index", "type", "function"},
			[]Value{orNull(call.Get("id")), orNull(call.Get("index")), kind, f}))
	}
	return a.list(a.openItems[first:]), nil
}

// toolMembers are those of a tool's function, in the order in which missing ones
// are put behind the others.
var toolMembers = []string{"description", "name", "parameters", "strict", "defer_loading"}

// tools gives the tools that choice (tool_choice) leaves: a function's members in
// the order given, those that are not known dropped, missing ones null.
func (a sglang) tools(tools, choice Value) (Value, error) {
	none := Value{kind: Null}
	if tools.kind != List {
		return none, nil
	}
	only := Value{}
	switch choice.kind {
	case Undefined, Null:
	case String:
		if choice.text == "none" {
			return none, nil
		}
	case Dict:
		function := choice.Get("function")
		if only = function.Get("name"); only.kind != String {
			return Value{}, fail(ReasonShape, "tool_choice names no function")
		}
	default:
		return Value{}, fail(ReasonShape, "tool_choice")
	}
	first := len(a.openItems)
	defer func() { a.openItems = a.openItems[:first] }()
	for i := range tools.items {
		tool := &tools.items[i]
		function := tool.Get("function")
		name := function.Get("name")
		if function.kind != Dict || name.kind != String {
			return Value{}, fail(ReasonShape, "a tool without a function")
		}
		if !tool.Get("defer_loading").absent() || !function.Get("defer_loading").absent() {
			return Value{}, fail(ReasonUnsupported, "a tool that is loaded later")
		}
		if only.kind == String && only.text != name.text {
			continue
		}
		kind := tool.Get("type")
		if kind.kind == Undefined {
			kind = Text("function")
		}
		a.openItems = append(a.openItems, a.dict(
			[]string{"type", "function", "defer_loading"}, []Value{kind, a.function(&function), none}))
	}
	if len(a.openItems) == first {
		return none, nil
	}
	return a.list(a.openItems[first:]), nil
}

func (a sglang) function(f *Value) Value {
	out := a.open()
	add := func(key string, v Value) {
		if key == "strict" && v.absent() || key == "defer_loading" {
			return
		}
		out.add(key, orNull(v))
	}
	for i, key := range f.keys {
		if slices.Contains(toolMembers, key) {
			add(key, f.items[i])
		}
	}
	for _, key := range toolMembers {
		if !f.Has(key) {
			add(key, Value{})
		}
	}
	return out.close()
}

// bare gives tools as their functions alone, which SGLang tries where the template
// fails with them.
func (a sglang) bare(tools Value) Value {
	first := len(a.openItems)
	for i := range tools.items {
		a.openItems = append(a.openItems, tools.items[i].Get("function"))
	}
	out := a.list(a.openItems[first:])
	a.openItems = a.openItems[:first]
	return out
}

// lastTurn takes a last answer out, to be continued by its text, or has the user
// say it where it is not to be continued.
func (a sglang) lastTurn(messages []Value, open bool) (_ []Value, apart string) {
	if len(messages) == 0 {
		return messages, ""
	}
	last := &messages[len(messages)-1]
	role, content := last.Get("role"), last.Get("content")
	if role.text != "assistant" || content.kind != String {
		return messages, ""
	}
	if open {
		return messages[:len(messages)-1], content.text
	}
	*last = a.dict([]string{"role", "content"}, []Value{Text("user"), content})
	return messages, ""
}
