// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/tokenize/chattemplate"
)

// engineResults are what testdata/exact/engines.py asked the engines.
type engineResults struct {
	Chats, Images map[string]json.RawMessage // which keep the order of members
	Processors    map[string]json.RawMessage
	VLLM, SGLang  struct {
		Sets []struct {
			Tokenizer string
			Real      bool // too large to be here
			Tokens    json.RawMessage
			Images    string // the kind of model
			Templates map[string]map[string]string
		}
	}
}

// bodyFor is the request that the engine was sent.
func (r *engineResults) bodyFor(t *testing.T, name string) []byte {
	request := r.Images[name]
	if own, ok := strings.CutPrefix(name, "own_"); ok {
		request = r.Chats[own]
	}
	if request != nil {
		return request
	}
	for _, chat := range exactChats(t) {
		if chat.name == name {
			return chat.body
		}
	}
	t.Fatalf("no chat %s", name)
	return nil
}

func TestChainsAreOfTheIDsThatTheEnginesMake(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(exactDir, "engines.json"))
	var results engineResults
	if err == nil {
		err = json.Unmarshal(raw, &results)
	}
	if err != nil {
		t.Fatal(err)
	}
	for form, engine := range map[chattemplate.Form]string{chattemplate.VLLM: "vLLM", chattemplate.SGLang: "SGLang"} {
		sets := results.VLLM.Sets
		if form == chattemplate.SGLang {
			sets = results.SGLang.Sets
		}
		if len(sets) == 0 {
			t.Errorf("nothing of %s", engine)
		}
		for _, set := range sets {
			for name, want := range set.Templates {
				t.Run(engine+"/"+set.Tokenizer+set.Images+"/"+name, func(t *testing.T) {
					file := filepath.Join(exactDir, name+".jinja")
					if set.Images != "gemma3" {
						file = filepath.Join("..", "testdata", "templates", "texts", name+".jinja")
					}
					text, err := os.ReadFile(file)
					if err != nil {
						t.Fatal(err)
					}
					directory := exactDir
					if set.Real {
						if directory = os.Getenv(realTokenizers); directory == "" {
							t.Skip(realTokenizers + " is not set")
						}
					}
					e := NewExact(loadHF(t, filepath.Join(directory, set.Tokenizer+".json")), loadTemplate(t, set.Tokens, string(text), form))
					if set.Images != "" {
						processor, err := chattemplate.LoadImageProcessor(results.Processors[set.Images])
						if err == nil {
							err = e.TakeImages(processor)
						}
						if err != nil {
							t.Fatal(err)
						}
					}
					checkEngineChats(t, e, &results, want)
				})
			}
		}
	}
}

// cautious are chats that count as not exact although the engine takes them.
var cautious = map[string]bool{
	"image_and_mark": true,
	// Newlines around Gemma's images.
	"image_first": true, "image_after_lines": true, "image_alone": true,
}

func checkEngineChats(t *testing.T, e *Exact, results *engineResults, want map[string]string) {
	exact := 0
	for _, name := range slices.Sorted(maps.Keys(want)) {
		body := results.bodyFor(t, name)
		rd := NewReader()
		req, err := rd.Read(OpenAIChat, "", body)
		// In blocks of more ids than there are, all ids stay with the reader.
		if err != nil || !rd.ChainExact(context.Background(), req, e, e.tokenizer, 1<<30) {
			if want[name] != "refused" && (!cautious[name] || name != "image_and_mark" && e.images.Text == e.images.Placeholder) {
				t.Errorf("%s is not exact", name)
			}
			continue
		}
		if want[name] == "refused" {
			continue // whatever stands for it does no harm
		}
		exact++
		ids := slices.Clone(rd.ids)
		for i := range ids {
			if e.images != nil && ids[i] >= 1<<31 {
				ids[i] = e.images.token
			}
		}
		d := newDigest()
		if d.add(ids); d.String() != want[name] {
			t.Errorf("%s: other ids: %s", name, strings.Join(strings.Fields(string(body)), " "))
		}
	}
	t.Logf("%d of %d chats are exact", exact, len(want))
}
