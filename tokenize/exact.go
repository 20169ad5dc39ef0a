// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/kvaware/caddy-kvaware/tokenize/chattemplate"
)

// Exact makes of a request the token ids that the engine itself makes of it: a
// chat is rendered by the model's own template, and the text encoded by its own
// tokenizer. It is immutable and safe for concurrent use.
//
// What an engine does besides is vLLM's way. Source:
// vllm/entrypoints/openai/{chat_completion,completion}/protocol.py. Of a model
// whose chats it renders without the template, as it does gpt-oss's, the ids may
// be others.
type Exact struct {
	tokenizer *HFTokenizer
	template  *chattemplate.Template
	cuts      specialCuts
	memory    sync.Pool // of *exactMemory
}

// exactMemory is what rendering a chat needs.
type exactMemory struct {
	text    []byte
	strings []chattemplate.Span
	starts  []int
}

func (m *exactMemory) release(e *Exact) {
	m.text, m.strings, m.starts = kept(m.text, keptText), kept(m.strings, keptNodes), kept(m.starts, keptNodes)
	e.memory.Put(m)
}

// NewExact returns the exact way from requests to ids. Without a template (nil)
// only completions are exact.
func NewExact(tokenizer *HFTokenizer, template *chattemplate.Template) *Exact {
	return &Exact{tokenizer: tokenizer, template: template, cuts: newSpecialCuts(tokenizer)}
}

// tagExact parts chains of the engine's own ids from those of the stable
// rendering. It is no element of the list of tags, which may grow.
const tagExact hashTag = 1 << 16

// ChainExact does what [Reader.Chain] does, over the very ids that the engine
// computes, and reports whether it could. If not, the chains are those of Chain
// with enc. Chains of the two have different roots and never match.
//
// Exact are chats of the OpenAI API and completions, of text alone. Not exact is
// what brings a template of its own, holds media, is to be truncated, or what the
// template refuses, as the engine then answers 400.
//
// If enc is a [CachedEncoder] of the tokenizer of e, only what its cache does not
// know is encoded. Ctx bounds the rendering, as do the template's own bounds.
func (rd *Reader) ChainExact(ctx context.Context, req *Request, e *Exact, enc Encoder, blockSize int) (exact bool) {
	cached, _ := enc.(*CachedEncoder)
	switch {
	case e == nil:
	case req.Kind == OpenAIChat:
		exact = rd.chainExactChat(ctx, req, e, cached, blockSize)
	case req.Kind == OpenAICompletions:
		exact = rd.chainExactCompletions(req, e, cached, blockSize)
	}
	if !exact {
		rd.Chain(req, enc, blockSize)
	}
	return exact
}

// chainExactChat fills the prompt of a chat, or does nothing.
func (rd *Reader) chainExactChat(ctx context.Context, req *Request, e *Exact, cached *CachedEncoder, blockSize int) bool {
	if e.template == nil || len(req.Prompts) != 1 || req.Prompts[0].keepLast > 0 {
		return false
	}
	memory, _ := e.memory.Get().(*exactMemory)
	if memory == nil {
		memory = new(exactMemory)
	}
	defer memory.release(e)
	in, ok := rd.chatInput(req, memory)
	if !ok {
		return false
	}
	framed, ok := rd.addsSpecialTokens(false)
	if !ok {
		return false
	}
	out, err := e.template.Render(ctx, memory.text[:0], in)
	if err != nil {
		return false
	}
	memory.text = out.Text
	if out.Starts != nil {
		memory.starts = out.Starts
	}
	rd.blocks = rd.blocks[:0]
	p := &req.Prompts[0]
	rd.chainExactText(p, e, cached, out.Text, framed, blockSize)
	return true
}

// chainExactCompletions fills the prompts of a completion, or does nothing.
func (rd *Reader) chainExactCompletions(req *Request, e *Exact, cached *CachedEncoder, blockSize int) bool {
	for i := range req.Prompts {
		if p := &req.Prompts[i]; p.keepLast > 0 || !rd.isPlain(p) {
			return false
		}
	}
	framed, ok := rd.addsSpecialTokens(true)
	if !ok {
		return false
	}
	rd.blocks = rd.blocks[:0]
	for i := range req.Prompts {
		p := &req.Prompts[i]
		if p.first < p.end && rd.pieces[p.first].kind == textPiece {
			q := &rd.pieces[p.first]
			rd.chainExactText(p, e, cached, rd.plain(rd.scanner.body[q.start:q.end], q.flags), framed, blockSize)
			continue
		}
		// Token ids are taken as they are.
		first := len(rd.blocks)
		ids := *p
		ids.root = rd.exactRoot(p)
		if cached != nil && cached.remembers(rd, p) {
			p.Tokens = rd.chainCached(&ids, cached, blockSize)
		} else {
			p.Tokens = rd.chainWhole(&ids, e.tokenizer, blockSize)
		}
		p.Blocks = rd.blocks[first:len(rd.blocks):len(rd.blocks)]
	}
	return true
}

// isPlain tells whether a prompt is one text, or token ids: not both, nothing
// behind a place to fill in, no media.
func (rd *Reader) isPlain(p *Prompt) bool {
	for _, q := range rd.pieces[p.first:p.end] {
		if q.kind != numbersPiece && (q.kind != textPiece || p.end-p.first > 1) {
			return false
		}
	}
	return p.first < p.end
}

// exactRoot is what the first block of a prompt's own ids is chained to.
func (rd *Reader) exactRoot(p *Prompt) uint64 {
	return xxh3.HashSeed(nil, p.root^rd.seed(tagExact))
}

// addsSpecialTokens reads the request's member of that name, which is not among
// those that reading records; ok is false where its value is no boolean.
func (rd *Reader) addsSpecialTokens(byDefault bool) (adds, ok bool) {
	body, nodes := rd.scanner.body, rd.scanner.nodes
	// Its name can only stand between the members that are recorded.
	from, found := nodes[0].start, false
	for c := uint32(1); c < nodes[0].next && !found; c = nodes[c].next {
		found = bytes.Contains(body[from:nodes[c].start], specialMember)
		from = nodes[c].end
	}
	if !found && !bytes.Contains(body[from:nodes[0].end], specialMember) {
		return byDefault, true
	}
	// Or in a value that is not recorded.
	members := struct {
		Adds *bool `json:"add_special_tokens"`
	}{&byDefault}
	err := json.Unmarshal(bytes.TrimPrefix(body, []byte("\xef\xbb\xbf")), &members)
	if err != nil || members.Adds == nil {
		return false, false
	}
	return *members.Adds, true
}

var specialMember = []byte("add_special_tokens")
