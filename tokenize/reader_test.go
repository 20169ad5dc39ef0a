// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestReadingAllocatesNothingOnceWarm(t *testing.T) {
	body := chatBody(t, 100<<10, 2000)
	tools := []byte(`{"model":"m","lora_path":"l","tools":[{"name":"t\u0061"}],"messages":[{"role":"user","content":[{"type":"text","text":"a\nb"},{"type":"image_url","image_url":{"url":"u"}}]}]}`)
	rd := NewReader()
	for name, body := range map[string][]byte{"chat": body, "parts and tools": tools} {
		allocs := leastAllocs(func() {
			req, err := rd.Read(OpenAIChat, "/v1/chat/completions", body)
			if err != nil {
				t.Fatal(err)
			}
			rd.Chain(req, wordEncoder{}, 16)
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations for a request", name, allocs)
		}
	}
}

func TestAReleasedReaderKeepsNeitherBodyNorMonstrousMemory(t *testing.T) {
	rd := NewReader()
	for _, body := range [][]byte{
		[]byte(`{"messages":[` + strings.Repeat(`{"role":"user","content":"a\n"},`, 100_000) + `{"role":"user","content":"b"}]}`),
		[]byte(`{"messages":[{"role":"user","content":"` + strings.Repeat(`a\n`, 1<<20) + `"}]}`),
	} {
		req, err := rd.Read(OpenAIChat, "/v1/chat/completions", body)
		if err != nil {
			t.Fatal(err)
		}
		rd.Chain(req, wordEncoder{}, 16)
	}
	rd.Release()
	if rd.scanner.body != nil {
		t.Error("the body is kept")
	}
	bytes := cap(rd.scanner.nodes)*16 + cap(rd.pieces)*24 + cap(rd.text) + cap(rd.ids)*4 + cap(rd.blocks)*8
	if bytes > 8<<20 {
		t.Errorf("%d bytes are kept", bytes)
	}
}

func TestPooledReadersAgreeOnHashes(t *testing.T) {
	body := chatBody(t, 8<<10, 500)
	want := chainOf(t, body)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				rd := AcquireReader()
				req, err := rd.Read(OpenAIChat, "/v1/chat/completions", body)
				if err != nil {
					t.Error(err)
					return
				}
				rd.Chain(req, byteEncoder{}, 1)
				if !slices.Equal(req.Prompts[0].Blocks, want) {
					t.Error("another chain from another reader")
				}
				rd.Release()
			}
		})
	}
	wg.Wait()
}

func TestHashesDependOnTheSecret(t *testing.T) {
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"hello there"}]}`)
	read := func(secret uint64) (uint64, []uint64) {
		rd := NewReader()
		rd.SetSecret(secret)
		req, err := rd.Read(OpenAIChat, "/v1/chat/completions", body)
		if err != nil {
			t.Fatal(err)
		}
		rd.Chain(req, byteEncoder{}, 4)
		return req.Namespace, slices.Clone(req.Prompts[0].Blocks)
	}
	ns1, chain1 := read(1)
	ns2, chain2 := read(2)
	again, chainAgain := read(1)
	if ns1 == ns2 || chain1[0] == chain2[0] {
		t.Error("other secrets give the same hashes")
	}
	if ns1 != again || !slices.Equal(chain1, chainAgain) {
		t.Error("one secret gives different hashes")
	}
}

func TestAReaderCarriesNothingOverToTheNextRequest(t *testing.T) {
	var bodies [][]byte
	var cases []*requestCase
	for _, c := range loadCases(t) {
		bodies = append(bodies, c.body)
		cases = append(cases, c)
	}
	shared := NewReader()
	for round := range 2 {
		for i, c := range cases {
			if round == 1 {
				i = len(cases) - 1 - i
				c = cases[i]
			}
			fresh := NewReader()
			want, wantErr := fresh.Read(KindOfPath(c.Path), c.Path, bodies[i])
			fresh.Chain(want, byteEncoder{}, 4)
			got, gotErr := shared.Read(KindOfPath(c.Path), c.Path, bodies[i])
			shared.Chain(got, byteEncoder{}, 4)
			if (gotErr == nil) != (wantErr == nil) || !bytes.Equal(jsonOf(t, got), jsonOf(t, want)) {
				t.Errorf("%s: %s %v, from a fresh reader %s %v", c.name, jsonOf(t, got), gotErr, jsonOf(t, want), wantErr)
			}
		}
	}
}

func jsonOf(t *testing.T, req *Request) []byte {
	t.Helper()
	r := *req
	// Where nothing is in a slice it does not matter whether it is nil.
	r.Prompts = append([]Prompt(nil), r.Prompts...)
	for i := range r.Prompts {
		r.Prompts[i].Blocks = append([]uint64(nil), r.Prompts[i].Blocks...)
	}
	out, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestBlocksAreWholeAndChained(t *testing.T) {
	rd := NewReader()
	read := func(prompt string) Prompt {
		req, err := rd.Read(OpenAICompletions, "/v1/completions", marshal(t, map[string]any{"prompt": prompt}))
		if err != nil {
			t.Fatal(err)
		}
		rd.Chain(req, byteEncoder{}, 16)
		p := req.Prompts[0]
		p.Blocks = slices.Clone(p.Blocks)
		return p
	}
	long := read(strings.Repeat("lantern ", 10) + "tail")
	if long.Tokens != 84 || len(long.Blocks) != 5 {
		t.Fatalf("%d tokens in %d blocks", long.Tokens, len(long.Blocks))
	}
	if short := read(strings.Repeat("lantern ", 6)); !hasPrefix(long.Blocks, short.Blocks) || len(short.Blocks) != 3 {
		t.Error("a prefix has other blocks")
	}
	changed := read("Lantern " + strings.Repeat("lantern ", 9))
	for i := range changed.Blocks {
		if changed.Blocks[i] == long.Blocks[i] {
			t.Errorf("block %d does not depend on the first token", i)
		}
	}
	if none := read(""); none.Tokens != 0 || len(none.Blocks) != 0 {
		t.Errorf("the empty prompt has %d tokens", none.Tokens)
	}
}

func TestChainMayBeCalledAgainWithAnotherBlockSize(t *testing.T) {
	rd := NewReader()
	req, err := rd.Read(OpenAICompletions, "/v1/completions", []byte(`{"prompt":["abcdefgh","ijkl"]}`))
	if err != nil {
		t.Fatal(err)
	}
	for blockSize, want := range map[int][2]int{1: {8, 4}, 3: {2, 1}, 16: {0, 0}, 0: {0, 0}, -5: {0, 0}} {
		rd.Chain(req, byteEncoder{}, blockSize)
		if got := [2]int{len(req.Prompts[0].Blocks), len(req.Prompts[1].Blocks)}; got != want || req.Prompts[0].Tokens != 8 {
			t.Errorf("blocks of %d: %v, want %v", blockSize, got, want)
		}
	}
}
