// SPDX-License-Identifier: Apache-2.0

package tokenize

// maxPrompts bounds a batch. Engines refuse far smaller ones.
const maxPrompts = 1 << 16

// kindByShape corrects the kind that the path suggests by what the body holds.
func (rd *Reader) kindByShape(kind Kind, f *fields) Kind {
	switch kind {
	case KindNone:
		if rd.looksLikeChat(f[keyMessages]) {
			return OpenAIChat
		}
	case SGLangGenerate, OllamaGenerate:
		// A gateway may put any engine's /generate under a prefix such as /api.
		switch {
		case !rd.isNull(f[keyText]) || !rd.isNull(f[keyInputIDs]):
			return SGLangGenerate
		case !rd.isNull(f[keyInputs]):
			return TGI
		}
	case OpenAICompletions:
		// llama.cpp serves its own API at /completions too.
		if f[keyNPredict] != 0 {
			return LlamaCompletion
		}
	}
	return kind
}

// looksLikeChat tells whether a value is a list whose first element is a
// message with a role.
func (rd *Reader) looksLikeChat(messages uint32) bool {
	if rd.kindOf(messages) != arrayValue {
		return false
	}
	first := messages + 1
	return first < rd.scanner.nodes[messages].next && rd.kindOf(rd.member(first, keyRole)) == stringValue
}

// shape lays the prompts out as pieces.
func (rd *Reader) shape(f *fields) Reason {
	switch rd.req.Kind {
	case OpenAIChat, OllamaChat, AnthropicMessages:
		rd.conversation(f)
	case OpenAIResponses:
		rd.responses(f)
	case OpenAICompletions:
		return rd.completions(f)
	case LlamaCompletion:
		return rd.llamaCompletion(f)
	case OpenAIEmbeddings:
		return rd.embeddings(f)
	case OllamaGenerate:
		rd.ollamaGenerate(f)
	case SGLangGenerate:
		return rd.sglangGenerate(f)
	case TGI:
		rd.tgi(f)
	}
	return ""
}

// begin returns where the pieces of the next prompt begin.
func (rd *Reader) begin() uint32 { return uint32(len(rd.pieces)) }

// endPrompt makes a prompt of the pieces since first. It fails when there are
// too many.
func (rd *Reader) endPrompt(first uint32) bool {
	return rd.endPromptAt(first, rd.root)
}

// endPromptAt is endPrompt for a prompt with an adapter of its own.
func (rd *Reader) endPromptAt(first uint32, root uint64) bool {
	req := &rd.req
	if len(req.Prompts) == maxPrompts {
		return false
	}
	req.Prompts = append(req.Prompts, Prompt{
		first: first, end: uint32(len(rd.pieces)), root: root, keepLast: rd.keepLast,
	})
	return true
}

// identity reads what parts one cache from another and is no part of the text.
func (rd *Reader) identity(f *fields) {
	req := &rd.req
	rd.readSalt(f)
	lora := rd.adapter(f)
	switch rd.kindOf(lora) {
	case nullValue:
	case stringValue:
		req.LoRA = rd.name(lora)
	default:
		req.LoRA = string(rd.compact(rd.span(lora)))
	}
	rd.root = rd.chainRoot(rd.hashString(tagRoot, req.LoRA), req.CacheSalt)
}

// adapter finds the node that names the LoRA adapter: lora_path (SGLang), lora
// (llama.cpp), lora_request (vLLM), adapter_id (TGI, LoRAX). A vLLM adapter
// named as the model is indistinguishable from one.
func (rd *Reader) adapter(f *fields) uint32 {
	for _, n := range [...]uint32{
		f[keyLoRAPath], f[keyLoRA], f[keyLoRARequest],
		rd.member(f[keyParameters], keyAdapterID), f[keyAdapterID],
	} {
		if !rd.isNull(n) {
			return n
		}
	}
	return 0
}

// documentsArgument names the argument that is laid out as text and not by a hash.
const documentsArgument = "documents"

// templateArguments adds what the chat template is given beside the messages.
// They come first: most templates render them at the head, and with others a
// change of theirs only costs a prefix.
func (rd *Reader) templateArguments(f *fields) {
	rd.addArgument("chat_template", f[keyChatTemplate])
	rd.addArgument("chat_template_kwargs", f[keyChatTemplateKwargs])
	rd.addArgument("mm_processor_kwargs", f[keyMMProcessorKwargs])
	effort := f[keyReasoningEffort]
	if rd.isNull(effort) {
		effort = rd.member(f[keyReasoning], keyEffort)
	}
	rd.addArgument("reasoning_effort", effort)
	rd.addArgument("think", f[keyThink])
	if documents := f[keyDocuments]; !rd.isNull(documents) {
		rd.addSynthetic(rd.hashString(tagArgument, documentsArgument), startTokens)
		rd.addValue(documents)
		rd.addEnd()
	}
	rd.tools(f[keyTools])
	rd.tools(f[keyFunctions])
}

// tools adds a list of tools as one text.
func (rd *Reader) tools(n uint32) {
	count := rd.length(n)
	if count == 0 {
		return
	}
	rd.req.Tools += count
	rd.addSynthetic(rd.hash(tagTools, nil), startTokens)
	rd.addValue(n)
	rd.addEnd()
}

// length counts the elements of an array.
func (rd *Reader) length(array uint32) (count int) {
	if rd.kindOf(array) != arrayValue {
		return 0
	}
	nodes := rd.scanner.nodes
	for c := array + 1; c < nodes[array].next; c = nodes[c].next {
		count++
	}
	return count
}
