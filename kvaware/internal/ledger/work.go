// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/output"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/pace"
)

const (
	// maxQueue bounds the nanoseconds of one prompt's prefill, so that sums fit:
	// a day.
	maxQueue = int64(24 * time.Hour)
	// queueFloor is the part, one in so many, of a queue that the time since it
	// last moved cannot take away: an upstream that hangs must not look idle.
	queueFloor = 10
	// keepFirstTokens is what is left of older first tokens with each new one:
	// the last ten or so decide, since an upstream may slow down at any time.
	keepFirstTokens = 1 - 1./10
)

// Work is what an upstream has to do, in the terms of package pace.
type Work struct {
	// Queue is the seconds of prefill of requests without a first token, at the
	// present pace, less the time since a first token last came there, or since the
	// queue was empty; at least a tenth remains.
	Queue   float64
	Waiting float64 // prompts in the queue
	// Contexts are the KV tokens that a decode step reads: all of each running
	// sequence whose prompt was prefilled.
	Contexts float64
	// PrefillPace and DecodePace are how many times as long as by pace.Prior
	// first tokens and decode steps were seen to take; before any was, as many as
	// those of the fastest of the ledger's other upstreams, and 1 before any of these.
	PrefillPace, DecodePace float64
}

// Work returns what the upstream has to do. It looks at sums only: the model is
// advanced by Choose, Look and Snapshot.
func (u *Upstream) Work(now time.Duration) Work {
	prefillPace := u.paces.prefillPace.load()
	queue := float64(u.queue.Load()) / 1e9 * prefillPace
	if queue > 0 {
		since := max(0, int64(now)-u.progressed.Load())
		queue = max(queue-float64(since)/1e9, queue/queueFloor)
	}
	return Work{
		Queue:       queue,
		Waiting:     float64(u.waiting.Load()),
		Contexts:    float64(u.contexts.Load()),
		PrefillPace: prefillPace,
		DecodePace:  u.paces.decodePace.load(),
	}
}

// PrefillPace is that of Work.
func (u *Upstream) PrefillPace() float64 { return u.paces.prefillPace.load() }

// Outlook fills o with what is known of outputs, of all upstreams.
func (l *Ledger) Outlook(o *output.Outlook) { l.lengths.Look(o) }

// Remaining returns how many tokens the sequences that decode here have yet to
// generate, on average; o.Mean if there are none.
func (u *Upstream) Remaining(o *output.Outlook) float64 {
	var n, sum float64
	running := float64(u.running.Load()) // there are no more of them
	for i := range u.stages {
		if c := u.stages[i].Load(); c > 0 {
			n += float64(c)
			sum += float64(c) * o.Remaining[i]
			if n >= running {
				break
			}
		}
	}
	if n == 0 {
		return o.Mean
	}
	return sum / n
}

// progress notes that the queue moved.
func (u *Upstream) progress(now time.Duration) {
	for at := u.progressed.Load(); at < int64(now); at = u.progressed.Load() {
		if u.progressed.CompareAndSwap(at, int64(now)) {
			return
		}
	}
}

// learnStep learns the pace of decode steps from tokens of one sequence that came
// between two times. Only if nothing was prefilled meanwhile do they tell it.
func (u *Upstream) learnStep(tokens int64, from, to time.Duration) {
	if tokens <= 0 || u.queue.Load() != 0 || u.progressed.Load() > int64(from) {
		return
	}
	model := pace.Prior.Decode(float64(u.running.Load()), float64(u.contexts.Load()))
	n := float64(min(tokens, lessonTokens))
	// Who holds the lock may be another stream that teaches the same.
	if u.mu.TryLock() {
		u.paces.decodePace.learn(keep, (to-from).Seconds()/float64(tokens)*n, model*n)
		u.mu.Unlock()
	}
}

// disturbed reports whether there were prompts in the queue since the ticket was
// charged that were refused or cancelled, or of batches: how much of the time that
// they were to take they really took is not known. What is no tenth of its own first
// token does not matter. t.mu is held.
func (t *Ticket) disturbed() bool {
	doubtful := float64(t.up.doubtful.Load()-t.doubtful) / 1e9
	return doubtful > 0 && doubtful > t.paced.Seconds()/10
}

// teachPaces learns from an answer that came as a whole: how long it took, and
// would have taken by the prior with what runs there now and what was prefilled
// for others meanwhile, tells both paces alike.
// t.mu is held.
func (t *Ticket) teachPaces(now time.Duration) {
	if t.paced <= 0 || len(t.prompts) != 1 {
		return
	}
	u := t.up
	var longest int64
	for i := range t.sequences {
		longest = max(longest, t.sequences[i].generated)
	}
	if t.decodes && longest == 0 {
		return // what was generated is not known
	}
	step := pace.Prior.Decode(float64(u.running.Load()+int64(len(t.sequences))), float64(u.contexts.Load()))
	took, model := (now - t.sent).Seconds(), t.paced.Seconds()+step*float64(longest)
	// Its own part of the queue has left, or does so now.
	others := max(0, u.passed.Load()-t.before-t.prompts[0].queue)
	u.mu.Lock()
	defer u.mu.Unlock()
	model += float64(others) / 1e9
	u.paces.prefillPace.learn(keep, took, model)
	u.paces.decodePace.learn(keep, took, model)
}

// learnFirstToken learns the pace of prefills from how long a first token took,
// and would have taken by the prior.
func (u *Upstream) learnFirstToken(took, paced time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.paces.prefillPace.learn(keepFirstTokens, took.Seconds(), paced.Seconds())
}
