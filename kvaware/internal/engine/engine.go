// SPDX-License-Identifier: Apache-2.0

// Package engine models an LLM inference engine that serves many requests at
// once: continuous batching with a token budget per step, chunked prefill, a
// paged KV cache whose idle blocks serve as a prefix cache, queueing, and
// preemption when the KV cache runs out. It computes no text, only when each
// token of each request would appear.
//
// The rules are those of vLLM's V1 scheduler (vllm/v1/core/sched/scheduler.py,
// vllm/v1/core/block_pool.py) with its defaults: first come first served, a
// request is admitted only if its whole prompt fits into free blocks
// (scheduler_reserve_full_isl), every running request that decodes gets one
// token of the step's budget and what is left goes to prefill, the youngest
// running request is preempted first and computed anew.
//
// # Time
//
// A step lasts
//
//	a + b·(new tokens) + c·(KV tokens read by decodes) + d·Σ(chunk · mean context of the chunk)
//
// divided by the speed, where a chunk is the part of a prompt that the step
// computes; [Pace] holds the four constants. Times are durations since an epoch
// of the caller's choice, so the model runs as well on a virtual clock as on the
// real one: nothing in it sleeps, reads a clock, or starts a goroutine, and equal
// calls give equal results.
//
// A caller submits the requests that arrive at a time and then calls
// [Engine.Advance] with that time, which tells when to call it again.
//
// # Cost
//
// A step in which n requests decode costs the n/BlockSize of them that need a
// new block, not n: contexts are kept as a sum and ends of outputs in a heap.
// Only a [TokenSink] makes it visit every request.
package engine

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Pace holds the constants of the step time, all in seconds.
type Pace struct {
	Step    float64 // a, per step: the weights read from memory once
	Token   float64 // b, per new token, prefilled or decoded: the weights' FLOPs
	Context float64 // c, per KV token that a decode reads
	Pair    float64 // d, per pair of a prefilled token and a token of its context: attention's FLOPs
}

// Params describe an engine.
type Params struct {
	Pace  Pace
	Speed float64 // divides the time of every step; 1 is the pace as it stands

	BlockSize        int // tokens in a KV block
	Blocks           int // KV blocks in all
	MaxSeqs          int // requests that run at once
	MaxBatchedTokens int // token budget of a step, at least MaxSeqs
}

// Default returns the parameters of a Llama 70B class model in bfloat16 on four
// H100. Pace: 140 GB of weights over 4 × 3.35 TB/s, 2 × 70e9 FLOPs over about
// 2.8 PFLOP/s reached in practice, 320 KiB of KV per token (80 layers, 8 KV heads
// of 128) over that bandwidth, and attention's 4 × 80 × 8192 FLOPs per pair, each
// with a margin for what a kernel does not reach. Capacity: the 131 GB that 90 %
// of the memory leaves beside the weights hold 400,000 tokens. Limits: 8192 tokens a
// step as in vLLM's API server on such accelerators; 256 requests, which is what it
// runs at once on smaller ones, where it would take 1024 on these.
func Default() Params {
	return Params{
		Pace:             Pace{Step: 12e-3, Token: 50e-6, Context: 30e-9, Pair: 1e-9},
		Speed:            1,
		BlockSize:        16,
		Blocks:           25_000,
		MaxSeqs:          256,
		MaxBatchedTokens: 8192,
	}
}

// Bounds keep the arithmetic exact and the memory of a wrong configuration in
// reason: a block costs about 64 bytes.
const (
	maxBlockSize = 1 << 16
	maxBlocks    = 1 << 26
	maxBudget    = 1 << 24
)

