// SPDX-License-Identifier: Apache-2.0

package stream

import "testing"

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
