// SPDX-License-Identifier: Apache-2.0

package remote_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/tokenize"
	"github.com/kvaware/caddy-kvaware/tokenize/chattemplate"
	"github.com/kvaware/caddy-kvaware/tokenize/remote"
)

const testdata = "../../testdata/"

// recordFrom names the variable with the base URL of an engine that is asked
// anew; recordSet the one of the set that this engine has.
const recordFrom, recordSet = "KVAWARE_RECORD", "KVAWARE_RECORD_SET"

// sets are tokenizers and templates of testdata that engines were started with.
var sets = map[string]string{"chatml": "qwen3", "metaspace": "mistralai-Mistral-Nemo-Instruct-2407"}

// recording is what an engine answered, by path and digest of the question.
type recording map[string]exchange

type exchange struct {
	Status int    `json:"status"`
	Answer string `json:"answer"`
}

// recorder is a transport that answers from a recording, or makes it.
type recorder struct {
	t    *testing.T
	have recording
	live http.RoundTripper
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	key := req.URL.Path + " " + hex.EncodeToString(sum[:6])
	if r.live != nil {
		req.Body = io.NopCloser(bytes.NewReader(body))
		res, err := r.live.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		if err != nil {
			return nil, err
		}
		r.have[key] = exchange{res.StatusCode, string(answer)}
	}
	x, known := r.have[key]
	if !known {
		r.t.Errorf("the engine was not asked %s: %s", req.URL.Path, body)
		return nil, errors.New("no recording")
	}
	return &http.Response{
		StatusCode: x.Status, Header: http.Header{"Content-Type": {"application/json"}}, Request: req,
		Body: io.NopCloser(strings.NewReader(x.Answer)), ContentLength: int64(len(x.Answer)),
	}, nil
}

// requests are bodies by name: the chats that engines were asked to render in
// testdata/exact, and completions.
func requests(t *testing.T) map[string]string {
	t.Helper()
	var engines struct{ Chats map[string]json.RawMessage }
	readJSON(t, "exact/engines.json", &engines)
	all := map[string]string{
		"text":            `{"prompt":"The tide <|im_end|> comes in,\n\nslowly: 1234 \u00e9\ud83c\udf0a"}`,
		"text unframed":   `{"prompt":"The tide","add_special_tokens":false}`,
		"texts":           `{"prompt":["The tide","comes in",""]}`,
		"ids and texts":   `{"prompt":[[1,2],[3]]}`,
		"another model":   `{"model":"another","messages":[{"role":"user","content":"x"}]}`,
		"duplicate":       `{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b","content":"c"}]}`,
		"lone surrogates": `{"messages":[{"role":"user","content":"a\ud800b\u0000"}]}`,
		"framed":          `{"messages":[{"role":"user","content":"a"}],"add_special_tokens":true}`,
		"no messages":     `{"messages":[]}`,
		"bad role":        `{"messages":[{"role":7,"content":"a"}]}`,
	}
	for name, chat := range engines.Chats {
		all["own "+name] = string(chat)
	}
	for name, body := range all {
		if name != "another model" {
			all[name] = `{"model":"m",` + strings.TrimPrefix(body, "{")
		}
	}
	return all
}

