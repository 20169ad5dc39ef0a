// SPDX-License-Identifier: Apache-2.0

// Package kvevents reads and writes the messages in which inference engines
// tell what their KV caches hold: msgpack over ZeroMQ, from vLLM and SGLang and
// those who follow them.
//
// A message is a Batch of Events. Decoder reads every shape in the field into
// reused memory and trusts nothing: a length is compared with the bytes left
// before memory is taken for it, nesting costs no stack. AppendBatch writes
// every shape, for simulated engines and for tests.
//
// The facts below are from vLLM 0.9 to 0.32 and SGLang 0.4.7 to 0.5.23; paths
// are within those projects.
//
// # Frames
//
// A PUB socket sends (topic, sequence number, payload), the number in 8 bytes,
// big-endian, counted from 0 for each process. The replay socket is a ROUTER:
// to a DEALER's ("", first wanted number) it answers for each batch that it
// still has ("", number, payload) or, from vLLM 0.28 and SGLang 0.5.23, ("",
// topic, number, payload), and ends in the same form with the number -1 and an
// empty topic and payload. So the payload is the last frame and the number the
// one before it, however many there are. The publishing thread looks at that
// socket before each batch and at least every 100 ms. A request frame more or
// less, and no answer comes.
// [vllm/distributed/kv_events.py, sglang/srt/disaggregation/kv_events.py]
//
// # Shapes
//
// A batch is an array (ts, events, data-parallel rank) in every engine; a map
// is read as well. Events are arrays in vLLM to 0.22 and SGLang to 0.5.18, maps
// in vLLM since 0.25 and SGLang since 0.5.20. A store's fields in order:
//
//	block_hashes, parent_block_hash, token_ids, block_size, lora_id   the first version
//	medium                         vLLM 0.11, SGLang 0.5.12
//	lora_name                      vLLM 0.16; in its place SGLang 0.5.18 has {"cache_salt": …}
//	extra_keys                     vLLM 0.19
//	group_idx, kv_cache_spec_kind, kv_cache_spec_sliding_window   vLLM 0.22
//	locality                       vLLM 0.28, maps only
//	ownership, session_id          vLLM 0.30, maps only
//
// A removal has block_hashes, medium, group_idx. SGLang's maps have cache_salt,
// session_id, lora_name besides medium. Locality, ownership and session are
// not read.
//
// llm-d's simulator writes vLLM's arrays or maps, in arrays 0 for no parent; its
// numbers begin with 1. TensorRT-LLM has no such socket; Dynamo's worker for it
// publishes maps of signed hashes without medium, one event per message, with
// block_mm_infos where there are images. Mooncake's own maps name the blocks of
// many engines in one stream, told apart by a worker_id that is not read here.
//
// # Hashes
//
// vLLM publishes the low 64 bits of its hash as an unsigned integer unless
// VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0, then all of its bytes (32 for SHA-256,
// 16 for xxhash). SGLang publishes signed 64-bit integers, which depend on the
// prompt's extra_key, salt and adapter. One hash names one block in every tier
// and group. [vllm/v1/core/kv_cache_utils.py, sglang/srt/mem_cache/events.py]
//
// # What tells blocks apart besides tokens
//
// vLLM's extra_keys holds for each block, in order: the LoRA's name, an
// (identifier, offset relative to the block) for each multimodal item in the
// block, the cache salt in the prompt's first block only, and the digest of the
// block's prompt embeddings as bytes. SGLang names the salt in each event; the
// Decoder leaves it in a prompt's first block alone. A request's extra_key,
// which SGLang's hashes depend on, is not published by it: blocks of prompts
// that differ in it alone look the same.
//
// # Tiers
//
// Media are GPU, CPU, STORAGE in vLLM (its Mooncake store says cpu), GPU,
// CPU_PINNED, DISK, EXTERNAL in SGLang. AllBlocksCleared has no medium and
// tells of the GPU's prefix cache; vLLM publishes it with the next step's
// events, that is with the next request. Its offloading tiers are emptied
// without an event. [vllm/v1/core/block_pool.py, vllm/v1/kv_offload/cpu/manager.py]
//
// vLLM's OffloadingConnector stores chunks of blocks_per_chunk blocks and by
// default publishes, for each chunk, its last block's hash alone: parent null,
// no tokens, block_size 0, medium CPU or STORAGE, group_idx set. So one hash
// stands for a chunk, and the blocks before it within the chunk are not named.
// With self_describing_kv_events it publishes for each chunk of a
// full-attention group all its blocks' hashes, their parent, tokens, and the
// group's block size, but never extra_keys: a salted or multimodal prompt's
// blocks look plain there, and only their hashes tell. Other groups, and chunks
// promoted unseen, keep the first form. Removals name the hashes that the store
// named, one event per group. Chunks that share blocks name them again, so
// stores and removals of a hash are to be counted. Within a batch the GPU's
// events come first.
// [vllm/distributed/kv_transfer/kv_connector/v1/offloading/events.py]
//
// vLLM's simple offloading publishes a store for each block, with extra_keys,
// or without tokens and parent where it does not know them, with block_size
// still set. The Mooncake store publishes one event per block, without LoRA and
// extra_keys, at times without tokens; it never publishes a removal.
// [vllm/v1/simple_kv_offload/manager.py, …/kv_connector/v1/mooncake/store/worker.py]
//
// # Repetitions
//
// vLLM keeps a block twice where two requests computed it at once; it announces
// each store and each removal. A request with kv_cache_report_mode "full" makes
// it publish the stores of all blocks reused from the cache again, which no
// removal follows. [vllm/v1/core/kv_cache_manager.py]
//
// # Groups
//
// Any group may be the one of full attention, not only the first. A
// sliding-window or Mamba group names fewer hashes than its tokens have blocks,
// at times none, since blocks that serve no hit are left out: see Event.Whole.
// The engine finds no more than what every group has. A recurrent group's
// partial block comes with a smaller block_size.
//
// # EAGLE
//
// A page of SGLang's pairs ends with the token after the page, which only the
// next page's first pair tells: of two prompts that part at a page's boundary,
// the cache finds one page less than their first tokens share.
// [sglang/srt/mem_cache/radix_cache.py]
package kvevents
