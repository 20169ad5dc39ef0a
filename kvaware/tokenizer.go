// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/tokenize"
	"github.com/kvaware/caddy-kvaware/tokenize/chattemplate"
	"github.com/kvaware/caddy-kvaware/tokenize/remote"
)

// Tokenizer says how prompts become tokens. It need not be the engines' own:
// what counts is that equal prompts give equal tokens. How far its counts are
// from what responses report is learnt for each model, and corrected.
type Tokenizer struct {
	// The kind of tokenizer:
	//
	// - `auto`: the tiktoken encoding that a request's model is known to use,
	//   `o200k_base` for all others.
	// - `tiktoken`: the encoding named by `encoding`.
	// - `hf`: the Hugging Face tokenizer.json at `file`. One that is not
	//   understood to the letter is refused.
	// - `estimate`: no vocabulary at all; text is cut into pieces of about one
	//   token. A few times as fast, and counts within a tenth for most text.
	// - `remote`: the token ids that engines themselves answer.
	//
	// Default: `tiktoken` if an encoding is given, `hf` if a file is, `remote` if
	// that is, else `auto`.
	Kind string `json:"kind,omitempty"`

	// The tiktoken encoding: `cl100k_base`, `o200k_base`, `p50k_base` or
	// `r50k_base`. Only for `tiktoken`.
	Encoding string `json:"encoding,omitempty"`

	// Path of a tokenizer.json. It is read when the configuration is loaded, and
	// shared by all that name a file of the same content. Only for `hf`.
	File string `json:"file,omitempty"`

	// Path of the model's chat template: its tokenizer_config.json (a
	// chat_template.jinja beside it goes first), or a .jinja file, whose special
	// tokens come from the tokenizer_config.json beside it: without that file they
	// are empty, and what counts as exact is not. With a template, chats and
	// completions of the OpenAI API become the very tokens that the engine makes of
	// them; without, or where it cannot serve (sound and films, other APIs, a
	// rendering of more than 50 ms), prompts are rendered in a stable way of our
	// own. Images count as vLLM counts them, for SGLang about so, if their size is
	// in the request and beside the template is a preprocessor_config.json of
	// Qwen2-VL, Qwen2.5-VL, Qwen3-VL or Gemma 3. All is read when the configuration
	// is loaded. Only for `hf`.
	// Default: none.
	ChatTemplate string `json:"chat_template,omitempty"`

	// The engine whose tokens `chat_template` is to give: `vllm` or `sglang`, which
	// make different ones of chats with tools, with content in parts, or with an
	// answer at the end. Only with `chat_template`. Default: `vllm`.
	Engine string `json:"engine,omitempty"`

	// Which engines to ask, and how. Only for `remote`.
	Remote *RemoteTokenizer `json:"remote,omitempty"`
}

// chatForms are the engines whose form of chats is known.
var chatForms = map[string]chattemplate.Form{"": chattemplate.VLLM, "vllm": chattemplate.VLLM, "sglang": chattemplate.SGLang}

// The kinds of tokenizers.
const (
	tokenizerAuto     = "auto"
	tokenizerTiktoken = "tiktoken"
	tokenizerHF       = "hf"
	tokenizerEstimate = "estimate"
	tokenizerRemote   = "remote"
)

// standInEncoding is what auto takes for models of which nothing is known.
var standInEncoding, _ = tokenize.EncodingForModel("")

// tokenizerSeed keys the hashes of tokenizers' names, which are compared within
// the process only.
var tokenizerSeed = maphash.MakeSeed()

// tokens is what a policy turns text into tokens with.
type tokens struct {
	described string           // kind and what it needs, for the log and the admin API
	fixed     tokenize.Encoder // nil: by the request's model, or an estimate
	estimate  bool             // by the estimate of the request's keys
	exact     *tokenize.Exact  // nil: prompts are rendered in our own way
	inexact   error            // why images are not exact although a file beside the template tells of them
	remote    *remote.Client   // nil: nobody is asked
	asking    string           // how, of what does not change the tokens; for comparing and logs
	key       uint64           // keeps apart what is learnt of the counts of different tokenizers
}

