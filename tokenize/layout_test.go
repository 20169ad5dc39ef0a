// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/tokenize/chattemplate"
)

// layouts gives the layout of each prompt of a request, and checks it against
// the chains.
func layouts(t testing.TB, rd *Reader, req *Request, e *Exact, enc Encoder) (all []Layout) {
	t.Helper()
	rd.ChainExact(context.Background(), req, e, enc, 4)
	for i := range req.Prompts {
		p := &req.Prompts[i]
		l, ok := rd.Layout(context.Background(), req, i, e, enc)
		if !ok {
			t.Fatal("no layout of what was chained")
		}
		root := p.root
		if p.own {
			root = rd.exactRoot(p)
		}
		checkChain(t, p, l.IDs, 4, root)
		next := -1
		for _, m := range l.Messages {
			if m.Start < 0 || m.Tokens < 0 || next >= 0 && m.Start != next {
				t.Fatalf("messages do not follow each other: %+v", l.Messages)
			}
			next = m.Start + m.Tokens
		}
		if next >= 0 && next != len(l.IDs) {
			t.Fatalf("the last message ends at %d of %d", next, len(l.IDs))
		}
		l.IDs = slices.Clone(l.IDs)
		all = append(all, l)
	}
	return all
}

// upTo is a body with its first n messages only, which ask for no answer.
func upTo(t testing.TB, body []byte, n int) []byte {
	t.Helper()
	var members map[string]json.RawMessage
	var messages []json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(members["messages"], &messages); err != nil {
		t.Fatal(err)
	}
	members["messages"] = marshal(t, messages[:n])
	members["add_generation_prompt"] = []byte("false")
	delete(members, "continue_final_message")
	return marshal(t, members)
}

func TestEachMessageBeginsBehindTheTokensOfThoseBeforeIt(t *testing.T) {
	chats, checked := 0, 0
	for _, c := range loadCases(t) {
		rd := NewReader()
		kind := KindOfPath(c.Path)
		req, err := rd.Read(kind, c.Path, c.body)
		if err != nil {
			continue
		}
		all := layouts(t, rd, req, nil, byteEncoder{})
		if req.Kind != OpenAIChat && req.Kind != OllamaChat || req.Prompts[0].keepLast > 0 {
			continue
		}
		chats++
		l := all[0]
		if len(l.Messages) != req.Messages {
			t.Errorf("%s: %d messages begin, of %d", c.name, len(l.Messages), req.Messages)
			continue
		}
		for i, m := range l.Messages {
			if i == 0 {
				continue
			}
			shorter := NewReader()
			before, err := shorter.Read(req.Kind, c.Path, upTo(t, c.body, i))
			if err != nil {
				t.Fatal(err)
			}
			if head := layouts(t, shorter, before, nil, byteEncoder{})[0].IDs; !slices.Equal(head, l.IDs[:m.Start]) {
				t.Errorf("%s: message %d begins at token %d, those before it have %d", c.name, i, m.Start, len(head))
			}
			checked++
		}
	}
	if chats < 10 || checked < 8 {
		t.Errorf("%d messages of %d chats were compared", checked, chats)
	}
}

func TestRolesAreShownByTheirWellKnownWordsOnly(t *testing.T) {
	for _, c := range []struct {
		kind Kind
		body string
		want string
	}{
		{OpenAIChat, `{"tools":[{"a":1}],"documents":["d"],"messages":[{"role":"developer","content":"a"},{"role":"my secret","content":"b"},{"role":"function","content":"d"},{"content":"c"}]}`, "developer other function other"},
		{OpenAIChat, `{"messages":[{"role":"\u0075ser","content":"a"},{"role":"assistant","content":""}],"continue_final_message":true,"add_generation_prompt":false}`, "user"},
		{AnthropicMessages, `{"system":"s","messages":[{"role":"user","content":[{"type":"tool_result","content":"r"},{"type":"text","text":"q"}]}]}`, "system user tool"},
		{OpenAIResponses, `{"instructions":"i","input":"q"}`, "system user"},
		{OpenAIResponses, `{"input":[{"role":"user","content":"q"},{"type":"function_call","name":"f","arguments":"{}"},{"type":"function_call_output","output":"o"}]}`, "user assistant tool"},
		{OllamaGenerate, `{"system":"s","prompt":"p"}`, "system user"},
		{OpenAICompletions, `{"prompt":"p"}`, ""},
		{SGLangGenerate, `{"text":"p"}`, ""},
	} {
		rd := NewReader()
		req := readExact(t, rd, c.kind, []byte(c.body))
		var roles []string
		for _, m := range layouts(t, rd, req, nil, byteEncoder{})[0].Messages {
			roles = append(roles, m.Role)
		}
		if got := strings.Join(roles, " "); got != c.want {
			t.Errorf("%s has messages of %s, want %s", c.body, got, c.want)
		}
	}
}

