// SPDX-License-Identifier: Apache-2.0

package kvevents

// Key is a block's identity within its engine, and means nothing outside of
// it: an integer hash as it is (a signed one by its bits), a byte string by a
// 64-bit hash of its bytes. Two blocks of an engine share a Key with the chance
// of any 64-bit hash, and then credit is misplaced, nothing more.
type Key = uint64

// Kind says what an Event tells.
type Kind uint8

const (
	// Stored tells of blocks that now lie in a tier.
	Stored Kind = iota
	// Removed tells of blocks that lie in a tier no longer; of its fields
	// only Blocks, Tier, Group and Attention are set.
	Removed
	// Cleared tells that the GPU tier is empty; it has no fields.
	Cleared
)

// Tier is the kind of memory that blocks lie in.
type Tier uint8

const (
	// GPU is the accelerator's memory, also where the engine names no medium.
	GPU Tier = iota
	// CPU is the host's memory.
	CPU
	// Disk is everything slower: drives, file systems, shared stores, and
	// media that this package does not know.
	Disk

	// Tiers is how many tiers there are.
	Tiers = 3
)

// Attention is the kind of the KV-cache group that blocks belong to.
type Attention uint8

const (
	// AttentionUnknown: not told, or a kind that this package does not know.
	AttentionUnknown Attention = iota
	// FullAttention groups keep every block of a prefix: full, MLA and sink
	// attention.
	FullAttention
	// OtherAttention groups keep part of a prefix, or a state instead:
	// sliding window, chunked local, Mamba, encoder-only, cross.
	OtherAttention
)

// Extra is what besides its tokens and LoRA tells a block apart from others.
type Extra struct {
	// Salt is the prompt's cache salt; only a prompt's first block has one.
	Salt []byte
	// Other is 0, or a hash of what else goes into the block's hash:
	// multimodal identifiers with their offsets, prompt embeddings, keys that
	// this package does not know.
	Other uint64
}

// Event is one event of a batch. Its slices live in the Decoder's memory.
type Event struct {
	Kind      Kind
	Tier      Tier
	Attention Attention
	// HasParent tells whether Parent is set: without, and with tokens, the
	// first block is a prompt's first.
	HasParent bool
	// Group is the KV-cache group's number, -1 where not told.
	Group int
	// Blocks are consecutive blocks of one prompt if Stored, any if Removed.
	Blocks []Key
	// Parent is the block before Blocks[0]; it is not 0.
	Parent Key
	// Tokens are the blocks' token ids, one block after the other; none in
	// stores of offload tiers that tell only hashes. There may be more or
	// fewer than len(Blocks)*BlockSize: see Whole.
	//
	// An id outside of 32 bits stands as one of 2^31 or more, which no
	// vocabulary has; of an EAGLE pair the first id stands.
	Tokens []uint32
	// BlockSize is a block's length in tokens, 0 where not told.
	BlockSize int
	// LoRA is the adapter's name, or its decimal number where only that is
	// told, or empty.
	LoRA []byte
	// Extra has an entry for each of Blocks, or is nil if none has any.
	Extra []Extra
}

// Whole reports whether e tells the tokens of each of its blocks, so that
// block i's are Tokens[i*BlockSize:(i+1)*BlockSize].
func (e *Event) Whole() bool {
	return e.BlockSize > 0 && len(e.Blocks) > 0 && len(e.Tokens)%e.BlockSize == 0 &&
		len(e.Tokens)/e.BlockSize == len(e.Blocks)
}

// Batch is what one message carries.
type Batch struct {
	// Time is when the engine made the batch, in Unix seconds; 0: not told.
	Time float64
	// Rank is the engine's data-parallel rank, -1 where not told.
	Rank int
	// Events are in the order in which they happened.
	Events []Event
	// Skipped counts the batch's events that are not in Events: of an unknown
	// type, or with a field that cannot be what it should be.
	Skipped int
}
