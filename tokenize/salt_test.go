// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// apply makes the changes. It fails if they are not in order or not within body.
func apply(t testing.TB, body []byte, edits []Edit) []byte {
	t.Helper()
	var out []byte
	at := 0
	for _, e := range edits {
		if e.Start < at || e.End < e.Start || e.End > len(body) {
			t.Fatalf("edits %v of %d bytes", edits, len(body))
		}
		out = append(append(out, body[at:e.Start]...), e.Text...)
		at = e.End
	}
	return append(out, body[at:]...)
}

// salted reads a body with a salter and returns what an engine would be sent.
func salted(t testing.TB, path, body string) (string, *Request) {
	t.Helper()
	rd := NewReader()
	rd.SetSalter(func(given, nested string) string { return fmt.Sprintf("<%x.%x>", given, nested) })
	req, err := rd.Read(KindOfPath(path), path, []byte(body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return string(apply(t, []byte(body), rd.Salting(nil))), req
}

func TestASaltTakesThePlaceOfAllThatAClientGave(t *testing.T) {
	const chat, generate = "/v1/chat/completions", "/generate"
	const m = `"messages":[{"role":"user","content":"hi"}]`
	for _, c := range []struct{ path, body, want, salt string }{
		{chat, `{` + m + `}`, `{` + m + `,"cache_salt":"<.>"}`, "<.>"},
		{chat, "\xef\xbb\xbf {" + m + " \n } \n", "\xef\xbb\xbf {" + m + " \n ,\"cache_salt\":\"<.>\"} \n", "<.>"},
		{chat, `{"cache_salt":"a",` + m + `}`, `{"cache_salt":"<61.>",` + m + `}`, "<61.>"},
		{chat, `{"cache_salt": null ,` + m + `}`, `{"cache_salt": "<.>" ,` + m + `}`, "<.>"},
		{chat, `{"cache_salt":"",` + m + `}`, `{"cache_salt":"<.>",` + m + `}`, "<.>"},
		{chat, `{"cache_salt":[1, "a"],` + m + `}`, `{"cache_salt":"<5b312c2261225d.>",` + m + `}`, "<5b312c2261225d.>"},
		{chat, `{"cache_salt":{"a":{}},` + m + `}`, `{"cache_salt":"<7b2261223a7b7d7d.>",` + m + `}`, "<7b2261223a7b7d7d.>"},
		{chat, `{"cache_salt":-1.5e3,` + m + `}`, `{"cache_salt":"<2d312e356533.>",` + m + `}`, "<2d312e356533.>"},
		{chat, `{"cache_salt":"a",` + m + `,"cache_s\u0061lt":"\u0062"}`, `{"cache_salt":"<62.>",` + m + `,"cache_s\u0061lt":"<62.>"}`, "<62.>"},
		{chat, `{"nvext":{"cache_salt":"a","x":1},` + m + `}`, `{"nvext":{"cache_salt":"<.61>","x":1},` + m + `,"cache_salt":"<.61>"}`, "<.61>"},
		{chat, `{"nvext":{"cache_salt":"a"},"cache_salt":"b",` + m + `}`, `{"nvext":{"cache_salt":"<62.61>"},"cache_salt":"<62.61>",` + m + `}`, "<62.61>"},
		{chat, `{"nvext":{},"x":{"cache_salt":"a"},` + m + `}`, `{"nvext":{},"x":{"cache_salt":"a"},` + m + `,"cache_salt":"<.>"}`, "<.>"},
		{chat, `{"extra_key":"e",` + m + `}`, `{"extra_key":"e",` + m + `,"cache_salt":"<.>"}`, "<.>e"},
		{"/v1/completions", `{"prompt":"a","n_predict":1}`, `{"prompt":"a","n_predict":1,"cache_salt":"<.>"}`, "<.>"},
		{"/v1/responses", `{"input":"a"}`, `{"input":"a","cache_salt":"<.>"}`, "<.>"},
		{"/v1/embeddings", `{"input":"a"}`, `{"input":"a","cache_salt":"<.>"}`, "<.>"},
		{generate, `{"text":"a"}`, `{"text":"a","extra_key":"<.>"}`, "<.>"},
		{generate, `{"text":["a","b"],"extra_key":["x","y"]}`, `{"text":["a","b"],"extra_key":"<5b2278222c2279225d.>"}`, "<5b2278222c2279225d.>"},
		{"/v1/messages", `{` + m + `,"cache_salt":"a"}`, `{` + m + `,"cache_salt":"a"}`, "a"},
		{"/api/chat", `{` + m + `}`, `{` + m + `}`, ""},
		{generate, `{"inputs":"a"}`, `{"inputs":"a"}`, ""},
	} {
		got, req := salted(t, c.path, c.body)
		if got != c.want || req.CacheSalt != c.salt {
			t.Errorf("%s became\n%s with the salt %q, want\n%s and %q", c.body, got, req.CacheSalt, c.want, c.salt)
		}
	}
}

// A prompt in a form that is not understood can be one for the engine.
func TestABodyWhosePromptIsNotReadIsSaltedAsWell(t *testing.T) {
	rd := NewReader()
	rd.SetSalter(func(string, string) string { return "s" })
	for body, want := range map[string]string{
		`{}`:                      `{"cache_salt":"s"}`,
		"{\n}":                    "{\n\"cache_salt\":\"s\"}",
		`{"prompt_embeds":"AAA"}`: `{"prompt_embeds":"AAA","cache_salt":"s"}`,
		`{"a":1}x`:                `{"a":1}x`,
		`{"a":1`:                  `{"a":1`,
		`[]`:                      `[]`,
		``:                        ``,
	} {
		if _, err := rd.Read(OpenAICompletions, "/v1/completions", []byte(body)); err == nil {
			t.Fatalf("%s has a prompt", body)
		}
		if got := string(apply(t, []byte(body), rd.Salting(nil))); got != want {
			t.Errorf("%s became %s", body, got)
		}
	}
	rd.SetSalter(nil)
	if _, err := rd.Read(OpenAIChat, "", []byte(`{"messages":[{}]}`)); err != nil || len(rd.Salting(nil)) != 0 {
		t.Errorf("without a salter: %v, %v", err, rd.Salting(nil))
	}
}

func TestBodiesOfTheFieldAreSaltedAndElseStayByteForByte(t *testing.T) {
	tried := 0
	for _, c := range loadCases(t) {
		if len(c.body) == 0 || bytes.TrimLeft(c.body, " \n")[0] != '{' || !json.Valid(c.body) {
			continue
		}
		tried++
		checkSalting(t, c.Path, c.body)
	}
	if tried < 20 {
		t.Fatalf("%d bodies", tried)
	}
}

func FuzzSalting(f *testing.F) {
	for _, c := range loadCases(f) {
		for i, path := range fuzzPaths {
			if path == c.Path && len(c.body) < 8<<10 {
				f.Add(uint8(i), c.body)
			}
		}
	}
	for i := range fuzzPaths {
		f.Add(uint8(i), []byte(`{"prompt":"a","text":"a","input":"a","messages":[{"role":"a"}],"cache_salt":"a","extra_key":"a","nvext":{"cache_salt":"a"}}`))
		f.Add(uint8(i), []byte(`{"text":"a","cache_s\u0061lt":[1,{"a":"b"}],"extra_key":["a"],"nvext":{"cache_salt":{}},"nvext":{"cache_salt":1,"cache_salt":null}} `))
		f.Add(uint8(i), []byte("\xef\xbb\xbf{\"cache_salt\":NaN,\"messages\":[{\"role\":\"a\"}],\"cache_salt\":\"\\\"\xff\\ud800\"\n}\t"))
	}
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		checkSalting(t, fuzzPaths[int(which)%len(fuzzPaths)], body)
	})
}

