// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"

	"github.com/kvaware/caddy-kvaware/tokenize/chattemplate"
)

// Exact makes of a request the token ids that the engine itself makes of it: a
// chat is rendered by the model's own template, and the text encoded by its own
// tokenizer. In use it is immutable and safe for concurrent use.
//
// What an engine does besides is the way of vLLM or of SGLang, by the template's
// [chattemplate.Form]. Source: vllm/entrypoints/openai/{chat_completion,completion}
// and vllm/renderers (0.32), sglang/srt/entrypoints/openai (0.5.23). Of a model
// whose chats an engine renders without the template, as vLLM does gpt-oss's, the
// ids may be others.
type Exact struct {
	tokenizer *HFTokenizer
	template  *chattemplate.Template
	images    *imageTokenizer // nil: chats with images are not exact
	cuts      specialCuts
	memory    sync.Pool // of *exactMemory
}

// exactMemory is what rendering a chat needs.
type exactMemory struct {
	text, spare []byte
	apart       int // where text begins that is encoded by itself; 0 for none
	strings     []chattemplate.Span
	starts      []int
	images      []exactImage
	ids         []uint32
}

func (m *exactMemory) release(e *Exact) {
	m.text, m.spare, m.ids = kept(m.text, keptText), kept(m.spare, keptText), kept(m.ids, keptIDs)
	m.strings, m.starts, m.images = kept(m.strings, keptNodes), kept(m.starts, keptNodes), kept(m.images, keptPrompts)
	e.memory.Put(m)
}

// NewExact returns the exact way from requests to ids. Without a template (nil)
// only completions are exact.
func NewExact(tokenizer *HFTokenizer, template *chattemplate.Template) *Exact {
	return &Exact{tokenizer: tokenizer, template: template, cuts: newSpecialCuts(tokenizer)}
}

// TakeImages makes chats with images exact as well. It must come before the first
// use of e. The error says that the tokenizer does not go with the processor.
func (e *Exact) TakeImages(p *chattemplate.ImageProcessor) (err error) {
	e.images, err = newImageTokenizer(e.tokenizer, p)
	return err
}

// tagExact parts chains of the engine's own ids from those of the stable
// rendering. It is no element of the list of tags, which may grow.
const tagExact hashTag = 1 << 16

// ChainExact does what [Reader.Chain] does, over the very ids that the engine
// computes, and reports whether it could. Chains of the two have different roots
// and never match.
//
// Exact are chats of the OpenAI API and completions, of text and for vLLM of images
// whose size the body tells. Of an image that is only named (no image is fetched) the
// number of tokens is a guess: that is not exact, but the chain is that of the ids
// up to the image, and no other way's. Everything else gets the chains of Chain
// with enc: what brings a template of its own, holds other media, is to be
// truncated, or what the template refuses, as the engine then answers 400.
//
// In the place of an image's tokens are ids made of what identifies it, so that the
// blocks which it touches, and those behind them, are its own, as in the engines.
//
// If enc is a [CachedEncoder] of the tokenizer of e, only what its cache does not
// know is encoded. Ctx bounds the rendering, as do the template's own bounds.
func (rd *Reader) ChainExact(ctx context.Context, req *Request, e *Exact, enc Encoder, blockSize int) (exact bool) {
	cached, _ := enc.(*CachedEncoder)
	done := false
	switch {
	case e == nil:
	case req.Kind == OpenAIChat:
		exact, done = rd.chainExactChat(ctx, req, e, cached, blockSize)
	case req.Kind == OpenAICompletions:
		done = rd.chainExactCompletions(req, e, cached, blockSize)
		exact = done
	}
	if !done {
		rd.Chain(req, enc, blockSize)
	}
	return exact && done
}

// chainExactChat fills the prompt of a chat, or is not done.
func (rd *Reader) chainExactChat(ctx context.Context, req *Request, e *Exact, cached *CachedEncoder, blockSize int) (exact, done bool) {
	if e.template == nil || len(req.Prompts) != 1 || req.Prompts[0].keepLast > 0 {
		return false, false
	}
	memory, _ := e.memory.Get().(*exactMemory)
	if memory == nil {
		memory = new(exactMemory)
	}
	defer memory.release(e)
	_, framed, exact, ok := rd.renderExact(ctx, req, e, memory)
	if !ok {
		return false, false
	}
	rd.blocks = rd.blocks[:0]
	return exact, rd.chainExactText(&req.Prompts[0], e, cached, memory, framed, blockSize)
}

// renderExact renders a chat as the engine does, its images put in, in memory.
// Starts are where its messages begin in that text; nil if that is not known.
// Framed is whether the tokenizer's post-processor adds to it. Ok and exact are as
// chatInput has them.
func (rd *Reader) renderExact(ctx context.Context, req *Request, e *Exact, memory *exactMemory) (starts []int, framed, exact, ok bool) {
	in, exact, ok := rd.chatInput(req, e, memory)
	if !ok {
		return nil, false, false, false
	}
	if e.template.Form() != chattemplate.SGLang {
		if framed, ok = rd.addsSpecialTokens(false); !ok {
			return nil, false, false, false
		}
	}
	out, err := e.template.Render(ctx, memory.text[:0], in)
	if err != nil {
		return nil, false, false, false
	}
	memory.text, memory.apart = out.Text, out.Apart
	if out.Starts != nil {
		memory.starts = out.Starts
	}
	if len(memory.images) > 0 {
		sure, placed := e.images.placeImages(memory, out.Starts)
		if !placed {
			return nil, false, false, false
		}
		// With images SGLang makes tokens of the text of its own tokens, in ways of
		// each model's, and was not asked.
		exact = exact && sure && e.template.Form() == chattemplate.VLLM
		if out.Apart > 0 {
			return nil, false, false, false
		}
	}
	return out.Starts, framed, exact, true
}

// framesCompletions tells whether the tokenizer's post-processor adds to the text
// of completions; ok is false where the request says neither.
func (rd *Reader) framesCompletions(e *Exact) (framed, ok bool) {
	if e.template != nil && e.template.Form() == chattemplate.SGLang {
		return true, true
	}
	return rd.addsSpecialTokens(true)
}

// chainExactCompletions fills the prompts of a completion, or does nothing.
func (rd *Reader) chainExactCompletions(req *Request, e *Exact, cached *CachedEncoder, blockSize int) bool {
	for i := range req.Prompts {
		if p := &req.Prompts[i]; p.keepLast > 0 || !rd.isPlain(p) {
			return false
		}
	}
	framed, ok := rd.framesCompletions(e)
	if !ok {
		return false
	}
	rd.blocks = rd.blocks[:0]
	memory := new(exactMemory) // not of the pool, as its text may be the body's
	for i := range req.Prompts {
		p := &req.Prompts[i]
		if p.first < p.end && rd.pieces[p.first].kind == textPiece {
			q := &rd.pieces[p.first]
			memory.text = rd.plain(rd.scanner.body[q.start:q.end], q.flags)
			rd.chainExactText(p, e, cached, memory, framed, blockSize)
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
		p.own = true
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
	return rd.Chains().exact(p.root)
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
	return readSpecialTokens(body, byDefault)
}

func readSpecialTokens(body []byte, byDefault bool) (adds, ok bool) {
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