// Validate tells what an engine cannot be made of.
func (p Params) Validate() error {
	positive := func(f float64) bool { return f >= 0 && !math.IsInf(f, 0) }
	switch {
	case p.BlockSize < 1 || p.BlockSize > maxBlockSize:
		return fmt.Errorf("block size %d: must be from 1 to %d tokens", p.BlockSize, maxBlockSize)
	case p.Blocks < 1 || p.Blocks > maxBlocks:
		return fmt.Errorf("%d KV blocks: must be from 1 to %d", p.Blocks, maxBlocks)
	case p.MaxSeqs < 1:
		return fmt.Errorf("%d requests at once: must be at least 1", p.MaxSeqs)
	case p.MaxBatchedTokens < p.MaxSeqs || p.MaxBatchedTokens > maxBudget:
		return fmt.Errorf("token budget %d: must be from the %d requests at once to %d", p.MaxBatchedTokens, p.MaxSeqs, maxBudget)
	case !(p.Speed > 0) || math.IsInf(p.Speed, 0):
		return fmt.Errorf("speed %v: must be above 0", p.Speed)
	case !positive(p.Pace.Step), !positive(p.Pace.Token), !positive(p.Pace.Context), !positive(p.Pace.Pair):
		return fmt.Errorf("pace %+v: each constant must be 0 or more seconds", p.Pace)
	}
	return nil
}

// Errors of Submit.
var (
	ErrTooLong = errors.New("prompt and output exceed the KV cache")
	ErrInvalid = errors.New("not a request")
)

// Sink is told what happens to requests, in the order in which it happens,
// within calls of the engine's methods. It must not call the engine.
type Sink interface {
	Admitted(s *Sequence, at time.Duration)  // left the queue; also after each preemption
	Preempted(s *Sequence, at time.Duration) // back in the queue, its KV given up
	Started(s *Sequence, at time.Duration)   // first token
	Finished(s *Sequence, at time.Duration)  // last token
}

// TokenSink is a Sink that is told every token, the first and the last included,
// before Finished. It makes a step cost time in proportion to running requests.
type TokenSink interface {
	Sink
	Generated(s *Sequence, at time.Duration)
}

// Stats are an engine's counters and gauges. Counters never fall.
type Stats struct {
	Running, Waiting int
	UsedBlocks       int // held by running requests
	Blocks           int // in all

	PromptTokens     uint64 // of requests whose first token was generated
	GenerationTokens uint64
	QueriedTokens    uint64 // prompt tokens looked up in the prefix cache, each request once
	HitTokens        uint64 // of these, found there
	ComputedTokens   uint64 // prefilled, recomputation included
	Preemptions      uint64
	Finished         uint64
	Steps            uint64
}

// Engine is a modelled engine. It is not safe for concurrent use.
type Engine struct {
	params Params
	sink   Sink
	tokens TokenSink // nil if sink does not want every token
	pool   pool

	waiting list // in the order of admission to come, preempted requests at the front
	running list // in the order of admission; its tail is the youngest
	decodes decodes
	// prefilling is the request whose prompt was computed in part, nil if none.
	// It is the running list's tail: it took the rest of a step's budget, and
	// nobody is admitted before its prompt is done.
	prefilling *Sequence

	stepping bool          // a step is under way
	clock    time.Duration // when the last step ended, or the first request came after idleness
	stepEnd  time.Duration
	chunks   []*Sequence // prefilled by the step under way; nil where cancelled since
	due      []*Sequence // scratch of schedule

	torn     int  // running requests whose first blocks a reset has made forget
	thorough bool // looks prompts up even where that cannot help; for tests

	serial uint64
	stats  Stats
}

// New returns an idle engine with an empty cache. The sink may be nil.
func New(params Params, sink Sink) (*Engine, error) {
	if err := params.Validate(); err != nil {
		return nil, err
	}
	e := &Engine{params: params, sink: sink, pool: newPool(params.Blocks)}
	e.tokens, _ = sink.(TokenSink)
	e.decodes.slots = make([][]*Sequence, params.BlockSize)
	return e, nil
}

// Params returns what the engine was made of, with its present speed.
func (e *Engine) Params() Params { return e.params }

// SetSpeed changes the speed from the next step on. Values that are not above 0
// are ignored.
func (e *Engine) SetSpeed(speed float64) {
	if speed > 0 && !math.IsInf(speed, 0) {
		e.params.Speed = speed
	}
}

