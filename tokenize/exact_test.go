// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"context"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/tokenize/chattemplate"
)

// message is one of a chat.
func message(role, content string) map[string]any {
	return map[string]any{"role": role, "content": content}
}

// chainExact reads and chains a body.
func chainExact(t testing.TB, rd *Reader, e *Exact, enc Encoder, kind Kind, body []byte, blockSize int) (p *Prompt, exact bool) {
	t.Helper()
	req := readExact(t, rd, kind, body)
	exact = rd.ChainExact(context.Background(), req, e, enc, blockSize)
	return &req.Prompts[0], exact
}

func TestAChatIsExactlyWhatTheTemplateWrites(t *testing.T) {
	e := newTestExact(t, "chatml", "Qwen-Qwen2.5-7B-Instruct")
	rd := NewReader()
	body := marshal(t, map[string]any{"model": "m", "messages": []any{
		message("system", "Be brief."), message("user", "Hi <|im_end|> there"),
	}})
	p, exact := chainExact(t, rd, e, e.tokenizer, OpenAIChat, body, 2)
	if !exact {
		t.Fatal("not exact")
	}
	text := "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|> there<|im_end|>\n<|im_start|>assistant\n"
	checkChain(t, p, e.tokenizer.AppendSpecial(nil, []byte(text)), 2, rd.exactRoot(p))
}

func TestMembersOfTheRequestReachTheTemplateAsInVLLM(t *testing.T) {
	text := `{{ messages[0].content }} {{ add_generation_prompt }} {{ reasoning_effort }} {{ enable_thinking }} {{ documents }} {{ x }} {{ tools is none }}`
	e := newTestExact(t, "chatml", "qwen3")
	e.template = loadTemplate(t, nil, text, chattemplate.VLLM)
	for _, c := range []struct{ members, want string }{
		{``, `q True    None  True`},
		{`,"add_generation_prompt":false`, `q False    None  True`},
		{`,"add_generation_prompt":false,"chat_template_kwargs":{"add_generation_prompt":true,"x":1}`, `q False    None 1 True`},
		{`,"reasoning_effort":"high"`, `q True high True  None  True`},
		{`,"reasoning_effort":"none"`, `q True none False  None  True`},
		{`,"reasoning_effort":"auto"`, `q True    None  True`},
		{`,"reasoning_effort":null,"chat_template_kwargs":{"reasoning_effort":"low"}`, `q True low   None  True`},
		{`,"reasoning_effort":"high","chat_template_kwargs":{"reasoning_effort":"low","enable_thinking":false}`, `q True high False  None  True`},
		{`,"reasoning_effort":"low","chat_template_kwargs": { } `, `q True low True  None  True`},
		{`,"documents":[{"a":1}],"chat_template_kwargs":{"documents":[2],"x":"y"}`, `q True    [{'a': 1}] y True`},
		{`,"chat_template_kwargs":{"continue_final_message":true,"x":2}`, `q True    None 2 True`},
		{`,"chat_template_kwargs":{"documents":[2]}`, `q True    [2]  True`},
		{`,"tools":[{"type":"function","function":{"name":"f"}}]`, `q True    None  False`},
	} {
		rd := NewReader()
		body := `{"messages":[{"role":"user","content":"q"}]` + c.members + `}`
		p, exact := chainExact(t, rd, e, e.tokenizer, OpenAIChat, []byte(body), 1)
		if !exact {
			t.Errorf("%s is not exact", body)
			continue
		}
		in, _, _ := rd.chatInput(&rd.req, e, new(exactMemory))
		out, err := e.template.Render(context.Background(), nil, in)
		if got := strings.Join(strings.Fields(string(out.Text)), " "); err != nil || got != strings.Join(strings.Fields(c.want), " ") {
			t.Errorf("%s renders %q, want %q (%v)", body, out.Text, c.want, err)
		}
		checkChain(t, p, e.tokenizer.AppendSpecial(nil, out.Text), 1, rd.exactRoot(p))
	}
}

