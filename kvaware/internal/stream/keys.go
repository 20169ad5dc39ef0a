// SPDX-License-Identifier: Apache-2.0

package stream

// fieldOf finds the meaning of a key. The fields are those of the public API
// references and of the engines' protocol sources.
func fieldOf(n node, key []byte) field {
	switch n {
	case nodeRoot:
		return rootField(key)
	case nodeChoice:
		switch string(key) {
		case "index":
			return fieldChoiceIndex
		case "delta", "message":
			return fieldChoiceDelta
		case "text":
			return fieldText
		case "finish_reason":
			return fieldChoiceFinish
		case "token_ids":
			return fieldTokenIDs
		case "usage": // Moonshot
			return fieldUsage
		case "error": // OpenRouter
			return fieldError
		case "stop_reason", "prompt_logprobs":
			return fieldVLLMMark
		case "matched_stop":
			return fieldSGLangMark
		}
	case nodeDelta:
		switch string(key) {
		case "content", "reasoning_details":
			return fieldParts
		case "reasoning", "reasoning_content", "reasoning_text", "thinking":
			return fieldInner
		case "refusal":
			return fieldText
		case "role":
			return fieldRole
		case "tool_calls":
			return fieldToolCalls
		case "function_call":
			return fieldFunction
		case "audio":
			return fieldAudio
		}
	case nodeToolCall:
		switch string(key) {
		case "function", "custom":
			return fieldFunction
		}
	case nodeFunction:
		switch string(key) {
		case "name":
			return fieldInner
		case "arguments", "input":
			return fieldArguments
		}
	case nodeAudio:
		switch string(key) {
		case "data", "transcript":
			return fieldText
		}
	case nodePart:
		switch string(key) {
		case "text", "refusal", "transcript":
			return fieldText
		case "name", "arguments":
			return fieldInner
		case "content":
			return fieldParts
		case "thinking", "summary":
			return fieldInnerParts
		}
	case nodeUsage:
		return usageField(key)
	case nodeUsageDetails:
		if string(key) == "cached_tokens" {
			return fieldCachedTokens
		}
	case nodeXGroq:
		switch string(key) {
		case "usage":
			return fieldUsage
		case "error":
			return fieldError
		}
	case nodeMessage:
		switch string(key) {
		case "content":
			return fieldParts
		case "thinking":
			return fieldInner
		case "tool_calls":
			return fieldToolCalls
		case "usage":
			return fieldUsage
		}
	case nodeBlockDelta:
		switch string(key) {
		case "text":
			return fieldText
		case "thinking", "partial_json":
			return fieldInner
		case "stop_reason":
			return fieldStopReason
		}
	case nodeContentBlock:
		switch string(key) {
		case "text":
			return fieldText
		case "thinking":
			return fieldInner
		}
	case nodeResponse:
		switch string(key) {
		case "id":
			return fieldResponseID
		case "usage":
			return fieldUsage
		case "error":
			return fieldError
		}
	default:
		return engineField(n, key)
	}
	return fieldNone
}

func rootField(key []byte) field {
	switch string(key) {
	case "choices":
		return fieldChoices
	case "usage":
		return fieldUsage
	case "id":
		return fieldID
	case "object":
		return fieldObject
	case "type":
		return fieldType
	case "delta":
		return fieldDelta
	case "error":
		return fieldError
	case "message":
		return fieldMessage
	case "content_block":
		return fieldContentBlock
	case "response":
		return fieldResponse
	case "content":
		return fieldContent
	case "text":
		return fieldRootText
	case "thinking":
		return fieldThinking
	case "output":
		return fieldOutput
	case "output_ids":
		return fieldOutputIDs
	case "tokens":
		return fieldTokens
	case "meta_info":
		return fieldMetaInfo
	case "token":
		return fieldToken
	case "generated_text":
		return fieldGeneratedText
	case "details":
		return fieldDetails
	case "done":
		return fieldDone
	case "done_reason":
		return fieldDoneReason
	case "eval_count":
		return fieldEvalCount
	case "prompt_eval_count":
		return fieldPromptEvalCount
	case "stop":
		return fieldStop
	case "stop_type":
		return fieldStopType
	case "stop_reason":
		return fieldStopReason
	case "tokens_predicted":
		return fieldPredicted
	case "tokens_evaluated":
		return fieldEvaluated
	case "timings":
		return fieldTimings
	case "prompt_progress":
		return fieldProgress
	case "index":
		return fieldIndex
	case "x_groq":
		return fieldXGroq
	case "sglext":
		return fieldSGLangMark
	case "prompt_logprobs", "prompt_token_ids":
		return fieldVLLMMark
	case "kv_transfer_params":
		return fieldTransfer
	}
	return fieldNone
}

func usageField(key []byte) field {
	switch string(key) {
	case "completion_tokens", "output_tokens":
		return fieldCompletionTokens
	case "prompt_tokens":
		return fieldPromptTokens
	case "input_tokens":
		return fieldInputTokens
	case "prompt_tokens_details", "input_tokens_details":
		return fieldUsageDetails
	case "prompt_cache_hit_tokens", "cached_tokens": // DeepSeek, Moonshot
		return fieldCachedTokens
	case "cache_read_input_tokens":
		return fieldCacheRead
	case "cache_creation_input_tokens":
		return fieldCacheCreation
	}
	return fieldNone
}

// engineField finds the keys of engines' own interfaces.
func engineField(n node, key []byte) field {
	switch n {
	case nodeTimings:
		switch string(key) {
		case "prompt_n":
			return fieldPromptN
		case "cache_n":
			return fieldCacheN
		case "predicted_n":
			return fieldPredictedN
		}
	case nodeProgress:
		switch string(key) {
		case "total":
			return fieldProgressTotal
		case "cache":
			return fieldProgressCache
		}
	case nodeMetaInfo:
		switch string(key) {
		case "completion_tokens":
			return fieldMetaCompletion
		case "prompt_tokens":
			return fieldMetaPrompt
		case "cached_tokens":
			return fieldMetaCached
		case "finish_reason":
			return fieldMetaFinish
		}
	case nodeMetaFinish:
		if string(key) == "type" {
			return fieldMetaFinish
		}
	case nodeDetails:
		switch string(key) {
		case "generated_tokens":
			return fieldGeneratedTokens
		case "finish_reason":
			return fieldMetaFinish
		case "input_length":
			return fieldInputLength
		case "prefill":
			return fieldPrefill
		case "best_of_sequences":
			return fieldBestOf
		}
	case nodeBestOfItem:
		if string(key) == "generated_tokens" {
			return fieldGeneratedTokens
		}
	}
	return fieldNone
}
