// SPDX-License-Identifier: Apache-2.0

package tokenize

var (
	roleSystem    = []byte("system")
	roleUser      = []byte("user")
	roleAssistant = []byte("assistant")
	roleTool      = []byte("tool")
)

// conversation lays out a chat of the OpenAI, Ollama or Anthropic form:
// template arguments, tools, system prompt, messages, and what asks for the
// answer. The latter is the start of an assistant's message, as in ChatML, so
// that even a whole prompt is a prefix of the next turn's. A response_format
// constrains decoding and is no part of the prompt.
func (rd *Reader) conversation(f *fields) {
	messages := f[keyMessages]
	nodes := rd.scanner.nodes
	if rd.kindOf(messages) != arrayValue || nodes[messages].next == messages+1 {
		return
	}
	first := rd.begin()
	rd.templateArguments(f)
	if system := f[keySystem]; !rd.isNull(system) {
		rd.addStart(roleSystem)
		rd.content(system, 0)
		rd.addEnd()
	}
	open := rd.isTrue(f[keyContinueFinalMessage])
	end := rd.hash(tagEnd, nil)
	for c := messages + 1; c < nodes[messages].next; c = nodes[c].next {
		if nodes[c].kind != objectValue {
			continue
		}
		rd.req.Messages++
		last := nodes[c].next == nodes[messages].next
		if role := rd.message(c); last && rd.req.Kind == AnthropicMessages && string(role) == "assistant" {
			// Anthropic's API continues a last message of the assistant.
			open = true
		}
		if !last || !open {
			rd.addSynthetic(end, endTokens)
		}
	}
	if rd.req.Messages == 0 {
		return
	}
	if !open && !rd.isFalse(f[keyAddGenerationPrompt]) && !rd.req.Pooling {
		rd.addStart(roleAssistant)
	}
	rd.endPrompt(first)
}

// message adds a message up to its end mark, in an order of its own: that of
// its members in the body does not matter. It returns the role, which is valid
// as stringOf's result is.
func (rd *Reader) message(n uint32) (role []byte) {
	if role, ok := rd.plainMessage(n); ok {
		return role
	}
	var m fields
	rd.collect(n, &m)
	rd.addStart(rd.stringOf(m[keyRole]))
	rd.addText(m[keyName])
	for _, reasoning := range [...]uint32{m[keyReasoning], m[keyReasoningContent], m[keyThinking]} {
		if rd.kindOf(reasoning) == stringValue && len(rd.span(reasoning)) > 0 {
			rd.addSynthetic(rd.hash(tagReasoning, nil), 2)
			rd.addText(reasoning)
			// A gateway may give the same text under both of its names.
			break
		}
	}
	rd.media(m[keyImages], imageTokens)
	rd.content(m[keyContent], 0)
	rd.refusal(m[keyRefusal])
	if audio := m[keyAudio]; rd.kindOf(audio) == objectValue {
		// An earlier answer in sound, named by its id only.
		rd.addMedia(audio, audioTokens)
	}
	for c, end := rd.elements(m[keyToolCalls]); c < end; c = rd.scanner.nodes[c].next {
		function := rd.member(c, keyFunction)
		if function == 0 {
			function = c
		}
		rd.call(function)
	}
	if call := m[keyFunctionCall]; rd.kindOf(call) == objectValue {
		rd.call(call)
	}
	return rd.stringOf(m[keyRole])
}

// plainMessage adds a message that is a role and a text and nothing else, as
// most are, in the way of message; ok is false for any other.
func (rd *Reader) plainMessage(n uint32) (role []byte, ok bool) {
	nodes := rd.scanner.nodes
	if nodes[n].next != n+3 {
		return nil, false
	}
	r, c := n+1, n+2
	if nodes[r].key == keyContent {
		r, c = c, r
	}
	if nodes[r].key != keyRole || nodes[r].kind != stringValue || nodes[c].key != keyContent || nodes[c].kind != stringValue {
		return nil, false
	}
	role = rd.stringOf(r)
	rd.addStart(role)
	rd.addText(c)
	return role, true
}

// elements returns where an array's elements begin and end; both are 0 for
// anything else.
func (rd *Reader) elements(array uint32) (first, end uint32) {
	if rd.kindOf(array) != arrayValue {
		return 0, 0
	}
	return array + 1, rd.scanner.nodes[array].next
}

// call adds a call of a tool: its name and its arguments, which are a string
// of JSON in the OpenAI APIs and an object in the others. Ids of calls are not
// part of most templates and are left out.
func (rd *Reader) call(n uint32) {
	var m fields
	if rd.kindOf(n) != objectValue {
		return
	}
	rd.collect(n, &m)
	rd.addSynthetic(rd.hash(tagCall, nil), 2)
	rd.addText(m[keyName])
	if !rd.isNull(m[keyArguments]) {
		rd.addValue(m[keyArguments])
	} else {
		rd.addValue(m[keyInput])
	}
}

func (rd *Reader) refusal(n uint32) {
	if rd.kindOf(n) == stringValue {
		rd.addSynthetic(rd.hash(tagRefusal, nil), 1)
		rd.addText(n)
	}
}
