// SPDX-License-Identifier: Apache-2.0

// Package route places requests on upstreams. It is the routing core: what the
// selection policy of reverse_proxy runs on the real clock, and the replay of
// traces on a virtual one, is this very code.
//
// A [Router] keeps what is known of a pool: loads (package ledger) and KV caches
// (package prefix). [Router.Place] matches a request's prompts, weighs the
// upstreams, chooses (package choose), charges the one chosen and pins the prompts
// there, in one step under the ledger's lock. The [Placement] that results is
// told what is seen of the answer and gives everything back, once.
//
// # Objectives
//
// The token load is the sum that package choose documents as Load. The latency
// is its Latency, a product of estimates in seconds; where they come from is in
// terms.go. Loads, paces and caches are kept in the same way for both, so that a
// pool may be used with either.
//
// # Locks
//
// In this order: the ledger's, the index's. A Router has none of its own; a Choice
// and a Placement belong to one request, whose calls do not overlap, but for
// [Placement.Release].
package route
