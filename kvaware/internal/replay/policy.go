// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"math/rand/v2"
	"time"
)

// Request is what a router sees of a request when it arrives.
type Request struct {
	ID      int           // position in the trace, from 0, the same under every policy
	Arrived time.Duration // on the run's clock
	// Session is what a client that names its session would send; 0 if none.
	Session uint64
	// Tenant is the owner of the request, for fairness; 0 if there is one only.
	Tenant int
	Prompt int // prompt tokens
	// Blocks are the chained hashes of the prompt's whole blocks. They are the
	// run's and valid until the request has ended.
	Blocks []uint64
	// MaxTokens bounds the output; 0 if the client set no bound.
	MaxTokens int
	// Stream says that tokens are seen as they come; else Started and Progress
	// are not called, and Ended is the first that is heard of it, but by a Streamer.
	Stream bool
	// State is the policy's own.
	State any

	truth *request // what no router sees
}

// Outcome is how a request ended.
type Outcome uint8

// The outcomes.
const (
	Completed Outcome = iota
	Failed            // its replica left or restarted under it; it is routed anew
)

// Policy routes the requests of one run. Its methods are called one at a time, in
// the order of the run's clock.
type Policy interface {
	// Route picks one of the replicas in service whose context the request fits,
	// which are listed in ascending order; there is at least one.
	Route(now time.Duration, r *Request, up []int) int
	// Started tells that the first token was seen.
	Started(now time.Duration, r *Request, replica int)
	// Progress tells how many tokens were streamed so far, from time to time.
	Progress(now time.Duration, r *Request, replica, total int)
	// Ended tells that the answer ended, with the number of its tokens as the
	// usage of the response reports it, and how many prompt tokens were cached.
	Ended(now time.Duration, r *Request, replica int, o Outcome, usage Usage)
}

// Usage is what a response reports at its end.
type Usage struct {
	Output int // tokens generated
	Cached int // prompt tokens that the engine found in its prefix cache
}

// Member is a policy that wants to know the fleet. Joined is called for every
// replica of the fleet before the first request, and for those that come later,
// also after a restart; Left when connections to it are refused.
type Member interface {
	Joined(now time.Duration, replica int, c Capacity)
	Left(now time.Duration, replica int)
}

// Capacity is what a replica's operator knows and may configure.
type Capacity struct {
	CacheTokens int // KV cache
	MaxSeqs     int // requests that run at once
	MaxBatched  int // token budget of a step
}

// Poller is a policy that reads the engines' metrics, each after the delay that
// polling has.
type Poller interface {
	PollEvery() time.Duration
	Polled(now time.Duration, replica int, m Metrics)
}

// Metrics are an engine's own gauges.
type Metrics struct {
	Running, Waiting int
	KVUsage          float64 // share of the KV blocks held by running requests
	// Over the time since the last poll.
	PromptTokens, GenerationTokens int
}

// Listener is a policy that listens to the engines' KV events. They arrive after
// EventDelay.
type Listener interface {
	EventDelay() time.Duration
	Stored(now time.Duration, replica int, block uint64)
	Removed(now time.Duration, replica int, block uint64)
	Cleared(now time.Duration, replica int)
}

// Streamer is a policy whose router has the engines stream to it whatever the client
// asked for, or is told the end of the prefill by a call of its own: it hears of the
// tokens of all answers.
type Streamer interface{ StreamsAll() }

// Seer is a policy that knows what no router can. Only the bound is one.
type Seer interface {
	// See is called before the first request. Output tells a request's length.
	See(fleet Sight)
}

// Sight is what a Seer sees.
type Sight interface {
	Output(r *Request) int
	// Cached is how many prompt tokens of r the replica would find in its cache
	// now.
	Cached(r *Request, replica int) int
	Metrics(replica int) Metrics
	// Backlog is how many seconds of prefill wait there, on the engine's own pace,
	// with none of its decodes in the way.
	Backlog(replica int) float64
	// Remaining is the sum of the output tokens that its requests have yet to
	// generate.
	Remaining(replica int) int
	// Speed is by how much its steps are faster than the fleet's base pace.
	Speed(replica int) float64
}

// Setting is what a policy is made with.
type Setting struct {
	BlockSize int // tokens in a block of Request.Blocks
	// Rand is the run's chance for this policy.
	Rand *rand.Rand
}

// Spec names a policy.
type Spec struct {
	Name    string
	Summary string               // one line: what it minimises and whose it is
	New     func(Setting) Policy // also for several runs at once
}
