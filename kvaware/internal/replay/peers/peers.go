// SPDX-License-Identifier: Apache-2.0

// Package peers holds the routing policies of other LLM routers, each with its
// published formula and defaults, for replays to compare with.
//
// Sources are public repositories, written repo:path, and papers. What had to be
// translated is said with each policy. Common to all:
//
//   - Four characters are one token, and trees over characters are kept over the
//     prompt's blocks: what is less than a block at a prompt's end never matches.
//   - Several routers (replay.Routers) tell each other nothing.
//   - Holding requests back, admission and retries are the run's, not the
//     policies'.
//   - What a router sees of an answer that is not streamed it sees at its end, but
//     for those of which it is said that they see all tokens.
//
// Decisions depend on the calls and on the chance they were made with alone.
package peers

import (
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// charsPerToken is the usual estimate, and the one the peers use themselves.
const charsPerToken = 4

// eventDelay is what a KV event needs from the engine's step to the router's
// index: a hop over ZMQ or NATS. No peer publishes a figure.
const eventDelay = 2 * time.Millisecond

// All lists the policies in a fixed order: those that know least first.
func All() []replay.Spec {
	return []replay.Spec{
		{Name: "random", Summary: "nothing: a replica by chance", New: newRandom},
		{Name: "round_robin", Summary: "nothing: one replica after the other", New: newRoundRobin},
		{Name: "least_conn", Summary: "requests in flight", New: newLeastConn},
		{Name: "p2c", Summary: "requests in flight, of two replicas by chance", New: newTwoChoices},
		{Name: "session_hash", Summary: "nothing: a session's place on a hash ring (Ray ConsistentHashRouter)", New: newSessionHash},
		{Name: "chwbl", Summary: "nothing: the prompt's start on a hash ring, loads within 125 % of the mean (KubeAI)", New: newBoundedHash},
		{Name: "smg_cache_aware", Summary: "requests in flight among the holders of the longest prefix (smg cache_aware)", New: newSMG},
		{Name: "sglang_cache_aware", Summary: "uncached prompt while balanced, else requests in flight (SGLang router cache_aware)", New: newSGLang},
		{Name: "dynamo", Summary: "queued and own uncached prefill + active blocks (NVIDIA Dynamo, Ray KVAwareRouter)", New: newDynamo},
		{Name: "dynamo_out", Summary: "as dynamo, output blocks counted and decayed by max_tokens", New: newDynamoOutput},
		{Name: "dynamo_lmetric", Summary: "queued and own uncached prefill × (active blocks + 1) (NVIDIA Dynamo lmetric)", New: newDynamoLMetric},
		{Name: "lmetric", Summary: "queued and own uncached prefill × batch size (LMetric paper)", New: newLMetric},
		{Name: "llmd", Summary: "uncached tokens in flight among replicas with 80 % of the prompt (llm-d)", New: newLLMD},
		{Name: "llmd_precise", Summary: "2 · uncached share + KV use + waiting requests, as scores (llm-d, KV events)", New: newLLMDPrecise},
		{Name: "aibrix_prefix", Summary: "uncached prompt among replicas within a deviation of the mean load (AIBrix prefix-cache)", New: newAIBrixPrefix},
		{Name: "aibrix_token_load", Summary: "tokens in prefill + 0.3 · tokens resident (AIBrix token_load)", New: newAIBrixTokenLoad},
		{Name: "prodstack_loadaware", Summary: "relative load − cached share of the prompt (vLLM production-stack)", New: newProdStack},
		{Name: "ray_prefix", Summary: "requests in flight among the holders of the longest prefix (Ray PrefixCacheAffinityRouter)", New: newRayPrefix},
		{Name: "oracle", Summary: "what a request adds to the logs of mean TTFT and mean latency, lengths and engines known", New: newOracle},
	}
}

// ByName returns the policy of that name.
func ByName(name string) (replay.Spec, bool) {
	for _, s := range All() {
		if s.Name == name {
			return s, true
		}
	}
	return replay.Spec{}, false
}
