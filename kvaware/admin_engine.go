// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/enginefacts"
)

// engineState is what an upstream's engine said of itself, in the answer to GET
// /kv_aware/upstreams. What it did not say is left out.
type engineState struct {
	Name          string `json:"name,omitempty"`       // vllm, sglang, tensorrt-llm, llama.cpp, tgi, ollama
	BlockSize     int    `json:"block_size,omitempty"` // tokens in a KV block
	KVTokens      int64  `json:"kv_tokens,omitempty"`  // that fit into the KV cache of each engine
	Engines       int    `json:"engines,omitempty"`    // data-parallel ones that it told apart
	PrefixCaching *bool  `json:"prefix_caching,omitempty"`
	// Its models and LoRA adapters, at most maxShownModels of each; null if no list
	// is known.
	Models   []string `json:"models"`
	Adapters []string `json:"adapters"`
	// When its process started, and when it last said anything.
	Started  *time.Time `json:"started,omitempty"`
	Answered *time.Time `json:"answered,omitempty"`
	// Requests in it when it last said so, of whoever.
	Running float64 `json:"running"`
	Waiting float64 `json:"waiting"`
	// Why it did not answer the last time.
	Error string `json:"error,omitempty"`
}

// maxShownModels bounds the models that are shown of one engine.
const maxShownModels = 1000

// describeEngine is nil if the engine was never asked.
func describeEngine(u *upstream) *engineState {
	f := u.engine.facts.Load()
	if f == nil {
		return nil
	}
	s := &engineState{
		Name:      f.Engine,
		BlockSize: f.BlockSize,
		KVTokens:  f.KVTokens,
		Engines:   f.Engines,
		Running:   f.Running,
		Waiting:   f.Waiting,
		Error:     f.trouble,
	}
	if f.PrefixCaching != enginefacts.Unknown {
		on := f.PrefixCaching == enginefacts.Yes
		s.PrefixCaching = &on
	}
	if f.Started > 0 {
		at := time.UnixMilli(int64(f.Started * 1e3)).UTC()
		s.Started = &at
	}
	if !f.answered.IsZero() {
		at := f.answered.UTC()
		s.Answered = &at
	}
	if f.models == nil {
		return s
	}
	s.Models, s.Adapters = []string{}, []string{}
	for i := range f.models.List {
		names := &s.Models
		if f.models.List[i].Adapter() {
			names = &s.Adapters
		}
		if len(*names) < maxShownModels {
			*names = append(*names, f.models.List[i].ID)
		}
	}
	return s
}
