// SPDX-License-Identifier: Apache-2.0

package tokenize

import "slices"

// place is a place in a prompt: the beginning of a piece, or with an offset that
// place in the body, inside the piece.
type place struct{ piece, offset uint32 }

// chaining is a prompt being encoded segment by segment. The blocks up to now
// are at the end of the reader's, and its ids are those of the block begun.
type chaining struct {
	rd        *Reader
	enc       *CachedEncoder
	blockSize int
	key       cacheKey // of all before at
	at        place
	tokens    int
	last      uint64 // what the next block is chained to
}

// remembers tells whether a prompt is one for the cache: not if it is shorter
// than a segment, nor if its first tokens are cut off, which moves its blocks.
func (e *CachedEncoder) remembers(rd *Reader, p *Prompt) bool {
	if p.keepLast > 0 || e.cache.layout.maxBytes == 0 {
		return false
	}
	length := 0
	for i := p.first; i < p.end; i++ {
		if length += rd.pieces[i].length(); length >= e.cache.segment {
			return true
		}
	}
	return false
}

// length is what a piece counts in segments: its bytes, or its synthetic ids.
func (p *piece) length() int {
	if p.kind == syntheticPiece {
		return int(p.end)
	}
	return int(p.end - p.start)
}

// chainCached appends the blocks of a prompt to the reader's and returns the
// number of its tokens.
func (rd *Reader) chainCached(p *Prompt, enc *CachedEncoder, blockSize int) (tokens int) {
	c := chaining{
		rd: rd, enc: enc, blockSize: blockSize,
		key: enc.firstKey(p.root, blockSize), at: place{piece: p.first}, last: p.root,
	}
	rd.ids = rd.ids[:0]
	segment := enc.cache.segment
	length := 0 // from c.at on
	for i := p.first; i < p.end; i++ {
		q := &rd.pieces[i]
		if q.kind == syntheticPiece {
			length += q.length()
		} else {
			start := int(q.start)
			for at := start + segment - length; at < int(q.end); {
				cut := rd.cut(q, start, at, enc.cuts)
				if cut == 0 {
					// What follows decides nothing here, so other prompts give up too.
					at += segment
					continue
				}
				c.pass(place{i, uint32(cut)}, length+cut-start)
				length, start, at = 0, cut, cut+segment
			}
			length += int(q.end) - start
		}
		if length >= segment {
			c.pass(place{piece: i + 1}, length)
			length = 0
		}
	}
	c.encode(place{piece: p.end})
	return c.tokens
}

// cut returns the first safe place at or after at inside a piece of which start
// begins a character or number; all three are offsets in the body. It returns 0
// if there is none near.
func (rd *Reader) cut(p *piece, start, at int, rule CutRule) (cut int) {
	raw := rd.scanner.body[start:p.end]
	switch p.kind {
	case textPiece:
		cut = rule.find(raw, at-start)
	case numbersPiece:
		cut = numbersCut(raw, at-start)
	}
	if cut == 0 {
		return 0
	}
	return start + cut
}

// pass goes on to the end of a segment, by the cache if it knows the segment.
func (c *chaining) pass(to place, length int) {
	rd, cache := c.rd, c.enc.cache
	c.key = c.keyBefore(to)
	blocks := len(rd.blocks)
	if c.blockSize > 0 {
		// So that the cache need not allocate while it holds its lock: a token
		// rarely has less than a byte.
		rd.blocks = slices.Grow(rd.blocks, min(length/c.blockSize+1, mostWords))
		rd.ids = slices.Grow(rd.ids, min(length, c.blockSize, 2*mostWords))
	}
	var tokens int
	var known bool
	if rd.blocks, rd.ids, tokens, known = cache.take(c.key, rd.blocks, rd.ids); known {
		c.tokens += tokens
		if len(rd.blocks) > blocks {
			c.last = rd.blocks[len(rd.blocks)-1]
		}
		c.at = to
		return
	}
	ids, before := len(rd.ids), c.tokens
	c.encode(to)
	if len(rd.blocks) > blocks || c.blockSize < 1 {
		ids = 0
	}
	cache.put(c.key, c.tokens-before, rd.blocks[blocks:], rd.ids[ids:])
}

// clip returns the part of a piece between c.at and to.
func (c *chaining) clip(i uint32, to place) piece {
	p := c.rd.pieces[i]
	if i == c.at.piece && c.at.offset > 0 {
		p.start = c.at.offset
	}
	if i == to.piece {
		p.end = to.offset
	}
	return p
}

// end returns the piece behind the last one that lies before to, in part at least.
func (to place) end() uint32 {
	if to.offset > 0 {
		return to.piece + 1
	}
	return to.piece
}

// keyBefore returns the key of all before to.
func (c *chaining) keyBefore(to place) cacheKey {
	k := c.key
	for i := c.at.piece; i < to.end(); i++ {
		p := c.clip(i, to)
		var raw []byte
		if p.kind != syntheticPiece {
			raw = c.rd.scanner.body[p.start:p.end]
		}
		k = c.enc.cache.extendByPiece(k, &p, raw)
	}
	return k
}

// encode goes on to a place by encoding what lies before it.
func (c *chaining) encode(to place) {
	rd := c.rd
	ids := len(rd.ids)
	for i := c.at.piece; i < to.end(); i++ {
		p := c.clip(i, to)
		rd.encode(&p, c.enc.Encoder)
	}
	c.at = to
	c.tokens += len(rd.ids) - ids
	if c.blockSize < 1 {
		rd.ids = rd.ids[:0]
		return
	}
	blocks := len(rd.blocks)
	rd.blocks = appendChain(rd.blocks, rd.ids, c.blockSize, c.last)
	if whole := len(rd.blocks) - blocks; whole > 0 {
		c.last = rd.blocks[len(rd.blocks)-1]
		rd.ids = rd.ids[:copy(rd.ids, rd.ids[whole*c.blockSize:])]
	}
}
