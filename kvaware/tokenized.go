// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"fmt"
	"math"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/kvaware/caddy-kvaware/tokenize"
)

// Tokenized tells how a request becomes tokens and blocks. It is the answer to
// POST /kv_aware/tokenize, and holds neither text nor token ids.
type Tokenized struct {
	Pool  string `json:"pool"` // "" where no running instance was asked
	API   string `json:"api"`
	Model string `json:"model"`

	// What the text was encoded with, and whether the tokens are the very ones
	// that the engine makes of the prompt.
	Tokenizer string `json:"tokenizer"`
	Exact     bool   `json:"exact"`
	// By how much counts are corrected, and all prompts' tokens as corrected.
	// Tokens and blocks below are as counted.
	TokenRatio   float64 `json:"token_ratio"`
	PromptTokens int64   `json:"prompt_tokens"`

	BlockSize int               `json:"block_size"` // in tokens
	Prompts   []TokenizedPrompt `json:"prompts"`
	Truncated bool              `json:"truncated"` // there are more prompts or messages
}

// TokenizedPrompt is one prompt of a request.
type TokenizedPrompt struct {
	Tokens int `json:"tokens"`
	Blocks int `json:"blocks"` // whole ones
	// Nil if the prompt is no conversation, or if it is not known where its
	// messages begin.
	Messages []TokenizedMessage `json:"messages"`
}

// TokenizedMessage is where one message begins in its prompt.
type TokenizedMessage struct {
	// system, developer, user, assistant, tool, function, or other
	Role string `json:"role"`
	// Tokens before it. If it begins inside a token, that is its first.
	Start int `json:"start"`
	// Up to the next message, or to the prompt's end.
	Tokens int `json:"tokens"`
	// The block in which it begins, counted from 0.
	Block int `json:"block"`
}

// showTokens answers POST /kv_aware/tokenize[?pool=][&path=][&limit=] with how the
// request in the body becomes tokens and blocks. Limit bounds the prompts that
// are listed, and the messages of all of them together.
func showTokens(_ http.ResponseWriter, r *http.Request) (any, error) {
	limit, err := limitAsked(r.URL.Query())
	if err != nil {
		return nil, err
	}
	return askedAbout(r, "tokenize", func(v *poolView, rt *routing, rd *tokenize.Reader, req *tokenize.Request) (any, error) {
		tokens := rt.policy.tokens
		t := Tokenized{
			Pool:  v.pool.name,
			API:   req.Kind.String(),
			Model: req.Model,

			Tokenizer:    rt.tokenizer(req.Model),
			Exact:        rt.exact,
			TokenRatio:   rt.request.Ratio,
			PromptTokens: rt.promptTokens(),
			BlockSize:    rt.policy.BlockSize,
		}
		enc := tokens.encoder(req.Model, rt.keys)
		if rt.exact && tokens.remote != nil {
			enc = nil // of an engine's ids nobody says where a message begins
		}
		t.lay(r.Context(), rd, req, tokens.exact, enc, limit, nil)
		return t, nil
	})
}

// lay lists at most limit prompts and messages; each is called with the ids of
// those prompts. Without an encoder neither messages nor ids are known.
func (t *Tokenized) lay(ctx context.Context, rd *tokenize.Reader, req *tokenize.Request, e *tokenize.Exact, enc tokenize.Encoder, limit int, each func([]uint32)) {
	listed := min(limit, len(req.Prompts))
	t.Truncated = listed < len(req.Prompts)
	t.Prompts = make([]TokenizedPrompt, listed)
	for i := range t.Prompts {
		p := &t.Prompts[i]
		p.Tokens, p.Blocks = req.Prompts[i].Tokens, len(req.Prompts[i].Blocks)
		var layout tokenize.Layout
		ok := false
		if enc != nil {
			layout, ok = rd.Layout(ctx, req, i, e, enc)
		}
		if !ok || len(layout.IDs) != p.Tokens {
			layout = tokenize.Layout{} // chained by what cannot be asked again
		}
		if each != nil {
			each(layout.IDs)
		}
		if len(layout.Messages) > limit {
			layout.Messages, t.Truncated = layout.Messages[:limit], true
		}
		limit -= len(layout.Messages)
		for _, m := range layout.Messages {
			p.Messages = append(p.Messages, TokenizedMessage{m.Role, m.Start, m.Tokens, m.Start / t.BlockSize})
		}
	}
}

// ParseTokenizer reads what may stand behind `tokenizer` in a Caddyfile.
func ParseTokenizer(text string) (*Tokenizer, error) {
	// The file's name shows in errors.
	words, err := caddyfile.Tokenize([]byte("tokenizer "+text), "--tokenizer")
	if err != nil {
		return nil, err
	}
	var p Policy
	d := caddyfile.NewDispenser(words)
	d.Next()
	if err := p.readTokenizer(d, d.Val()); err != nil {
		return nil, err
	}
	if d.Next() {
		return nil, fmt.Errorf("tokenizer: unexpected %q", d.Val())
	}
	return p.Tokenizer, nil
}

// Tokenize tells what a policy with this tokenizer and that block size, from 1 to
// 4096 tokens, makes of the body of a request to path; without a path, the
// body's shape tells the API. Counts are not corrected. If each is not nil, it is
// called with the ids of every prompt in turn, which are its own until it
// returns, and nil if they are not known; those from 1<<31 on stand for what is no
// text.
//
// It reads the files that the tokenizer names, and knows nothing of a running
// instance.
func (t *Tokenizer) Tokenize(ctx context.Context, path string, body []byte, blockSize int, each func(ids []uint32)) (*Tokenized, error) {
	if blockSize < 1 || blockSize > maxBlockSize {
		return nil, fmt.Errorf("block size %d: expecting 1 to %d tokens", blockSize, maxBlockSize)
	}
	loaded, err := t.provision(caddy.NewReplacer())
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if loaded.remote != nil {
		return nil, fmt.Errorf("tokenizer: engines are asked by a running instance: ask that one, or name another tokenizer than %s", tokenizerRemote)
	}
	rd := tokenize.AcquireReader()
	defer rd.Release()
	req, err := readAs(rd, path, body)
	if err != nil {
		return nil, err
	}
	if loaded.fixed == nil && !loaded.estimate {
		// Unlike a request, this waits for the encoding.
		name, _ := tokenize.EncodingForModel(req.Model)
		if err := onDemand[name].load(name); err != nil {
			return nil, err
		}
	}
	enc, e := loaded.encoder(req.Model, randomKeys()), loaded.exact
	out := &Tokenized{API: req.Kind.String(), Model: req.Model, Tokenizer: loaded.name(req.Model), TokenRatio: 1, BlockSize: blockSize}
	out.Exact = rd.ChainExact(ctx, req, e, enc, blockSize)
	for i := range req.Prompts {
		out.PromptTokens += int64(req.Prompts[i].Tokens)
	}
	const all = math.MaxInt
	out.lay(ctx, rd, req, e, enc, all, each)
	return out, nil
}