// checkSalting salts a body and checks that it then is what it was but for the
// salt, that a reader without a salter makes the same of it, and that no other
// salt is left in it.
func checkSalting(t *testing.T, path string, body []byte) {
	t.Helper()
	const salt = "0123456789abcdef"
	rd := NewReader()
	rd.SetSalter(func(string, string) string { return salt })
	req, err := rd.Read(KindOfPath(path), path, body)
	edits := rd.Salting(nil)
	_, member := saltMember(req.Kind)
	result := apply(t, body, edits)
	if len(edits) == 0 {
		if member != "" && err == nil {
			t.Fatalf("%s was not salted", path)
		}
		return
	}
	plain := NewReader()
	again, errAgain := plain.Read(KindOfPath(path), path, result)
	if fmt.Sprint(err) != fmt.Sprint(errAgain) || again.Kind != req.Kind {
		t.Fatalf("%v and %v", err, errAgain)
	}
	if !strings.Contains(again.CacheSalt, salt) || again.CacheSalt != req.CacheSalt {
		t.Fatalf("the salt is %q, and read again %q", req.CacheSalt, again.CacheSalt)
	}
	rd.Chain(req, byteEncoder{}, 4)
	plain.Chain(again, byteEncoder{}, 4)
	for i := range req.Prompts {
		if !reflect.DeepEqual(req.Prompts[i].Blocks, again.Prompts[i].Blocks) {
			t.Fatal("the chain is not that of what the engine gets")
		}
	}

	// Last key wins in encoding/json as in Python.
	var was, is map[string]any
	if !json.Valid(body) || json.Unmarshal(body, &was) != nil {
		return
	}
	if err := json.Unmarshal(result, &is); err != nil {
		t.Fatalf("the result is no JSON: %v", err)
	}
	if is[member] != salt {
		t.Fatalf("%s is %v", member, is[member])
	}
	was[member] = salt
	if nvext, ok := was["nvext"].(map[string]any); ok && member == "cache_salt" {
		if _, given := nvext["cache_salt"]; given {
			nvext["cache_salt"] = salt
		}
	}
	if !reflect.DeepEqual(was, is) {
		t.Fatalf("%s became %s", body, result)
	}
}