func readJSON(t *testing.T, name string, into any) {
	t.Helper()
	raw, err := os.ReadFile(testdata + name)
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// exactOf is the local way of a set.
func exactOf(t *testing.T, tokenizer, template string) (*tokenize.Exact, *tokenize.HFTokenizer) {
	t.Helper()
	var golden struct {
		Tiny map[string]struct{ Tokens json.RawMessage }
	}
	readJSON(t, "exact/golden.json", &golden)
	text, err := os.ReadFile(testdata + "templates/texts/" + template + ".jinja")
	if err != nil {
		t.Fatal(err)
	}
	h, err := tokenize.LoadHF(testdata + "exact/" + tokenizer + ".json")
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := chattemplate.Load(golden.Tiny[tokenizer].Tokens, string(text), chattemplate.Options{MaxTime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return tokenize.NewExact(h, tmpl), h
}

// What vLLM answers is the chain that its own template and tokenizer give here.
func TestWhatVLLMAnswersIsWhatItsTemplateAndTokenizerGive(t *testing.T) {
	for name, template := range sets {
		file := filepath.Join(testdata, "remote", name+".json")
		have, live := recording{}, http.RoundTripper(nil)
		base := "http://engine"
		if from := os.Getenv(recordFrom); from != "" {
			if os.Getenv(recordSet) != name {
				continue
			}
			base, live = from, http.DefaultTransport
		} else {
			readJSON(t, "remote/"+name+".json", &have)
		}
		e, h := exactOf(t, name, template)
		for _, api := range []remote.API{remote.Any, remote.Render, remote.Tokenize} {
			checkAnswers(t, &recorder{t, have, live}, base, api, e, h)
		}
		checkMissing(t, &recorder{t, have, live}, base)
		if live != nil && !t.Failed() {
			out, err := json.MarshalIndent(have, "", " ")
			if err == nil {
				err = os.WriteFile(file, append(out, '\n'), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func clientOf(t *testing.T, transport http.RoundTripper, base string, api remote.API) *remote.Client {
	t.Helper()
	u, err := remote.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	return remote.New(remote.Options{Engines: []*url.URL{u}, API: api, Timeout: time.Minute, MaxConcurrent: 1, Transport: transport})
}

func checkAnswers(t *testing.T, transport *recorder, base string, api remote.API, e *tokenize.Exact, h *tokenize.HFTokenizer) {
	t.Helper()
	const blockSize = 4
	client := clientOf(t, transport, base, api)
	cache := tokenize.NewCache(0)
	outcomes := map[string]int{}
	all := requests(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		kind, path := tokenize.OpenAIChat, "/v1/chat/completions"
		if strings.Contains(all[name], `"prompt":`) {
			kind, path = tokenize.OpenAICompletions, "/v1/completions"
		}
		rd, local := tokenize.NewReader(), tokenize.NewReader()
		req, err := rd.Read(kind, path, []byte(all[name]))
		if err != nil {
			continue
		}
		q, ok := rd.AppendQuestion(nil, req)
		if !ok {
			continue
		}
		answer, err := client.Ask(context.Background(), remote.Question{Path: path, Body: q.Body, Prompts: len(req.Prompts), RenderOnly: q.RenderOnly})
		var why *remote.Error
		if errors.As(err, &why) {
			outcomes[string(why.Reason)]++
		}
		want, err := local.Read(kind, path, []byte(all[name]))
		if err != nil {
			t.Fatal(err)
		}
		exact := local.ChainExact(context.Background(), want, e, h, blockSize)
		if why != nil {
			if why.Reason != remote.Refused && (why.Reason != remote.Unsupported || api != remote.Tokenize) {
				t.Errorf("api %d, %s: %v", api, name, why)
			}
			continue
		}
		outcomes["answered"]++
		if !rd.ChainAnswer(req, cache, 1, q.Body, answer.IDs, answer.Ends, blockSize) || !exact {
			t.Errorf("api %d, %s: exact here: %t", api, name, exact)
			continue
		}
		for i := range want.Prompts {
			if a, b := &req.Prompts[i], &want.Prompts[i]; a.Tokens != b.Tokens || !slices.Equal(a.Blocks, b.Blocks) {
				t.Errorf("api %d, %s: the engine has %d tokens, %d here", api, name, a.Tokens, b.Tokens)
			}
		}
	}
	t.Logf("api %d: %v", api, outcomes)
	if outcomes["answered"] < 20 || outcomes[string(remote.Refused)] == 0 {
		t.Errorf("api %d: %v", api, outcomes)
	}
}

// checkMissing asks for endpoints that the engine does not have.
func checkMissing(t *testing.T, transport *recorder, base string) {
	t.Helper()
	q := remote.Question{Path: "/v1/chat/completions", Body: []byte(`{"model":"m","messages":[{"role":"user","content":"a"}]}`), Prompts: 1}
	for _, api := range []remote.API{remote.Any, remote.Render, remote.Tokenize} {
		var why *remote.Error
		if _, err := clientOf(t, transport, base+"/none", api).Ask(context.Background(), q); !errors.As(err, &why) || why.Reason != remote.Status {
			t.Errorf("api %d: without the endpoints: %v", api, err)
		}
	}
}
