// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvaware/caddy-kvaware/tokenize/chattemplate"
)

const (
	exactDir     = "../testdata/exact"
	templatesDir = "../testdata/templates"
)

// exactGolden is what transformers makes of the chats; see make.py.
type exactGolden struct {
	Tiny, Real map[string]exactSet
}

type exactSet struct {
	SHA256    string
	Tokens    json.RawMessage
	Templates map[string]map[string]string // digest or "refused", by template and chat
}

var readExactGolden = sync.OnceValues(func() (g exactGolden, err error) {
	b, err := os.ReadFile(filepath.Join(exactDir, "golden.json"))
	if err != nil {
		return g, err
	}
	return g, json.Unmarshal(b, &g)
})

type exactChat struct {
	name string
	body []byte
}

// exactChats are the chats of testdata/templates as bodies of requests.
func exactChats(t testing.TB) []exactChat {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(templatesDir, "chats.json"))
	var list []struct {
		Name    string
		Request json.RawMessage
	}
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	chats := make([]exactChat, len(list))
	for i, c := range list {
		chats[i] = exactChat{c.Name, c.Request}
	}
	return chats
}

func templateText(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(templatesDir, "texts", name+".jinja"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// loadTemplate loads a template that is never too slow, however busy the machine is.
func loadTemplate(t testing.TB, tokens json.RawMessage, text string, form chattemplate.Form) *chattemplate.Template {
	t.Helper()
	tmpl, err := chattemplate.Load(tokens, text, chattemplate.Options{Form: form, MaxTime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

// newTestExact is a tokenizer of testdata/exact with a template of testdata/templates.
func newTestExact(t testing.TB, tokenizer, template string) *Exact {
	t.Helper()
	g, err := readExactGolden()
	if err != nil {
		t.Fatal(err)
	}
	tmpl := loadTemplate(t, g.Tiny[tokenizer].Tokens, templateText(t, template), chattemplate.VLLM)
	return NewExact(loadHF(t, filepath.Join(exactDir, tokenizer+".json")), tmpl)
}

// slowBlocks is the chain of ids made without anything of the package's but its root.
func slowBlocks(ids []uint32, blockSize int, h uint64) (blocks []uint64) {
	for ; len(ids) >= blockSize; ids = ids[blockSize:] {
		var b []byte
		for _, id := range ids[:blockSize] {
			b = binary.NativeEndian.AppendUint32(b, id)
		}
		h = xxh3.HashSeed(b, h)
		blocks = append(blocks, h)
	}
	return blocks
}

func checkChain(t testing.TB, p *Prompt, ids []uint32, blockSize int, root uint64) {
	t.Helper()
	if p.Tokens != len(ids) {
		t.Fatalf("%d tokens, want %d", p.Tokens, len(ids))
	}
	if want := slowBlocks(ids, blockSize, root); !slices.Equal(p.Blocks, want) {
		t.Fatalf("%d blocks are not the %d of the ids", len(p.Blocks), len(want))
	}
}

// readExact reads a body that must be readable.
func readExact(t testing.TB, rd *Reader, kind Kind, body []byte) *Request {
	t.Helper()
	req, err := rd.Read(kind, "", body)
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return req
}

func TestExactChatsHaveTheIDsThatTransformersGives(t *testing.T) {
	g, err := readExactGolden()
	if err != nil {
		t.Fatal(err)
	}
	chats := exactChats(t)
	for _, of := range []struct {
		directory string
		sets      map[string]exactSet
	}{{exactDir, g.Tiny}, {os.Getenv(realTokenizers), g.Real}} {
		if len(of.sets) == 0 {
			t.Fatal("no golden ids")
		}
		for _, name := range slices.Sorted(maps.Keys(of.sets)) {
			set := of.sets[name]
			for _, template := range slices.Sorted(maps.Keys(set.Templates)) {
				t.Run(name+"/"+template, func(t *testing.T) {
					if of.directory == "" {
						t.Skip(realTokenizers + " is not set")
					}
					h := loadHFOfSum(t, filepath.Join(of.directory, name+".json"), set.SHA256)
					e := NewExact(h, loadTemplate(t, set.Tokens, templateText(t, template), chattemplate.AsGiven))
					checkGoldenChats(t, e, chats, set.Templates[template])
				})
			}
		}
	}
}

func checkGoldenChats(t *testing.T, e *Exact, chats []exactChat, want map[string]string) {
	cached := newTestCache(1<<20, 64).Encoder(e.tokenizer)
	exact := 0
	for _, chat := range chats {
		sum := want[chat.name]
		if sum == "" {
			t.Fatalf("chat %s has no golden ids", chat.name)
		}
		body := chat.body
		if bytes.Contains(body, []byte(`"continue_final_message"`)) && !bytes.Contains(body, []byte(`"add_generation_prompt"`)) {
			// transformers' call has no default that an engine has.
			body = append(bytes.TrimSuffix(bytes.TrimSpace(slices.Clone(body)), []byte("}")), `,"add_generation_prompt":false}`...)
		}
		rd := NewReader()
		req, err := rd.Read(OpenAIChat, "", body)
		if err != nil {
			continue
		}
		ok := rd.ChainExact(context.Background(), req, e, e.tokenizer, 4)
		if !ok {
			if in, _, plain := rd.chatInput(req, e, new(exactMemory)); plain && sum != "refused" {
				_, err := e.template.Render(context.Background(), nil, in)
				t.Errorf("%s is not exact: %v", chat.name, err)
			}
			continue
		}
		in, _, _ := rd.chatInput(req, e, new(exactMemory))
		out, err := e.template.Render(context.Background(), nil, in)
		if err != nil {
			t.Fatal(err)
		}
		ids := e.tokenizer.AppendSpecial(nil, out.Text)
		d := newDigest()
		// Whatever stands for a chat that an engine refuses does no harm.
		if d.add(ids); sum != "refused" && d.String() != sum {
			t.Errorf("%s: ids hash to %s, want %s", chat.name, d, sum)
		}
		exact++
		root := rd.exactRoot(&req.Prompts[0])
		checkChain(t, &req.Prompts[0], ids, 4, root)
		for range 2 {
			if !rd.ChainExact(context.Background(), req, e, cached, 4) {
				t.Fatal("not exact with a cache")
			}
			checkChain(t, &req.Prompts[0], ids, 4, root)
		}
	}
	if exact < len(chats)/2 {
		t.Errorf("%d of %d chats are exact", exact, len(chats))
	}
	t.Logf("%d of %d chats are exact", exact, len(chats))
}
