// SPDX-License-Identifier: Apache-2.0

package enginefacts

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// MaxModels bounds the models of one list; further ones are left out.
const MaxModels = 4096

// MaxName is the longest name of a model that is taken, in bytes.
const MaxName = 1024

// Model is an entry of /v1/models.
type Model struct {
	ID     string
	Parent string // of a LoRA adapter, its base model
}

// Adapter reports whether it is a LoRA adapter.
func (m *Model) Adapter() bool { return m.Parent != "" }

// Models are what an engine serves.
type Models struct {
	Engine string // by whom the list says the models are owned
	List   []Model
	Cut    bool // there were more than MaxModels
}

// ErrNoModels says that the text is no list of models.
var ErrNoModels = errors.New("no list of models")

// owners tell an engine by the owned_by of its models.
var owners = map[string]string{"vllm": VLLM, "sglang": SGLang, "llamacpp": LlamaCPP, "library": Ollama, "tensorrt_llm": TRTLLM}

// ReadModels reads the answer of /v1/models in OpenAI's form.
func ReadModels(data []byte) (Models, error) {
	var answer struct {
		Data *[]struct {
			ID      string `json:"id"`
			Parent  string `json:"parent"`
			OwnedBy string `json:"owned_by"`
		} `json:"data"`
	}
	var mistyped *json.UnmarshalTypeError // the field is left out, all else is read
	if err := json.Unmarshal(data, &answer); err != nil && !errors.As(err, &mistyped) || answer.Data == nil {
		return Models{}, ErrNoModels
	}
	var all Models
	for _, m := range *answer.Data {
		if m.ID == "" || len(m.ID) > MaxName || len(m.Parent) > MaxName {
			continue
		}
		if len(all.List) == MaxModels {
			all.Cut = true
			break
		}
		all.List = append(all.List, Model{ID: m.ID, Parent: m.Parent})
		keep(&all.Engine, owners[m.OwnedBy])
	}
	return all, nil
}

// Equal reports whether two lists say the same.
func (all *Models) Equal(other *Models) bool {
	return all.Engine == other.Engine && all.Cut == other.Cut && slices.Equal(all.List, other.List)
}

// Names calls f with each name that a request may use for a model.
func (all *Models) Names(f func(name string, adapter bool)) {
	for i := range all.List {
		m := &all.List[i]
		f(m.ID, m.Adapter())
		if name, latest := strings.CutSuffix(m.ID, ":latest"); latest && all.Engine == Ollama {
			f(name, false)
		}
		if m.Adapter() && all.Engine == SGLang {
			f(m.Parent+":"+m.ID, true)
		}
	}
}
