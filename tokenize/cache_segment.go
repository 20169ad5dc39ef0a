// SPDX-License-Identifier: Apache-2.0

package tokenize

import "slices"

// segments is a prompt being encoded segment by segment. The blocks up to now
// are at the end of the reader's, and its ids are those of the block begun.
type segments struct {
	rd        *Reader
	cache     *Cache
	blockSize int
	key       cacheKey // of all before
	tokens    int
	last      uint64 // what the next block is chained to
}

// pass goes on to the end of a segment of that length, by the cache if it knows the
// key, to which the segment must have been added; else encode appends its ids and
// counts them. It fails if that does.
func (s *segments) pass(length int, encode func() bool) bool {
	rd := s.rd
	blocks := len(rd.blocks)
	if s.blockSize > 0 {
		// So that the cache need not allocate while it holds its lock: a token
		// rarely has less than a byte.
		rd.blocks = slices.Grow(rd.blocks, min(length/s.blockSize+1, mostWords))
		rd.ids = slices.Grow(rd.ids, min(length, s.blockSize, 2*mostWords))
	}
	var tokens int
	var known bool
	if rd.blocks, rd.ids, tokens, known = s.cache.take(s.key, rd.blocks, rd.ids); known {
		s.tokens += tokens
		if len(rd.blocks) > blocks {
			s.last = rd.blocks[len(rd.blocks)-1]
		}
		return true
	}
	ids, before := len(rd.ids), s.tokens
	if !encode() {
		return false
	}
	if s.fold() {
		ids = 0
	}
	s.cache.put(s.key, s.tokens-before, rd.blocks[blocks:], rd.ids[ids:])
	return true
}

// fold makes blocks of the ids; it reports whether the ids from before the last
// segment are gone.
func (s *segments) fold() bool {
	rd := s.rd
	if s.blockSize < 1 {
		rd.ids = rd.ids[:0]
		return true
	}
	blocks := len(rd.blocks)
	rd.blocks = appendChain(rd.blocks, rd.ids, s.blockSize, s.last)
	whole := len(rd.blocks) - blocks
	if whole == 0 {
		return false
	}
	s.last = rd.blocks[len(rd.blocks)-1]
	rd.ids = rd.ids[:copy(rd.ids, rd.ids[whole*s.blockSize:])]
	return true
}
