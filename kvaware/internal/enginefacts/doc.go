// SPDX-License-Identifier: Apache-2.0

// Package enginefacts reads what inference engines tell of themselves: how large
// their KV cache and its blocks are, whether prefixes are kept at all, when the
// process started, whether it sleeps, and which models and adapters it serves.
//
// # What is exposed where
//
//   - vLLM: the labels of vllm:cache_config_info at /metrics, which are its
//     CacheConfig word by word (vllm/config/cache.py, metrics_info), one series for
//     each data-parallel engine; what is not set reads None. kv_cache_size_tokens
//     (pull request 42206) is the capacity of one engine with all its KV-cache groups
//     accounted for. num_gpu_blocks is the sum over the engines of one API server
//     (vllm/v1/engine/core_client.py), and with several groups it makes no number of
//     tokens. block_size is the smallest of the groups' sizes (issue 51163), and in
//     older versions what was configured even where hybrid models are run with
//     another (issue 42966); cache_hit_alignment_tokens (in 0.32), where it is set, is
//     what hits come in. vllm:engine_sleep_state has one series for each of awake,
//     weights_offloaded and discard_all. With several API servers there is no
//     process_start_time_seconds: prometheus_client leaves it out in its multiprocess
//     mode.
//   - SGLang, with --enable-metrics: sglang:max_total_num_tokens, sglang:page_size and
//     sglang:num_pages, one series for each dp_rank and once more for each tp_rank
//     that exports; before 0.5.11 the labels page_size and num_pages of
//     sglang:cache_config_info. Always multiprocess. Whether the radix cache is on,
//     and all of it without metrics, is at /get_server_info.
//   - TensorRT-LLM: trtllm_kv_cache_max_blocks and trtllm_kv_cache_tokens_per_block
//     at /prometheus/metrics of trtllm-serve; its /metrics is JSON, and reading it
//     takes the iteration statistics away from others.
//   - llama.cpp: with --metrics counters and gauges without a capacity; n_ctx of a
//     slot and total_slots at /props. Slots that share one KV cache (--kv-unified)
//     show its whole size each, so their product is a bound.
//   - TGI: max_batch_total_tokens at /info, up to 2.x.
//   - /v1/models of all: entries with a parent are LoRA adapters (vLLM, SGLang).
//     Ollama lists name:tag, and takes the name alone for name:latest.
//
// # Bounds
//
// Every reader takes bytes from outside: lines beyond [MaxLine] are skipped, lists
// and names are bounded, and what is not understood is left out. A general reader
// of the Prometheus format (prometheus/common/expfmt) makes objects of every series,
// hundreds from one engine, and gives up at the first line that it does not
// understand; here a dozen names are looked for.
package enginefacts