// provision fills in defaults and loads what is named.
func (t *Tokenizer) provision(repl *caddy.Replacer) (*tokens, error) {
	for option, value := range map[string]*string{"kind": &t.Kind, "encoding": &t.Encoding, "file": &t.File, "chat_template": &t.ChatTemplate, "engine": &t.Engine} {
		if err := replaceKnown(repl, option, value); err != nil {
			return nil, err
		}
	}
	if t.Kind == "" {
		switch {
		case t.Encoding != "":
			t.Kind = tokenizerTiktoken
		case t.File != "":
			t.Kind = tokenizerHF
		case t.Remote != nil:
			t.Kind = tokenizerRemote
		default:
			t.Kind = tokenizerAuto
		}
	}
	if t.Encoding != "" && t.Kind != tokenizerTiktoken {
		return nil, fmt.Errorf("encoding %q belongs to kind %s, and the kind is %s", t.Encoding, tokenizerTiktoken, t.Kind)
	}
	if t.File != "" && t.Kind != tokenizerHF {
		return nil, fmt.Errorf("file %q belongs to kind %s, and the kind is %s", t.File, tokenizerHF, t.Kind)
	}
	if t.ChatTemplate != "" && t.Kind != tokenizerHF {
		return nil, fmt.Errorf("chat_template %q belongs to kind %s, and the kind is %s", t.ChatTemplate, tokenizerHF, t.Kind)
	}
	if t.Remote != nil && t.Kind != tokenizerRemote {
		return nil, fmt.Errorf("remote belongs to kind %s, and the kind is %s", tokenizerRemote, t.Kind)
	}
	form, known := chatForms[t.Engine]
	switch {
	case !known:
		return nil, fmt.Errorf("unknown engine %q: expecting vllm or sglang", t.Engine)
	case t.Engine != "" && t.ChatTemplate == "":
		return nil, fmt.Errorf("engine %q belongs to a chat_template, and there is none", t.Engine)
	}
	switch t.Kind {
	case tokenizerRemote:
		return t.Remote.provision(repl)
	case tokenizerAuto:
		return &tokens{described: tokenizerAuto}, onDemand[standInEncoding].load(standInEncoding)
	case tokenizerTiktoken:
		encoding, err := tokenize.LoadEncoding(t.Encoding)
		if err != nil {
			return nil, err
		}
		return &tokens{described: tokenizerTiktoken + " " + t.Encoding, fixed: encoding}, nil
	case tokenizerHF:
		if t.File == "" {
			return nil, fmt.Errorf("kind %s needs the path of a tokenizer.json in file", tokenizerHF)
		}
		tokenizer, err := tokenize.LoadHF(t.File)
		if err != nil {
			return nil, err
		}
		made := &tokens{described: tokenizerHF + " " + t.File, fixed: tokenizer}
		if t.ChatTemplate != "" {
			if made.exact, made.inexact, err = loadExact(tokenizer, t.ChatTemplate, form); err != nil {
				return nil, fmt.Errorf("chat_template %s: %w: name the model's tokenizer_config.json or .jinja file", t.ChatTemplate, err)
			}
			made.described += " with " + t.ChatTemplate
			if form == chattemplate.SGLang {
				made.described += " for " + t.Engine
			}
		}
		return made, nil
	case tokenizerEstimate:
		return &tokens{described: tokenizerEstimate, estimate: true}, nil
	}
	return nil, fmt.Errorf("unknown kind %q: expecting one of %s", t.Kind,
		strings.Join([]string{tokenizerAuto, tokenizerTiktoken, tokenizerHF, tokenizerEstimate, tokenizerRemote}, ", "))
}

// encoder gives what the text of a request for that model and with those keys is
// encoded with.
func (t *tokens) encoder(model string, k *hashKeys) tokenize.Encoder {
	if t.estimate {
		return k.estimate
	}
	if t.fixed != nil {
		return t.fixed
	}
	name, _ := tokenize.EncodingForModel(model)
	wanted := onDemand[name]
	if e := wanted.ready.Load(); e != nil {
		return e
	}
	if wanted.begun.CompareAndSwap(false, true) {
		go func() { _ = wanted.load(name) }()
	}
	return onDemand[standInEncoding].ready.Load()
}

// remembered are a policy's encoders with a token cache. The cache knows them by
// weak pointers only, and what it holds is lost with them; so the policy keeps
// them for as long as it lives.
type remembered struct {
	cache    *tokenize.Cache
	encoders sync.Map // tokenize.Encoder → *tokenize.CachedEncoder
}

// encoder gives what the text of a request for that model and with those keys is
// encoded with, with the pool's present cache.
func (p *Policy) encoder(model string, k *hashKeys) tokenize.Encoder {
	plain, cache := p.tokens.encoder(model, k), p.pool.tokens.Load()
	r := p.remembered.Load()
	if r == nil || r.cache != cache {
		r = &remembered{cache: cache}
		p.remembered.Store(r)
	}
	e, known := r.encoders.Load(plain)
	if !known {
		e, _ = r.encoders.LoadOrStore(plain, cache.Encoder(plain))
	}
	return e.(tokenize.Encoder)
}

// name says what the text of a request for that model is encoded with.
func (t *tokens) name(model string) string {
	if name := t.standIn(model); name != "" {
		return t.described + " (" + name + ")"
	}
	return t.described
}

// standIn names the encoding that goes by the request's model, if one does.
func (t *tokens) standIn(model string) string {
	if t.fixed != nil || t.estimate {
		return ""
	}
	if e, ok := t.encoder(model, nil).(*tokenize.Encoding); ok {
		return e.Name()
	}
	return ""
}

// lazyEncoding is an encoding that auto may ask for. Loading one takes a tenth
// of a second, which no request waits for: it is loaded beside them, and the
// stand-in serves until it is there.
type lazyEncoding struct {
	begun atomic.Bool
	ready atomic.Pointer[tokenize.Encoding]
}

// onDemand are the encodings by name.
var onDemand = func() map[string]*lazyEncoding {
	all := make(map[string]*lazyEncoding)
	for _, name := range tokenize.Encodings() {
		all[name] = new(lazyEncoding)
	}
	return all
}()

func (l *lazyEncoding) load(name string) error {
	e, err := tokenize.LoadEncoding(name)
	if err == nil {
		l.ready.Store(e)
	}
	return err
}
