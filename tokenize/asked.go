// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"slices"
	"strconv"

	"github.com/zeebo/xxh3"
)

// Question is what an engine is asked for the ids of a request's prompts, as
// package remote describes it.
type Question struct {
	Body       []byte // JSON
	RenderOnly bool   // vLLM's /tokenize would not take notice of all that matters
}

// AppendQuestion appends the body of the question to dst. It holds those members
// of the request that decide what its prompts become, with values as they stand in
// the body. It is false for what cannot be asked: other APIs than OpenAI's chats
// and completions, media, whose ids no engine tells, and prompts to be truncated
// or filled in.
func (rd *Reader) AppendQuestion(dst []byte, req *Request) (q Question, ok bool) {
	for i := range req.Prompts {
		if req.Prompts[i].keepLast > 0 {
			return q, false
		}
	}
	var f fields
	rd.collect(0, &f)
	switch req.Kind {
	case OpenAIChat:
		media := req.Images + req.Audio + req.Video + req.Files
		if len(req.Prompts) != 1 || media > 0 || !rd.onlyText(f[keyMessages]) {
			return q, false
		}
	case OpenAICompletions:
		for i := range req.Prompts {
			if !rd.isPlain(&req.Prompts[i]) {
				return q, false
			}
		}
	default:
		return q, false
	}
	chat := req.Kind == OpenAIChat
	special, ok := rd.addsSpecialTokens(!chat)
	if !ok || len(req.Prompts) == 0 {
		return q, false
	}
	const names = 512 // bytes of all that is added
	dst = append(slices.Grow(dst, len(rd.scanner.body)+names), '{')
	add := func(name string, n uint32) {
		if n == 0 {
			return
		}
		dst = append(dst, '"')
		dst = append(dst, name...)
		dst = append(dst, `":`...)
		value := rd.scanner.nodes[n]
		if value.kind == stringValue { // whose node has no quotes
			value.start--
			value.end++
		}
		dst = append(dst, rd.scanner.body[value.start:value.end]...)
		dst = append(dst, ',')
	}
	add("model", f[keyModel])
	if chat {
		add("messages", f[keyMessages])
		add("tools", f[keyTools])
		add("tool_choice", f[keyToolChoice])
		add("documents", f[keyDocuments])
		add("reasoning_effort", f[keyReasoningEffort])
		add("response_format", f[keyResponseFormat])
		add("chat_template", f[keyChatTemplate])
		add("chat_template_kwargs", f[keyChatTemplateKwargs])
		add("add_generation_prompt", f[keyAddGenerationPrompt])
		add("continue_final_message", f[keyContinueFinalMessage])
		q.RenderOnly = !rd.isNull(f[keyDocuments]) || !rd.isNull(f[keyReasoningEffort]) ||
			!rd.isNull(f[keyResponseFormat]) || !rd.isNull(f[keyTools]) && !rd.isDefaultChoice(f[keyToolChoice]) ||
			rd.anyHas(f[keyMessages], keyReasoningContent)
	} else {
		add("prompt", f[keyPrompt])
		// It takes one text.
		q.RenderOnly = rd.kindOf(f[keyPrompt]) != stringValue
	}
	dst = append(dst, `"add_special_tokens":`...)
	dst = strconv.AppendBool(dst, special)
	q.Body = append(dst, '}')
	return q, true
}

// anyHas tells whether one of the messages has that member.
func (rd *Reader) anyHas(messages uint32, k key) bool {
	for m, end := rd.elements(messages); m < end; m = rd.scanner.nodes[m].next {
		if !rd.isNull(rd.member(m, k)) {
			return true
		}
	}
	return false
}

// isDefaultChoice tells whether which tool to call is left to the model.
func (rd *Reader) isDefaultChoice(n uint32) bool {
	return rd.isNull(n) || string(rd.stringOf(n)) == "auto"
}

// ChainIDs fills the prompts of completions that are all token ids, which need
// no engine to be exact, and reports whether they are.
func (rd *Reader) ChainIDs(req *Request, blockSize int) bool {
	if req.Kind != OpenAICompletions {
		return false
	}
	for i := range req.Prompts {
		p := &req.Prompts[i]
		if p.keepLast > 0 || !rd.isPlain(p) || rd.pieces[p.first].kind != numbersPiece {
			return false
		}
	}
	rd.blocks = rd.blocks[:0]
	for i := range req.Prompts {
		p := &req.Prompts[i]
		rd.ids = rd.ids[:0]
		for j := p.first; j < p.end; j++ {
			q := &rd.pieces[j]
			rd.ids = appendIDs(rd.ids, rd.scanner.body[q.start:q.end])
		}
		rd.chainGiven(p, rd.ids, blockSize)
	}
	return true
}

