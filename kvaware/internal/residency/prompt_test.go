// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

// From the bytes of a request and of an event to the credit.
func TestARequestMatchesWhatItsEventsStored(t *testing.T) {
	tokenizer, err := tokenize.LoadHF("../../../testdata/exact/chatml.json")
	if err != nil {
		t.Fatal(err)
	}
	exact := tokenize.NewExact(tokenizer, nil)
	ids := make([]uint32, 100)
	for i := range ids {
		ids[i] = uint32(i % 50)
	}
	prompt, err := json.Marshal(ids)
	if err != nil {
		t.Fatal(err)
	}
	rd := tokenize.NewReader()
	for page, index := range map[int]int{1: 16, 16: 16, 32: 32} {
		for _, lora := range []string{"", "adapter"} {
			for _, salt := range []string{"", "salt"} {
				x := New(Options{Chains: rd.Chains()})
				h := x.Open(0)
				e := kvevents.Event{Group: 0, Attention: kvevents.FullAttention, BlockSize: page, LoRA: []byte(lora)}
				for i := range 64 / page {
					e.Blocks = append(e.Blocks, kvevents.Key(i+1))
					e.Extra = append(e.Extra, kvevents.Extra{})
				}
				e.Extra[0].Salt = []byte(salt)
				e.Tokens = ids[:64]
				payload := kvevents.AppendBatch(nil, &kvevents.Batch{Events: []kvevents.Event{e}, Rank: -1}, 0)
				var d kvevents.Decoder
				var b kvevents.Batch
				if err := d.Decode(payload, &b); err != nil {
					t.Fatal(err)
				}
				h.Apply(&b)
				req, err := rd.Read(tokenize.OpenAICompletions, "/v1/completions",
					fmt.Appendf(nil, `{"model":"adapter","prompt":%s,"cache_salt":%q}`, prompt, salt))
				if err != nil {
					t.Fatal(err)
				}
				if lora != "" {
					rd.NameAdapter(req, lora)
				}
				for _, size := range x.BlockSizes(nil) {
					if !rd.ChainExact(context.Background(), req, exact, tokenizer, size) {
						t.Fatal("not exact")
					}
					dst := make([]int32, 1)
					x.Match(size, req.Prompts[0].Blocks, dst)
					if size != index || int(dst[0]) != 64/index {
						t.Errorf("pages of %d, %q, %q: %d blocks of %d", page, lora, salt, dst[0], size)
					}
				}
			}
		}
	}
}
