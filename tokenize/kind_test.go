// SPDX-License-Identifier: Apache-2.0

package tokenize

import "testing"

func TestKindIsToldByHowThePathEnds(t *testing.T) {
	for path, want := range map[string]Kind{
		"/v1/chat/completions":                          OpenAIChat,
		"/v1/chat/completions/":                         OpenAIChat,
		"/openai/v1/chat/completions":                   OpenAIChat,
		"/openai/deployments/my-model/chat/completions": OpenAIChat,
		"/chat/completions":                             OpenAIChat,
		"/api/chat/completions":                         OpenAIChat,
		"/v1/completions":                               OpenAICompletions,
		"/completions":                                  OpenAICompletions,
		"/v1/responses":                                 OpenAIResponses,
		"/v1/responses/resp_1/cancel":                   KindNone,
		"/v1/responses/resp_1":                          KindNone,
		"/v1/embeddings":                                OpenAIEmbeddings,
		"/api/embeddings":                               OpenAIEmbeddings,
		"/api/embed":                                    OpenAIEmbeddings,
		"/embed":                                        Unlisted,
		"/v1/messages":                                  AnthropicMessages,
		"/anthropic/v1/messages":                        AnthropicMessages,
		"/v1/messages/count_tokens":                     Unlisted,
		"/v1/threads/thread_1/messages":                 Unlisted,
		"/api/chat":                                     OllamaChat,
		"/chat":                                         KindNone,
		"/api/generate":                                 OllamaGenerate,
		"/generate":                                     SGLangGenerate,
		"/generate_stream":                              TGI,
		"/tgi/generate_stream":                          TGI,
		"/completion":                                   LlamaCompletion,
		"/v1/rerank":                                    Unlisted,
		"/score":                                        Unlisted,
		"/v1/audio/transcriptions":                      Unlisted,
		"/v1/images/generations":                        Unlisted,
		"/tokenize":                                     Unlisted,
		"/v1/models":                                    KindNone,
		"/metrics":                                      KindNone,
		"/":                                             KindNone,
		"":                                              KindNone,
		"completions":                                   OpenAICompletions,
		"/v1/xchat/completions":                         OpenAICompletions,
		"/v1/chatcompletions":                           KindNone,
	} {
		if got := KindOfPath(path); got != want {
			t.Errorf("KindOfPath(%q) = %v, want %v", path, got, want)
		}
	}
}

func TestEveryKindHasAName(t *testing.T) {
	seen := map[string]bool{}
	for k := KindNone; k <= Unlisted; k++ {
		if name := k.String(); name == "" || seen[name] {
			t.Errorf("kind %d is named %q", k, name)
		} else {
			seen[name] = true
		}
	}
	if got := Kind(200).String(); got != "none" {
		t.Errorf("a kind out of range is named %q", got)
	}
}
