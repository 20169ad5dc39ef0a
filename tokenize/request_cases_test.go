// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const casesDir = "../testdata/requests"

// requestCase is an expect file of testdata/requests, as far as reading goes.
type requestCase struct {
	File             string            `json:"file"`
	Path             string            `json:"path"`
	Headers          map[string]string `json:"headers"`
	Kind             string            `json:"kind"`
	TokenBearing     bool              `json:"token_bearing"`
	Model            *string           `json:"model"`
	Messages         *int              `json:"messages"`
	Prompts          int               `json:"prompts"`
	Sequences        int               `json:"sequences"`
	PromptText       []string          `json:"prompt_text"`
	PromptTokenIDs   [][]uint32        `json:"prompt_token_ids"`
	AlsoInPrompt     []string          `json:"also_in_prompt"`
	WholePromptKnown bool              `json:"whole_prompt_known"`
	MaxOutput        *int              `json:"max_output"`
	Stream           bool              `json:"stream"`
	IncludeUsage     *bool             `json:"include_usage"`
	CacheSalt        *string           `json:"cache_salt"`
	LoRA             *string           `json:"lora"`
	OtherCacheKeys   map[string]any    `json:"other_cache_keys"`
	Images           int               `json:"images"`
	Audio            int               `json:"audio"`
	Video            int               `json:"video"`
	Files            int               `json:"files"`
	Tools            int               `json:"tools"`
	Must             []string          `json:"must"`
	ChangesChain     []string          `json:"changes_chain"`
	MustNotChange    []string          `json:"must_not_change_chain"`
	SameChainAs      string            `json:"same_chain_as"`
	DifferentFrom    string            `json:"different_chain_from"`
	Accept           map[string]any    `json:"accept"`

	name string
	body []byte
}

// byteEncoder gives an id to each byte: every byte of a prompt shows in its ids.
type byteEncoder struct{}

func (byteEncoder) Append(dst []uint32, text []byte) []uint32 {
	for _, c := range text {
		dst = append(dst, uint32(c)+1)
	}
	return dst
}

func loadCases(t testing.TB) []*requestCase {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(casesDir, "*.expect.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases in %s: %v", casesDir, err)
	}
	var cases []*requestCase
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c := &requestCase{name: strings.TrimSuffix(filepath.Base(file), ".expect.json")}
		if err := json.Unmarshal(raw, c); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if c.body, err = os.ReadFile(filepath.Join(casesDir, c.File)); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	return cases
}

// accepts tells whether a field may have the value got.
func (c *requestCase) accepts(field string, got any, want any) bool {
	if reflect.DeepEqual(got, want) {
		return true
	}
	others, _ := c.Accept[field].([]any)
	for _, other := range others {
		switch other := other.(type) {
		case float64:
			if got == int(other) {
				return true
			}
		case nil:
			if got == -1 || got == "" || got == 0 {
				return true
			}
		default:
			if got == other {
				return true
			}
		}
	}
	return false
}

func TestRequestCasesAreReadAsTheirExpectationsSay(t *testing.T) {
	for _, c := range loadCases(t) {
		t.Run(c.name, func(t *testing.T) { checkCase(t, c) })
	}
}

