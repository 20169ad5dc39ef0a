// SPDX-License-Identifier: Apache-2.0

package tokenize

// Request is what routing needs of a body. It belongs to the [Reader] that read
// it and is valid until that reader's next Read or Release; strings may be kept.
type Request struct {
	Kind  Kind
	Model string // "" where the body names none (SGLang, TGI, llama.cpp)

	// Prompts holds one element for each prompt of a batch, in order; none where
	// Read returned an error.
	Prompts []Prompt

	// Choices is the number of sequences decoded for each prompt (n, or best_of
	// where that is more): 1 to maxChoices.
	Choices int

	// MaxOutput is the expected or allowed number of output tokens for each
	// sequence; -1 is unknown, 0 is none. Taken from, in this order:
	// nvext.agent_hints.osl, max_completion_tokens, max_tokens,
	// max_output_tokens, sampling_params.max_new_tokens,
	// parameters.max_new_tokens, n_predict, options.num_predict, and the
	// engine's default for the API (completions 16, SGLang's /generate 128).
	MaxOutput int

	Stream       bool // the client asked to stream, or the API streams unless told not to
	IncludeUsage bool // stream_options.include_usage
	Pooling      bool // embeddings: prefill only, nothing decoded, no cache is used
	NoReuse      bool // the engine computes the whole prompt although it may hold it
	Transfers    bool // prefill and decode are parted: the KV cache comes from or goes to another engine

	// WholePrompt is false where an earlier turn or a stored prompt is only
	// named, or given in a form whose text is unknown: then Prompts is a part.
	WholePrompt        bool
	PreviousResponseID string

	CacheSalt string // top level or nvext, and SGLang's extra_key behind it; parts caches
	LoRA      string // adapter as the body names it; lists and objects as compact JSON

	// What was counted while reading. Messages counts conversation messages,
	// not the calls, results and reasoning items of the responses API.
	Messages, Tools, Images, Audio, Video, Files int

	Namespace uint64 // keyed hash of Model
}

// NameModel takes req, the reader's last one, for a request of the model of that
// name, of which the one in the body is an alias.
func (rd *Reader) NameModel(req *Request, name string) {
	req.Model = name
	req.Namespace = rd.hashString(tagModel, name)
}

// Sequences is the number of sequences the engine runs for this request, at
// least 1: one for each prompt and choice.
func (r *Request) Sequences() int {
	return max(1, len(r.Prompts)*r.Choices)
}

// Prompt is one prompt of a request.
type Prompt struct {
	// Tokens counts all its tokens, those of a last partial block included. It
	// is filled by [Reader.Chain], as Blocks is.
	Tokens int
	// Blocks holds one hash for each whole block; each includes all before it,
	// the LoRA adapter and the cache salt.
	Blocks []uint64

	first, end uint32 // its pieces
	root       uint64 // what the first block is chained to
	keepLast   int    // the engine cuts the prompt to its last so many tokens; 0: it does not
	own        bool   // it was chained as the ids that the engine itself makes
}
