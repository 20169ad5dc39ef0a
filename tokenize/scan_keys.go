// SPDX-License-Identifier: Apache-2.0

package tokenize

// key is an object key that reading asks for; all others are keyOther.
type key uint8

const (
	keyOther key = iota
	keyModel
	keyMessages
	keyPrompt
	keyRaw
	keyInput
	keyText
	keyInputs
	keyInputIDs
	keyInstructions
	keySystem
	keyTemplate
	keyContext
	keySuffix
	keyTools
	keyFunctions
	keyImages
	keyImageData
	keyVideoData
	keyAudioData
	keyMaxTokens
	keyMaxCompletionTokens
	keyMaxOutputTokens
	keyN
	keyBestOf
	keyNPredict
	keyMaxNewTokens
	keyNumPredict
	keyStream
	keyStreamOptions
	keyIncludeUsage
	keyEcho
	keyLogprobs
	keyPromptLogprobs
	keyCachePrompt
	keyDecoderInputDetails
	keyReturnLogprob
	keyLogprobStartLen
	keyTruncatePromptTokens
	keyTruncate
	keyKVTransferParams
	keyBootstrapRoom
	keyCacheSalt
	keyExtraKey
	keyLoRA
	keyLoRAPath
	keyLoRARequest
	keyAdapterID
	keyParameters
	keyOptions
	keySamplingParams
	keyNvext
	keyAgentHints
	keyOSL
	keyChatTemplate
	keyChatTemplateKwargs
	keyMMProcessorKwargs
	keyDocuments
	keyReasoningEffort
	keyReasoning
	keyEffort
	keyThink
	keyAddGenerationPrompt
	keyContinueFinalMessage
	keyPreviousResponseID
	keyConversation
	keyRole
	keyContent
	keyName
	keyToolCalls
	keyFunctionCall
	keyFunction
	keyReasoningContent
	keyRefusal
	keyThinking
	keyType
	keyImageURL
	keyImage
	keyInputImage
	keyInputAudio
	keyAudioURL
	keyAudio
	keyVideoURL
	keyVideo
	keyFile
	keyFileData
	keyFileID
	keyFileURL
	keyUUID
	keySource
	keyData
	keyURL
	keyTitle
	keyOutput
	keyArguments
	keySummary
	keyEncryptedContent
	keyPromptString
	keyMultimodalData
	keyToolChoice
	keyResponseFormat
	keyCount
)

// allLevels: a value is recorded with everything in it.
const allLevels = 255

// levelsBelow is how many levels below a key's value are recorded. Values that
// are only copied or hashed as a whole need none, lists that are also counted one.
var levelsBelow = func() (levels [keyCount]uint8) {
	for k := range levels {
		levels[k] = allLevels
	}
	for _, k := range [...]key{
		keyChatTemplateKwargs, keyMMProcessorKwargs, keyDocuments, keyConversation, keyMultimodalData, keyLoRARequest, keyData,
		keyToolChoice, keyResponseFormat,
	} {
		levels[k] = 0
	}
	for _, k := range [...]key{keyTools, keyFunctions, keyLoRA} {
		levels[k] = 1
	}
	return levels
}()