func checkCase(t *testing.T, c *requestCase) {
	rd := NewReader()
	before := bytes.Clone(c.body)
	kind := KindOfPath(c.Path)
	req, err := rd.Read(kind, c.Path, c.body)
	rd.Chain(req, byteEncoder{}, 16)
	if !bytes.Equal(before, c.body) {
		t.Fatal("the body was changed")
	}

	check := func(field string, got, want any) {
		t.Helper()
		if !c.accepts(field, got, want) {
			t.Errorf("%s = %v, want %v", field, got, want)
		}
	}
	wantKind := c.Kind
	if wantKind == "none" && err != nil {
		wantKind = req.Kind.String()
	}
	check("kind", req.Kind.String(), wantKind)
	check("token_bearing", err == nil, c.TokenBearing)
	check("prompts", len(req.Prompts), c.Prompts)
	check("model", req.Model, orZero(c.Model))
	check("stream", req.Stream, c.Stream)
	check("include_usage", req.IncludeUsage, orZero(c.IncludeUsage))
	check("whole_prompt_known", req.WholePrompt, c.WholePromptKnown)
	check("messages", req.Messages, orZero(c.Messages))
	check("images", req.Images, c.Images)
	check("audio", req.Audio, c.Audio)
	check("video", req.Video, c.Video)
	check("files", req.Files, c.Files)
	check("tools", req.Tools, c.Tools)
	check("cache_salt", req.CacheSalt, orZero(c.CacheSalt))

	want := -1
	if c.MaxOutput != nil {
		want = *c.MaxOutput
	}
	check("max_output", req.MaxOutput, want)
	sequences := req.Sequences()
	if req.Pooling {
		sequences = 0
	}
	check("sequences", sequences, c.Sequences)
	checkLoRA(t, c, req)
	if len(c.OtherCacheKeys) != 0 {
		t.Errorf("other_cache_keys %v are not looked at by this test", c.OtherCacheKeys)
	}
	for _, must := range c.Must {
		if limit, ok := strings.CutPrefix(must, "prompt tokens charged < "); ok {
			most, err := strconv.Atoi(limit)
			if err != nil || len(req.Prompts) != 1 || req.Prompts[0].Tokens >= most {
				t.Errorf("%s, prompts: %d", must, len(req.Prompts))
			}
		}
	}
	checkPrompt(t, c, rd, req)
}

func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func checkLoRA(t *testing.T, c *requestCase, req *Request) {
	t.Helper()
	switch want := orZero(c.LoRA); {
	case strings.Contains(want, "indistinguishable"):
		if req.LoRA != "" {
			t.Errorf("lora = %q, want none apart from the model", req.LoRA)
		}
	case strings.HasPrefix(want, "["):
		if !strings.HasPrefix(req.LoRA, "[") {
			t.Errorf("lora = %q, want the list", req.LoRA)
		}
	case req.LoRA != want:
		t.Errorf("lora = %q, want %q", req.LoRA, want)
	}
}

// textsOf returns the texts and the given ids of a request's prompts.
func textsOf(rd *Reader, req *Request) (texts []string, ids [][]uint32) {
	for _, p := range req.Prompts {
		for _, pc := range rd.pieces[p.first:p.end] {
			if pc.kind == syntheticPiece {
				continue
			}
			raw := rd.scanner.body[pc.start:pc.end]
			switch pc.kind {
			case textPiece:
				texts = append(texts, string(rd.plain(raw, pc.flags)))
			case jsonPiece:
				texts = append(texts, string(rd.compact(raw)))
			case numbersPiece:
				ids = append(ids, appendIDs(nil, raw))
			}
		}
		if p.first == p.end {
			texts = append(texts, "")
		}
	}
	return texts, ids
}

func checkPrompt(t *testing.T, c *requestCase, rd *Reader, req *Request) {
	t.Helper()
	if len(req.Prompts) == 0 {
		return
	}
	texts, ids := textsOf(rd, req)
	rest := texts
	for _, want := range c.PromptText {
		i := slices.Index(rest, want)
		if i < 0 {
			t.Errorf("%.80q is not in the prompt, or not in order: %.500q", want, texts)
			continue
		}
		rest = rest[i+1:]
	}
	all := strings.Join(texts, "\x00")
	for _, want := range c.AlsoInPrompt {
		if given, ok := strings.CutPrefix(want, "context ids "); ok {
			var context []uint32
			if err := json.Unmarshal([]byte(given), &context); err != nil {
				t.Fatal(err)
			}
			if len(ids) != 1 || !slices.Equal(ids[0], context) {
				t.Errorf("context ids %v, want %v", ids, context)
			}
			continue
		}
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in the prompt", want)
		}
	}
	if c.PromptTokenIDs != nil && !reflect.DeepEqual(ids, c.PromptTokenIDs) {
		t.Errorf("token ids %v, want %v", ids, c.PromptTokenIDs)
	}
}

