// SPDX-License-Identifier: Apache-2.0

package tokenize

import "bytes"

// completions lays out OpenAI completions: a string, a list of strings, token
// ids, or a list of lists of ids.
func (rd *Reader) completions(f *fields) Reason {
	return rd.batch(f[keyPrompt], f[keySuffix])
}

// llamaCompletion lays out llama.cpp's own API, whose prompt may also mix
// strings and ids, or carry media beside a text.
func (rd *Reader) llamaCompletion(f *fields) Reason {
	return rd.batch(f[keyPrompt], f[keySuffix])
}

// embeddings lays out what is to be embedded: input (OpenAI), prompt (Ollama)
// or messages (vLLM).
func (rd *Reader) embeddings(f *fields) Reason {
	switch {
	case !rd.isNull(f[keyInput]):
		return rd.batch(f[keyInput], 0)
	case !rd.isNull(f[keyPrompt]):
		return rd.batch(f[keyPrompt], 0)
	}
	rd.conversation(f)
	return ""
}

// batch adds the prompts of n. An array that holds a number is one prompt;
// elements of any other are one prompt each.
func (rd *Reader) batch(n, suffix uint32) Reason {
	switch rd.kindOf(n) {
	case stringValue, objectValue:
		rd.promptOf(n, suffix)
	case arrayValue:
		if rd.hasNumbers(n) {
			rd.promptOf(n, suffix)
			return ""
		}
		for c, end := rd.elements(n); c < end; c = rd.scanner.nodes[c].next {
			if !rd.promptOf(c, suffix) {
				return ReasonTooManyValues
			}
		}
	}
	return ""
}

func (rd *Reader) hasNumbers(array uint32) bool {
	for c, end := rd.elements(array); c < end; c = rd.scanner.nodes[c].next {
		if rd.kindOf(c) == numbersValue {
			return true
		}
	}
	return false
}

// promptOf adds one prompt. It fails when there are too many.
func (rd *Reader) promptOf(n, suffix uint32) bool {
	first := rd.begin()
	switch rd.kindOf(n) {
	case stringValue:
		rd.addText(n)
	case arrayValue:
		for c, end := rd.elements(n); c < end; c = rd.scanner.nodes[c].next {
			switch rd.kindOf(c) {
			case stringValue:
				rd.addText(c)
			case numbersValue:
				rd.addNumbers(c)
			}
		}
	case objectValue:
		rd.promptObject(n)
	default:
		return true
	}
	rd.suffix(suffix)
	return rd.endPrompt(first)
}

// promptObject adds llama.cpp's {prompt_string, multimodal_data}, or one of
// SGLang's {text, image} to embed.
func (rd *Reader) promptObject(n uint32) {
	var m fields
	rd.collect(n, &m)
	if rd.isNull(m[keyPromptString]) {
		rd.untypedPart(n, &m)
		if !rd.isNull(m[keyText]) && !rd.isNull(m[keyImage]) {
			rd.addMedia(m[keyImage], imageTokens)
		}
		return
	}
	rd.addText(m[keyPromptString])
	if media := m[keyMultimodalData]; !rd.isNull(media) {
		rd.addMedia(media, imageTokens)
	}
}

// suffix adds the text behind the place to fill in.
func (rd *Reader) suffix(n uint32) {
	if rd.kindOf(n) == stringValue && len(rd.span(n)) > 0 {
		rd.addSynthetic(rd.hash(tagSuffix, nil), 1)
		rd.addText(n)
	}
}

// ollamaGenerate lays out /api/generate. Context, the ids of an earlier turn,
// comes first: it is what grows. Without a prompt the engine only loads or
// unloads the model.
func (rd *Reader) ollamaGenerate(f *fields) {
	if rd.kindOf(f[keyPrompt]) != stringValue || len(rd.span(f[keyPrompt])) == 0 {
		return
	}
	first := rd.begin()
	rd.addArgument("chat_template", f[keyTemplate])
	rd.addArgument("think", f[keyThink])
	for c, end := rd.elements(f[keyContext]); c < end; c = rd.scanner.nodes[c].next {
		if rd.kindOf(c) == numbersValue {
			rd.addNumbers(c)
			// Its ids are those of the model's own vocabulary, its text is unknown.
			rd.req.WholePrompt = false
		}
	}
	raw := rd.isTrue(f[keyRaw])
	if system := f[keySystem]; rd.kindOf(system) == stringValue && !raw {
		rd.addStart(roleSystem)
		rd.addText(system)
		rd.addEnd()
	}
	if !raw {
		rd.addStart(roleUser)
	}
	rd.media(f[keyImages], imageTokens)
	rd.addText(f[keyPrompt])
	rd.suffix(f[keySuffix])
	if !raw {
		rd.addEnd()
		rd.addStart(roleAssistant)
	}
	rd.endPrompt(first)
}

// media adds a medium, or each of a list.
func (rd *Reader) media(n uint32, tokens uint32) {
	switch rd.kindOf(n) {
	case stringValue, objectValue:
		rd.addMedia(n, tokens)
	case arrayValue:
		for c, end := rd.elements(n); c < end; c = rd.scanner.nodes[c].next {
			if !rd.isNull(c) {
				rd.addMedia(c, tokens)
			}
		}
	}
}

// tgi lays out TGI's own API. An image stands in the text in Markdown.
func (rd *Reader) tgi(f *fields) {
	inputs := f[keyInputs]
	if rd.kindOf(inputs) != stringValue {
		return
	}
	first := rd.begin()
	nd := rd.scanner.nodes[inputs]
	for nd.start < nd.end {
		raw := rd.scanner.body[nd.start:nd.end]
		open := bytes.Index(raw, []byte("![]("))
		if open < 0 {
			break
		}
		length := bytes.IndexByte(raw[open:], ')')
		if length < 0 {
			break
		}
		image := nd.start + uint32(open)
		if open > 0 {
			rd.pieces = append(rd.pieces, piece{kind: textPiece, start: nd.start, end: image, flags: nd.flags})
		}
		nd.start = image + uint32(length) + 1
		rd.req.Images++
		rd.addSynthetic(rd.hash(tagMedia, rd.scanner.body[image:nd.start]), imageTokens)
	}
	if nd.start < nd.end {
		rd.pieces = append(rd.pieces, piece{kind: textPiece, start: nd.start, end: nd.end, flags: nd.flags})
	}
	rd.endPrompt(first)
}
