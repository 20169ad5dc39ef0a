// SPDX-License-Identifier: Apache-2.0

package chattemplate

import "strings"

// The renderers of DeepSeek's turns. Tool calls of messages without content
// are left to the Jinja engine.

const (
	deepseekUser         = "<｜User｜>"
	deepseekAssistant    = "<｜Assistant｜>"
	deepseekEnd          = "<｜end▁of▁sentence｜>"
	deepseekOutputsBegin = "<｜tool▁outputs▁begin｜>"
	deepseekOutputBegin  = "<｜tool▁output▁begin｜>"
	deepseekOutputEnd    = "<｜tool▁output▁end｜>"
	deepseekOutputsEnd   = "<｜tool▁outputs▁end｜>"
)

func renderDeepSeekV3(w *writer, c *chat) bool {
	var system []string
	for _, m := range c.messages {
		if roleOf(m) == "system" {
			system = append(system, m.Get("content").text)
		}
	}
	return deepseek(w, c, strings.Join(system, "\n\n"), deepseekAssistant, false)
}

func renderDeepSeekR1(w *writer, c *chat) bool {
	system := ""
	for _, m := range c.messages {
		if roleOf(m) == "system" {
			system = m.Get("content").text
		}
	}
	return deepseek(w, c, system, deepseekAssistant+"<think>\n", true)
}

// deepseek writes turns; with forget, an answer loses the thought before it.
func deepseek(w *writer, c *chat, system, prompt string, forget bool) bool {
	w.addStr(c.variable("bos_token"))
	w.add(system)
	results, first := false, true
	for _, m := range c.messages {
		value := m.Get("content")
		if value.kind != String {
			return false
		}
		content := value.text
		w.begin()
		switch roleOf(m) {
		case "user":
			results = false
			w.add(deepseekUser, content)
		case "assistant":
			if results {
				results = false
				w.add(deepseekOutputsEnd, content, deepseekEnd)
				break
			}
			if i := strings.LastIndex(content, "</think>"); forget && i >= 0 {
				content = content[i+len("</think>"):]
			}
			w.add(deepseekAssistant, content, deepseekEnd)
		case "tool":
			results = true
			if first {
				w.add(deepseekOutputsBegin)
			} else {
				w.add("\n")
			}
			first = false
			w.add(deepseekOutputBegin, content, deepseekOutputEnd)
		}
	}
	switch {
	case results:
		w.add(deepseekOutputsEnd)
	case c.generate:
		w.add(prompt)
	}
	return true
}
