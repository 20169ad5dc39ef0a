// SPDX-License-Identifier: Apache-2.0

// Package replay runs a trace of requests against a fleet of modelled engines
// on a virtual clock, one routing policy at a time, and measures what clients
// would have seen.
//
// A policy sees what a router in front of real engines would see and nothing
// else: the request when it arrives, its tokens as they stream, and, if its real
// counterpart does so, polled metrics or KV events with their delay.
package replay
