// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// randomText holds what JSON writers spell in different ways.
func randomText(r *rand.Rand) string {
	alphabet := []rune("ab cd\n\t\"\\/<é水🚀\u0000\u2028x")
	text := make([]rune, r.IntN(30))
	for i := range text {
		text[i] = alphabet[r.IntN(len(alphabet))]
	}
	return string(text)
}

func randomMessage(r *rand.Rand, role string) map[string]any {
	m := map[string]any{"role": role, "content": randomText(r)}
	switch r.IntN(6) {
	case 0:
		m["content"] = []any{
			map[string]any{"type": "text", "text": randomText(r)},
			map[string]any{"type": "image_url", "image_url": map[string]any{"url": "https://x/" + randomText(r)}},
		}
	case 1:
		m["content"] = nil
		m["tool_calls"] = []any{map[string]any{"id": randomText(r), "type": "function",
			"function": map[string]any{"name": "f", "arguments": `{"a":"` + fmt.Sprint(r.IntN(9)) + `"}`}}}
	case 2:
		m["name"] = randomText(r)
		m["reasoning_content"] = randomText(r)
	}
	return m
}

func randomChat(r *rand.Rand, turns int) map[string]any {
	var messages []any
	for i := range turns {
		role := [...]string{"user", "assistant"}[i%2]
		if i%5 == 4 {
			role = "tool"
		}
		messages = append(messages, randomMessage(r, role))
	}
	return map[string]any{
		"model": "m" + randomText(r), "messages": messages, "max_tokens": r.IntN(1000) + 1, "stream": true,
		"cache_salt": randomText(r),
		"tools":      []any{map[string]any{"type": "function", "function": map[string]any{"name": randomText(r)}}},
		"metadata":   map[string]any{"messages": []any{1, "x", nil}},
	}
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func chainOf(t testing.TB, body []byte) []uint64 {
	t.Helper()
	rd := NewReader()
	req, err := rd.Read(OpenAIChat, "/v1/chat/completions", body)
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	rd.Chain(req, byteEncoder{}, 1)
	return slices.Clone(req.Prompts[0].Blocks)
}

func hasPrefix(chain, prefix []uint64) bool {
	return len(chain) >= len(prefix) && slices.Equal(chain[:len(prefix)], prefix)
}

func TestAGrowingConversationKeepsItsChainAsPrefix(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		chat := randomChat(r, 8)
		messages := chat["messages"].([]any)
		var last []uint64
		for n := 1; n <= len(messages); n++ {
			chat["messages"] = messages[:n]
			chain := chainOf(t, marshal(t, chat))
			if !hasPrefix(chain, last[:max(0, len(last)-startTokens)]) {
				t.Fatalf("turn %d does not begin as turn %d did", n, n-1)
			}
			// What asks for the answer is how the answer begins.
			if role := messages[n-1].(map[string]any)["role"]; role == "assistant" && !hasPrefix(chain, last) {
				t.Fatalf("turn %d does not begin with the whole of turn %d", n, n-1)
			}
			last = chain
		}
	}
}

func TestAnOpenLastMessageIsAPrefixOfItsContinuation(t *testing.T) {
	open := `{"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"The first"}]}`
	closed := `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"The first"},{"role":"user","content":"b"}]}`
	if !hasPrefix(chainOf(t, []byte(closed)), chainOf(t, []byte(open))) {
		t.Error("the open message is no prefix")
	}
}

// respelt writes a value with white space, order of members and escapes by
// chance. Order is kept below keys whose order the engine's template shows.
func respelt(r *rand.Rand, out *bytes.Buffer, v any, keepOrder bool) {
	space := func() {
		for range r.IntN(3) {
			out.WriteByte(" \t\r\n"[r.IntN(4)])
		}
	}
	space()
	defer space()
	switch v := v.(type) {
	case map[string]any:
		keys := slices.Sorted(maps.Keys(v))
		if !keepOrder {
			r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		}
		out.WriteByte('{')
		for i, k := range keys {
			if i > 0 {
				out.WriteByte(',')
				space()
			}
			respeltString(r, out, k)
			space()
			out.WriteByte(':')
			respelt(r, out, v[k], keepOrder || k == "tools")
		}
		out.WriteByte('}')
	case []any:
		out.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				out.WriteByte(',')
			}
			respelt(r, out, e, keepOrder)
		}
		out.WriteByte(']')
	case string:
		respeltString(r, out, v)
	default:
		out.Write([]byte(fmt.Sprint(jsonScalar(v))))
	}
}

