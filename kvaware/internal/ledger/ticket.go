// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"sync"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/output"
)

// Ticket is what one attempt at a request holds of its upstream's load. The
// zero value is ready to be charged by [Ledger.Choose]; it is meant to be
// embedded in the caller's own state and must not be copied.
//
// All methods are safe for concurrent use and cheap; on a ticket that was never
// charged or is already released they do nothing. Sequences are numbered
// prompt·choices + choice; a number beyond the last means the last.
type Ticket struct {
	mu     sync.Mutex // guards what follows, but for the ring
	up     *Upstream
	living bool

	next, prev *Ticket // guarded by up.mu

	holds sums // what is in up's sums because of this ticket

	prompts   []prompt
	sequences []sequence
	choices   int // sequences per prompt
	asked     int // choices the request asked for, before MaxSequences

	expected  int64 // output tokens per sequence, -1 unknown
	scale     int64 // divisor of sequence.left
	stream    bool
	estimated bool
	tokens    bool // carries prompt tokens
	decodes   bool // has an output

	sent   time.Duration // when it was charged
	ahead  int64         // uncached tokens of others in P when it was charged
	taught bool          // its time to first token was learnt from
	paced  time.Duration // what its first token would take at the prior's pace

	// before is what had left the queue, or was in it, when it was charged, and
	// doubtful what had left it, or was in it, without telling how long a prefill
	// takes, in nanoseconds.
	before, doubtful int64

	lengths *output.Lengths // what its outputs teach

	// Room for the usual request, so that it needs no allocation.
	onePrompt   [1]prompt
	oneSequence [1]sequence
}

// sums are parts of an upstream's sums.
type sums struct {
	prefill, decode, running        int64
	modelledPrefill, modelledDecode int64
	queue, contexts, waiting        int64
}

// negative is what gives all of s back.
func (s sums) negative() sums {
	return sums{-s.prefill, -s.decode, -s.running, -s.modelledPrefill, -s.modelledDecode, -s.queue, -s.contexts, -s.waiting}
}

// phase is how far a prompt's prefill is.
type phase uint8

const (
	waiting phase = iota // charged, in P
	assumed              // done by the model
	done                 // done, seen
)

type prompt struct {
	tokens, uncached int64
	through          int64 // uncached tokens of this prompt and those before it
	queue            int64 // nanoseconds that its prefill takes
	phase            phase
	counted          bool          // in the upstream's totals
	at               time.Duration // when the phase began
	open             int           // sequences not finished
	least            int           // of these, the least advanced one
	left             int64         // and its left
	holds            sums
}

type sequence struct {
	generated int64 // as observed
	modelled  int64 // beyond that, by the model
	left      int64 // the weight's numerator, over Ticket.scale
	started   bool
	finished  bool
	stage     int8          // where it is counted in the upstream's stages, and 1; 0 for nowhere
	seen      time.Duration // last event
	first     time.Duration // first count, and what it was
	firstWas  int64
	holds     sums
}

// charge books d on u. Ledger.mu is held.
func (t *Ticket) charge(l *Ledger, u *Upstream, d *Demand, now time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.release(Superseded, now)

	t.up, t.living, t.holds = u, true, sums{}
	t.stream, t.estimated, t.tokens = d.Stream, d.Estimated, len(d.Prompts) > 0
	t.expected, t.scale = -1, 1
	if d.Expected >= 0 {
		t.expected = bounded(d.Expected)
		t.scale = max(1, t.expected)
	}
	if d.Pooling {
		t.expected = 0
	}
	t.decodes = t.expected != 0
	t.sent, t.ahead, t.taught, t.paced = now, u.prefill.Load(), false, d.FirstToken
	t.before, t.doubtful = u.passed.Load()+u.queue.Load(), u.doubtful.Load()-u.batched.Load()
	t.lengths = &l.lengths

	prompts := max(1, min(len(d.Prompts), MaxSequences))
	t.asked = max(1, d.Choices)
	t.choices = min(t.asked, MaxSequences/prompts)
	t.prompts = room(t.prompts, t.onePrompt[:], prompts)
	t.sequences = room(t.sequences, t.oneSequence[:], prompts*t.choices)

	for i := range d.Prompts {
		p := &t.prompts[min(i, prompts-1)]
		n := bounded(d.Prompts[i].Tokens)
		p.tokens = min(maxTokens, p.tokens+n)
		p.uncached = min(maxTokens, p.uncached+max(0, n-bounded(d.Prompts[i].Cached)))
		p.queue = min(maxQueue, p.queue+max(0, min(int64(d.Prompts[i].Prefill), maxQueue)))
	}
	var through, queue, waiting int64
	for i := range t.prompts {
		p := &t.prompts[i]
		through += p.uncached
		queue += p.queue
		p.through, p.open, p.least = through, t.choices, i*t.choices
		p.at = now
	}
	for i := range t.sequences {
		s := &t.sequences[i]
		s.left, s.seen = t.leftOf(s), now
		s.holds.running = 1
	}
	for i := range t.prompts {
		p := &t.prompts[i]
		p.left = t.sequences[p.least].left
		p.holds.prefill, p.holds.queue, p.holds.waiting = p.uncached, p.queue, waits(p.queue)
		waiting += p.holds.waiting
	}
	if queue > 0 && u.queue.Load() == 0 {
		u.progress(now)
	}
	t.book(sums{prefill: through, running: int64(len(t.sequences)), queue: queue, waiting: waiting})
	u.requests.Add(1)
	u.link(t)
}

