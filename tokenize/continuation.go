// SPDX-License-Identifier: Apache-2.0

package tokenize

import "slices"

// Continuation is where a prompt's chain goes on: what its next block is chained
// to, and the ids of that block which are the prompt's own. The zero value goes on
// nowhere.
type Continuation struct {
	last      uint64
	begun     []uint32 // fewer than fill a block
	blockSize int
}

// Continuation tells where the chain of the only prompt of req goes on, if it was
// last chained as the ids that the engine itself makes. The ids are copied to space,
// which grows if need be. It is false for all others, and where a cache that was
// asked for a chain does not have the ids behind its last block.
func (rd *Reader) Continuation(req *Request, blockSize int, space []uint32) (c Continuation, ok bool) {
	if blockSize < 1 || len(req.Prompts) != 1 {
		return c, false
	}
	p := &req.Prompts[0]
	if !p.own || len(rd.begun) != p.Tokens-len(p.Blocks)*blockSize {
		return c, false
	}
	c = Continuation{last: rd.exactRoot(p), begun: append(space[:0], rd.begun...), blockSize: blockSize}
	if n := len(p.Blocks); n > 0 {
		c.last = p.Blocks[n-1]
	}
	return c, true
}

// Append appends to dst the hash of each whole block that is there once these ids
// follow the prompt: [Reader.ChainExact] makes the same of them together.
func (c *Continuation) Append(dst []uint64, ids []uint32) []uint64 {
	missing := c.blockSize - len(c.begun)
	if c.blockSize < 1 || len(ids) < missing {
		return dst
	}
	dst = slices.Grow(dst, (len(c.begun)+len(ids))/c.blockSize)
	h := c.last
	if len(c.begun) > 0 {
		h = Chains{}.Extend(h, append(c.begun[:len(c.begun):len(c.begun)], ids[:missing]...))
		dst, ids = append(dst, h), ids[missing:]
	}
	return appendChain(dst, ids, c.blockSize, h)
}
