// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math"
	"time"
)

const (
	// ghostTokens is the least that a ghost weighs in prompt tokens; otherwise
	// it weighs as much as the request being placed.
	ghostTokens = 2048
	// failureHalfLife is how long it takes until half of the ghosts are gone.
	failureHalfLife = 5 * time.Second
	// failureMost bounds the ghosts of failures: more tokens than a replica can
	// hold, so that no load of the others is too high to keep requests away,
	// and gone from under one waiting request after a minute.
	failureMost = 4096
	// busyMost bounds the ghosts of answers of 429: about the tokens that a
	// replica holds when it is full. A client that is over a limit of its own
	// provokes such answers everywhere, and must not drown what others route by.
	busyMost = 256
	// failureLeast is where a score counts as gone, so that ties are ties again.
	failureLeast = 1. / 64
)

// failures is what is remembered of recent failures: a score that decays
// exponentially and to which each failure in a row adds twice as much as the
// one before. Each failure that a choice provokes therefore keeps the next
// choices away for at least a half-life once the score has outgrown the load of
// the others, which takes a logarithmic number of failures.
type failures struct {
	score  float64
	at     time.Duration // when score was exact
	streak int           // failures in a row
	last   time.Duration // the last one
}

// decayed brings the score to now.
func (f *failures) decayed(now time.Duration) float64 {
	if now > f.at {
		f.score *= math.Exp2(-float64(now-f.at) / float64(failureHalfLife))
		f.at = now
	}
	if f.score < failureLeast {
		f.score, f.streak = 0, 0
	}
	return f.score
}

// ghosts returns the score at now.
func (u *Upstream) ghosts(now time.Duration) float64 {
	if !u.failing.Load() {
		return 0
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	score := u.failures.decayed(now)
	if score == 0 {
		u.failing.Store(false)
	}
	return score
}

// judge remembers how an attempt ended that was sent at the given time.
func (u *Upstream) judge(o Outcome, tokens bool, sent, now time.Duration) {
	var most float64
	switch o {
	case Completed:
		// A GET says nothing about the engine's health: a dead engine's server
		// may go on listing its models.
		if tokens && u.failing.Load() {
			u.mu.Lock()
			defer u.mu.Unlock()
			f := &u.failures
			if sent >= f.last {
				f.decayed(now)
				f.score /= 2
				f.streak = 0
			}
		}
		return
	case Failed:
		u.failed.Add(1)
		most = failureMost
	case Busy:
		u.busy.Add(1)
		most = busyMost
	default:
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	f := &u.failures
	f.decayed(now)
	if f.streak > 0 && sent < f.last {
		// It was sent before the last failure was known and is part of the same
		// event: a hundred streams cut by one restart are one failure.
		return
	}
	f.streak = min(f.streak+1, 64)
	f.last = now
	f.score = max(f.score, min(most, f.score+math.Ldexp(1, f.streak-1)))
	u.failing.Store(true)
}