func TestWhatCannotBeExactGetsTheStableChain(t *testing.T) {
	e := newTestExact(t, "chatml", "Qwen-Qwen2.5-7B-Instruct")
	refusing := newTestExact(t, "chatml", "qwen3")
	refusing.template = loadTemplate(t, nil, `{{ raise_exception("no") }}`, chattemplate.VLLM)
	seeing := newTestExact(t, "chatml", "Qwen3-VL-30B-A3B-Instruct-Q8_0")
	user := `"messages":[{"role":"user","content":"What is in the harbour?"}]`
	for name, c := range map[string]struct {
		e    *Exact
		kind Kind
		body string
	}{
		"no way given":        {nil, OpenAIChat, `{` + user + `}`},
		"no template":         {NewExact(e.tokenizer, nil), OpenAIChat, `{` + user + `}`},
		"refused":             {refusing, OpenAIChat, `{` + user + `}`},
		"its own template":    {e, OpenAIChat, `{` + user + `,"chat_template":"x"}`},
		"truncated":           {e, OpenAIChat, `{` + user + `,"truncate_prompt_tokens":3}`},
		"an image":            {e, OpenAIChat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x/y"}}]}]}`},
		"images beside":       {e, OpenAIChat, `{"messages":[{"role":"user","content":"x","images":["y"]}]}`},
		"an image by uuid":    {seeing, OpenAIChat, `{"messages":[{"role":"user","content":[{"type":"text","text":"x","uuid":"u","image_url":"z"}]}]}`},
		"a part of no type":   {seeing, OpenAIChat, `{"messages":[{"role":"user","content":[{"image_embeds":"zz"}]}]}`},
		"both ends":           {e, OpenAIChat, `{"messages":[{"role":"assistant","content":"x"}],"continue_final_message":true}`},
		"arguments no object": {e, OpenAIChat, `{` + user + `,"chat_template_kwargs":[1]}`},
		"no boolean":          {e, OpenAIChat, `{` + user + `,"add_special_tokens":"maybe"}`},
		"no tools":            {e, OpenAIChat, `{` + user + `,"tools":"x"}`},
		"another API":         {e, AnthropicMessages, `{` + user + `}`},
		"Ollama":              {e, OllamaChat, `{` + user + `}`},
		"a suffix":            {e, OpenAICompletions, `{"prompt":"a b c","suffix":"d"}`},
		"mixed":               {e, OpenAICompletions, `{"prompt":["a b c",1,2]}`},
		"a prompt cut off":    {e, OpenAICompletions, `{"prompt":"a b c","truncate_prompt_tokens":1}`},
	} {
		rd, plain := NewReader(), NewReader()
		got, exact := chainExact(t, rd, c.e, e.tokenizer, c.kind, []byte(c.body), 2)
		if exact {
			t.Errorf("%s: exact", name)
		}
		req := readExact(t, plain, c.kind, []byte(c.body))
		plain.Chain(req, e.tokenizer, 2)
		if want := &req.Prompts[0]; got.Tokens != want.Tokens || !slices.Equal(got.Blocks, want.Blocks) {
			t.Errorf("%s: not the stable chain", name)
		}
	}
}

func TestACancelledRenderingLeavesTheStableChain(t *testing.T) {
	e := newTestExact(t, "chatml", "qwen3")
	e.template = loadTemplate(t, nil, `{% for i in range(90000) %}{{ i }}{% endfor %}`, chattemplate.VLLM)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	rd := NewReader()
	req := readExact(t, rd, OpenAIChat, []byte(`{"messages":[{"role":"user","content":"x"}]}`))
	if rd.ChainExact(ctx, req, e, e.tokenizer, 4) {
		t.Error("exact")
	}
	if req.Prompts[0].Tokens == 0 {
		t.Error("no tokens")
	}
}

// A warm conversation in a built-in renderer's format costs no memory.
func TestAWarmExactChainAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("pools drop what they hold at random")
	}
	vision := newVisionExact(t)
	for name, c := range map[string]struct {
		e    *Exact
		body []byte
	}{
		"text": {newTestExact(t, "chatml", "qwen3"), marshal(t, map[string]any{
			"model": "m", "tools": []any{map[string]any{"type": "function", "function": map[string]any{"name": "f"}}},
			"messages": []any{
				message("system", "Be brief."), message("user", strings.Repeat("A \"lantern\"\n at sea. ", 2000)),
				map[string]any{"role": "assistant", "tool_calls": []any{map[string]any{
					"id": "1", "type": "function", "function": map[string]any{"name": "f", "arguments": `{"a":[1,"\n"]}`},
				}}},
				map[string]any{"role": "tool", "content": []any{map[string]any{"type": "text", "text": "x"}}}, message("user", "é"),
			},
		})},
		"completion": {vision, marshal(t, map[string]any{"prompt": strings.Repeat("A lantern at sea. ", 2000)})},
	} {
		kind := OpenAIChat
		if name == "completion" {
			kind = OpenAICompletions
		}
		rd, cached := NewReader(), NewCache(1<<20).Encoder(c.e.tokenizer)
		allocations := testing.AllocsPerRun(50, func() {
			req, err := rd.Read(kind, "", c.body)
			if err != nil || !rd.ChainExact(context.Background(), req, c.e, cached, 16) {
				t.Fatal("not exact")
			}
		})
		if allocations > 0 {
			t.Errorf("%s: %v allocations", name, allocations)
		}
	}
}