// keyOf tells a key from its unescaped bytes.
func keyOf(name []byte) key {
	switch string(name) {
	case "model":
		return keyModel
	case "messages":
		return keyMessages
	case "prompt":
		return keyPrompt
	case "raw":
		return keyRaw
	case "input":
		return keyInput
	case "text":
		return keyText
	case "inputs":
		return keyInputs
	case "input_ids":
		return keyInputIDs
	case "instructions":
		return keyInstructions
	case "system":
		return keySystem
	case "template":
		return keyTemplate
	case "context":
		return keyContext
	case "suffix":
		return keySuffix
	case "tools":
		return keyTools
	case "functions":
		return keyFunctions
	case "images":
		return keyImages
	case "image_data":
		return keyImageData
	case "video_data":
		return keyVideoData
	case "audio_data":
		return keyAudioData
	case "max_tokens":
		return keyMaxTokens
	case "max_completion_tokens":
		return keyMaxCompletionTokens
	case "max_output_tokens":
		return keyMaxOutputTokens
	case "n":
		return keyN
	case "best_of":
		return keyBestOf
	case "n_predict":
		return keyNPredict
	case "max_new_tokens":
		return keyMaxNewTokens
	case "num_predict":
		return keyNumPredict
	case "stream":
		return keyStream
	case "stream_options":
		return keyStreamOptions
	case "include_usage":
		return keyIncludeUsage
	case "echo":
		return keyEcho
	case "logprobs":
		return keyLogprobs
	case "prompt_logprobs":
		return keyPromptLogprobs
	case "cache_prompt":
		return keyCachePrompt
	case "decoder_input_details":
		return keyDecoderInputDetails
	case "return_logprob":
		return keyReturnLogprob
	case "logprob_start_len":
		return keyLogprobStartLen
	case "truncate_prompt_tokens":
		return keyTruncatePromptTokens
	case "truncate":
		return keyTruncate
	case "kv_transfer_params":
		return keyKVTransferParams
	case "bootstrap_room":
		return keyBootstrapRoom
	case "cache_salt":
		return keyCacheSalt
	case "extra_key":
		return keyExtraKey
	case "lora":
		return keyLoRA
	case "lora_path":
		return keyLoRAPath
	case "lora_request":
		return keyLoRARequest
	case "adapter_id":
		return keyAdapterID
	case "parameters":
		return keyParameters
	case "options":
		return keyOptions
	case "sampling_params":
		return keySamplingParams
	case "nvext":
		return keyNvext
	case "agent_hints":
		return keyAgentHints
	case "osl":
		return keyOSL
	case "chat_template":
		return keyChatTemplate
	case "chat_template_kwargs":
		return keyChatTemplateKwargs
	case "mm_processor_kwargs":
		return keyMMProcessorKwargs
	case "documents":
		return keyDocuments
	case "reasoning_effort":
		return keyReasoningEffort
	case "reasoning":
		return keyReasoning
	case "effort":
		return keyEffort
	case "think":
		return keyThink
	case "add_generation_prompt":
		return keyAddGenerationPrompt
	case "continue_final_message":
		return keyContinueFinalMessage
	case "previous_response_id":
		return keyPreviousResponseID
	case "conversation":
		return keyConversation
	case "role":
		return keyRole
	case "content":
		return keyContent
	case "name":
		return keyName
	case "tool_calls":
		return keyToolCalls
	case "function_call":
		return keyFunctionCall
	case "function":
		return keyFunction
	case "reasoning_content":
		return keyReasoningContent
	case "refusal":
		return keyRefusal
	case "thinking":
		return keyThinking
	case "type":
		return keyType
	case "image_url":
		return keyImageURL
	case "image":
		return keyImage
	case "input_image":
		return keyInputImage
	case "input_audio":
		return keyInputAudio
	case "audio_url":
		return keyAudioURL
	case "audio":
		return keyAudio
	case "video_url":
		return keyVideoURL
	case "video":
		return keyVideo
	case "file":
		return keyFile
	case "file_data":
		return keyFileData
	case "file_id":
		return keyFileID
	case "file_url":
		return keyFileURL
	case "uuid":
		return keyUUID
	case "source":
		return keySource
	case "data":
		return keyData
	case "url":
		return keyURL
	case "title":
		return keyTitle
	case "output":
		return keyOutput
	case "arguments":
		return keyArguments
	case "summary":
		return keySummary
	case "encrypted_content":
		return keyEncryptedContent
	case "prompt_string":
		return keyPromptString
	case "multimodal_data":
		return keyMultimodalData
	case "tool_choice":
		return keyToolChoice
	case "response_format":
		return keyResponseFormat
	}
	return keyOther
}
