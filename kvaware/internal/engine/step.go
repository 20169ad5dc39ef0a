// SPDX-License-Identifier: Apache-2.0

package engine

import "time"

// schedule decides what the step that begins now computes and returns how long it
// takes. There must be work.
func (e *Engine) schedule() time.Duration {
	e.chunks = e.chunks[:0]
	var prefilled, pairs int64
	compute := func(s *Sequence, tokens int) {
		from := int64(s.computed)
		e.extend(s, s.computed+tokens)
		e.chunks = append(e.chunks, s)
		prefilled += int64(tokens)
		pairs += int64(tokens) * (2*from + int64(tokens)) / 2
	}

	preempted := e.growDecodes()
	budget := e.params.MaxBatchedTokens - e.decodes.n

	if s := e.prefilling; s != nil {
		tokens := min(budget, s.target()-s.computed)
		if e.blocksFor(s.computed+tokens)-len(s.blocks) > e.pool.free {
			e.preempt(s)
			preempted = true
		} else if tokens > 0 {
			compute(s, tokens)
			budget -= tokens
			if s.computed == s.target() {
				e.prefilling = nil
			}
		}
	}

	for !preempted && budget > 0 && e.running.n < e.params.MaxSeqs && e.waiting.n > 0 {
		s := e.waiting.head
		if !e.admit(s) {
			break // first come first served: nobody overtakes
		}
		tokens := min(budget, s.target()-s.computed)
		compute(s, tokens)
		budget -= tokens
		if s.computed < s.target() {
			e.prefilling = s
		}
	}

	e.stats.ComputedTokens += uint64(prefilled)
	p := e.params.Pace
	seconds := p.Step +
		p.Token*float64(prefilled+int64(e.decodes.n)) +
		p.Context*float64(e.decodes.context) +
		p.Pair*float64(pairs)
	// A step of a year is none that anybody waits for, and no sum of such overflows.
	seconds = min(seconds/e.params.Speed, 365*86400)
	return max(time.Duration(seconds*float64(time.Second)), 1)
}

// complete hands out the tokens of the step that ended.
func (e *Engine) complete() {
	at := e.clock
	e.decodes.step()
	e.stats.Steps++
	e.stats.GenerationTokens += uint64(e.decodes.n)
	if e.tokens != nil {
		for s := e.running.head; s != nil; s = s.next {
			if s.decoding {
				e.tokens.Generated(s, at)
			}
		}
	}
	for s := e.decodes.ended(); s != nil; s = e.decodes.ended() {
		e.finish(s, at)
	}
	for _, s := range e.chunks {
		if s == nil || s.computed < s.target() {
			continue
		}
		s.done++
		e.stats.GenerationTokens++
		if !s.started {
			s.started = true
			s.First = at
			e.stats.PromptTokens += uint64(s.Prompt)
			if e.sink != nil {
				e.sink.Started(s, at)
			}
		}
		if e.tokens != nil {
			e.tokens.Generated(s, at)
		}
		if s.done == s.Output {
			e.finish(s, at)
		} else {
			e.decodes.join(s)
		}
	}
	e.chunks = e.chunks[:0]
}

// growDecodes gives a block to each decoding sequence whose last one is full. When
// none is free the youngest running request gives way, in whatever order they come.
func (e *Engine) growDecodes() (preempted bool) {
	slot := e.decodes.slots[e.decodes.steps%uint64(e.params.BlockSize)]
	e.due = append(e.due[:0], slot...)
	for _, s := range e.due {
		for s.decoding && e.pool.free == 0 {
			e.preempt(e.running.tail)
			preempted = true
		}
		if s.decoding {
			e.nameFull(s)
			s.blocks = append(s.blocks, e.pool.take())
		}
	}
	return preempted
}

// admit takes a sequence from the queue if its whole prompt fits, with what the
// cache holds of it.
func (e *Engine) admit(s *Sequence) bool {
	// While memory is short a long prompt is tried again at every step, and looking
	// up its blocks would be most of the work. A chain's beginning finds no more of
	// the blocks in use than it did and what has come since, as long as whoever holds
	// a block has those before it named as well.
	if s.short && e.torn == 0 && s.need-e.pool.gains > e.pool.free && !e.thorough {
		return false
	}
	hits, idle := 0, 0
	if !s.NoReuse {
		// The last token is always computed: its logits give the next one.
		before := int32(none)
		for most := (s.target() - 1) / e.params.BlockSize; hits < most; hits++ {
			id, ok := e.pool.find(s.hash(hits), before)
			if !ok {
				break
			}
			s.blocks = append(s.blocks, id)
			before = id
			if e.pool.blocks[id].ref == 0 {
				idle++ // free now, and no longer when it is pinned
			}
		}
	}
	if need := e.blocksFor(s.target()) - hits + idle; need > e.pool.free {
		s.blocks = s.blocks[:0]
		s.short, s.need = true, need+e.pool.gains
		return false
	}
	for _, id := range s.blocks {
		e.pool.pin(id)
	}
	s.hashed = hits
	s.computed = hits * e.params.BlockSize

	e.waiting.remove(s)
	e.running.pushBack(s)
	s.state = stateRunning
	if s.Preemptions == 0 {
		s.Admitted = e.clock
		s.Cached = s.computed
		e.stats.QueriedTokens += uint64(s.Prompt)
		e.stats.HitTokens += uint64(s.Cached)
	}
	if e.sink != nil {
		e.sink.Admitted(s, e.clock)
	}
	return true
}

// extend gives a prefilling sequence the blocks for its first tokens. They can be
// found from now on: who is scheduled later computes later.
func (e *Engine) extend(s *Sequence, tokens int) {
	for need := e.blocksFor(tokens); len(s.blocks) < need; {
		s.blocks = append(s.blocks, e.pool.take())
	}
	s.computed = tokens
	e.nameFull(s)
}

// nameFull makes the blocks that the sequence has filled findable.
func (e *Engine) nameFull(s *Sequence) {
	for full := s.held() / e.params.BlockSize; s.hashed < full; s.hashed++ {
		before := int32(none)
		if s.hashed > 0 {
			before = s.blocks[s.hashed-1]
		}
		hash := s.hash(s.hashed)
		if e.pool.name(s.blocks[s.hashed], hash, before) && e.pool.watch != nil {
			e.pool.watch.Stored(hash, s, s.hashed)
		}
	}
}

// vacate takes a sequence out of the running and frees its blocks.
func (e *Engine) vacate(s *Sequence) {
	e.nameFull(s)
	e.pool.release(s.blocks)
	s.blocks = s.blocks[:0]
	if s.decoding {
		e.decodes.leave(s)
	}
	if e.prefilling == s {
		e.prefilling = nil
	}
	e.running.remove(s)
	if s.torn {
		s.torn = false
		e.torn--
	}
}

func (e *Engine) preempt(s *Sequence) {
	e.vacate(s)
	s.state = stateWaiting
	s.hashed, s.computed, s.short = 0, 0, false
	s.Preemptions++
	e.stats.Preemptions++
	e.waiting.pushFront(s)
	if e.sink != nil {
		e.sink.Preempted(s, e.clock)
	}
}

func (e *Engine) finish(s *Sequence, at time.Duration) {
	e.vacate(s)
	s.state = stateFinished
	s.Finished = at
	e.stats.Finished++
	if e.sink != nil {
		e.sink.Finished(s, at)
	}
}

func (e *Engine) blocksFor(tokens int) int {
	return (tokens + e.params.BlockSize - 1) / e.params.BlockSize
}
