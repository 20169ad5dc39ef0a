// SPDX-License-Identifier: Apache-2.0

package chattemplate

const (
	turnStart = "<start_of_turn>"
	turnEnd   = "<end_of_turn>\n"
)

func renderGemma2(w *writer, c *chat) bool {
	return roleOf(c.messages[0]) != "system" && gemma(w, c, c.messages, "", false)
}

func renderGemma3(w *writer, c *chat) bool {
	messages, system := c.messages, ""
	if roleOf(messages[0]) == "system" {
		content := messages[0].Get("content")
		if content.kind == List && len(content.items) > 0 {
			content = content.items[0].Get("text")
		}
		if content.kind != String {
			return false
		}
		system = content.text + "\n\n"
		messages = messages[1:]
		w.begin() // it is written into the first turn
	}
	return gemma(w, c, messages, system, true)
}

// gemma writes turns; system goes before the first one's content. With parts,
// content may be a list.
func gemma(w *writer, c *chat, messages []Value, system string, parts bool) bool {
	w.addStr(c.variable("bos_token"))
	for i, m := range messages {
		role, content := roleOf(m), m.Get("content")
		if (role == "user") != (i%2 == 0) {
			return false
		}
		if role == "assistant" {
			role = "model"
		}
		w.begin()
		w.add(turnStart, role, "\n")
		if i == 0 {
			w.add(system)
		}
		switch {
		case content.kind == String:
			w.add(trimSpace(content.text))
		case content.kind == List && parts:
			for _, part := range content.items {
				switch kind := part.Get("type"); {
				case kind.kind != String:
					return false
				case kind.text == "image":
					w.add("<start_of_image>")
				case kind.text == "text":
					text := part.Get("text")
					if text.kind != String {
						return false
					}
					w.add(trimSpace(text.text))
				}
			}
		default:
			return false
		}
		w.add(turnEnd)
	}
	if c.generate {
		w.add(turnStart, "model\n")
	}
	return true
}