// room returns n zeroed elements, from the old slice or the spare if they
// suffice.
func room[T any](old, spare []T, n int) []T {
	switch {
	case n <= len(spare):
		old = spare[:n]
	case n <= cap(old):
		old = old[:n]
	default:
		return make([]T, n)
	}
	clear(old)
	return old
}

// Started tells that a sequence's first output was seen, which ends its
// prompt's prefill.
func (t *Ticket) Started(seq int, now time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.living {
		return
	}
	i := t.index(seq)
	if s := &t.sequences[i]; s.started || s.finished {
		return
	}
	t.start(i, now)
	t.settle(i)
}

// Generated tells how many tokens a sequence has generated so far by the best
// knowledge; the number may be less than the last one. It implies Started.
func (t *Ticket) Generated(seq, total int, now time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.living {
		return
	}
	i := t.index(seq)
	s := &t.sequences[i]
	if !s.started && !s.finished {
		t.start(i, now)
	}
	if s.generated == 0 {
		s.first, s.firstWas = now, bounded(total)
	} else if t.stream && now > s.seen {
		t.up.learnStep(bounded(total)-s.generated, s.seen, now)
	}
	s.generated, s.modelled, s.seen = bounded(total), 0, now
	t.settle(i)
}

// Finished tells that a sequence has ended: what it holds is given back, while
// the rest of the request goes on. Its count may still be corrected.
func (t *Ticket) Finished(seq int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.living {
		return
	}
	i := t.index(seq)
	s := &t.sequences[i]
	if s.finished {
		return
	}
	s.finished = true
	t.prompts[i/t.choices].open--
	t.settle(i)
}

// Release ends the attempt: everything that it still holds is given back, and
// its outcome is remembered. Only the first call after a charge does so and
// returns true.
func (t *Ticket) Release(o Outcome, now time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.release(o, now)
}

// Upstream returns the upstream last charged, nil if none was.
func (t *Ticket) Upstream() *Upstream {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.up
}

// release does the work of Release. t.mu is held.
func (t *Ticket) release(o Outcome, now time.Duration) bool {
	if !t.living {
		return false
	}
	t.living = false
	u := t.up
	if o != Completed {
		t.abandon()
	}
	t.book(t.holds.negative())
	u.unlink(t)

	var generated int64
	for i := range t.sequences {
		s := &t.sequences[i]
		generated += s.generated
		t.atStage(s, 0)
		if o == Completed && t.tokens {
			t.lengths.Learn(s.generated)
		}
	}
	if generated > 0 {
		u.generations.Add(generated)
	}
	if o == Completed {
		for i := range t.prompts {
			t.count(&t.prompts[i])
		}
	}
	t.teach(o, now)
	u.judge(o, t.tokens, t.sent, now)
	return true
}

// count adds a prompt to the totals, once.
func (t *Ticket) count(p *prompt) {
	if p.counted || t.estimated || !t.tokens {
		return
	}
	p.counted = true
	t.up.prompted.Add(p.tokens)
	t.up.cached.Add(p.tokens - p.uncached)
}

// start ends the prefill of the prompt of sequence i.
func (t *Ticket) start(i int, now time.Duration) {
	s, p := &t.sequences[i], &t.prompts[i/t.choices]
	s.started, s.seen, s.modelled = true, now, 0
	if p.phase != done {
		p.phase, p.at = done, now
		t.up.progress(now)
		t.count(p)
		t.teachPrefill(p, now)
	}
}

// index brings a sequence's number into range.
func (t *Ticket) index(seq int) int {
	if seq <= 0 || len(t.sequences) == 1 {
		return 0
	}
	return min(seq/t.asked, len(t.prompts)-1)*t.choices + min(seq%t.asked, t.choices-1)
}