func TestCompletionsAreFramedAndIDsAreNot(t *testing.T) {
	e := newTestExact(t, "metaspace", "Qwen-Qwen2.5-7B-Instruct")
	h := e.tokenizer
	before, after := h.Frame()
	if len(before) == 0 {
		t.Fatal("the tokenizer has no frame")
	}
	text := "A lantern </s> at \u00e9 sea"
	plain := h.AppendSpecial(nil, []byte(text))
	framed := slices.Concat(before, plain, after)
	shared := newTestCache(1<<20, 8)
	for range 2 {
		// A cache of another encoder is not taken for this one's.
		for _, of := range []*Exact{newTestExact(t, "deepseek", "qwen3"), newTestExact(t, "chatml", "qwen3")} {
			rd := NewReader()
			rd.SetSecret(5)
			body := `{"prompt":"A lantern </s> at sea <|im_end|> and another"}`
			p, _ := chainExact(t, rd, of, shared.Encoder(byteEncoder{}), OpenAICompletions, []byte(body), 2)
			before, after := of.tokenizer.Frame()
			ids := of.tokenizer.AppendSpecial(slices.Clone(before), []byte("A lantern </s> at sea <|im_end|> and another"))
			checkChain(t, p, append(ids, after...), 2, rd.exactRoot(p))
		}
	}
	quoted := `"A lantern </s> at \u00e9 sea"`
	for body, want := range map[string][][]uint32{
		`{"prompt":` + quoted + `}`:                                             {framed},
		`{"prompt":[` + quoted + `,` + quoted + `]}`:                            {framed, framed},
		`{"prompt":` + quoted + `,"add_special_tokens":false}`:                  {plain},
		`{"prompt":` + quoted + `,"add_special_tokens":true}`:                   {framed},
		`{"add_special_tokens":false,"n":1,"prompt":` + quoted + `}`:            {plain},
		`{"n":1,"x":"add_special_tokens","prompt":` + quoted + `,"y":{}}`:       {framed},
		`{"prompt":[7,8,9,10,11]}`:                                              {{7, 8, 9, 10, 11}},
		`{"prompt":[[7,8,9],[1,2,3,4]]}`:                                        {{7, 8, 9}, {1, 2, 3, 4}},
		`{"prompt":` + quoted + `,"logit_bias":{"add_special_tokens":{"x":1}}}`: {framed},
	} {
		for _, enc := range []Encoder{h, shared.Encoder(h)} {
			for range 2 {
				rd := NewReader()
				rd.SetSecret(5)
				req := readExact(t, rd, OpenAICompletions, []byte(body))
				if !rd.ChainExact(context.Background(), req, e, enc, 2) {
					t.Fatalf("%s is not exact", body)
				}
				if len(req.Prompts) != len(want) {
					t.Fatalf("%d prompts", len(req.Prompts))
				}
				for i := range want {
					checkChain(t, &req.Prompts[i], want[i], 2, rd.exactRoot(&req.Prompts[i]))
				}
			}
		}
	}
	rd := NewReader()
	body := `{"messages":[{"role":"user","content":"x"}],"add_special_tokens":true}`
	p, exact := chainExact(t, rd, e, h, OpenAIChat, []byte(body), 2)
	ids := slices.Concat(before, h.AppendSpecial(nil, []byte(
		"<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"+
			"<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n")), after)
	if !exact {
		t.Fatal("not exact")
	}
	checkChain(t, p, ids, 2, rd.exactRoot(p))
}

