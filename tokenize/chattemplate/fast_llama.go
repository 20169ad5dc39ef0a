// SPDX-License-Identifier: Apache-2.0

package chattemplate

// The renderers of Llama 3's header format.

const (
	headerStart = "<|start_header_id|>"
	headerEnd   = "<|end_header_id|>\n\n"
	eot         = "<|eot_id|>"

	llamaToolsGuide = "Given the following functions, please respond with a JSON for a function call " +
		"with its proper arguments that best answers the given prompt.\n\n" +
		`Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.` +
		"Do not use variables.\n\n"
)

var (
	llama31Reads = []string{"custom_tools", "tools_in_user_message", "builtin_tools"}
	indentedJSON = jsonStyle{item: ",", key: ": ", indent: "    ", pretty: true}
)

func renderLlama3Always(w *writer, c *chat) bool { return llama3(w, c, true) }

func renderLlama3(w *writer, c *chat) bool { return llama3(w, c, c.generate) }

func llama3(w *writer, c *chat, generate bool) bool {
	bos := c.variable("bos_token")
	if bos.kind != String {
		return false
	}
	w.add(bos.text)
	for _, m := range c.messages {
		if !llamaMessage(w, m) {
			return false
		}
	}
	if generate {
		w.add(headerStart, "assistant", headerEnd)
	}
	return true
}

func llamaMessage(w *writer, m Value) bool {
	content := m.Get("content")
	w.begin()
	w.add(headerStart, roleOf(m), headerEnd, trimSpace(content.text), eot)
	return content.kind == String
}

func renderLlama31(w *writer, c *chat) bool { return llama31(w, c, "26 Jul 2024") }

func renderLlama32(w *writer, c *chat) bool {
	return llama31(w, c, c.clock.strftime("%d %b %Y"))
}

func llama31(w *writer, c *chat, date string) bool {
	if d := c.variable("date_string"); d.kind == String {
		date = d.text
	} else if d.kind != Undefined {
		return false
	}
	if c.tools.kind != Null && c.tools.kind != List {
		return false
	}
	tools := c.tools.kind == List
	w.addStr(c.variable("bos_token"))
	messages, system := c.messages, ""
	if roleOf(messages[0]) == "system" {
		content := messages[0].Get("content")
		if content.kind != String {
			return false
		}
		system = trimSpace(content.text)
		messages = messages[1:]
		w.begin()
	}
	w.add(headerStart, "system", headerEnd)
	if tools {
		w.add("Environment: ipython\n")
	}
	w.add("Cutting Knowledge Date: December 2023\nToday Date: ", date, "\n\n", system, eot)
	if tools {
		if len(messages) == 0 || messages[0].Get("content").kind != String {
			return false
		}
		w.begin()
		w.add(headerStart, "user", headerEnd, llamaToolsGuide)
		style := indentedJSON
		style.most = w.base + w.most
		for _, tool := range c.tools.items {
			w.text = appendJSON(w.text, tool, &style, 0)
			w.add("\n\n")
		}
		w.add(trimSpace(messages[0].Get("content").text), eot)
		messages = messages[1:]
	}
	for _, m := range messages {
		switch role := roleOf(m); {
		case m.Has("tool_calls"):
			if !llamaCall(w, m.Get("tool_calls")) {
				return false
			}
		case role == "tool" || role == "ipython":
			content := m.Get("content")
			if content.kind < String {
				return false
			}
			w.begin()
			w.add(headerStart, "ipython", headerEnd)
			w.addJSON(content)
			w.add(eot)
		default:
			if !llamaMessage(w, m) {
				return false
			}
		}
	}
	if c.generate {
		w.add(headerStart, "assistant", headerEnd)
	}
	return true
}

func llamaCall(w *writer, calls Value) bool {
	if calls.kind != List || len(calls.items) != 1 {
		return false
	}
	call := calls.items[0].Get("function")
	name, arguments := call.Get("name"), call.Get("arguments")
	if name.kind != String || arguments.kind == Undefined {
		return false
	}
	w.begin()
	w.add(headerStart, "assistant", headerEnd, `{"name": "`, name.text, `", "parameters": `)
	w.addJSON(arguments)
	w.add("}", eot)
	return true
}
