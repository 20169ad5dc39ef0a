// SPDX-License-Identifier: Apache-2.0

package tokenize

import "github.com/zeebo/xxh3"

// Tags part what is hashed under one secret, so that a model named as an
// adapter is has another hash.
type hashTag uint64

const (
	tagModel hashTag = iota + 1
	tagRoot
	tagSalt
	tagMessage
	tagEnd
	tagArgument
	tagTools
	tagMedia
	tagOpaque
	tagCall
	tagReasoning
	tagRefusal
	tagSuffix
)

// spread is 2^64 divided by the golden ratio: it spreads small numbers over all bits.
const spread = 0x9e3779b97f4a7c15

// seed keys the hashes of a tag.
func (rd *Reader) seed(tag hashTag) uint64 { return rd.Chains().seed(tag) }

func (rd *Reader) hash(tag hashTag, b []byte) uint64 {
	return xxh3.HashSeed(b, rd.seed(tag))
}

func (rd *Reader) hashString(tag hashTag, s string) uint64 {
	return xxh3.HashStringSeed(s, rd.seed(tag))
}

// chainRoot is what the first block of a prompt is chained to: the adapter
// (by its hash) and the salt part caches from the first token on.
func (rd *Reader) chainRoot(lora uint64, salt string) uint64 {
	return rd.Chains().stable(lora, salt)
}

// syntheticID is the i-th of the ids that stand for what seed was made from.
// They are never an encoder's: those are below 1<<31.
func syntheticID(seed uint64, i uint32) uint32 {
	x := (seed ^ uint64(i+1)*spread) * 0xff51afd7ed558ccd
	return uint32(x>>32) | 1<<31
}

// Chain encodes the prompts of req, which must be the reader's last one, and
// fills Tokens and Blocks of each. BlockSize is in tokens; below 1 only Tokens
// are filled. It may be called again with another block size or encoder; the
// blocks of the call before are then gone.
//
// A block's hash is xxh3 of its ids as they lie in memory, seeded with the hash
// of the block before it, so equal hashes mean equal prefixes.
//
// With a [CachedEncoder] only what its cache does not know is encoded; the
// result is the same.
func (rd *Reader) Chain(req *Request, enc Encoder, blockSize int) {
	rd.blocks = rd.blocks[:0]
	cached, _ := enc.(*CachedEncoder)
	for i := range req.Prompts {
		p := &req.Prompts[i]
		first := len(rd.blocks)
		if cached != nil && cached.remembers(rd, p) {
			p.Tokens = rd.chainCached(p, cached, blockSize)
		} else {
			p.Tokens = rd.chainWhole(p, enc, blockSize)
		}
		// Growing rd.blocks moves it; blocks of earlier prompts stay where they are.
		p.Blocks = rd.blocks[first:len(rd.blocks):len(rd.blocks)]
		p.own = false
	}
}

// chainWhole appends the blocks of a prompt to the reader's and returns the
// number of its tokens.
func (rd *Reader) chainWhole(p *Prompt, enc Encoder, blockSize int) (tokens int) {
	rd.ids = rd.ids[:0]
	for j := p.first; j < p.end; j++ {
		rd.encode(&rd.pieces[j], enc)
	}
	ids := rd.ids
	if p.keepLast > 0 && len(ids) > p.keepLast {
		ids = ids[len(ids)-p.keepLast:]
	}
	rd.chainIDs(ids, blockSize, p.root)
	return len(ids)
}

// chainIDs appends the blocks of ids to the reader's.
func (rd *Reader) chainIDs(ids []uint32, blockSize int, root uint64) {
	rd.begun = nil
	if blockSize > 0 {
		rd.blocks = appendChain(rd.blocks, ids, blockSize, root)
		rd.begun = ids[len(ids)/blockSize*blockSize:]
	}
}

// appendChain appends the hash of each whole block of ids.
func appendChain(dst []uint64, ids []uint32, blockSize int, h uint64) []uint64 {
	for len(ids) >= blockSize {
		h = Chains{}.Extend(h, ids[:blockSize])
		dst = append(dst, h)
		ids = ids[blockSize:]
	}
	return dst
}
