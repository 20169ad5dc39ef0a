// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"strings"
	"testing"
)

func TestATransferOfTheCacheIsNoticed(t *testing.T) {
	for body, want := range map[string]bool{
		`{"choices":[{"index":0,"text":"a","finish_reason":"stop"}],"kv_transfer_params":null}`:                                   false,
		`{"choices":[{"index":0,"text":"a","finish_reason":"stop"}],"kv_transfer_params":{"remote_block_ids":[1,2]}}`:             true,
		`{"kv_transfer_params":{},"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}`:                                     true,
		`{"choices":[{"index":0,"message":{"content":"a","kv_transfer_params":{"a":1}},"finish_reason":"stop"}],"usage":{"a":1}}`: false,
	} {
		if s := observe(t, Options{ContentType: "application/json"}, []byte(body), true); s.Transferred != want {
			t.Errorf("%s: %v", body, s.Transferred)
		}
	}
	stream := sse(
		`{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}`,
		`{"object":"chat.completion.chunk","choices":[],"kv_transfer_params":{"do_remote_decode":true}}`, "[DONE]")
	if s := observe(t, Options{}, []byte(stream), true); !s.Transferred {
		t.Error("not noticed in a stream")
	}
}

func TestReasoningAndToolCallsAreNoticed(t *testing.T) {
	inner := map[string]bool{
		"anthropic_message_json":                          true,
		"sglang_chat_nulls_hidden_states_sglext":          true,
		"sse_data_without_space":                          true,
		"anthropic_thinking_tool_two_deltas":              true,
		"deepseek_chat_reasoning_keepalive_usage_on_last": true,
		"ollama_chat_thinking_tool":                       true,
		"vllm_chat_tool_calls_parallel":                   true,
	}
	for _, x := range loadCases(t) {
		name, _, _ := strings.Cut(x.File, ".")
		if s := observe(t, x.options(), x.body, true); s.Inner != inner[name] {
			t.Errorf("%s: %v", name, s.Inner)
		}
	}
	for body, want := range map[string]bool{
		`{"choices":[{"index":0,"message":{"content":"a","reasoning_content":null,"tool_calls":[]},"finish_reason":"stop"}]}`:          false,
		`{"choices":[{"index":0,"message":{"content":"a","reasoning_content":"b","tool_calls":[]},"finish_reason":"stop"}]}`:           true,
		`{"choices":[{"index":0,"message":{"content":null,"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]}}]}`:      true,
		`{"object":"response","output":[{"type":"message","content":[{"type":"output_text","text":"a"}]}]}`:                            false,
		`{"object":"response","output":[{"type":"reasoning","summary":[]},{"type":"message","content":[{"type":"text","text":"a"}]}]}`: true,
		`{"object":"response","output":[{"type":"function_call","name":"f","arguments":"{}"}]}`:                                        true,
		`{"type":"message","content":[{"type":"text","text":"a"}]}`:                                                                    false,
		`{"type":"message","content":[{"type":"tool_use","name":"f","input":{}}]}`:                                                     true,
	} {
		if s := observe(t, Options{ContentType: "application/json"}, []byte(body), true); s.Inner != want {
			t.Errorf("%s: %v", body, s.Inner)
		}
	}
	for kind, want := range map[string]bool{"response.output_text.delta": false, "response.reasoning_text.delta": true, "response.function_call_arguments.delta": true} {
		if s := observe(t, Options{}, []byte(sse(`{"type":"`+kind+`","delta":"a"}`)), true); s.Inner != want {
			t.Errorf("%s: %v", kind, s.Inner)
		}
	}
}