// identityOf returns what must be equal for two requests to share a cache:
// the namespace and the hashes of all tokens.
func identityOf(t testing.TB, path string, body []byte) string {
	t.Helper()
	rd := NewReader()
	req, err := rd.Read(KindOfPath(path), path, body)
	if err != nil {
		t.Fatalf("reading %.300s: %v", body, err)
	}
	rd.Chain(req, byteEncoder{}, 1)
	id := []any{req.Namespace}
	for _, p := range req.Prompts {
		id = append(id, p.Tokens, slices.Clone(p.Blocks))
	}
	out, err := json.Marshal(id)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// altered returns the body with the value at a JSON pointer changed, or set.
func altered(t *testing.T, body []byte, pointer string) []byte {
	t.Helper()
	root := decode(t, body)
	if pointer != "" {
		keys := strings.Split(pointer, "/")[1:]
		at := root
		for _, k := range keys[:len(keys)-1] {
			at = child(t, at, k)
		}
		last := keys[len(keys)-1]
		switch at := at.(type) {
		case map[string]any:
			at[last] = other(at[last])
		case []any:
			i, err := strconv.Atoi(last)
			if err != nil {
				t.Fatal(err)
			}
			at[i] = other(at[i])
		}
	}
	out, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func decode(t testing.TB, body []byte) any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var root any
	if err := dec.Decode(&root); err != nil {
		t.Fatal(err)
	}
	return root
}

func child(t *testing.T, at any, key string) any {
	t.Helper()
	if list, ok := at.([]any); ok {
		i, err := strconv.Atoi(key)
		if err != nil {
			t.Fatal(err)
		}
		return list[i]
	}
	return at.(map[string]any)[key]
}

func other(v any) any {
	switch v := v.(type) {
	case string:
		return v + "x"
	case json.Number:
		f, _ := v.Float64()
		return f + 1
	case bool:
		return !v
	case map[string]any:
		return map[string]any{"other": 1}
	}
	return "x"
}

func TestWhatEntersTheCacheKeyChangesTheChainAndNothingElseDoes(t *testing.T) {
	cases := loadCases(t)
	byName := map[string]*requestCase{}
	for _, c := range cases {
		byName[c.name] = c
	}
	checked := 0
	for _, c := range cases {
		for _, pointer := range c.ChangesChain {
			checked++
			if identityOf(t, c.Path, altered(t, c.body, "")) == identityOf(t, c.Path, altered(t, c.body, pointer)) {
				t.Errorf("%s: changing %s leaves the chain as it is", c.name, pointer)
			}
		}
		for _, pointer := range c.MustNotChange {
			checked++
			if identityOf(t, c.Path, altered(t, c.body, "")) != identityOf(t, c.Path, altered(t, c.body, pointer)) {
				t.Errorf("%s: changing %s changes the chain", c.name, pointer)
			}
		}
		if same := byName[c.SameChainAs]; same != nil {
			checked++
			if identityOf(t, c.Path, c.body) != identityOf(t, same.Path, same.body) {
				t.Errorf("%s: another chain than %s", c.name, same.name)
			}
		}
		if from := byName[c.DifferentFrom]; from != nil {
			checked++
			if identityOf(t, c.Path, c.body) == identityOf(t, from.Path, from.body) {
				t.Errorf("%s: the chain of %s", c.name, from.name)
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d comparisons were made", checked)
	}
}

func TestEveryPrefixOfABodyIsATypedError(t *testing.T) {
	rd := NewReader()
	for _, c := range loadCases(t) {
		if c.name != "chat_plain" && c.name != "chat_prefill_continue_final" && c.name != "responses_items" {
			continue
		}
		for n := range len(c.body) {
			req, err := rd.Read(KindOfPath(c.Path), c.Path, c.body[:n])
			want := ReasonTruncated
			if n == 0 {
				want = ReasonEmpty
			}
			if e, ok := err.(*Error); !ok || e.Reason != want || len(req.Prompts) != 0 {
				t.Fatalf("%s cut to %d bytes: %d prompts, error %v", c.name, n, len(req.Prompts), err)
			}
		}
	}
}

func TestATruncatedBodyStillTellsItsModel(t *testing.T) {
	body := []byte(`{"model":"qwen3-8b","messages":[{"role":"system","content":[{"type":"te`)
	req, err := NewReader().Read(OpenAIChat, "/v1/chat/completions", body)
	if err == nil || req.Model != "qwen3-8b" || req.Messages != 0 {
		t.Errorf("model %q, %d messages, error %v", req.Model, req.Messages, err)
	}
}
