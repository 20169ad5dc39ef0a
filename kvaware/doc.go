// SPDX-License-Identifier: Apache-2.0

// Package kvaware holds the Caddy modules: the selection policy of
// reverse_proxy that routes LLM requests by token load, the app that its
// instances share, and the admin API. It is the only package that knows
// reverse_proxy.
//
// # What is decided
//
// A request with a prompt goes to the available upstream with the least
//
//	load = prefill · (P + n − c) + decode · D + request · R
//
// where n are its prompt tokens, c those of them that the upstream is believed
// to hold in its KV cache (package prefix), and P, D and R what is waiting and
// running there (package ledger). Equal loads are broken by fewer running
// sequences, then at random (package choose). Engines reuse whole blocks of B
// tokens and always compute the last token, so c = ⌊min(match, n−1)/B⌋·B; it is
// 0 where the engine computes everything (embeddings, prompt_logprobs, echo
// with logprobs).
//
// A request without a prompt (a GET, a body that is not understood, one that is
// too long) goes to the fewest running sequences, or where the configured
// fallback policy says. If it carries a body, it is charged a prefill estimated
// from its length.
//
// A request that builds on an earlier response of the responses API, or reads
// or cancels it, follows the upstream that made it while that is available.
//
// Upstreams that failed in this very request are left out while another is
// available, and recent failures weigh on the others' choice for a while.
//
// Prompts become tokens by the pool's tokenizer (tokenizer.go): the encoding that
// the model is known to use, a named one, a Hugging Face file, or an estimate.
// With the model's chat template they are the engine's own; else they are
// rendered in a stable way, and what is counted is multiplied by the ratio,
// learnt for each model, of what responses report to what was counted. The
// pool's token cache makes a growing conversation cost what is new in it. Model
// and tenant (isolate_by) are a namespace beside the blocks; adapter and salt are
// part of them.
//
// # When tokens are charged and released
//
// Matching, choosing, charging and pinning the prompt in the index are one step
// under the ledger's lock, before the upstream is dialled. The first token of
// the response moves the charge from P to D, each further one grows D, and what
// comes first of these releases everything, once:
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
// # The response
//
// A policy's Provision finds its proxy among the ancestors of its context and
// wraps the proxy's transport, which is loaded before the policy; a default one
// is made where none is configured. The wrapper acts only on requests that its
// own policy instance routed, known by a value in the context of the proxy's
// clone of the request. It observes the body as it is read (package stream),
// and changes, delays and buffers nothing.
//
// # State and reloads
//
// Index and ledger belong to a pool (state.go), keyed by its name in one
// process-wide usage pool; upstreams are keyed within it by network address
// after placeholders. Old policy instances go on routing, observing and
// releasing after Cleanup, until their last request has ended; the reference to
// the pool is then given back. What starts or changes shared parameters does so
// in the app's Start, and is taken back in its Stop if no later configuration has
// replaced it: then the configuration did not start as a whole, and the one
// before goes on.
//
// # Locks
//
// In this order: the ledger's, the index's. The pool's own guards its maps and
// parameters and is never held together with the ledger's. Nothing is read,
// written, logged or hashed under any of them.
package kvaware
