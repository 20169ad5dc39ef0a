// SPDX-License-Identifier: Apache-2.0

package chattemplate

import "strings"

const (
	harmonyIdentity  = "You are ChatGPT, a large language model trained by OpenAI."
	harmonyChannels  = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
	harmonyAssistant = "<|start|>assistant"
	harmonyAnalysis  = "<|start|>assistant<|channel|>analysis<|message|>"
	harmonyFinal     = "<|start|>assistant<|channel|>final<|message|>"
	harmonyMessage   = "<|message|>"
	harmonyEnd       = "<|end|>"
)

// renderHarmony is gpt-oss's template for chats without tools, whose
// declarations in TypeScript are left to the Jinja engine.
func renderHarmony(w *writer, c *chat) bool {
	identity, ok := c.textOr("model_identity", harmonyIdentity)
	effort, ok2 := c.textOr("reasoning_effort", "medium")
	if !ok || !ok2 || c.tools.truthy() {
		return false
	}
	w.add("<|start|>system<|message|>", identity, "\nKnowledge cutoff: 2024-06\nCurrent date: ",
		c.clock.strftime("%Y-%m-%d"), "\n\nReasoning: ", effort, "\n\n", harmonyChannels, harmonyEnd)
	messages := c.messages
	if role := roleOf(messages[0]); role == "developer" || role == "system" {
		content := messages[0].Get("content")
		if content.kind != String {
			return false
		}
		w.begin()
		if content.text != "" {
			w.add("<|start|>developer<|message|># Instructions\n\n", content.text, "\n\n", harmonyEnd)
		}
		messages = messages[1:]
	}
	lastFinal := -1
	for i, m := range messages {
		if roleOf(m) == "assistant" && !m.Has("tool_calls") {
			lastFinal = i
		}
	}
	called := Value{} // the function of the last call
	for i, m := range messages {
		content := m.Get("content")
		w.begin()
		switch roleOf(m) {
		case "assistant":
			thinking := m.Get("thinking")
			if content.kind != String || thinking.kind != Undefined && thinking.kind != String ||
				harmonyTagged(content.text) || harmonyTagged(thinking.text) {
				return false
			}
			switch {
			case m.Has("tool_calls"):
				if called, ok = harmonyCall(w, m, content.text, thinking.text, lastFinal > i); !ok {
					return false
				}
			case i == len(messages)-1 && !c.generate:
				if thinking.kind == String {
					w.add(harmonyAnalysis, thinking.text, harmonyEnd)
				}
				w.add(harmonyFinal, content.text, "<|return|>")
			default:
				w.add(harmonyFinal, content.text, harmonyEnd)
				called = Value{}
			}
		case "tool":
			if called.kind != String || content.kind == Undefined {
				return false
			}
			w.add("<|start|>functions.", called.text, " to=assistant<|channel|>commentary<|message|>")
			w.addJSON(content)
			w.add(harmonyEnd)
		case "user":
			if content.kind != String {
				return false
			}
			w.add("<|start|>user<|message|>", content.text, harmonyEnd)
		}
	}
	if c.generate {
		w.add(harmonyAssistant)
	}
	return true
}

// textOr returns a variable that must be text where it is set.
func (c *chat) textOr(name, otherwise string) (string, bool) {
	switch v := c.variable(name); v.kind {
	case Undefined:
		return otherwise, true
	case String:
		return v.text, true
	}
	return "", false
}

// harmonyTagged tells whether text holds tags that the template refuses.
func harmonyTagged(s string) bool {
	return strings.Contains(s, "<|channel|>analysis<|message|>") || strings.Contains(s, "<|channel|>final<|message|>")
}

// harmonyCall writes the first call of a message. The thought before it is
// dropped once an answer follows.
func harmonyCall(w *writer, m Value, content, thinking string, answered bool) (name Value, ok bool) {
	calls := m.Get("tool_calls")
	if calls.kind != List || len(calls.items) == 0 || content != "" && thinking != "" {
		return Value{}, false
	}
	call := calls.items[0]
	if f := call.Get("function"); f.truthy() {
		call = f
	}
	name = call.Get("name")
	format, arguments := call.Get("content_type"), call.Get("arguments")
	if format.kind == Undefined {
		format = Text("json")
	}
	if name.kind != String || format.kind != String || arguments.kind == Undefined {
		return Value{}, false
	}
	if thought := content + thinking; thought != "" && !answered {
		w.add(harmonyAnalysis, thought, harmonyEnd)
	}
	w.add(harmonyAssistant, " to=functions.", name.text, "<|channel|>commentary ", format.text, harmonyMessage)
	w.addJSON(arguments)
	w.add("<|call|>")
	return name, true
}
