// SPDX-License-Identifier: Apache-2.0

package tokenize

// place is a place in a prompt: the beginning of a piece, or with an offset that
// place in the body, inside the piece.
type place struct{ piece, offset uint32 }

// chaining is the pieces of a prompt being encoded.
type chaining struct {
	segments
	enc *CachedEncoder
	at  place
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
		segments: segments{rd: rd, cache: enc.cache, blockSize: blockSize, key: enc.firstKey(p.root, blockSize), last: p.root},
		enc:      enc, at: place{piece: p.first},
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
				c.passTo(place{i, uint32(cut)}, length+cut-start)
				length, start, at = 0, cut, cut+segment
			}
			length += int(q.end) - start
		}
		if length >= segment {
			c.passTo(place{piece: i + 1}, length)
			length = 0
		}
	}
	c.encode(place{piece: p.end})
	c.fold()
	rd.begun = rd.ids
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

// passTo goes on to the end of a segment.
func (c *chaining) passTo(to place, length int) {
	c.key = c.keyBefore(to)
	c.pass(length, func() bool {
		c.encode(to)
		return true
	})
	c.at = to
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

// encode appends the ids of what lies before a place, and goes on to it.
func (c *chaining) encode(to place) {
	rd := c.rd
	ids := len(rd.ids)
	for i := c.at.piece; i < to.end(); i++ {
		p := c.clip(i, to)
		rd.encode(&p, c.enc.Encoder)
	}
	c.at = to
	c.tokens += len(rd.ids) - ids
}