func TestMessagesThatAreCutOffHaveNoTokens(t *testing.T) {
	rd := NewReader()
	req := readExact(t, rd, OpenAIChat, []byte(`{"messages":[{"role":"user","content":"aaaaaaaaaa"},{"role":"user","content":"bbbbbbbbbb"}],"truncate_prompt_tokens":20}`))
	l := layouts(t, rd, req, nil, byteEncoder{})[0]
	// The second message has 15 tokens, what asks for the answer 3.
	want := []Message{{"user", 0, 2}, {"user", 2, 18}}
	if len(l.IDs) != 20 || !slices.Equal(l.Messages, want) {
		t.Errorf("%d tokens with %+v, want %+v", len(l.IDs), l.Messages, want)
	}
}

// exactPairs are the tokenizers of testdata/exact with the templates that a
// built-in renderer stands for, and which they are compared with.
func exactPairs(t testing.TB) (pairs [][2]string) {
	t.Helper()
	g, err := readExactGolden()
	if err != nil {
		t.Fatal(err)
	}
	for name, set := range g.Tiny {
		for template := range set.Templates {
			pairs = append(pairs, [2]string{name, template})
		}
	}
	slices.SortFunc(pairs, func(a, b [2]string) int { return strings.Compare(a[0]+a[1], b[0]+b[1]) })
	return pairs
}

// The place in the text is the renderer's; that the tokens before and from it on
// are those of the two parts is what a place between two tokens means.
func TestAMessageOfAnExactPromptBeginsWhereItsTextDoes(t *testing.T) {
	clean, inside := 0, 0
	for _, pair := range exactPairs(t) {
		e := newTestExact(t, pair[0], pair[1])
		for _, chat := range exactChats(t) {
			rd := NewReader()
			req, err := rd.Read(OpenAIChat, "", chat.body)
			if err != nil || !rd.ChainExact(context.Background(), req, e, e.tokenizer, 4) {
				continue
			}
			l := layouts(t, rd, req, e, e.tokenizer)[0]
			in, _, _ := rd.chatInput(req, e, new(exactMemory))
			out, err := e.template.Render(context.Background(), nil, in)
			if err != nil {
				t.Fatal(err)
			}
			if !out.Builtin {
				if l.Messages != nil {
					t.Errorf("%v %s: messages of a rendering that tells none", pair, chat.name)
				}
				continue
			}
			if len(l.Messages) != len(out.Starts) {
				t.Fatalf("%v %s: %d messages begin, of %d", pair, chat.name, len(l.Messages), len(out.Starts))
			}
			for i, m := range l.Messages {
				before := e.tokenizer.AppendSpecial(nil, out.Text[:out.Starts[i]])
				after := e.tokenizer.AppendSpecial(nil, out.Text[out.Starts[i]:])
				if len(before)+len(after) == len(l.IDs) && slices.Equal(append(slices.Clone(before), after...), l.IDs) {
					clean++
					if m.Start != len(before) {
						t.Errorf("%v %s: message %d begins at %d, not %d", pair, chat.name, i, m.Start, len(before))
					}
					continue
				}
				inside++
				if m.Start > len(before) || !slices.Equal(l.IDs[:m.Start], before[:m.Start]) {
					t.Errorf("%v %s: message %d begins at %d, behind what depends on it", pair, chat.name, i, m.Start)
				}
			}
		}
	}
	t.Logf("%d messages begin between two tokens, %d inside one", clean, inside)
	if clean < 50 {
		t.Errorf("%d messages begin between two tokens", clean)
	}
}