// chainGiven fills a prompt with the chain of ids: that of [Reader.ChainExact].
func (rd *Reader) chainGiven(p *Prompt, ids []uint32, blockSize int) {
	first := len(rd.blocks)
	rd.chainIDs(ids, blockSize, rd.exactRoot(p))
	p.Tokens, p.own = len(ids), true
	// Growing rd.blocks moves it; blocks of earlier prompts stay where they are.
	p.Blocks = rd.blocks[first:len(rd.blocks):len(rd.blocks)]
}

// ChainAnswer fills the prompts of req with what an engine answered to its
// question: the ids of all prompts, where ends says where each prompt's end. It
// remembers the chains in c for ChainAnswered. It is false, and does nothing, for
// an answer to another number of prompts.
func (rd *Reader) ChainAnswer(req *Request, c *Cache, asked uint64, question []byte, ids []uint32, ends []int, blockSize int) bool {
	if len(ends) != len(req.Prompts) {
		return false
	}
	rd.blocks = rd.blocks[:0]
	key, from := c.askedKey(asked, question, blockSize), 0
	for i := range req.Prompts {
		p := &req.Prompts[i]
		rd.chainGiven(p, ids[from:ends[i]], blockSize)
		from = ends[i]
		c.keepChain(c.extend(key, cacheKey{lo: p.root, hi: uint64(i)}, askedKind), p, rd.begun, blockSize)
	}
	return true
}

// ChainAnswered fills the prompts of req with what was answered to the very same
// question before, or reports that it is not known (any more). Asked tells apart
// whom the question is put to.
func (rd *Reader) ChainAnswered(req *Request, c *Cache, asked uint64, question []byte, blockSize int) bool {
	rd.blocks = rd.blocks[:0]
	key := c.askedKey(asked, question, blockSize)
	for i := range req.Prompts {
		p := &req.Prompts[i]
		first := len(rd.blocks)
		k := c.extend(key, cacheKey{lo: p.root, hi: uint64(i)}, askedKind)
		var known bool
		rd.blocks, rd.ids, p.Tokens, known = c.takeChain(k, rd.blocks, rd.ids, len(question), blockSize)
		if !known {
			return false
		}
		rd.begun = rd.ids
		p.own = true
		p.Blocks = rd.blocks[first:len(rd.blocks):len(rd.blocks)]
	}
	return true
}

// askedKind parts keys of questions from those of texts and pieces.
const askedKind = 0xfe

// askedKey is the key of a question.
func (c *Cache) askedKey(asked uint64, question []byte, blockSize int) cacheKey {
	h := xxh3.Hash128Seed(question, c.secret[1])
	k := c.extend(cacheKey{h.Lo, h.Hi}, cacheKey{lo: asked, hi: uint64(max(0, blockSize))}, askedKind)
	return c.extend(k, cacheKey{lo: uint64(len(question))}, askedKind)
}

// chainPart is how many blocks an entry holds of a chain that is kept whole. A
// chain is as many entries as it fills, and one more that it does not, so that
// its end is known.
func (c *Cache) chainPart(blockSize int) int {
	return max(1, min(1<<c.layout.pageBits-entryHead, countMask/max(1, blockSize)-1))
}

// keepChain remembers a prompt's chain as a whole, and the ids behind it, if they
// are no more than an entry holds.
func (c *Cache) keepChain(k cacheKey, p *Prompt, begun []uint32, blockSize int) {
	part, blocks, tokens := c.chainPart(blockSize), p.Blocks, p.Tokens
	if tokens-len(blocks)*blockSize > countMask {
		return // not in blocks, and longer than an entry can say
	}
	for i := uint64(0); ; i++ {
		if len(blocks) < part {
			if entryHead+len(blocks)+(len(begun)+1)/2 > 1<<c.layout.pageBits {
				begun = nil
			}
			c.put(c.extend(k, cacheKey{lo: i}, askedKind), tokens, blocks, begun)
			return
		}
		c.put(c.extend(k, cacheKey{lo: i}, askedKind), part*blockSize, blocks[:part], nil)
		blocks, tokens = blocks[part:], tokens-part*blockSize
	}
}

// takeChain appends a chain that was kept to dst, and puts the ids behind it, if
// they were kept, into begun. Length is the question's, in bytes.
func (c *Cache) takeChain(k cacheKey, dst []uint64, begun []uint32, length, blockSize int) (_ []uint64, _ []uint32, tokens int, known bool) {
	part := c.chainPart(blockSize)
	begun = slices.Grow(begun[:0], max(0, min(blockSize-1, 2<<c.layout.pageBits)))
	for i := uint64(0); ; i++ {
		// So that the cache need not allocate while it holds its lock: a token
		// rarely has less than a byte.
		dst = slices.Grow(dst, min(length/max(1, blockSize)+1, part))
		before := len(dst)
		var n int
		if dst, begun, n, known = c.take(c.extend(k, cacheKey{lo: i}, askedKind), dst, begun); !known {
			return dst, begun, 0, false
		}
		tokens += n
		if len(dst)-before < part {
			return dst, begun, tokens, true
		}
	}
}
