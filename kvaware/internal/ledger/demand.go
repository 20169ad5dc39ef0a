// SPDX-License-Identifier: Apache-2.0

package ledger

import "time"

// MaxSequences bounds the sequences that one ticket tells apart. A request of
// more (a body can hold millions of one-token prompts) is charged whole, but
// its last prompts share one state, as do the last choices of each prompt.
const MaxSequences = 4096

// maxTokens bounds every count that comes from outside, so that products of two
// fit an int64.
const maxTokens = 1 << 31

// Prompt is one prompt of a request.
type Prompt struct {
	Tokens int // all prompt tokens
	Cached int // of these, what the chosen upstream holds; set while choosing
	// Prefill is how long the chosen upstream would compute on the rest at the pace
	// of pace.Prior; set while choosing. It only adds to what [Upstream.Work] tells
	// of its queue.
	Prefill time.Duration
}

// Demand is what a request asks for. It is read by Choose and not kept.
type Demand struct {
	// Prompts is empty for a request without tokens (GET): it counts as one
	// running sequence and weighs nothing else. A request whose prompt was not
	// read has one prompt of estimated length.
	Prompts []Prompt
	// Choices is the number of answers to each prompt, n; less than 1 means 1.
	Choices int
	// Expected is the number of output tokens expected of each sequence; -1 if
	// unknown, 0 if none (nothing is then decoded).
	Expected int
	// Stream says that the answer is streamed, so that its events are seen when
	// they happen.
	Stream bool
	// Pooling says that the request is prefill only: embedding, scoring.
	Pooling bool
	// FirstToken is how long the first token would take at the chosen upstream if
	// its prefills were of the pace of pace.Prior; set while choosing. What it
	// takes instead teaches the upstream's pace; 0 teaches nothing.
	FirstToken time.Duration
	// Estimated says that Tokens is a guess: it weighs like a count, but
	// teaches nothing and stays out of the totals.
	Estimated bool
}

func (d *Demand) tokens() int64 {
	var n int64
	for i := range d.Prompts {
		n += bounded(d.Prompts[i].Tokens)
	}
	return min(n, maxTokens)
}

// bounded brings a count from outside into [0, maxTokens].
func bounded(n int) int64 {
	return max(0, min(int64(n), maxTokens))
}

// Outcome is how an attempt at a request ended.
type Outcome uint8

// The outcomes of an attempt.
const (
	// Completed is an answer of 2xx or 3xx that ended as it should. If the
	// request carried tokens, it takes back half of what recent failures weigh.
	Completed Outcome = iota
	// Failed is the upstream's fault: no connection, an answer of 5xx, a stream
	// cut before its end.
	Failed
	// Busy is an answer of 429: the upstream takes nothing more for now. It
	// weighs like a failure, since its load too falls the moment it answers,
	// but up to a lower bound: it is alive, and the limit may be the client's.
	Busy
	// Rejected is any other answer of 4xx. The request was at fault, so it says
	// nothing about the upstream.
	Rejected
	// Canceled means that the client went away.
	Canceled
	// Superseded means that another attempt took this one's place.
	Superseded
)
