// SPDX-License-Identifier: Apache-2.0

package tokenize

import "strings"

// Kind is the API a request speaks.
type Kind uint8

// The kinds. Unlisted is an API that is known and whose prompt is not read.
const (
	KindNone Kind = iota
	OpenAIChat
	OpenAICompletions
	OpenAIResponses
	OpenAIEmbeddings // also Ollama's /api/embed and /api/embeddings
	AnthropicMessages
	OllamaChat
	OllamaGenerate
	SGLangGenerate
	TGI
	LlamaCompletion
	Unlisted
)

var kindNames = [...]string{
	KindNone:          "none",
	OpenAIChat:        "openai_chat",
	OpenAICompletions: "openai_completions",
	OpenAIResponses:   "openai_responses",
	OpenAIEmbeddings:  "openai_embeddings",
	AnthropicMessages: "anthropic_messages",
	OllamaChat:        "ollama_chat",
	OllamaGenerate:    "ollama_generate",
	SGLangGenerate:    "sglang_generate",
	TGI:               "tgi",
	LlamaCompletion:   "llamacpp_completion",
	Unlisted:          "unlisted",
}

// String returns the name that the admin API shows.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "none"
}

// KindOfPath tells the API from how the URL path ends, whatever prefix a
// gateway has put in front. It is KindNone for a path that ends in no known
// one. SGLang and TGI share /generate and are told apart by [Reader.Read];
// until then it counts as SGLang's.
func KindOfPath(path string) Kind {
	path = strings.TrimSuffix(path, "/")
	parent, last := cutLast(path)
	_, before := cutLast(parent)
	switch last {
	case "completions":
		if before == "chat" {
			return OpenAIChat
		}
		return OpenAICompletions
	case "responses":
		return OpenAIResponses
	case "embeddings":
		return OpenAIEmbeddings
	case "embed":
		if before == "api" {
			return OpenAIEmbeddings
		}
		return Unlisted // TEI's
	case "messages":
		// The Assistants API stores messages of a thread at such a path.
		if strings.Contains(parent, "/threads/") {
			return Unlisted
		}
		return AnthropicMessages
	case "chat":
		if before == "api" {
			return OllamaChat
		}
	case "generate":
		if before == "api" {
			return OllamaGenerate
		}
		return SGLangGenerate
	case "generate_stream":
		return TGI
	case "completion":
		return LlamaCompletion
	case "rerank", "score", "classify", "pooling", "moderations", "infill",
		"tokenize", "detokenize", "count_tokens", "apply-template", "render",
		"transcriptions", "translations", "speech", "generations", "edits", "variations":
		return Unlisted
	}
	return KindNone
}

// cutLast splits a path at its last slash.
func cutLast(path string) (parent, last string) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return "", path
	}
	return path[:i], path[i+1:]
}
