// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/tokenize/remote"
)

// questions are a chat and a completion in many scripts.
var questions = map[string]string{
	"/v1/chat/completions": `{"model":"simulated","messages":[{"role":"system","content":"Être bref: ` + strings.Repeat("déjà vu, 中文, עברית, 🙂 ", 20) + `"},
		{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]},{"role":"assistant","content":null}],"tools":[{"type":"function"}]}`,
	"/v1/completions": `{"model":"simulated","prompt":"` + strings.Repeat("déjà vu, 中文, עברית, 🙂 ", 20) + `"}`,
}

// A router that asks for token ids gets as many as the engine counts, and ids that
// it may take for a vocabulary's.
func TestARouterMayAskForTokenIDs(t *testing.T) {
	s := serve(t, &Handler{})
	base, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	client := remote.New(remote.Options{Engines: []*url.URL{base}, Timeout: 10 * time.Second, MaxConcurrent: 1})
	defer client.Close()
	for path, body := range questions {
		answer, err := client.Ask(t.Context(), remote.Question{Path: path, Body: []byte(body), Prompts: 1})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if used := decode(t, s.complete(path, body)).Usage.Prompt; len(answer.IDs) != used {
			t.Errorf("%s: %d ids, %d prompt tokens", path, len(answer.IDs), used)
		}
		// The ids themselves are the same prompt.
		ids, _ := json.Marshal(answer.IDs)
		again := decode(t, s.complete("/v1/completions", fmt.Sprintf(`{"model":"simulated","prompt":%s}`, ids))).Usage
		if want := (again.Prompt - 1) / 16 * 16; again.Prompt != len(answer.IDs) || again.Details.Cached != want {
			t.Errorf("%s: of %d ids %d are cached, want %d", path, again.Prompt, again.Details.Cached, want)
		}
	}
}

func TestTokenizeRefusesWhatIsNoPrompt(t *testing.T) {
	s := serve(t, &Handler{MaxModelLen: 1000})
	for _, body := range []string{``, `{}`, `{"prompt":["a"]}`, `{"prompt":[1]}`, `{"prompt":7}`, `{"messages":7}`} {
		status, answer, err := s.post("/tokenize", body)
		if err != nil || status != http.StatusBadRequest || decode(t, answer).Error == nil {
			t.Errorf("%s: status %d, %v: %s", body, status, err, answer)
		}
	}
	if got := string(s.complete("/tokenize", `{"prompt":"\u0001\u0000\u0000\u0000b"}`)); strings.TrimSpace(got) != `{"count":2,"max_model_len":1000,"tokens":[1,98],"token_strs":null}` {
		t.Error(got)
	}
}

func TestARequestThatNamesNoModelMeansTheEnginesOwn(t *testing.T) {
	s := serve(t, &Handler{Model: "demo"})
	prompt := strings.Repeat("text", 100)
	s.complete("/v1/completions", `{"model":"demo","prompt":"`+prompt+`"}`)
	if got := decode(t, s.complete("/v1/completions", `{"prompt":"`+prompt+`"}`)); got.Usage.Details.Cached != 96 || got.Model != "demo" {
		t.Errorf("%d tokens of %q are cached", got.Usage.Details.Cached, got.Model)
	}
}
