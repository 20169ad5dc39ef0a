// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"context"
	"fmt"
	"slices"
	"testing"
)

// Who gets ids, adapter and salt from an engine's events makes the very hashes of the
// engine's own prompts.
func TestChainsAreThoseOfExactPrompts(t *testing.T) {
	tokenizer, template := exactParts(t)
	e := NewExact(tokenizer, template)
	const text = "An adapter and a salt part what would else be the same text, and so the same blocks of it."
	ids := tokenizer.AppendSpecial(nil, []byte(text))
	chain := func(c Chains, lora, salt string, blockSize int) (blocks []uint64) {
		h := c.Root(lora, salt)
		for rest := ids; len(rest) >= blockSize; rest = rest[blockSize:] {
			h = c.Extend(h, rest[:blockSize])
			blocks = append(blocks, h)
		}
		return blocks
	}
	seen := map[uint64]bool{}
	for _, secret := range []uint64{1, 2} {
		for _, lora := range []string{"", "adapter"} {
			for _, salt := range []string{"", "salt"} {
				rd := NewReader()
				rd.SetSecret(secret)
				if rd.Chains() != NewChains(secret) {
					t.Fatal("the reader has other chains")
				}
				body := fmt.Appendf(nil, `{"model":"m","prompt":%q,"lora_path":%q,"cache_salt":%q,"add_special_tokens":false}`, text, lora, salt)
				if lora == "" {
					body = fmt.Appendf(nil, `{"model":"m","prompt":%q,"cache_salt":%q,"add_special_tokens":false}`, text, salt)
				}
				named := fmt.Appendf(nil, `{"model":%q,"prompt":%q,"cache_salt":%q,"add_special_tokens":false}`, lora, text, salt)
				for _, blockSize := range []int{1, 4, 16} {
					want := chain(NewChains(secret), lora, salt, blockSize)
					for i, b := range [][]byte{body, named} {
						req := readExact(t, rd, OpenAICompletions, b)
						if i == 1 {
							rd.NameAdapter(req, lora)
						}
						if !rd.ChainExact(context.Background(), req, e, tokenizer, blockSize) {
							t.Fatal("not exact")
						}
						if got := req.Prompts[0].Blocks; len(got) == 0 || !slices.Equal(got, want) {
							t.Errorf("secret %d, %q, %q, way %d: %d blocks are not the chain's %d", secret, lora, salt, i, len(got), len(want))
						}
						if req.LoRA != lora {
							t.Errorf("the request's adapter is %q", req.LoRA)
						}
					}
					if blockSize == 16 && seen[want[0]] {
						t.Errorf("%q, %q: a block is another's", lora, salt)
					}
					seen[want[0]] = true
				}
			}
		}
	}
}
