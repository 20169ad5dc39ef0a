// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"slices"

	"github.com/zeebo/xxh3"
)

// chainExactText fills a prompt with the chain of a text's ids. Framed puts
// around them what the tokenizer's post-processor adds.
func (rd *Reader) chainExactText(p *Prompt, e *Exact, cached *CachedEncoder, text []byte, framed bool, blockSize int) {
	first := len(rd.blocks)
	var before, after []uint32
	if framed {
		before, after = e.tokenizer.Frame()
	}
	c := textChaining{rd: rd, tokenizer: e.tokenizer, blockSize: blockSize, last: rd.exactRoot(p), tokens: len(before)}
	rd.ids = append(rd.ids[:0], before...)
	if cached != nil && cached.Encoder == Encoder(e.tokenizer) && cached.cache.layout.maxBytes > 0 {
		c.cache = cached.cache
		c.key = c.cache.extend(cached.firstKey(c.last, blockSize), cacheKey{lo: uint64(len(before))}, exactKind)
		text = c.passAll(&e.cuts, text)
	}
	c.encode(text)
	rd.ids = append(rd.ids, after...)
	c.tokens += len(after)
	c.fold()
	p.Tokens = c.tokens
	// Growing rd.blocks moves it; blocks of earlier prompts stay where they are.
	p.Blocks = rd.blocks[first:len(rd.blocks):len(rd.blocks)]
}

// textChaining is a text being encoded segment by segment, as chaining does it
// with pieces of a body: the blocks up to now are at the end of the reader's, and
// its ids are those of the block begun.
type textChaining struct {
	rd        *Reader
	tokenizer *HFTokenizer
	cache     *Cache
	blockSize int
	key       cacheKey // of all before
	tokens    int
	last      uint64 // what the next block is chained to
}

// exactKind parts keys of texts from those of pieces.
const exactKind = 0xff

// passAll goes on to the last place at which the text is cut, and returns what
// is behind it.
func (c *textChaining) passAll(cuts *specialCuts, text []byte) (rest []byte) {
	segment := c.cache.segment
	from := 0
	for at := segment; at < len(text); {
		cut := cuts.find(text, at)
		if cut == 0 {
			at += segment
			continue
		}
		c.pass(text[from:cut])
		from, at = cut, cut+segment
	}
	return text[from:]
}

// pass goes on to the end of a segment, by the cache if it knows the segment.
func (c *textChaining) pass(part []byte) {
	rd := c.rd
	h := xxh3.Hash128Seed(part, c.cache.secret[1])
	c.key = c.cache.extend(c.key, cacheKey{h.Lo, h.Hi}, uint64(len(part))<<8|exactKind)
	blocks := len(rd.blocks)
	if c.blockSize > 0 {
		// So that the cache need not allocate while it holds its lock.
		rd.blocks = slices.Grow(rd.blocks, min(len(part)/c.blockSize+1, mostWords))
		rd.ids = slices.Grow(rd.ids, min(len(part), c.blockSize, 2*mostWords))
	}
	var tokens int
	var known bool
	if rd.blocks, rd.ids, tokens, known = c.cache.take(c.key, rd.blocks, rd.ids); known {
		c.tokens += tokens
		if len(rd.blocks) > blocks {
			c.last = rd.blocks[len(rd.blocks)-1]
		}
		return
	}
	ids, before := len(rd.ids), c.tokens
	c.encode(part)
	if c.fold() {
		ids = 0
	}
	c.cache.put(c.key, c.tokens-before, rd.blocks[blocks:], rd.ids[ids:])
}

// encode appends the ids of a part.
func (c *textChaining) encode(part []byte) {
	ids := len(c.rd.ids)
	c.rd.ids = c.tokenizer.AppendSpecial(c.rd.ids, part)
	c.tokens += len(c.rd.ids) - ids
}

// fold makes blocks of the ids; it reports whether the ids from before the last
// encode are gone.
func (c *textChaining) fold() bool {
	rd := c.rd
	if c.blockSize < 1 {
		rd.ids = rd.ids[:0]
		return true
	}
	blocks := len(rd.blocks)
	rd.blocks = appendChain(rd.blocks, rd.ids, c.blockSize, c.last)
	whole := len(rd.blocks) - blocks
	if whole == 0 {
		return false
	}
	c.last = rd.blocks[len(rd.blocks)-1]
	rd.ids = rd.ids[:copy(rd.ids, rd.ids[whole*c.blockSize:])]
	return true
}
