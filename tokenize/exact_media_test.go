// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/tokenize/chattemplate"
)

// newVisionExact is the way of a model with images of Qwen2-VL's kind.
func newVisionExact(t testing.TB) *Exact {
	t.Helper()
	e := newTestExact(t, "vision", "Qwen3-VL-30B-A3B-Instruct-Q8_0")
	p, err := chattemplate.LoadImageProcessor([]byte(
		`{"image_processor_type":"Qwen2VLImageProcessor","patch_size":14,"merge_size":2,"min_pixels":3136,"max_pixels":12845056}`))
	if err == nil {
		err = e.TakeImages(p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// pictureURI is a PNG by its header; what makes it another is behind that.
func pictureURI(width, height uint32, other string) string {
	b := []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR")
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, width), height)
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(append(b, other...))
}

func picture(uri string) map[string]any {
	return map[string]any{"type": "image_url", "image_url": map[string]any{"url": uri}}
}

// visionChat is two turns, the first with two images.
func visionChat(t testing.TB, first, second string) []byte {
	return marshal(t, map[string]any{"messages": []any{
		map[string]any{"role": "user", "content": []any{
			map[string]any{"type": "text", "text": "There is a harbour with a lantern. " + strings.Repeat("And words. ", 9)},
			picture(first), map[string]any{"type": "text", "text": strings.Repeat(" between the two of them", 9)}, picture(second),
		}},
		message("assistant", "A lantern at sea."), message("user", "Which of them?"),
	}})
}

// sharedBlocks counts the blocks that chains begin with alike.
func sharedBlocks(a, b []uint64) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func TestAnImageIsInTheBlocksThatItTouchesAndThoseBehindThem(t *testing.T) {
	e := newVisionExact(t)
	a, b := pictureURI(280, 280, "a"), pictureURI(280, 280, "b")
	const blockSize = 4
	chains := map[string][]uint64{}
	for name, body := range map[string][]byte{"aa": visionChat(t, a, a), "ab": visionChat(t, a, b), "ba": visionChat(t, b, a)} {
		rd := NewReader()
		rd.SetSecret(1)
		p, exact := chainExact(t, rd, e, e.tokenizer, OpenAIChat, body, blockSize)
		if !exact {
			t.Fatalf("%s is not exact", name)
		}
		again, _ := chainExact(t, NewReader(), e, e.tokenizer, OpenAIChat, body, blockSize)
		if again.Tokens != p.Tokens {
			t.Error("another number of tokens")
		}
		chains[name] = slices.Clone(p.Blocks)
	}
	// Where the images' tokens begin, as the engine counts.
	rd := NewReader()
	req := readExact(t, rd, OpenAIChat, visionChat(t, a, b))
	rd.ChainExact(context.Background(), req, e, e.tokenizer, 1<<30)
	var begins []int
	for i, id := range rd.ids {
		if id>>31 == 1 && (i == 0 || rd.ids[i-1]>>31 == 0) {
			begins = append(begins, i)
		}
	}
	if len(begins) != 2 {
		t.Fatalf("%d images", len(begins))
	}
	if n := sharedBlocks(chains["aa"], chains["ab"]); n != begins[1]/blockSize {
		t.Errorf("chats with another second image share %d blocks, want %d", n, begins[1]/blockSize)
	}
	if n := sharedBlocks(chains["aa"], chains["ba"]); n != begins[0]/blockSize {
		t.Errorf("chats with another first image share %d blocks, want %d", n, begins[0]/blockSize)
	}
}

func TestAnImageOfUnknownSizeIsNotExactAndKeepsWhatIsBeforeIt(t *testing.T) {
	e := newVisionExact(t)
	known := pictureURI(280, 280, "a")
	chain := func(body []byte) ([]uint64, bool) {
		rd := NewReader()
		rd.SetSecret(1)
		p, exact := chainExact(t, rd, e, e.tokenizer, OpenAIChat, body, 4)
		return slices.Clone(p.Blocks), exact
	}
	all, exact := chain(visionChat(t, known, known))
	if !exact {
		t.Fatal("not exact")
	}
	for _, uri := range []string{"https://example.org/a.png", "data:image/png;base64,AAAA", "file:///a.png", pictureURI(1<<20, 3, ""), ""} {
		blocks, exact := chain(visionChat(t, known, uri))
		if exact {
			t.Errorf("%.40s is exact", uri)
		}
		if n := sharedBlocks(all, blocks); n < 40 {
			t.Errorf("%.40s: only %d blocks are shared", uri, n)
		}
	}
	if blocks, exact := chain(bytes.Replace(visionChat(t, known, known), []byte("{"), []byte(`{"mm_processor_kwargs":{"max_pixels":9},`), 1)); exact || len(blocks) == 0 {
		t.Error("exact although the processor is told otherwise")
	}
}

func TestImagesThatAreNotUnderstoodGetTheStableChain(t *testing.T) {
	e := newVisionExact(t)
	uri := pictureURI(100, 100, "")
	huge := pictureURI(3584, 3584, "") // 16,384 tokens
	for name, parts := range map[string][]any{
		"the mark in a text":   {map[string]any{"type": "text", "text": "<|image_pad|>"}, picture(uri)},
		"too many tokens":      slices.Repeat([]any{picture(huge)}, 65),
		"sound":                {picture(uri), map[string]any{"type": "input_audio", "input_audio": map[string]any{"data": "AA", "format": "wav"}}},
		"embeddings":           {map[string]any{"type": "image_embeds", "image_embeds": "AA"}},
		"a part of no type":    {map[string]any{"image_url": map[string]any{"url": uri}}},
		"a text with an image": {map[string]any{"type": "text", "text": "x", "uuid": "u", "image_url": uri}},
	} {
		body := marshal(t, map[string]any{"messages": []any{map[string]any{"role": "user", "content": parts}}})
		rd, plain := NewReader(), NewReader()
		got, exact := chainExact(t, rd, e, e.tokenizer, OpenAIChat, body, 2)
		req := readExact(t, plain, OpenAIChat, body)
		plain.Chain(req, e.tokenizer, 2)
		if want := &req.Prompts[0]; exact || got.Tokens != want.Tokens || !slices.Equal(got.Blocks, want.Blocks) {
			t.Errorf("%s: exact is %t, %d tokens, want the stable chain of %d", name, exact, got.Tokens, want.Tokens)
		}
	}
}

// Its chats with images go through a text, which is of each model's own kind.
func TestChatsWithImagesAreNotExactForSGLang(t *testing.T) {
	vision := newVisionExact(t)
	for _, more := range []string{"", `"continue_final_message":true,`} {
		e := NewExact(vision.tokenizer, loadTemplate(t, json.RawMessage("{}"), templateText(t, "Qwen3-VL-30B-A3B-Instruct-Q8_0"), chattemplate.SGLang))
		e.images = vision.images
		body := bytes.Replace(visionChat(t, pictureURI(280, 280, "a"), pictureURI(280, 280, "b")), []byte("{"), []byte("{"+more), 1)
		if p, exact := chainExact(t, NewReader(), e, e.tokenizer, OpenAIChat, body, 4); exact || len(p.Blocks) == 0 {
			t.Errorf("exact is %t, %d blocks", exact, len(p.Blocks))
		}
	}
}

func TestATokenizerWithoutTheImageTokenTakesNoImages(t *testing.T) {
	e := newTestExact(t, "chatml", "qwen3")
	p, err := chattemplate.LoadImageProcessor([]byte(`{"image_processor_type":"Gemma3ImageProcessor"}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.TakeImages(p); err == nil || !strings.Contains(err.Error(), "<image_soft_token>") {
		t.Errorf("%v", err)
	}
}

func TestACacheChangesNoChainWithImages(t *testing.T) {
	e := newVisionExact(t)
	c := chance(77)
	caches := testCaches()
	var messages []any
	for i := range 24 {
		if i%2 == 1 {
			messages = append(messages, message("assistant", strings.Repeat("word ", c.next(40))))
		} else {
			var parts []any
			for range c.next(4) {
				if c.next(2) == 0 {
					parts = append(parts, picture(pictureURI(uint32(1+c.next(400)), uint32(1+c.next(400)), fmt.Sprint(c.next(3)))))
				} else {
					parts = append(parts, map[string]any{"type": "text", "text": strings.Repeat("a b\n", c.next(30))})
				}
			}
			messages = append(messages, map[string]any{"role": "user", "content": append(parts, map[string]any{"type": "text", "text": "?"})})
		}
		sameExactChains(t, e, caches, marshal(t, map[string]any{"messages": messages}), []int{1, 3, 16, 64, 0}[i%5])
	}
}

func FuzzExactChatWithImages(f *testing.F) {
	f.Add(visionChat(f, pictureURI(30, 40, "a"), "https://x/y"))
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":"data:image\/png;base64,iVBORw0KGgoAAAANSUhEUgAAAUEAAAB7"},"<|image_pad|>"]}]}`))
	e := newVisionExact(f)
	caches := []*Cache{newTestCache(1<<20, 16), newTestCache(900, 24)}
	f.Fuzz(func(t *testing.T, body []byte) { sameExactChains(t, e, caches, body, 3) })
}
