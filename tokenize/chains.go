// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"unsafe"

	"github.com/zeebo/xxh3"
)

// Chains makes the hashes that a [Reader] of the same secret makes of a prompt's
// own token ids (see [Reader.ChainExact]), for those who get the ids from elsewhere:
// from what engines tell of their caches.
type Chains struct{ secret uint64 }

// NewChains returns the chains of readers with this secret, see [Reader.SetSecret].
func NewChains(secret uint64) Chains { return Chains{secret} }

// Chains returns the chains of the secret that rd has now.
func (rd *Reader) Chains() Chains { return Chains{rd.secret} }

// seed keys the hashes of a tag.
func (c Chains) seed(tag hashTag) uint64 { return c.secret ^ uint64(tag)*spread }

// Root is what the first block of a prompt is chained to: lora is the adapter's
// name, salt the cache salt; each may be empty.
func (c Chains) Root(lora, salt string) uint64 {
	return c.exact(c.stable(xxh3.HashStringSeed(lora, c.seed(tagRoot)), salt))
}

// stable is the root of the stable rendering, with the adapter by its hash.
func (c Chains) stable(lora uint64, salt string) uint64 {
	return xxh3.HashStringSeed(salt, lora^c.seed(tagSalt))
}

// exact makes of that the root of the ids that the engine itself makes.
func (c Chains) exact(stable uint64) uint64 {
	return xxh3.HashSeed(nil, stable^c.seed(tagExact))
}

// Extend returns the hash of a block of these ids behind one with the hash h, or
// behind a root.
func (c Chains) Extend(h uint64, ids []uint32) uint64 {
	// The ids as they lie in memory, read only.
	block := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(ids))), 4*len(ids)) //nolint:gosec // see above
	return xxh3.HashSeed(block, h)
}

// NameAdapter takes req, the reader's last one, for a request to the LoRA adapter
// of that name, as vLLM's are where a model is named by its adapter. Chains made
// from then on have the adapter's root.
func (rd *Reader) NameAdapter(req *Request, name string) {
	req.LoRA = name
	rd.root = rd.chainRoot(rd.hashString(tagRoot, name), req.CacheSalt)
	for i := range req.Prompts {
		req.Prompts[i].root = rd.root
	}
}
