// SPDX-License-Identifier: Apache-2.0

package tokenize

// responses lays out a request of the responses API: a string, or items of
// which most are turns of their own.
func (rd *Reader) responses(f *fields) {
	req := &rd.req
	if id := f[keyPreviousResponseID]; rd.kindOf(id) == stringValue {
		req.PreviousResponseID = string(rd.stringOf(id))
		req.WholePrompt = false
	}
	// A conversation or a prompt kept by the server is only named.
	if !rd.isNull(f[keyConversation]) || !rd.isNull(f[keyPrompt]) {
		req.WholePrompt = false
	}
	input := f[keyInput]
	if rd.kindOf(input) != stringValue && rd.length(input) == 0 && rd.isNull(f[keyInstructions]) && req.WholePrompt {
		return
	}
	first := rd.begin()
	rd.templateArguments(f)
	if instructions := f[keyInstructions]; !rd.isNull(instructions) {
		rd.addStart(roleSystem)
		rd.content(instructions, 0)
		rd.addEnd()
	}
	if rd.kindOf(input) == stringValue {
		rd.addStart(roleUser)
		rd.addText(input)
		rd.addEnd()
	}
	for c, end := rd.elements(input); c < end; c = rd.scanner.nodes[c].next {
		if rd.kindOf(c) == objectValue {
			rd.item(c)
		}
	}
	rd.addStart(roleAssistant)
	rd.endPrompt(first)
}

// item adds one item of the input.
func (rd *Reader) item(n uint32) {
	var m fields
	rd.collect(n, &m)
	switch string(rd.stringOf(m[keyType])) {
	case "message", "":
		if rd.isNull(m[keyRole]) {
			break
		}
		rd.req.Messages++
		rd.message(n)
		rd.addEnd()
		return
	case "item_reference":
		rd.req.WholePrompt = false
		rd.addSynthetic(rd.hashValue(tagOpaque, n), opaqueTokens)
		return
	case "reasoning":
		rd.addSynthetic(rd.hash(tagReasoning, nil), 2)
		rd.content(m[keySummary], 0)
		rd.content(m[keyContent], 0)
		if encrypted := m[keyEncryptedContent]; rd.kindOf(encrypted) == stringValue {
			rd.addOpaque(encrypted)
		}
		return
	case "function_call", "custom_tool_call", "mcp_call":
		rd.addStart(roleAssistant)
		rd.call(n)
		rd.output(m[keyOutput]) // an mcp_call carries its result
		rd.addEnd()
		return
	case "function_call_output", "custom_tool_call_output", "computer_call_output", "local_shell_call_output":
		rd.addStart(roleTool)
		rd.output(m[keyOutput])
		rd.addEnd()
		return
	}
	rd.addOpaque(n)
}

// output adds what a tool answered: a string, parts, or an object such as a
// screenshot.
func (rd *Reader) output(n uint32) {
	switch rd.kindOf(n) {
	case stringValue, arrayValue:
		rd.content(n, 0)
	case objectValue:
		if string(rd.stringOf(rd.member(n, keyType))) == "computer_screenshot" {
			rd.addMedia(n, imageTokens)
			return
		}
		rd.part(n, 0)
	}
}