func jsonScalar(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(out)
}

func respeltString(r *rand.Rand, out *bytes.Buffer, s string) {
	out.WriteByte('"')
	for _, c := range s {
		switch {
		case r.IntN(4) == 0 && c >= 0x10000:
			high, low := 0xd800+(c-0x10000)>>10, 0xdc00+(c-0x10000)&0x3ff
			fmt.Fprintf(out, `\u%04x\u%04X`, high, low)
		case r.IntN(4) == 0 && c < 0x10000:
			fmt.Fprintf(out, `\u%04x`, c)
		case c == '"' || c == '\\' || c == '/' && r.IntN(2) == 0:
			out.WriteByte('\\')
			out.WriteRune(c)
		case c == '\n':
			out.WriteString(`\n`)
		case c == '\t':
			out.WriteString(`\t`)
		case c < 0x20:
			fmt.Fprintf(out, `\u%04x`, c)
		default:
			out.WriteRune(c)
		}
	}
	out.WriteByte('"')
}

func TestSpacingOrderAndEscapesDoNotChangeTheChain(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		chat := randomChat(r, 1+r.IntN(5))
		want := identityOf(t, "/v1/chat/completions", marshal(t, chat))
		var body bytes.Buffer
		respelt(r, &body, chat, false)
		if !json.Valid(body.Bytes()) {
			t.Fatalf("the test wrote no JSON: %s", body.Bytes())
		}
		if got := identityOf(t, "/v1/chat/completions", body.Bytes()); got != want {
			t.Fatalf("another chain for the same request:\n%s\n%s", marshal(t, chat), body.Bytes())
		}
	}
}

func TestTheLastOfDuplicateKeysCounts(t *testing.T) {
	plain := `{"model":"b","max_tokens":7,"messages":[{"role":"user","content":"right"}]}`
	for _, body := range []string{
		`{"model":"a","messages":[{"role":"user","content":"wrong"},{"role":"user","content":"wrong"}],"max_tokens":9,` + plain[1:],
		`{"model":null,"max_tokens":null,"messages":null,` + plain[1:],
		`{"m\u006fdel":"a",` + plain[1:],
		`{"model":"a","max_tokens":7,"messages":[{"content":"wrong","role":"system","content":[],"role":"user","content":"right"}],"\u006dodel":"b"}`,
	} {
		if identityOf(t, "/v1/chat/completions", []byte(body)) != identityOf(t, "/v1/chat/completions", []byte(plain)) {
			t.Errorf("another chain: %s", body)
		}
		req, err := NewReader().Read(OpenAIChat, "/v1/chat/completions", []byte(body))
		if err != nil || req.Model != "b" || req.MaxOutput != 7 || req.Messages != 1 {
			t.Errorf("%s: %q, %d, %d messages, %v", body, req.Model, req.MaxOutput, req.Messages, err)
		}
	}
}

func TestStringContentAndOneTextPartAreTheSamePrompt(t *testing.T) {
	a := `{"messages":[{"role":"user","content":"hello"}]}`
	b := `{"messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}]}`
	if identityOf(t, "/v1/chat/completions", []byte(a)) != identityOf(t, "/v1/chat/completions", []byte(b)) {
		t.Error("another chain")
	}
}

