// SPDX-License-Identifier: Apache-2.0

// Package kvaware holds the Caddy modules: the selection policy of
// reverse_proxy that routes LLM requests by KV cache and load, the app that its
// instances share, and the admin API. It is the only package that knows
// reverse_proxy.
//
// # What is decided
//
// A request with a prompt goes to the available upstream where it costs least. The
// routing core decides (package route), which is the same code here as in the
// replay of traces: what upstreams hold in their KV caches (package prefix) and
// what waits and runs there (package ledger) make a cost of each, and package
// choose takes the least.
//
// With objective latency, the default, the cost is a product of estimates in
// seconds, which package choose documents; route/terms.go says where they come
// from. How long an engine computes starts from a prior (package pace); by how much
// each upstream is off it, how long outputs are (package output) and how likely idle
// blocks are asked for again (package reuse) is learnt. With objective token_load, the
// default where weights are given, the cost is
//
//	load = prefill · (P + n − c) + decode · D + request · R
//
// where n are the prompt tokens of the request, c those of them that the upstream is
// believed to hold, and P, D and R what is waiting and running there. Equal loads are
// broken by fewer running sequences, then at random.
//
// For both, engines reuse whole blocks of B tokens and always compute the last token,
// so c = ⌊min(match, n−1)/B⌋·B; it is 0 where the engine computes everything
// (embeddings, prompt_logprobs, echo with logprobs). Recent failures add to the cost.
//
// Where engines keep their caches in slots (slots.go), the match is what a prompt has
// in common with the sequence of the slot that it would take.
//
// A request without a prompt (a GET, a body that is not understood) goes to the
// fewest running sequences, or where the configured fallback policy says, unless
// that upstream is full or was tried by this request while another is free. If it
// carries a body, it is charged a prefill estimated from its length.
//
// A request that builds on an earlier response of the responses API, or reads
// or cancels it, follows the upstream that made it while that is available.
//
// Upstreams where an attempt at this very request failed or was answered with
// 4xx or 5xx are left out while another is available.
//
// Each data-parallel rank of an engine has a cache and a queue of its own, and is
// an upstream like any other to all of this; the engine is told which one was
// chosen (ranks.go). Where blocks keep turning up at other ranks than requests were
// sent to, the engine heeds no rank, and each is credited with their mean.
//
// # What engines tell
//
// With the option engine, one goroutine for each engine (engine_poll.go) asks it for its
// metrics and models over the transport of a proxy that lists it, or for dynamic
// upstreams of the first one that saw it, with what active health checks have in their
// requests. Package enginefacts reads the answers, which are bounded in time and length;
// what cannot be had stays as it was. They set the capacity of its caches
// (engine_told.go), whether prefixes are credited there at all, and whether it is a
// candidate: it serves the request's model (engine_models.go), and does not sleep, as
// long as one of the others does and is. A process that has started anew, and requests
// that pass and empty an engine (engine_control.go), withdraw what it was believed to
// hold (invalidate.go).
//
// With the option kv_events, the match is the better of what is predicted and what
// the engine itself reports (block_reports.go), which only tokens that are its own
// can be found in: a chain is made for each block size that is reported. There,
// predictions count until a request's first token and predicted_ttl beyond, when the
// events are in. Tenants that are told apart are credited only with blocks that have
// their salt, so without inject_salt with none that is reported. An engine that was
// seen to find less than it reports, as those with several kinds of layers do, is
// credited with that share (route/reports.go). A model of an adapter's name roots its
// chains as the adapter's blocks are (adapters.go).
//
// # How prompts become tokens
//
// By the pool's tokenizer (tokenizer.go). The encodings of `auto` are loaded
// beside the requests; o200k_base stands in until one is there. What was encoded
// is remembered in the pool's token cache, as hashes and ids without text. With a
// chat template, chats and completions of the OpenAI API become the engine's own
// tokens, images included if the model's image processor and their size are known;
// all else is rendered in a stable way of our own.
//
// With `remote` an engine is asked for the ids of each such prompt (package
// remote), once: its chain is kept in the token cache, by a hash of the question.
// A request waits for the answer no longer than the tokenizer's timeout; without
// one it is counted as by `auto`.
//
// Blocks are made of the tokens as counted. n and c are counts times a ratio,
// learnt for each model and script from the prompt tokens that responses report.
// Exact counts are not corrected and teach nothing.
//
// Hashes are keyed by a seed: the option secret, else one that is made once and
// kept in Caddy's storage, else one of the process's own. Its keys (keys.go) are
// derived each for one purpose.
//
// Prompts match within their model (aliases of one name are one model), adapter
// and salt only, and with isolate_by within their tenant, which is kept as a keyed
// hash. With inject_salt the tenant's salt is part of the chain, as it is of the
// engine's.
//
// A body beyond max_body, or without room in max_buffered, streams through and is
// charged by its length. Of bodies above 1 MiB only as many are tokenized at a
// time as there are processors.
//
// # When tokens are charged and released
//
// Matching, choosing, charging and pinning the prompt in the index are one step
// under the ledger's lock, before the upstream is dialled. The first token of the
// response moves the charge from P to D, each further one grows D, and what comes
// first of these releases everything, once:
//
//   - the end of the response's body, or its being closed before
//   - a failed round trip
//   - the headers of an answer that is no success, and of 101
//   - the next attempt at the same request
//   - the end of the request, however it came
//
// The prompt stays in the index if it was prefilled (the response was a success
// that ended, or its first token was seen), and leaves it otherwise. A refused
// connection forgets all that the upstream held.
//
// # The request's body
//
// It is read through the proxy's clone of the request, at most max_body of it,
// and replayed: to this attempt, to later ones, and to the handlers that come
// after the proxy, which look at the original request (body.go says how that is
// reached). The bytes are let go of when the response's body begins to be passed
// on: with response_buffers, once that buffer is filled.
//
// With inject_salt (salt.go) upstreams are sent the same bytes with the tenant's
// salt in them, in all attempts, and a length to fit. The handlers that come after
// the proxy get what the client sent. A body with a digest in a header is left as
// it is. What goes on without a salt is counted, never refused.
//
// # The response
//
// A policy's Provision finds its proxy among the ancestors of its context and
// wraps the proxy's transport, which is loaded before the policy; a default one
// is made where none is configured. The wrapper acts only on requests that its
// own policy instance routed, known by a value in the context of the proxy's
// clone of the request. It observes the body as it is read (package stream),
// and changes, delays and buffers nothing.
//
// Where an answer reports how many prompt tokens were cached, the attempt is compared
// with what its upstream was believed to hold of the prompt when it was pinned
// (reported.go, route/reported.go), and the index corrected (prefix/correct.go). How
// much of an output the next turn finds is learnt from the same (route/outputs.go).
// Where the answer has the ids of all its tokens, and the prompt's are the engine's
// own, the prompt's chain goes on with them, without the last, and the index holds
// these blocks in place of the output's room (prefix/continue.go). The ids are dropped
// with that.
//
// # Recordings
//
// While someone records a pool (record.go), a request leaves its chains, lengths
// and tenant there when its prompt was read, its output's length as it grows, and
// whether it was answered. The goroutine that serves the recording hashes all
// under the recording's own key and writes it, in the order of arrival.
//
// # The dashboard
//
// Its page and stream are package dashboard's, which gets JSON: in the handler
// kv_aware_dashboard from this process, in the command from the admin API. What is
// of the last minute (package recent) is counted beside the metrics. Decisions are
// kept by the request that was decided on, copied under the ledger's lock and
// therefore at most ten a second (decisions.go); the app writes the history.
//
// # State and reloads
//
// The router with its index and ledger, the token cache, ratios and keys belong to a
// pool (state.go), keyed by its name in one process-wide usage pool; upstreams are keyed
// within it by network address after placeholders. Old policy instances go on routing,
// observing and releasing after Cleanup, until their last request has ended; the
// reference to the pool is then given back. What starts or changes shared parameters
// does so in the app's Start, and is taken back in its Stop if no later configuration
// has replaced it: then the configuration did not start as a whole, and the one before
// goes on.
//
// # What engines report
//
// With kv_events each rank of each engine has a follower (package follow, over sockets
// of package zmtp), which applies its events (package kvevents) to the index of reported
// blocks (package residency). Requests ask that index before they take the ledger's
// lock, and take none for it. Followers and that index (kv_events.go) belong to what a
// configuration needs of them: equal needs share them in a second usage pool, from the
// app's Start to its Stop, and the pool points to those of the configuration that was
// applied last. So a reload keeps connections and index, one with other needs builds its
// own beside them, and if it fails the ones before are still there. Sockets that engines
// connect to are counted apart. Upstreams that come or leave wake the followers' own
// goroutine; addresses that only a request tells are not followed. Upstreams that a
// configuration lists no more are followed until the one before has stopped, and again
// once a request sees them; what one configuration lists is never looked for by
// another's endpoints.
//
// An upstream whose reports are complete has predictions that fade (prefix's
// SetReported). A clear, a restart and a refused connection drop what is predicted
// too; what withdraws an upstream's blocks (invalidate.go) is told to its follower.
//
// # Locks
//
// In this order: the ledger's, the index's; and the pool's own, the index's. A
// follower's is taken before those of the pool's followers (kv_events.go says in
// which order), of the reported index, and the pool's own, in that order. The
// pool's guards its maps and parameters and is never held together with the
// ledger's. Who makes the list of models anew, or changes capacities, has a lock of
// its own for it outside of the pool's; that of the pollers is taken under none but
// that of who is followed (kv_events.go), and none under it.
// Under the ledger's, how much of outputs is found (route/outputs.go) has one of its
// own, and under a follower's the names of adapters (adapters.go). Token cache, ratios,
// response owners, recordings, decisions, history and what an upstream's answers report
// have locks of their own, taken under none of these. What is of the last minute is
// atomic, with a lock only where a second or a quarter of it begins. No I/O, no encoding
// and no logging happens under any of them.
package kvaware
