// SPDX-License-Identifier: Apache-2.0

package chattemplate

import "strings"

// The renderers of ChatML as Qwen uses it.

const (
	imStart = "<|im_start|>"
	imEnd   = "<|im_end|>\n"

	qwenIdentity   = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
	qwenToolsStart = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n" +
		"You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
	qwenToolsEnd = "\n</tools>\n\nFor each function call, return a json object with function name and arguments " +
		"within <tool_call></tool_call> XML tags:\n<tool_call>\n" +
		`{"name": <function-name>, "arguments": <args-json-object>}` + "\n</tool_call>" + imEnd
)

func renderQwen25(w *writer, c *chat) bool {
	m := c.messages
	for i := range m {
		if m[i].Get("content").kind != String {
			return false
		}
	}
	identity := qwenIdentity
	if roleOf(m[0]) == "system" {
		identity = m[0].Get("content").text
		w.begin()
	}
	w.add(imStart, "system\n", identity)
	if c.tools.truthy() {
		w.add("\n\n")
		if !qwenTools(w, c.tools) {
			return false
		}
	} else {
		w.add(imEnd)
	}
	for i := range m {
		role, content, calls := roleOf(m[i]), m[i].Get("content").text, m[i].Get("tool_calls")
		if i > 0 || role != "system" {
			w.begin()
		}
		switch {
		case role == "user", role == "system" && i > 0, role == "assistant" && !calls.truthy():
			w.add(imStart, role, "\n", content, imEnd)
		case role == "assistant":
			w.add(imStart, role)
			if content != "" {
				w.add("\n", content)
			}
			if calls.kind != List {
				return false
			}
			for _, call := range calls.items {
				w.add("\n")
				if f := call.Get("function"); f.kind != Undefined {
					call = f
				}
				if call.kind != Dict || !call.Has("name") || !call.Has("arguments") {
					return false
				}
				w.add("<tool_call>\n{\"name\": \"")
				w.addStr(call.Get("name"))
				w.add(`", "arguments": `)
				w.addJSON(call.Get("arguments"))
				w.add("}\n</tool_call>")
			}
			w.add(imEnd)
		case role == "tool":
			qwenToolResult(w, m, i, content)
		}
	}
	if c.generate {
		w.add(imStart, "assistant\n")
	}
	return true
}

func qwenTools(w *writer, tools Value) bool {
	if tools.kind != List {
		return false
	}
	w.add(qwenToolsStart)
	for _, tool := range tools.items {
		w.add("\n")
		w.addJSON(tool)
	}
	w.add(qwenToolsEnd)
	return true
}

// qwenToolResult puts results that follow each other into one user's message.
func qwenToolResult(w *writer, m []Value, i int, content string) {
	if i == 0 || roleOf(m[i-1]) != "tool" {
		w.add(imStart, "user")
	}
	w.add("\n<tool_response>\n", content, "\n</tool_response>")
	if i == len(m)-1 || roleOf(m[i+1]) != "tool" {
		w.add(imEnd)
	}
}

// renderQwen3 is the template whose content must be text.
func renderQwen3(w *writer, c *chat) bool { return qwen3(w, c, false) }

// renderQwen3Strings is the one that takes other content for none.
func renderQwen3Strings(w *writer, c *chat) bool { return qwen3(w, c, true) }

func qwen3(w *writer, c *chat, lenient bool) bool {
	m := c.messages
	for i := range m {
		if m[i].Get("content").kind != String {
			return false
		}
	}
	system := roleOf(m[0]) == "system"
	if system {
		w.begin()
	}
	switch {
	case c.tools.truthy():
		w.add(imStart, "system\n")
		if system {
			w.add(m[0].Get("content").text, "\n\n")
		}
		if !qwenTools(w, c.tools) {
			return false
		}
	case system:
		w.add(imStart, "system\n", m[0].Get("content").text, imEnd)
	}
	// Reasoning is kept from the last question on.
	question := len(m) - 1
	for i := len(m) - 1; i >= 0; i-- {
		content := m[i].Get("content").text
		if roleOf(m[i]) == "user" && (!strings.HasPrefix(content, "<tool_response>") || !strings.HasSuffix(content, "</tool_response>")) {
			question = i
			break
		}
	}
	for i := range m {
		role, content := roleOf(m[i]), m[i].Get("content").text
		if i > 0 || !system {
			w.begin()
		}
		switch {
		case role == "user", role == "system" && i > 0:
			w.add(imStart, role, "\n", content, imEnd)
		case role == "assistant":
			if !qwen3Assistant(w, m[i], content, i > question, i == len(m)-1, lenient) {
				return false
			}
		case role == "tool":
			qwenToolResult(w, m, i, content)
		}
	}
	if c.generate {
		w.add(imStart, "assistant\n")
		if thinking := c.arguments.Get("enable_thinking"); thinking.kind == Bool && !thinking.truth {
			w.add("<think>\n\n</think>\n\n")
		}
	}
	return true
}

func qwen3Assistant(w *writer, m Value, content string, open, last, lenient bool) bool {
	reasoning := ""
	if r := m.Get("reasoning_content"); r.kind == String {
		reasoning = r.text
	} else if !r.absent() && !lenient {
		return false
	} else if strings.Contains(content, "</think>") {
		before, _, _ := strings.Cut(content, "</think>")
		before = strings.TrimRight(before, "\n")
		if i := strings.LastIndex(before, "<think>"); i >= 0 {
			before = before[i+len("<think>"):]
		}
		reasoning = strings.TrimLeft(before, "\n")
		content = strings.TrimLeft(content[strings.LastIndex(content, "</think>")+len("</think>"):], "\n")
	}
	w.add(imStart, "assistant\n")
	if open && (last || reasoning != "") {
		w.add("<think>\n", strings.Trim(reasoning, "\n"), "\n</think>\n\n", strings.TrimLeft(content, "\n"))
	} else {
		w.add(content)
	}
	if calls := m.Get("tool_calls"); calls.truthy() {
		if calls.kind != List {
			return false
		}
		for i, call := range calls.items {
			if i > 0 || content != "" {
				w.add("\n")
			}
			if f := call.Get("function"); f.truthy() {
				call = f
			}
			if call.kind != Dict || !call.Has("name") || !call.Has("arguments") {
				return false
			}
			w.add("<tool_call>\n{\"name\": \"")
			w.addStr(call.Get("name"))
			w.add(`", "arguments": `)
			if arguments := call.Get("arguments"); arguments.kind == String {
				w.add(arguments.text)
			} else {
				w.addJSON(arguments)
			}
			w.add("}\n</tool_call>")
		}
	}
	w.add(imEnd)
	return true
}
