// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"
)

// FuzzReadCall: any body gives a call whose sums are right, or an error to answer
// with.
func FuzzReadCall(f *testing.F) {
	for _, seed := range []string{
		hello, ``, `{}`, `null`, `{"messages":null}`, `{"n":1e3,"messages":[{}]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"},"b",7]}],"tools":[1]}`,
		`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"a"}]}],"stream":true,"stream_options":{"include_usage":true}}`,
		`{"prompt":"a","n":2,"max_tokens":1}`, `{"prompt":["a","b"]}`, `{"prompt":[1,4294967295]}`, `{"prompt":[[1],[]]}`, `{"prompt":[1,"a"]}`,
		`{"prompt":"\ud800","max_tokens":1e999}`, `{"prompt":"a","prompt":["b"],"PROMPT":"c"}`,
	} {
		f.Add([]byte(seed), true, 16)
		f.Add([]byte(seed), false, 1)
	}
	f.Fuzz(func(t *testing.T, body []byte, isChat bool, blockSize int) {
		if blockSize < 1 || blockSize > 1<<16 {
			return
		}
		dialect := completions
		if isChat {
			dialect = chat
		}
		as := reading{blockSize: blockSize, keepIDs: true}
		c, err := as.readCall(dialect, bytes.NewReader(body))
		if err != nil {
			var answer *apiError
			if !errors.As(err, &answer) || answer.Code < 400 {
				t.Fatalf("cannot be answered with: %v", err)
			}
			if _, err := json.Marshal(answer); err != nil {
				t.Fatal(err)
			}
			return
		}
		for i := range c.prompts {
			if p := &c.prompts[i]; len(p.ids) != p.tokens {
				t.Fatalf("%d ids of %d tokens", len(p.ids), p.tokens)
			}
		}
		if p, err := as.tokenize(bytes.NewReader(body)); err == nil && isChat && !slices.Equal(p.ids, c.prompts[0].ids) {
			t.Fatal("/tokenize tells other ids than the chat's")
		}
		if len(c.prompts)*c.choices > maxSequences {
			t.Fatalf("%d prompts, %d choices", len(c.prompts), c.choices)
		}
		h := &Handler{MaxModelLen: 10_000, Output: 20, now: time.Now}
		if j, err := h.newJob(c, failure{}); err == nil {
			for _, choice := range j.choices {
				p := c.prompts[choice.prompt]
				whole := (p.tokens + choice.answer.tokens) / blockSize
				if p.tokens < 1 && !isChat || len(p.blocks) != p.tokens/blockSize || len(p.blocks)+len(choice.seq.OutputBlocks) != whole {
					t.Fatalf("%d tokens in %d blocks, %d of output in %d", p.tokens, len(p.blocks), choice.answer.tokens, len(choice.seq.OutputBlocks))
				}
			}
		}
	})
}