func TestRolesTextsAndToolsCannotBeMistakenForEachOther(t *testing.T) {
	bodies := []string{
		`{"messages":[{"role":"user","content":"a"}]}`,
		`{"messages":[{"role":"system","content":"a"}]}`,
		`{"messages":[{"role":"user","content":""},{"role":"user","content":"a"}]}`,
		`{"messages":[{"role":"user","reasoning":"a"}]}`,
		`{"messages":[{"role":"user","refusal":"a"}]}`,
		`{"messages":[{"role":"user","content":"a"}],"add_generation_prompt":false}`,
		`{"messages":[{"role":"user","content":"a"}],"tools":["a"]}`,
		`{"messages":[{"role":"user","content":"a"}],"chat_template":"a"}`,
		`{"messages":[{"role":"user","content":"a"}],"reasoning_effort":"a"}`,
		`{"messages":[{"role":"user","content":"a"}],"cache_salt":"a"}`,
		`{"messages":[{"role":"user","content":"a"}],"lora_path":"a"}`,
		`{"messages":[{"role":"user","content":"a"}],"model":"a"}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":"a"}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"a"}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"file","file":{"file_id":"a"}}]}]}`,
	}
	seen := map[string]string{}
	for _, body := range bodies {
		id := identityOf(t, "/v1/chat/completions", []byte(body))
		if other, ok := seen[id]; ok {
			t.Errorf("one chain for %s and %s", body, other)
		}
		seen[id] = body
	}
}

func TestBytesThatAreNoTextAreReplacedBeforeEncoding(t *testing.T) {
	for raw, want := range map[string]string{
		"a\xffb":               "a\ufffdb",
		"\xe2\x82":             "\ufffd\ufffd",
		`\ud800`:               "\ufffd",
		`\udc00\ud800`:         "\ufffd\ufffd",
		`\ud83d\ude80`:         "🚀",
		`\ud83d\ud83d\ude80`:   "\ufffd🚀",
		`\ud83dx`:              "\ufffdx",
		`\ud83d\n`:             "\ufffd\n",
		`\u0000`:               "\x00",
		"\xc3\\u00a9\xa9":      "\ufffd©\ufffd",
		"\xed\xa0\x80":         "\ufffd\ufffd\ufffd",
		strings.Repeat(`é`, 9): strings.Repeat("é", 9),
	} {
		_, texts := readBody(t, "/v1/completions", `{"prompt":"`+raw+`"}`)
		if texts[0] != want || !utf8.ValidString(texts[0]) {
			t.Errorf("%q is read as %q, want %q", raw, texts[0], want)
		}
	}
}

func TestCompactJSONKeepsTheValue(t *testing.T) {
	rd := NewReader()
	for value, want := range map[string]string{
		`{ "a" : [ 1 , 2.50 ] }`:                 `{"a":[1,2.50]}`,
		`"a b\n"`:                                `"a b\n"`,
		`"\u00e9\/\u0041\u0022\u005c"`:           `"é/A\"\\"`,
		`"\u000a\u0009\u0008\u000c\u000d\u0001"`: `"\n\t\b\f\r\u0001"`,
		`"\ud83d\ude80\ud800"`:                   `"🚀` + "\ufffd" + `"`,
		"{\"k\":\"\xff\"}":                       "{\"k\":\"\ufffd\"}",
		"[\r\n\ttrue , false, null ]":            `[true,false,null]`,
	} {
		if got := rd.compact([]byte(value)); string(got) != want {
			t.Errorf("%s becomes %s, want %s", value, got, want)
		}
	}
}

func TestTokenIdsOfClientsCannotBeSyntheticOnes(t *testing.T) {
	got := appendIDs(nil, []byte("1, 4294967295,2147483648 ,-1,3.0,1e2,99999999999999999999999,7"))
	want := []uint32{1, 1<<31 - 1, 0, 1<<31 - 1, 3, 100, 0, 7}
	if !slices.Equal(got, want) {
		t.Errorf("ids %v, want %v", got, want)
	}
	for i := range uint32(1000) {
		if id := syntheticID(rand.Uint64(), i); id < 1<<31 {
			t.Fatalf("synthetic id %d is an encoder's", id)
		}
	}
}
