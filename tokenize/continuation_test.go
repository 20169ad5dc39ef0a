// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// wantGoesOn requires that a prompt, whose chain was made of ids, goes on with any
// others as it does when all are chained together.
func wantGoesOn(t *testing.T, what string, rd *Reader, req *Request, ids []uint32, blockSize int) {
	t.Helper()
	var space [3]uint32
	c, ok := rd.Continuation(req, blockSize, space[:0])
	if !ok {
		t.Errorf("%s, %d ids in blocks of %d: it is not known where it goes on", what, len(ids), blockSize)
		return
	}
	p := &req.Prompts[0]
	if len(ids) != p.Tokens {
		t.Fatalf("%s: %d ids, %d tokens", what, len(ids), p.Tokens)
	}
	blocks := slices.Clone(p.Blocks)
	rd.ids = append(rd.ids[:0], make([]uint32, 5000)...) // what it says is its own
	rng := rand.New(rand.NewPCG(1, uint64(len(ids))))
	for _, n := range []int{0, 1, blockSize - 1, blockSize, 2*blockSize + 1, 300} {
		output := make([]uint32, n)
		for i := range output {
			output[i] = rng.Uint32N(1000)
		}
		want := appendChain(nil, slices.Concat(ids, output), blockSize, rd.exactRoot(p))
		for range 2 {
			if got := c.Append(slices.Clone(blocks), output); !slices.Equal(got, want) {
				t.Errorf("%s, %d ids and %d in blocks of %d: %d blocks are not the %d of all together", what, len(ids), n, blockSize, len(got), len(want))
			}
		}
	}
}

func TestAPromptsChainGoesOnWithItsOutput(t *testing.T) {
	tokenizer, template := exactParts(t)
	e := NewExact(tokenizer, template)
	cache := NewCache(4 << 20)
	cached := cache.Encoder(tokenizer)
	rd := NewReader()
	for words := 0; words < 900; words += 1 + words/2 {
		text := strings.Repeat("the tide rises ", words)
		chat := `{"model":"m","messages":[{"role":"user","content":"` + text + `"}]}`
		completion := `{"model":"m","cache_salt":"s","prompt":"a` + text + `"}`
		for _, blockSize := range []int{1, 4, 16, 1024} {
			for _, x := range [][2]string{{chatPath, chat}, {completionsPath, completion}} {
				ids := idsFor(t, e, x[0], x[1], 0)
				for name, enc := range map[string]Encoder{"plain": tokenizer, "cached": cached, "cached again": cached} {
					req := readFor(t, rd, x[0], x[1])
					if !rd.ChainExact(context.Background(), req, e, enc, blockSize) {
						t.Fatal("not exact")
					}
					wantGoesOn(t, x[0]+" "+name, rd, req, ids, blockSize)
				}
				req := readFor(t, rd, x[0], x[1])
				question := fmt.Append(nil, x[0], words)
				rd.ChainAnswer(req, cache, 1, question, ids, []int{len(ids)}, blockSize)
				wantGoesOn(t, x[0]+" answered", rd, req, ids, blockSize)
				req = readFor(t, rd, x[0], x[1])
				if !rd.ChainAnswered(req, cache, 1, question, blockSize) {
					t.Fatal("not known")
				}
				wantGoesOn(t, x[0]+" answered before", rd, req, ids, blockSize)
			}
			ids := make([]uint32, words+1)
			given := `{"model":"m","prompt":[0` + strings.Repeat(",0", words) + `]}`
			for name, chain := range map[string]func(req *Request) bool{
				"plain":  func(req *Request) bool { return rd.ChainExact(context.Background(), req, e, tokenizer, blockSize) },
				"cached": func(req *Request) bool { return rd.ChainExact(context.Background(), req, e, cached, blockSize) },
				"no engine": func(req *Request) bool {
					return rd.ChainIDs(req, blockSize)
				},
			} {
				req := readFor(t, rd, completionsPath, given)
				if !chain(req) {
					t.Fatal("not exact")
				}
				wantGoesOn(t, "ids "+name, rd, req, ids, blockSize)
			}
		}
	}
}

func TestOnlyOnePromptOfTheEnginesOwnIDsGoesOn(t *testing.T) {
	tokenizer, template := exactParts(t)
	e := NewExact(tokenizer, template)
	rd := NewReader()
	for _, x := range [][2]string{
		{completionsPath, `{"model":"m","prompt":["a","b"]}`},
		{"/v1/responses", `{"model":"m","input":"a"}`},
		{chatPath, `{"model":"m","truncate_prompt_tokens":5,"messages":[{"role":"user","content":"a"}]}`},
	} {
		req := readFor(t, rd, x[0], x[1])
		rd.ChainExact(context.Background(), req, e, tokenizer, 16)
		if _, ok := rd.Continuation(req, 16, nil); ok {
			t.Errorf("it is known how %s goes on", x[1])
		}
	}
	req := readFor(t, rd, completionsPath, `{"model":"m","prompt":"a"}`)
	rd.ChainExact(context.Background(), req, e, tokenizer, 0)
	if _, ok := rd.Continuation(req, 0, nil); ok {
		t.Error("it goes on without blocks")
	}
	var none Continuation
	if got := none.Append(nil, make([]uint32, 100)); got != nil {
		t.Errorf("%d blocks behind nothing", len(got))
	}
}