// Submit queues a request that arrives now, which must not be before an earlier
// call's time. The engine owns s until it is finished or cancelled; then it may be
// submitted again, also with other contents. No step begins before Advance is
// called, so requests of one instant are taken together.
func (e *Engine) Submit(now time.Duration, s *Sequence) error {
	switch {
	case s.state == stateWaiting || s.state == stateRunning:
		return fmt.Errorf("%w: submitted already", ErrInvalid)
	case s.Prompt < 1 || s.Output < 1 || len(s.Blocks) > s.Prompt/e.params.BlockSize:
		return fmt.Errorf("%w: %d prompt tokens in %d whole blocks, %d output tokens", ErrInvalid, s.Prompt, len(s.Blocks), s.Output)
	case s.Prompt > e.Capacity() || s.Output > e.Capacity()-s.Prompt:
		return fmt.Errorf("%w: %d prompt tokens and %d output tokens, capacity %d", ErrTooLong, s.Prompt, s.Output, e.Capacity())
	}
	e.run(now, false)
	if !e.Busy() {
		e.clock = max(e.clock, now)
	}
	s.submitted(e, now)
	e.waiting.pushBack(s)
	return nil
}

// Cancel takes a request out at once: what it held is free for the next step. It
// is not reported to the sink. Requests that are not the engine's are ignored.
func (e *Engine) Cancel(now time.Duration, s *Sequence) {
	if s.engine != e {
		return
	}
	e.run(now, false)
	switch s.state {
	case stateWaiting:
		e.waiting.remove(s)
	case stateRunning:
		e.vacate(s)
		for i, c := range e.chunks {
			if c == s {
				e.chunks[i] = nil
			}
		}
	default:
		return // finished by the steps up to now
	}
	s.state = stateCancelled
}

// Advance runs the model up to now: every step that ends by then is ended, and a
// next one is begun if there is work. Next is when the step under way ends, which
// is the next time at which anything happens; busy is false if there is none.
func (e *Engine) Advance(now time.Duration) (next time.Duration, busy bool) {
	e.run(now, true)
	return e.stepEnd, e.stepping
}

// Busy tells whether a request runs or waits.
func (e *Engine) Busy() bool { return e.waiting.n > 0 || e.running.n > 0 }

// Capacity is the greatest sum of prompt and output tokens a request may have.
func (e *Engine) Capacity() int { return e.params.Blocks * e.params.BlockSize }

// Cached returns how many leading blocks of a chain the cache holds now.
func (e *Engine) Cached(chain []uint64) int {
	before := int32(none)
	for i, hash := range chain {
		id, ok := e.pool.find(hash, before)
		if !ok {
			return i
		}
		before = id
	}
	return len(chain)
}

// ResetPrefixCache forgets all that is cached, as after a change of weights.
// Running requests go on; what they hold will not be found by others.
func (e *Engine) ResetPrefixCache() {
	e.pool.reset()
	e.torn = e.running.n
	for s := e.running.head; s != nil; s = s.next {
		s.torn = true
	}
}

// Stats returns the counters and gauges as of the last call's time.
func (e *Engine) Stats() Stats {
	st := e.stats
	st.Running, st.Waiting = e.running.n, e.waiting.n
	st.Blocks = e.params.Blocks
	st.UsedBlocks = e.params.Blocks - e.pool.free
	return st
}

// run ends the steps that end by now and begins those that begin before it; one
// that would begin exactly now only if asked to, since more may arrive now.
func (e *Engine) run(now time.Duration, beginNow bool) {
	for {
		if e.stepping {
			if e.stepEnd > now {
				return
			}
			e.stepping = false
			e.clock = e.stepEnd
			e.complete()
		}
		if !e.Busy() || e.clock > now || e.clock == now && !beginNow {
			return
		}
		e.stepping = true
		e.stepEnd = e.clock + e.schedule()
	}
}
