// SPDX-License-Identifier: Apache-2.0

package engine

import "time"

// Sequence is one request to the engine: a prompt and one output. A request for
// several choices is as many sequences with one prompt.
//
// The exported fields of the first group are the caller's, and left alone from
// Submit to the end; those of the second are the engine's report.
type Sequence struct {
	Prompt int      // prompt tokens, at least 1
	Output int      // tokens to generate, at least 1
	Blocks []uint64 // chained hashes of the prompt's whole blocks; those missing at the end match nothing
	// OutputBlocks are the chained hashes of the blocks that the output completes,
	// the first of which may begin in the prompt: a later prompt that contains the
	// output finds them. Those missing at the end match nothing.
	OutputBlocks []uint64
	NoReuse      bool // compute the whole prompt, cached or not
	Owner        any  // the caller's

	Arrived     time.Duration
	Admitted    time.Duration // first left the queue
	First       time.Duration // first token
	Finished    time.Duration // last token
	Cached      int           // prompt tokens found in the prefix cache when first admitted
	Preemptions int

	engine     *Engine
	serial     uint64 // in order of arrival
	state      state
	started    bool // the first token was generated
	prev, next *Sequence

	blocks   []int32 // the KV blocks it holds
	hashed   int     // leading blocks whose hash is known to the pool
	computed int     // while prefilling: tokens whose KV is there or computed by the step under way
	done     int     // tokens generated when it was last prefilled or preempted

	// short says that it was not admitted when last looked at: it needed so many free
	// blocks, need being their number and pool.gains at that time.
	short bool
	need  int
	torn  bool // it ran when the cache was reset

	// While decoding, in terms of Engine.decodes.steps.
	decoding bool
	joined   uint64 // step at which it had done tokens
	end      uint64 // step at which its output is complete
	heapAt   int
	slotAt   int
}

type state uint8

const (
	stateNew state = iota
	stateWaiting
	stateRunning
	stateFinished
	stateCancelled
)

// Generated returns the tokens generated so far, as of the time of the last call
// to the engine.
func (s *Sequence) Generated() int {
	if s.decoding {
		return s.done + int(s.engine.decodes.steps-s.joined)
	}
	return s.done
}

// Prefilled returns for how many tokens of its prompt KV is there or computed by the
// step under way, cached ones included; 0 while it waits.
func (s *Sequence) Prefilled() int {
	if s.state != stateRunning {
		return 0
	}
	return min(s.computed, s.Prompt)
}

func (s *Sequence) submitted(e *Engine, now time.Duration) {
	e.serial++
	s.engine, s.serial, s.state = e, e.serial, stateWaiting
	s.Arrived, s.Admitted, s.First, s.Finished = now, 0, 0, 0
	s.Cached, s.Preemptions = 0, 0
	s.started, s.decoding, s.short, s.torn = false, false, false, false
	s.blocks, s.hashed, s.computed, s.done = s.blocks[:0], 0, 0, 0
}

// target is how many tokens a prefill of the sequence computes: after a preemption
// the output so far as well.
func (s *Sequence) target() int { return s.Prompt + s.done }

// held is the number of tokens whose KV it holds.
func (s *Sequence) held() int {
	if s.decoding { // the newest token's KV is computed by the step after it
		return s.Prompt + s.Generated() - 1
	}
	return s.computed
}

// hash returns the identity of the i-th block. What the caller gave no hash for
// gets one of its own, which only the sequence itself can find again.
func (s *Sequence) hash(i int) uint64 {
	whole := s.Prompt / s.engine.params.BlockSize
	switch {
	case i < len(s.Blocks):
		return s.Blocks[i]
	case i >= whole && i-whole < len(s.OutputBlocks):
		return s.OutputBlocks[i-whole]
	}
	// The finaliser of splitmix64 (Steele, Lea, Flood 2014) spreads the pair.
	x := s.serial<<24 ^ uint64(i) ^ 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Block returns the chained hash of the i-th block, within a call of a BlockSink.
func (s *Sequence) Block(i int) uint64 { return s.hash(i) }

// list is a doubly linked list of sequences; a sequence is in one at most.
type list struct {
	head, tail *Sequence
	n          int
}

func (l *list) pushBack(s *Sequence) {
	s.prev, s.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = s
	} else {
		l.head = s
	}
	l.tail = s
	l.n++
}

func (l *list) pushFront(s *Sequence) {
	s.prev, s.next = nil, l.head
	if l.head != nil {
		l.head.prev = s
	} else {
		l.tail = s
	}
	l.head = s
	l.n++
}

func (l *list) remove(s *Sequence) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		l.head = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		l.tail = s.prev
	}
	s.prev, s.next = nil, nil
	l.n--
}
