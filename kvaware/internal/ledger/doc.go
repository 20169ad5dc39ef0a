// SPDX-License-Identifier: Apache-2.0

// Package ledger keeps the load of a pool's upstreams, in tokens and in seconds.
//
// A request is charged in the critical section in which its upstream is chosen,
// and the charge is a [Ticket]: it remembers exactly what it holds of its
// upstream's sums and gives back exactly that, once. A load is therefore a sum
// over living tickets, in whole tokens; it cannot drift, is never negative, and
// is zero when no ticket lives.
//
// # What is counted
//
//	P  uncached prompt tokens charged and not yet prefilled
//	D  KV tokens held by running decodes, prompt and generated
//	R  running sequences
//
// A request of b prompts with n choices each is b·n sequences; sequence
// prompt·n + choice. The first token of any choice ends its prompt's prefill:
// the prompt's uncached part leaves P and the whole prompt enters D. There a
// sequence holds generated·w, and a prompt shared by n choices is counted once,
// with the weight of its least advanced sequence, where
//
//	w = max(0, 1 − generated/expected), or 1 if no output length is expected
//
// (the decay of Ray Serve LLM and Dynamo). The end of a sequence takes its part
// away, the ticket's release takes what is left.
//
// # Seconds
//
// For an objective in seconds each upstream also has, summed over living tickets
// in the same way, the prefill times of the prompts in P at the prior's pace, the
// contexts that its decodes read, undecayed, and how many sequences are at which
// stage of their output. A queue is told at the pace that is known when it is asked
// for: at that of each charge, it would change what is learnt of the pace. By how much an upstream's prefills and
// steps are slower than the prior of package pace is learnt from first tokens and
// from token gaps, or from how long an answer took that came as a whole; how long
// outputs are, by package output. See [Upstream.Work] and [Upstream.Remaining].
//
// # What is modelled
//
// Nothing is seen of a request with stream:false until its end, and a stream
// can fall silent while its engine works (reasoning and tool parsers hold text
// back). Such requests advance by model: the prefill ends when its first token
// was predicted at the charge, at the upstream's learnt pace, or, where nothing
// was predicted, when the uncached tokens ahead of it and its own would be done
// at the learnt rate; then each sequence grows at the learnt token gap, up to
// its expectation. An observed event replaces what was modelled. A stream is
// given time first (see streamPatience and silentGaps), since there the missing
// event is evidence too. So that an upstream that hangs does not come to look
// idle, the model alone never takes the last tenth of a request's weight away,
// and does not fade a stream that has shown no output at all.
//
// The model is evaluated when somebody looks: in Choose, Look and Snapshot, at
// most every 20 ms per upstream and for a bounded number of tickets per call.
// There is no goroutine and no timer.
//
// # Recent failures
//
// An upstream that fails at once never carries load and would win every choice.
// Each failure therefore leaves ghosts: requests of the same size that the
// choice counts as running there. They are kept apart from the sums, which stay
// exact. See failure.go.
//
// # Locks
//
// Taken in this order: Ledger.mu (choose and charge), then a Ticket's mu (its
// state), then an Upstream's mu (its list of living tickets, what it learnt, its
// failures). The locks of what all upstreams learn together (poolPace, output
// lengths) are taken last. The sums themselves are atomics that change under the
// ticket's mu.
// Advancing the model goes against that order, from the list to the tickets,
// and therefore only tries a ticket's mu: one that is busy is being observed and
// needs no model.
package ledger
