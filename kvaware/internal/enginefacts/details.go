// SPDX-License-Identifier: Apache-2.0

package enginefacts

import (
	"encoding/json"
	"errors"
)

// Detail is a further endpoint at which an engine tells of itself.
type Detail struct {
	Path string
	Read func([]byte) (Facts, error)
}

// ErrNoDetails says that the text is no answer of the endpoint.
var ErrNoDetails = errors.New("no such answer")

// Details gives the endpoints of an engine, the likelier first; only the first that
// answers is needed.
func Details(engine string) []Detail {
	switch engine {
	case SGLang:
		return []Detail{{"/get_server_info", readServerInfo}, {"/server_info", readServerInfo}}
	case LlamaCPP:
		return []Detail{{"/props", readProps}}
	case TGI:
		return []Detail{{"/info", readInfo}}
	}
	return nil
}

// decode reads the fields of an object that are wanted; mistyped ones stay zero.
func decode(data []byte, into any) error {
	var mistyped *json.UnmarshalTypeError
	if err := json.Unmarshal(data, into); err != nil && !errors.As(err, &mistyped) {
		return ErrNoDetails
	}
	return nil
}

// readServerInfo reads SGLang's server arguments and scheduler information.
func readServerInfo(data []byte) (Facts, error) {
	var info struct {
		MaxTotalTokens float64 `json:"max_total_num_tokens"`
		PageSize       float64 `json:"page_size"`
		NoRadixCache   *bool   `json:"disable_radix_cache"`
		DP             float64 `json:"dp_size"`
	}
	if err := decode(data, &info); err != nil {
		return Facts{}, err
	}
	f := Facts{
		Engine:    SGLang,
		KVTokens:  whole(info.MaxTotalTokens),
		BlockSize: block(whole(info.PageSize)),
		Engines:   int(min(whole(info.DP), maxRanks)),
	}
	if info.NoRadixCache != nil {
		f.PrefixCaching = told(!*info.NoRadixCache)
	}
	return f, nil
}

// readProps reads llama.cpp's slots.
func readProps(data []byte) (Facts, error) {
	var props struct {
		Slots   float64 `json:"total_slots"`
		Default struct {
			Context float64 `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	if err := decode(data, &props); err != nil {
		return Facts{}, err
	}
	f := Facts{Engine: LlamaCPP}
	if tokens := props.Slots * props.Default.Context; tokens >= 1 && tokens <= maxTokens {
		f.KVTokens = whole(tokens)
	}
	return f, nil
}

// readInfo reads what TGI says of its batches.
func readInfo(data []byte) (Facts, error) {
	var info struct {
		MaxBatchTotalTokens float64 `json:"max_batch_total_tokens"`
	}
	if err := decode(data, &info); err != nil {
		return Facts{}, err
	}
	return Facts{Engine: TGI, KVTokens: whole(info.MaxBatchTotalTokens)}, nil
}
