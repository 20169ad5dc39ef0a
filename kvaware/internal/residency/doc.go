// SPDX-License-Identifier: Apache-2.0

// Package residency knows what the engines of a pool hold in their KV caches, by the
// events that they publish.
//
// Engines name blocks by hashes of their own, which mean nothing outside of them. Here a
// block is the project's own chain hash over its token ids, which stands for the whole
// prefix (tokenize.Chains), so that a prompt of the router's finds what any engine holds.
//
// # Rules
//
//   - A store names consecutive blocks and the one before them, none at a prompt's
//     start: then the LoRA's name and the cache salt are the root. Blocks of more than
//     text (media, embeddings) get a hash that no text has, and so all behind them.
//   - How often a key lies in a tier is counted, since engines keep copies and announce
//     each; with Rules.LastRemoval a removal counts for all of them. A count that
//     engines raise without storing (vLLM's kv_cache_report_mode "full" announces
//     blocks again on each hit) makes a block stay too long, unless that rule is set.
//   - Of a model's KV-cache groups only that of full attention counts; the others
//     neither add nor remove. If there are several, it is the first seen; as long as no
//     kind was told, the first group seen, and what it had is dropped when it turns out
//     to be of another kind. Events that name no group are that one's.
//   - The block size is that of stores in the GPU tier. Some stores are of parts of a
//     block: what differs is not taken, until more tokens came in another size than the
//     last sixteen blocks; then the holder starts over.
//   - A store whose parent is not known waits for it, the oldest dropped when there are
//     too many; it never counts as a prompt's start. What is removed while it waits is
//     not held when it enters.
//   - Offloading tiers may tell keys alone; they are looked up among those known. vLLM's
//     that tell more leave out salts and media, so they are looked up as well; a key
//     that is not known is counted as unresolved. Of engines that offload, keys outlive
//     eviction: as many as an eighth of the blocks, the oldest forgotten first.
//   - An offloaded block may cover several of the GPU's, those before the one whose key
//     it has: by the size it tells, or by where such blocks end.
//   - A clear empties the GPU tier: vLLM's reset leaves its offloading tiers alone, or
//     empties them without an event. With Rules.ClearsAll it empties all: SGLang's flush
//     empties the host's tier with the GPU's.
//   - Pages of less than 16 tokens are indexed several at a time: the smallest multiple
//     of 16 tokens or more. An index block is held while its last page is, since in a
//     radix tree no page goes before those behind it. Where pages between go first, what
//     is stored behind them later cannot be placed, and is counted as malformed.
//
// A holder's credit for a prompt is counted in leading blocks, each by its fastest tier.
//
// # Structure
//
// For each index block size there is one table of blocks. A block has an entry: its
// hash, the set of those who have it, and its parent. Entries lie in chunks in order of
// insertion, so a chain is mostly read from memory in order; a hash table leads to the
// first of them. Sets are interned bitmaps, by tier and groups of 48 holders, found by
// the XOR of their members' random words (Zobrist 1970). So one more holder of a block
// costs nothing there, and Match works only where the set changes along a chain: blocks
// of one conversation mostly have the same.
//
// A holder has a hash table of its own from the engine's keys to entries, with counts by
// tier. All tables are of small segments that grow each at its own time.
//
// Forget, Close and clears give a holder another identity in the sets, so that nothing of
// the old one is seen from the first; then the old one's blocks are given back.
//
// # Cost
//
// A block takes 16 bytes in each holder's table, 20 to 24 with free slots, and where
// keys outlive eviction a fifth more; beyond the first holder nothing else. The first
// costs about 34 bytes more. A page of p < 16 tokens takes 4+4p bytes more. Whoever has what
// many others have in part makes sets: about 60 bytes for each that differs, at most one
// for each run of blocks with the same holders.
//
// Apply takes time in the blocks of its events, mostly for four places in memory that
// cannot be foreseen; so it reads ahead what it will need, while no lock is held. Match
// takes about a nanosecond per block and a few tens per change of the set, in which each
// holder that stops and each in a slower tier adds some. It allocates nothing.
//
// # Locking
//
// Match takes no lock and waits for nobody: what it reads is atomic and either never
// changes or is checked after it was read. It may see a part of a batch. Where others
// move what it looks for four times in a row it takes it for missing, which costs one
// prompt its credit.
//
// Holder.mu guards a holder, and is held for a whole batch, or while its blocks are given
// back. blocks.mu guards writing to what holders share, and is held for at most 256
// changes, some 10 µs. Index.mu guards who is in the index, for a few instructions;
// Holder.statsMu the published figures. They are taken in this order.
package residency