func TestLayoutOfManyMessagesIsLinear(t *testing.T) {
	const messages = 5_000
	chat := []byte(`{"messages":[` + strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"ab"},{"role":"assistant","content":"cd"},`, messages/2), ",") + `]}`)
	for _, pair := range exactPairs(t) {
		e := newTestExact(t, pair[0], pair[1])
		rd := NewReader()
		req := readExact(t, rd, OpenAIChat, chat)
		l := layouts(t, rd, req, e, e.tokenizer)[0]
		if n := len(l.Messages); n != 0 && n != messages {
			t.Errorf("%v: %d of %d messages begin", pair, n, messages)
		}
	}
}

func TestExactCompletionsAreLaidOutAsTheyAreChained(t *testing.T) {
	e := newTestExact(t, "metaspace", exactPairs(t)[0][1])
	for _, body := range []string{
		`{"prompt":"a b c"}`, `{"prompt":["a b","c d"]}`, `{"prompt":[1,2,3]}`, `{"prompt":[[1,2],[3,4,5]]}`,
		`{"prompt":"a b c","add_special_tokens":false}`, `{"prompt":"a b c","suffix":"d"}`, `{"prompt":"a b c d","truncate_prompt_tokens":2}`,
	} {
		rd := NewReader()
		layouts(t, rd, readExact(t, rd, OpenAICompletions, []byte(body)), e, e.tokenizer)
	}
}

// Those of images are laid out with as many ids as the images have, also where an
// image's size is a guess; those of SGLang's with the answer that is to go on.
func TestChatsWithImagesAndSGLangsAreLaidOutAsTheyAreChained(t *testing.T) {
	vision := newVisionExact(t)
	sglang := NewExact(vision.tokenizer, loadTemplate(t, json.RawMessage("{}"), templateText(t, "qwen3"), chattemplate.SGLang))
	continued := `{"continue_final_message":true,"messages":[{"role":"user","content":"Which?"},{"role":"assistant","content":"That one"}]}`
	for name, c := range map[string]struct {
		e                   *Exact
		body                []byte
		synthetic, messages int
	}{
		"known":   {vision, visionChat(t, pictureURI(280, 280, "a"), pictureURI(56, 56, "b")), 104, 0},
		"guessed": {vision, visionChat(t, pictureURI(280, 280, "a"), "https://x/y.png"), -1, 0},
		"sglang":  {sglang, []byte(continued), 0, 2},
	} {
		rd := NewReader()
		req := readExact(t, rd, OpenAIChat, c.body)
		l := layouts(t, rd, req, c.e, c.e.tokenizer)[0]
		synthetic := 0
		for _, id := range l.IDs {
			synthetic += int(id >> 31)
		}
		if !req.Prompts[0].own || len(l.Messages) != c.messages || synthetic != c.synthetic && c.synthetic >= 0 {
			t.Errorf("%s: in the engine's way: %t, %d ids of no text, messages %+v", name, req.Prompts[0].own, synthetic, l.Messages)
		}
		if c.messages == 2 && l.Messages[1].Tokens == 0 {
			t.Errorf("%s: nothing goes on: %+v", name, l.Messages)
		}
	}
	for _, body := range []string{`{"prompt":"a b c"}`, `{"prompt":"a b c","add_special_tokens":false}`, `{"prompt":[1,2]}`} {
		for _, form := range []chattemplate.Form{chattemplate.VLLM, chattemplate.SGLang} {
			e := NewExact(loadHF(t, exactDir+"/metaspace.json"), loadTemplate(t, json.RawMessage("{}"), templateText(t, "qwen3"), form))
			rd := NewReader()
			layouts(t, rd, readExact(t, rd, OpenAICompletions, []byte(body)), e, e.tokenizer)
		}
	}
}

func TestPlacesMoveByWhatIsPutInBeforeThem(t *testing.T) {
	text, places := []byte("a<i>b<i><i>c"), []int{0, 1, 1, 4, 5, 5, 8, 11, 12}
	moveStarts(places, text, []byte("<i>"), 5)
	if want := []int{0, 1, 1, 6, 7, 7, 12, 17, 18}; !slices.Equal(places, want) {
		t.Errorf("%v, want %v", places, want)
	}
	rd, starts := NewReader(), []int{0, 1, 2, 2, 4, 5, 6}
	rd.ids = []uint32{1, 9, 2, 9, 9, 3}
	rd.moveBehindImages(starts, 9, []exactImage{{tokens: 3}, {tokens: 1}, {tokens: 0}})
	if want := []int{0, 1, 4, 4, 6, 6, 7}; !slices.Equal(starts, want) {
		t.Errorf("%v, want %v", starts, want)
	}
}

func FuzzLayoutIsWhatWasChained(f *testing.F) {
	for _, c := range loadCases(f) {
		if len(c.body) < 1<<14 {
			f.Add(c.body, c.Path)
		}
	}
	for _, chat := range exactChats(f) {
		f.Add(chat.body, "/v1/chat/completions")
	}
	f.Add(visionChat(f, pictureURI(30, 40, "a"), "https://x/y"), "/v1/chat/completions")
	e, vision := newTestExact(f, "chatml", "qwen3"), newVisionExact(f)
	sglang := NewExact(vision.tokenizer, loadTemplate(f, json.RawMessage("{}"), templateText(f, "qwen3"), chattemplate.SGLang))
	f.Fuzz(func(t *testing.T, body []byte, path string) {
		rd := NewReader()
		req, err := rd.Read(KindOfPath(path), path, bytes.Clone(body))
		if err != nil || len(req.Prompts) > 100 {
			return
		}
		layouts(t, rd, req, nil, byteEncoder{})
		for _, e := range []*Exact{e, vision, sglang} {
			layouts(t, rd, req, e, e.tokenizer)
		}
	})
}
