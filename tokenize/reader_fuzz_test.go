// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

var fuzzPaths = [...]string{
	"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages",
	"/api/chat", "/api/generate", "/generate", "/generate_stream", "/completion", "/v1/rerank", "/unknown",
}

func FuzzRead(f *testing.F) {
	for _, c := range loadCases(f) {
		for i, path := range fuzzPaths {
			if path == c.Path && len(c.body) < 8<<10 {
				f.Add(uint8(i), c.body)
			}
		}
	}
	for i := range fuzzPaths {
		f.Add(uint8(i), []byte(`{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"document","source":{"type":"content","content":"x"}}]}]},[],{}],"n":2e0}`))
		f.Add(uint8(i), []byte(`{"prompt":[[1,2],"a",{"prompt_string":"b"},[3,"c"]],"input":[{"type":"reasoning","summary":["s"]}],"text":["a"],"lora_path":[null],"image_data":[["u"]]}`))
		f.Add(uint8(i), []byte(`{"model":"a","model":"\ud800b","max_tokens":1,"max_tokens":1e1,"messages":[{"role":"a","role":"b","content":"c","content":"\u00e9\ud83d\ude80"}]}`))
		f.Add(uint8(i), []byte("{\"messages\":[{\"content\":\"\xff\xc3\\n\"}],\"tools\":[{\"a\":NaN}]}"))
	}
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		path := fuzzPaths[int(which)%len(fuzzPaths)]
		before := bytes.Clone(body)
		rd := NewReader()
		req, err := rd.Read(KindOfPath(path), path, body)
		rd.Chain(req, byteEncoder{}, 4)
		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed")
		}
		if req.Choices < 1 || req.MaxOutput < -1 || req.Sequences() < 1 {
			t.Fatalf("out of range: %+v", req)
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Reason == "" || len(req.Prompts) != 0 {
				t.Fatalf("%d prompts and error %#v", len(req.Prompts), err)
			}
		} else if len(req.Prompts) == 0 {
			t.Fatal("neither a prompt nor an error")
		}
		for _, p := range req.Prompts {
			if len(p.Blocks) != p.Tokens/4 {
				t.Fatalf("%d tokens, %d blocks", p.Tokens, len(p.Blocks))
			}
		}
		compareWithEncodingJSON(t, rd, req, err, body)
	})
}

// compareWithEncodingJSON checks that both readers agree, where both take the body.
func compareWithEncodingJSON(t *testing.T, rd *Reader, req *Request, err error, body []byte) {
	t.Helper()
	var root map[string]any
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if !json.Valid(body) || dec.Decode(&root) != nil || root == nil {
		return
	}
	if model, _ := root["model"].(string); req.Model != model && depthOf(body) <= maxDepth {
		t.Fatalf("model %q, want %q", req.Model, model)
	}
	if err != nil {
		return
	}
	var want []string
	switch req.Kind {
	case OpenAIChat:
		messages, _ := root["messages"].([]any)
		count := 0
		for _, m := range messages {
			if m, ok := m.(map[string]any); ok {
				count++
				want = appendContent(want, m["content"])
			}
		}
		if req.Messages != count {
			t.Fatalf("%d messages, want %d", req.Messages, count)
		}
		checkLimit(t, req, root, "max_completion_tokens", "max_tokens")
	case OpenAICompletions:
		switch prompt := root["prompt"].(type) {
		case string:
			want = append(want, prompt)
		case []any:
			for _, p := range prompt {
				if p, ok := p.(string); ok {
					want = append(want, p)
				}
			}
		}
	default:
		return
	}
	texts, _ := textsOf(rd, req)
	for _, text := range want {
		i := slices.Index(texts, text)
		if i < 0 && text != "" {
			t.Fatalf("%q is not among %q", text, texts)
		}
		texts = texts[i+1:]
	}
}

// appendContent appends what is surely text of a chat message's content.
func appendContent(texts []string, content any) []string {
	switch content := content.(type) {
	case string:
		return append(texts, content)
	case []any:
		for _, part := range content {
			switch part := part.(type) {
			case string:
				texts = append(texts, part)
			case map[string]any:
				if text, ok := part["text"].(string); ok && part["type"] == "text" {
					texts = append(texts, text)
				}
			}
		}
	}
	return texts
}

// checkLimit checks max_tokens where it is a plain number and nothing else
// takes its place.
func checkLimit(t *testing.T, req *Request, root map[string]any, names ...string) {
	t.Helper()
	if root["nvext"] != nil {
		return
	}
	for _, name := range names {
		n, ok := root[name].(json.Number)
		if !ok {
			if root[name] == nil {
				continue
			}
			return
		}
		if v, err := n.Int64(); err == nil && v >= 0 && v < 1<<31 && !strings.HasPrefix(n.String(), "-") && req.MaxOutput != int(v) {
			t.Fatalf("max output %d, want %d", req.MaxOutput, v)
		}
		return
	}
}
