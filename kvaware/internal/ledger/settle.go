// SPDX-License-Identifier: Apache-2.0

package ledger

import "github.com/kvaware/caddy-kvaware/kvaware/internal/output"

// settle brings what sequence i and its prompt hold up to date after a change
// of either. t.mu is held.
func (t *Ticket) settle(i int) {
	s, p := &t.sequences[i], &t.prompts[i/t.choices]
	s.left = t.leftOf(s)
	t.rank(i, s, p)

	var hs, hp sums
	if !s.finished {
		hs.running = 1
		if p.phase != waiting && t.decodes {
			count := s.generated + s.modelled
			hs.decode = count * s.left / t.scale
			if s.modelled > 0 {
				hs.modelledDecode = hs.decode * s.modelled / count
			}
			hs.contexts = p.tokens + count
		}
	}
	if p.open > 0 {
		switch p.phase {
		case waiting:
			hp.prefill, hp.queue = p.uncached, p.queue
		case assumed:
			if !t.decodes {
				// Without an output, this is all there is of the request.
				hp.prefill = (p.uncached + modelFloor - 1) / modelFloor
				hp.queue = (p.queue + modelFloor - 1) / modelFloor
			}
			if t.stream {
				hp.queue = p.queue // its first token will tell
			}
			hp.modelledPrefill = p.uncached - hp.prefill
		}
		if p.phase != waiting && t.decodes {
			hp.decode = p.tokens * p.left / t.scale
			if p.phase == assumed {
				hp.modelledDecode = hp.decode
			}
		}
	}
	hp.waiting = waits(hp.queue)
	t.book(sums{
		prefill:         hs.prefill - s.holds.prefill + hp.prefill - p.holds.prefill,
		decode:          hs.decode - s.holds.decode + hp.decode - p.holds.decode,
		running:         hs.running - s.holds.running + hp.running - p.holds.running,
		modelledPrefill: hs.modelledPrefill - s.holds.modelledPrefill + hp.modelledPrefill - p.holds.modelledPrefill,
		modelledDecode:  hs.modelledDecode - s.holds.modelledDecode + hp.modelledDecode - p.holds.modelledDecode,
		queue:           hp.queue - p.holds.queue,
		contexts:        hs.contexts - s.holds.contexts,
		waiting:         hp.waiting - p.holds.waiting,
	})
	s.holds, p.holds = hs, hp

	stage := 0
	if hs.contexts > 0 && t.tokens {
		stage = output.Stage(s.generated+s.modelled) + 1
	}
	t.atStage(s, stage)
}

// waits counts a prompt that is in a queue with so many nanoseconds.
func waits(queue int64) int64 { return min(queue, 1) }

// atStage counts a sequence at a stage of its output, from 1, or nowhere if 0.
func (t *Ticket) atStage(s *sequence, stage int) {
	if int(s.stage) == stage {
		return
	}
	if s.stage > 0 {
		t.up.stages[s.stage-1].Add(-1)
	}
	if stage > 0 {
		t.up.stages[stage-1].Add(1)
	}
	s.stage = int8(stage)
}

// book adds c to what the ticket holds and to its upstream's sums. What moves
// from prefill to decode is never missing from both: decode grows first.
func (t *Ticket) book(c sums) {
	u, h := t.up, &t.holds
	if c.decode != 0 {
		h.decode += c.decode
		u.decode.Add(c.decode)
	}
	if c.prefill != 0 {
		h.prefill += c.prefill
		u.prefill.Add(c.prefill)
	}
	if c.queue != 0 {
		h.queue += c.queue
		u.queue.Add(c.queue)
		if len(t.prompts) > 1 {
			u.batched.Add(c.queue)
			u.doubtful.Add(max(0, -c.queue))
		} else {
			u.passed.Add(max(0, -c.queue))
		}
	}
	if c.waiting != 0 {
		h.waiting += c.waiting
		u.waiting.Add(c.waiting)
	}
	if c.contexts != 0 {
		h.contexts += c.contexts
		u.contexts.Add(c.contexts)
	}
	if c.running != 0 {
		h.running += c.running
		u.running.Add(c.running)
	}
	if c.modelledPrefill != 0 {
		h.modelledPrefill += c.modelledPrefill
		u.modelledPrefill.Add(c.modelledPrefill)
	}
	if c.modelledDecode != 0 {
		h.modelledDecode += c.modelledDecode
		u.modelledDecode.Add(c.modelledDecode)
	}
}

// abandon takes what is left of the ticket's queue away as work that nobody does.
// t.mu is held.
func (t *Ticket) abandon() {
	if queue := t.holds.queue; queue > 0 {
		t.up.doubtful.Add(queue)
		t.up.queue.Add(-queue)
		if len(t.prompts) > 1 {
			t.up.batched.Add(-queue)
		}
		t.holds.queue = 0
	}
}

// leftOf is the numerator of a sequence's weight: what is left of the expected
// output. What only the model says does not take the last tenth, and nothing at
// all of a stream that has shown no output yet.
func (t *Ticket) leftOf(s *sequence) int64 {
	if t.expected < 0 {
		return 1
	}
	left := max(0, t.expected-s.generated)
	if s.modelled > 0 && (s.started || !t.stream) {
		left = max(left-s.modelled, min(left, (t.expected+modelFloor-1)/modelFloor))
	}
	return left
}

// rank keeps p.least, the least advanced of a prompt's open sequences, after s
// changed. Sequences that advance in turn cost O(1): the next one has as much
// left as the last least had, and nothing open has more.
func (t *Ticket) rank(i int, s *sequence, p *prompt) {
	if t.choices == 1 {
		p.left = s.left
		return
	}
	if !s.finished && s.left >= p.left {
		p.least, p.left = i, s.left
		return
	}
	if i != p.least || p.open == 0 {
		return
	}
	ceiling := p.left
	first := i / t.choices * t.choices
	p.left = -1
	for k, at := 0, i; k < t.choices; k++ {
		if at++; at == first+t.choices {
			at = first
		}
		if o := &t.sequences[at]; !o.finished && o.left > p.left {
			p.least, p.left = at, o.left
			if o.left >= ceiling {
				return
			}
		}
	}
}
