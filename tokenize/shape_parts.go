// SPDX-License-Identifier: Apache-2.0

package tokenize

// maxContentLevels is how deep content may lie in content (a tool's result
// holds parts, a document in it too). Deeper is copied as JSON.
const maxContentLevels = 4

// content adds a message's content: a string, a list of parts, or one part.
func (rd *Reader) content(n uint32, level int) {
	switch rd.kindOf(n) {
	case stringValue:
		rd.addText(n)
	case objectValue:
		rd.part(n, level)
	case arrayValue:
		for c, end := rd.elements(n); c < end; c = rd.scanner.nodes[c].next {
			switch rd.kindOf(c) {
			case stringValue:
				rd.addText(c)
			case objectValue:
				rd.part(c, level)
			}
		}
	}
}

// part adds a part of a message's content, of any of the APIs.
func (rd *Reader) part(n uint32, level int) {
	if level == maxContentLevels {
		rd.addOpaque(n)
		return
	}
	var p fields
	rd.collect(n, &p)
	switch string(rd.stringOf(p[keyType])) {
	case "text", "input_text", "output_text", "summary_text", "reasoning_text":
		rd.addText(p[keyText])
	case "refusal":
		rd.refusal(p[keyRefusal])
	case "thinking":
		rd.addSynthetic(rd.hash(tagReasoning, nil), 2)
		rd.content(p[keyThinking], level+1)
	case "image_url", "image", "input_image", "image_pil", "image_embeds":
		rd.addMedia(rd.source(n, &p, keyImageURL, keyImage, keyInputImage), imageTokens)
	case "input_audio", "audio", "audio_url":
		rd.addMedia(rd.source(n, &p, keyInputAudio, keyAudioURL, keyAudio), audioTokens)
	case "video", "video_url", "input_video":
		rd.addMedia(rd.source(n, &p, keyVideoURL, keyVideo), videoTokens)
	case "file", "input_file":
		rd.addMedia(rd.source(n, &p, keyFile), fileTokens)
	case "document":
		rd.document(n, &p, level)
	case "tool_use", "server_tool_use", "mcp_tool_use":
		rd.call(n)
	case "tool_result", "mcp_tool_result":
		rd.addStart(roleTool)
		rd.content(p[keyContent], level+1)
		rd.addEnd()
	case "search_result":
		rd.addText(p[keyTitle])
		rd.content(p[keyContent], level+1)
	case "":
		rd.untypedPart(n, &p)
	default:
		rd.addOpaque(n)
	}
}

// untypedPart adds a part without a type, which vLLM tells by its members.
func (rd *Reader) untypedPart(n uint32, p *fields) {
	switch {
	case !rd.isNull(p[keyText]):
		rd.addText(p[keyText])
	case !rd.isNull(p[keyImageURL]) || !rd.isNull(p[keyImage]):
		rd.addMedia(rd.source(n, p, keyImageURL, keyImage), imageTokens)
	case !rd.isNull(p[keyInputAudio]) || !rd.isNull(p[keyAudioURL]) || !rd.isNull(p[keyAudio]):
		rd.addMedia(rd.source(n, p, keyInputAudio, keyAudioURL, keyAudio), audioTokens)
	case !rd.isNull(p[keyVideoURL]) || !rd.isNull(p[keyVideo]):
		rd.addMedia(rd.source(n, p, keyVideoURL, keyVideo), videoTokens)
	case !rd.isNull(p[keyRefusal]):
		rd.refusal(p[keyRefusal])
	default:
		rd.addOpaque(n)
	}
}

// source returns what identifies the medium of part n: the uuid, the first of
// the members named, or the part itself.
func (rd *Reader) source(n uint32, p *fields, keys ...key) uint32 {
	if !rd.isNull(p[keyUUID]) {
		return p[keyUUID]
	}
	for _, k := range keys {
		if !rd.isNull(p[k]) {
			return p[k]
		}
	}
	return n
}

// document adds an Anthropic document: its text if that is in the body.
func (rd *Reader) document(n uint32, p *fields, level int) {
	source := p[keySource]
	var text uint32
	switch string(rd.stringOf(rd.member(source, keyType))) {
	case "text":
		text = rd.member(source, keyData)
	case "content":
		text = rd.member(source, keyContent)
	}
	if rd.isNull(text) {
		rd.addText(p[keyTitle])
		rd.addMedia(rd.source(n, p, keySource), fileTokens)
		return
	}
	rd.req.Files++
	rd.addText(p[keyTitle])
	rd.addText(p[keyContext])
	rd.content(text, level+1)
}
