// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"slices"
	"unicode/utf8"
)

// callIDLength is the length of tool call ids that Mistral's templates demand.
const callIDLength = 9

// renderMistralNemo is the template of the Tekken tokenizers' first models.
func renderMistralNemo(w *writer, c *chat) bool {
	messages, system := c.messages, Value{}
	if roleOf(messages[0]) == "system" {
		if system = messages[0].Get("content"); system.kind != String {
			return false
		}
		messages = messages[1:]
		w.begin() // it is written into the last user's message
	}
	eos := c.variable("eos_token")
	if eos.kind != String || c.tools.kind != Null && c.tools.kind != List || !mistralTurns(messages) {
		return false
	}
	lastUser := Value{}
	for i := range messages {
		if roleOf(messages[i]) == "user" {
			lastUser = messages[i]
		}
	}
	w.addStr(c.variable("bos_token"))
	for i, m := range messages {
		role, content, calls := roleOf(m), m.Get("content"), m.Get("tool_calls")
		w.begin()
		switch {
		case role == "user":
			if content.kind != String {
				return false
			}
			if c.tools.kind == List && equal(m, lastUser) && !mistralTools(w, c.tools) {
				return false
			}
			w.add("[INST]")
			if i == len(messages)-1 && system.kind == String {
				w.add(system.text, "\n\n")
			}
			w.add(content.text, "[/INST]")
		case !calls.absent():
			if !mistralCalls(w, calls, eos.text) {
				return false
			}
		case role == "assistant":
			if content.kind != String {
				return false
			}
			w.add(content.text, eos.text)
		case role == "tool" || role == "tool_results":
			id := m.Get("tool_call_id")
			if content.kind != String || !isCallID(id) {
				return false
			}
			w.add(`[TOOL_RESULTS]{"content": `, content.text, `, "call_id": "`, id.text, `"}[/TOOL_RESULTS]`)
		default:
			return false
		}
	}
	return true
}

// mistralTurns tells whether users and assistants take turns, calls and results
// aside.
func mistralTurns(messages []Value) bool {
	turn := 0
	for _, m := range messages {
		role := roleOf(m)
		if role == "tool" || role == "tool_results" || !m.Get("tool_calls").absent() {
			continue
		}
		if (role == "user") != (turn%2 == 0) {
			return false
		}
		turn++
	}
	return true
}

func mistralTools(w *writer, tools Value) bool {
	w.add("[AVAILABLE_TOOLS][")
	for i, tool := range tools.items {
		function := tool.Get("function")
		if function.kind != Dict {
			return false
		}
		w.add(`{"type": "function", "function": {`)
		first := true
		for k, key := range function.keys {
			if key == "return" {
				continue
			}
			if !first {
				w.add(", ")
			}
			first = false
			w.add(`"`, key, `": `)
			// The template does not escape strings.
			if v := function.items[k]; v.kind == String {
				w.add(`"`, v.text, `"`)
			} else {
				w.addJSON(v)
			}
		}
		w.add("}}")
		if i < len(tools.items)-1 {
			w.add(", ")
		} else {
			w.add("]")
		}
	}
	w.add("[/AVAILABLE_TOOLS]")
	return true
}

func mistralCalls(w *writer, calls Value, eos string) bool {
	if calls.kind != List {
		return false
	}
	w.add("[TOOL_CALLS][")
	for i, call := range calls.items {
		function, id := call.Get("function"), call.Get("id")
		if function.kind != Dict || !isCallID(id) {
			return false
		}
		w.addJSON(function)
		w.text = w.text[:len(w.text)-1]
		w.add(`, "id": "`, id.text, `"}`)
		if i < len(calls.items)-1 {
			w.add(", ")
		} else {
			w.add("]", eos)
		}
	}
	return true
}

func isCallID(id Value) bool {
	return id.kind == String && utf8.RuneCountInString(id.text) == callIDLength
}

// equal is Python's == of two values of the same shape; 1 and 1.0 differ here,
// which only chats of equal messages with such members could tell.
func equal(a, b Value) bool {
	if a.kind != b.kind || a.truth != b.truth || a.text != b.text || a.float != b.float || len(a.items) != len(b.items) {
		return false
	}
	if a.kind != Dict {
		return slices.EqualFunc(a.items, b.items, equal)
	}
	for i, key := range a.keys {
		if !equal(a.items[i], b.Get(key)) {
			return false
		}
	}
	return true
}
