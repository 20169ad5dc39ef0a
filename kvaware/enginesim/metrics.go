// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// serveMetrics writes the engine's counters in the Prometheus text format under
// the names that vLLM gives them (vllm/v1/metrics/loggers.py), the older names of
// the cache gauges and counters included. They are those of one simulated engine,
// not of Caddy, and so in no registry.
func (h *Handler) serveMetrics(w http.ResponseWriter, _ *http.Request, _ failure) error {
	st, finished := h.replica.stats()
	params := h.key.params
	label := labelValue(h.Model)
	var out strings.Builder
	describe := func(name, kind, help string) {
		fmt.Fprintf(&out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
	metric := func(name, kind, help string, value float64) {
		describe(name, kind, help)
		fmt.Fprintf(&out, "%s{engine=\"0\",model_name=\"%s\"} %s\n", name, label, strconv.FormatFloat(value, 'f', -1, 64))
	}
	const gauge, counter = "gauge", "counter"

	metric("vllm:num_requests_running", gauge, "Number of requests in model execution batches.", float64(st.Running))
	metric("vllm:num_requests_waiting", gauge, "Number of requests waiting to be processed.", float64(st.Waiting))
	usage := float64(st.UsedBlocks) / float64(st.Blocks)
	metric("vllm:kv_cache_usage_perc", gauge, "KV-cache usage. 1 means 100 percent usage.", usage)
	metric("vllm:gpu_cache_usage_perc", gauge, "Older name of vllm:kv_cache_usage_perc.", usage)
	metric("vllm:prefix_cache_queries_total", counter, "Prefix cache queries, in tokens.", float64(st.QueriedTokens))
	metric("vllm:prefix_cache_hits_total", counter, "Prefix cache hits, in tokens.", float64(st.HitTokens))
	metric("vllm:gpu_prefix_cache_queries_total", counter, "Older name of vllm:prefix_cache_queries_total.", float64(st.QueriedTokens))
	metric("vllm:gpu_prefix_cache_hits_total", counter, "Older name of vllm:prefix_cache_hits_total.", float64(st.HitTokens))
	metric("vllm:num_preemptions_total", counter, "Cumulative number of preemptions.", float64(st.Preemptions))
	metric("vllm:prompt_tokens_total", counter, "Number of prompt tokens processed.", float64(st.PromptTokens))
	metric("vllm:generation_tokens_total", counter, "Number of generation tokens processed.", float64(st.GenerationTokens))

	describe("vllm:request_success_total", counter, "Count of successfully processed requests.")
	for reason, n := range finished {
		fmt.Fprintf(&out, "vllm:request_success_total{engine=\"0\",finished_reason=\"%s\",model_name=\"%s\"} %d\n", finishReasons[reason], label, n)
	}
	describe("vllm:engine_sleep_state", gauge, "Engine sleep state; awake = 0 means engine is sleeping; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.")
	sleep := h.replica.sleep.Load()
	for i, state := range [...]string{"awake", "weights_offloaded", "discard_all"} {
		is := 0
		if i == 0 && sleep == awake || i > 0 && int(sleep) == i {
			is = 1
		}
		fmt.Fprintf(&out, "vllm:engine_sleep_state{engine=\"0\",model_name=\"%s\",sleep_state=\"%s\"} %d\n", label, state, is)
	}
	describe("vllm:cache_config_info", gauge, "Information of the LLMEngine CacheConfig")
	fmt.Fprintf(&out, "vllm:cache_config_info{block_size=\"%d\",enable_prefix_caching=\"True\",engine=\"0\",kv_cache_size_tokens=\"%d\",num_gpu_blocks=\"%d\"} 1\n", params.BlockSize, params.BlockSize*params.Blocks, params.Blocks)
	describe("process_start_time_seconds", gauge, "Start time of the process since unix epoch in seconds.")
	fmt.Fprintf(&out, "process_start_time_seconds %.3f\n", float64(h.replica.started.UnixMilli())/1000)

	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, err := w.Write([]byte(out.String()))
	return err
}

// labelValue escapes what the text format asks to be escaped.
func labelValue(s string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(s)
}
