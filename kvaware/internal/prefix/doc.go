// SPDX-License-Identifier: Apache-2.0

// Package prefix predicts what each upstream of a pool holds in its KV cache:
// an index from chains of block hashes to upstreams, kept from the router's
// own decisions.
//
// A chain is a prompt cut into KV blocks, each hash standing for the whole
// prompt up to and including its block. Hashes are expected to be keyed, so
// that a client cannot make two prompts collide; a collision only misroutes.
//
// # Rules
//
// The index follows the rules by which engines run their block caches, because
// an LRU over routing decisions believes in prefixes that are long gone:
//
//   - A prompt's path enters when its request is charged (Pin) and cannot be
//     evicted while the request runs.
//   - Streamed output takes room as well (Grow). Its tokens are unknown, so it
//     never matches; a lookup may ask how much of it lies behind what is held
//     (Found.Outputs). Where they become known at the end, its blocks go on behind
//     the prompt as the prompt's own (Continue).
//   - When the request ends (Done), its path moves to the recent end of the
//     upstream's LRU, tail first: the output is the oldest part of it, the head
//     of the prompt the youngest. Only then can it be evicted, least recently
//     used first, so a tail always goes before its head.
//   - Output stays as anonymous room behind the prompt until it is evicted, or
//     until a longer prompt continues there and takes the room over.
//   - A request that was never answered (Abort) takes away what nobody else
//     uses or has been seen to use.
//   - Pinned, idle and output blocks together never exceed the capacity. Where
//     running requests fill it alone, a new path enters only as far as it fits,
//     as the engine would let it wait.
//
// The capacity that was set may be wrong. Missed and Exceeded take in what an engine
// says it found of a prompt, and correct capacity and contents by it.
//
// Where an engine reports by events what it holds (SetReported), a prediction is
// needed only until its events are in: its blocks are fresh while a request that
// pins them is before its first token, and for a few seconds beyond. Rules and room
// are the same for what is stale; only a lookup may leave it out (Found.Fresh).
//
// An upstream's cache may also be of another kind, a sequence for each of its slots
// (SetSlots), as llama.cpp and Ollama have them. All functions work on both.
//
// For every upstream, a block is held only together with all blocks before it.
//
// # Structure
//
// Prompts form a trie whose nodes are runs of blocks without a branch or a
// path's end inside. A hash table finds a node by its first hash and its
// parent. What one upstream holds of a node is a span: some leading blocks of
// the run. Spans of an upstream form two lists, the pinned ones and the idle
// ones (its LRU); in both, children stand before their parents. So evicting
// from the front of the LRU never strands a child, and the holders of a node
// always include the holders of its children, which lets Match skip a node that
// has as many holders as its child.
//
// # Cost and locking
//
// One RWMutex guards everything, Paths included: Match and the statistics share
// it, all else excludes. Match takes one table lookup per node of the path,
// logarithmic time inside a run, and one step per holder found (more only where
// dead spans are left, or holders that stop early stand late in a node's list).
// Pin, Continue, Confirm, Done and Abort take time in the length of their own path, and
// evict at most as often as it has blocks. The only longer step is splitting a
// node, which copies one span per holder.
//
// Forget and Remove only mark. The dead spans stay in the trie, invisible to
// Match, and every later change frees more of them than it adds, so they cannot
// pile up and do end. SetCapacity evicts in chunks and releases the lock in
// between. Memory of freed nodes and spans is kept for new ones.
package prefix