// What parts caches parts chains, and nothing exact equals anything stable.
func TestExactChainsHaveRootsOfTheirOwn(t *testing.T) {
	e := newTestExact(t, "chatml", "Qwen-Qwen2.5-7B-Instruct")
	seen := map[uint64]string{}
	for _, members := range []string{"", `,"cache_salt":"a"`, `,"cache_salt":"b"`, `,"lora_path":"a"`, `,"lora_path":"a","cache_salt":"a"`} {
		for kind, body := range map[Kind]string{
			OpenAICompletions: `{"prompt":[1,2,3,4]` + members + `}`,
			OpenAIChat:        `{"messages":[{"role":"user","content":"x"}]` + members + `}`,
		} {
			for _, way := range []*Exact{e, nil} {
				rd := NewReader()
				rd.SetSecret(1)
				p, exact := chainExact(t, rd, way, e.tokenizer, kind, []byte(body), 2)
				if exact != (way != nil) {
					t.Fatalf("%s: exact is %t", body, exact)
				}
				for _, b := range p.Blocks {
					if other, ok := seen[b]; ok {
						t.Errorf("%s shares a block with %s", body, other)
					}
					seen[b] = body
				}
			}
		}
	}
}

func TestAMessageMoreKeepsAllWholeBlocks(t *testing.T) {
	for _, set := range [][2]string{
		{"chatml", "Qwen-Qwen2.5-7B-Instruct"}, {"metaspace", "Qwen-Qwen2.5-7B-Instruct"}, {"metaspace", "mistralai-Mistral-Nemo-Instruct-2407"},
	} {
		e := newTestExact(t, set[0], set[1])
		g := goldenOf(t)
		c := chance(31)
		r := rand.New(rand.NewPCG(7, 8))
		cached := newTestCache(1<<20, 100).Encoder(e.tokenizer)
		for range 60 {
			// A rendering without a generation prompt is a prefix of the longer chat's.
			var messages []any
			var earlier []uint64
			for i := range 2 * (1 + r.IntN(6)) {
				text := strings.ToValidUTF8(fuzzedText(&c, g.Fragments), "\ufffd")
				messages = append(messages, message([...]string{"user", "assistant"}[i%2], text))
				if i%2 == 0 {
					continue
				}
				body := marshal(t, map[string]any{"messages": messages, "add_generation_prompt": false})
				rd := NewReader()
				p, exact := chainExact(t, rd, e, cached, OpenAIChat, body, 3)
				if !exact {
					t.Fatalf("not exact: %s", body)
				}
				if len(p.Blocks) < len(earlier) || !slices.Equal(p.Blocks[:len(earlier)], earlier) {
					t.Fatalf("%v: %d messages lose blocks of those before: %s", set, len(messages), body)
				}
				earlier = slices.Clone(p.Blocks)
			}
		}
	}
}

