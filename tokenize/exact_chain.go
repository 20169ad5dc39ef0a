// SPDX-License-Identifier: Apache-2.0

package tokenize

import "github.com/zeebo/xxh3"

// chainExactText fills a prompt with the chain of the ids of memory's text, whose
// images are in memory too. Framed puts around them what the tokenizer's
// post-processor adds. It fails, and leaves the prompt as it was, if the
// tokenizer does not find the images.
func (rd *Reader) chainExactText(p *Prompt, e *Exact, cached *CachedEncoder, memory *exactMemory, framed bool, blockSize int) bool {
	first := len(rd.blocks)
	var before, after []uint32
	if framed {
		before, after = e.tokenizer.Frame()
	}
	text, apart := memory.text, []byte(nil)
	if memory.apart > 0 {
		text, apart = text[:memory.apart], text[memory.apart:]
	}
	c := textChaining{
		segments: segments{rd: rd, blockSize: blockSize, last: rd.exactRoot(p), tokens: len(before)},
		e:        e, memory: memory, images: memory.images,
	}
	rd.ids = append(rd.ids[:0], before...)
	from := 0
	if cached != nil && cached.Encoder == Encoder(e.tokenizer) && cached.cache.layout.maxBytes > 0 {
		c.cache = cached.cache
		c.key = c.cache.extend(cached.firstKey(c.last, blockSize), cacheKey{lo: uint64(len(before))}, exactKind)
		from = c.passAll(text)
	}
	if c.failed || !c.encode(text[from:], c.images) {
		return false
	}
	if apart != nil {
		c.encodeApart(apart)
	}
	rd.ids = append(rd.ids, after...)
	c.tokens += len(after)
	c.fold()
	rd.begun = rd.ids
	p.Tokens, p.own = c.tokens, true
	// Growing rd.blocks moves it; blocks of earlier prompts stay where they are.
	p.Blocks = rd.blocks[first:len(rd.blocks):len(rd.blocks)]
	return true
}

// textChaining is a text being encoded.
type textChaining struct {
	segments
	e      *Exact
	memory *exactMemory
	images []exactImage // that are still to come
	failed bool
}

// exactKind parts keys of texts from those of pieces.
const exactKind = 0xff

// passAll goes on to the last place at which the text is cut, and returns where
// that is.
func (c *textChaining) passAll(text []byte) (from int) {
	segment := c.cache.segment
	for at := segment; at < len(text) && !c.failed; {
		cut := c.e.cuts.find(text, at)
		if cut == 0 {
			at += segment
			continue
		}
		c.passPart(text[from:cut], c.imagesUpTo(cut))
		from, at = cut, cut+segment
	}
	return from
}

// passPart goes on to the end of a segment in which these images are.
func (c *textChaining) passPart(part []byte, images []exactImage) {
	h := xxh3.Hash128Seed(part, c.cache.secret[1])
	c.key = c.cache.extend(c.key, cacheKey{h.Lo, h.Hi}, uint64(len(part))<<8|exactKind)
	for _, image := range images {
		c.key = c.cache.extend(c.key, cacheKey{lo: image.seed}, uint64(image.tokens)<<8|exactKind)
	}
	c.failed = !c.pass(len(part), func() bool { return c.encode(part, images) })
}

// encode appends the ids of a part in which these images are. It fails if they are
// not found.
func (c *textChaining) encode(part []byte, images []exactImage) bool {
	ids := len(c.rd.ids)
	c.rd.ids = c.e.tokenizer.AppendSpecial(c.rd.ids, part)
	if len(images) > 0 && !c.expand(ids, images) {
		return false
	}
	c.tokens += len(c.rd.ids) - ids
	return true
}

// encodeApart appends the ids of a text that is encoded by itself, with what the
// tokenizer's post-processor adds, but not as a beginning.
func (c *textChaining) encodeApart(text []byte) {
	rd, ids := c.rd, len(c.rd.ids)
	before, after := c.e.tokenizer.Frame()
	if len(before) > 0 {
		before = before[1:]
	}
	rd.ids = append(rd.ids, before...)
	rd.ids = c.e.tokenizer.AppendSpecial(rd.ids, text)
	rd.ids = append(rd.ids, after...)
	c.tokens += len(rd.ids) - ids
}