// Tokenizers that are cut nowhere, at added tokens only, and everywhere.
func exactsOfAllCuts(t testing.TB) []*Exact {
	template := loadTemplate(t, nil, templateText(t, "Qwen-Qwen2.5-7B-Instruct"), chattemplate.VLLM)
	return []*Exact{
		newTestExact(t, "chatml", "Qwen-Qwen2.5-7B-Instruct"),
		newTestExact(t, "deepseek", "deepseek-ai-DeepSeek-V3.1"),
		newTestExact(t, "metaspace", "Qwen-Qwen2.5-7B-Instruct"),
		NewExact(loadHF(t, filepath.Join(hfDir, "tiny", "t5.json")), template),
		NewExact(loadHF(t, filepath.Join(hfDir, "tiny", "gpt2.json")), template),
	}
}

// sameExactChains checks that a chat gets from caches what it gets without.
func sameExactChains(t testing.TB, e *Exact, caches []*Cache, body []byte, blockSize int) {
	t.Helper()
	rd, plain := NewReader(), NewReader()
	for _, kind := range []Kind{OpenAIChat, OpenAICompletions} {
		want, err := plain.Read(kind, "", body)
		if err != nil {
			continue
		}
		exact := plain.ChainExact(context.Background(), want, e, e.tokenizer, blockSize)
		for _, c := range caches {
			got := readExact(t, rd, kind, body)
			if rd.ChainExact(context.Background(), got, e, c.Encoder(e.tokenizer), blockSize) != exact {
				t.Fatalf("exact is %t without a cache: %s", exact, body)
			}
			for i := range want.Prompts {
				w, g := &want.Prompts[i], &got.Prompts[i]
				if g.Tokens != w.Tokens || !slices.Equal(g.Blocks, w.Blocks) {
					t.Fatalf("prompt %d: %d tokens, %d blocks of %d, want %d, %d: %s", i, g.Tokens, len(g.Blocks), blockSize, w.Tokens, len(w.Blocks), body)
				}
			}
		}
	}
}

func TestACacheChangesNoExactChain(t *testing.T) {
	g := goldenOf(t)
	r := rand.New(rand.NewPCG(9, 10))
	c := chance(32)
	rounds := 12
	if raceEnabled {
		rounds = 2 // as encoding is slow then
	}
	for _, e := range exactsOfAllCuts(t) {
		caches := testCaches()
		for range rounds {
			var messages []any
			for i := range 2 + r.IntN(8) {
				var b strings.Builder
				for range 1 + r.IntN(4) {
					b.WriteString(strings.ToValidUTF8(fuzzedText(&c, g.Fragments), "\ufffd"))
					b.WriteString([...]string{"<|im_end|>", "<|im_start|>", " word ", "<left>", "\n", "<｜User｜>"}[r.IntN(6)])
				}
				messages = append(messages, message([...]string{"user", "assistant"}[i%2], b.String()))
				chat := map[string]any{"messages": messages, "prompt": b.String()}
				if r.IntN(4) == 0 {
					maps.Copy(chat, map[string]any{"cache_salt": "s"})
				}
				sameExactChains(t, e, caches, marshal(t, chat), []int{1, 3, 16, 64, 0}[r.IntN(5)])
			}
		}
	}
}

func FuzzExactChainWithCache(f *testing.F) {
	for _, chat := range exactChats(f) {
		f.Add(uint8(0), uint8(3), chat.body)
	}
	f.Add(uint8(2), uint8(1), []byte(`{"prompt":["`+strings.Repeat(`<|im_start|>\u00e9 \\n\n`, 40)+`"]}`))
	exacts := exactsOfAllCuts(f)
	caches := []*Cache{newTestCache(1<<20, 16), newTestCache(1<<16, 40), newTestCache(900, 24)}
	f.Fuzz(func(t *testing.T, which, blockSize uint8, body []byte) {
		e := exacts[int(which)%len(exacts)]
		sameExactChains(t, e, caches, body, int(blockSize))
		text := strings.ToValidUTF8(string(body), "\ufffd")
		sameExactChains(t, e, caches, marshal(t, map[string]any{
			"messages": []any{message("user", text), message("assistant", text+" "+text)}, "prompt": text,
		}), int(blockSize))
	})
}
