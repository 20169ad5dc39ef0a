// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"sync"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/output"
)

// Options are the things a ledger takes from outside.
type Options struct {
	// Now is a monotonic clock: time since an origin of its own. It is called
	// with Ledger.mu held. Nil means time since New.
	Now func() time.Duration
}

// Ledger is where the requests of one pool are placed. It is safe for
// concurrent use. The upstreams keep their own sums; the ledger only makes
// choosing and charging one step.
type Ledger struct {
	now func() time.Duration

	mu    sync.Mutex         // held while a request is weighed, chosen and charged
	cands []choose.Candidate // guarded by mu; reused by every choice
	turn  int                // guarded by mu; where the model's budget is spent first

	// Of all upstreams; each has a lock of its own, taken inside all others.
	lengths                 output.Lengths
	prefillPace, decodePace *poolPace
}

// New returns a ledger.
func New(opt Options) *Ledger {
	now := opt.Now
	if now == nil {
		origin := time.Now()
		now = func() time.Duration { return time.Since(origin) }
	}
	return &Ledger{now: now, prefillPace: newPoolPace(), decodePace: newPoolPace()}
}

// Now reads the ledger's clock; the events of its tickets are told in its time.
func (l *Ledger) Now() time.Duration { return l.now() }

// Choose places a request: it weighs the upstreams, lets decide pick one, and
// charges it to t, all under the ledger's lock. It returns what decide returned,
// or -1, with nothing charged, if that is no index of ups.
//
// decide receives one candidate per upstream, in the order of ups, with P, D, R
// and ghosts filled in and everything else zero; the slice is valid during the
// call. It sets Uncached and Excluded as it knows them, picks (package choose),
// and, before it returns, sets Prompts[i].Cached of d for the upstream it
// picked. It must be short, must not block, and must not call the ledger. If it
// panics, the lock is released and nothing is charged.
//
// t must be unused or released; a ticket that still lives is released as
// [Superseded] first. Events of an earlier charge that come later would be taken
// for this one's, so give each attempt a ticket of its own.
func (l *Ledger) Choose(t *Ticket, d *Demand, ups []*Upstream, decide func(cands []choose.Candidate) int) int {
	l.mu.Lock()
	defer l.mu.Unlock()

	now := l.now()
	i := decide(l.weigh(d, ups, now))
	if i < 0 || i >= len(ups) {
		return -1
	}
	t.charge(l, ups[i], d, now)
	return i
}

// Look shows what Choose would show its decide, and charges nothing. It holds
// the ledger's lock while read runs.
func (l *Ledger) Look(d *Demand, ups []*Upstream, read func(cands []choose.Candidate)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	read(l.weigh(d, ups, l.now()))
}

// weigh advances the model and fills the candidates. Ledger.mu is held.
func (l *Ledger) weigh(d *Demand, ups []*Upstream, now time.Duration) []choose.Candidate {
	n := len(ups)
	if n == 0 {
		return nil
	}
	// The budget is spent from another upstream on each time, so that one with
	// many tickets does not keep the model from the others.
	l.turn++
	budget := advanceBudget
	for i, at := 0, l.turn%n; i < n && budget > 0; i++ {
		budget -= ups[at].advance(now, budget)
		if at++; at == n {
			at = 0
		}
	}

	if cap(l.cands) < n {
		l.cands = make([]choose.Candidate, n)
	}
	cands := l.cands[:n]
	size := max(ghostTokens, float64(d.tokens()))
	for i, u := range ups {
		ghosts := u.ghosts(now)
		cands[i] = choose.Candidate{
			Prefill:     u.prefill.Load(),
			Decode:      u.decode.Load(),
			Running:     u.running.Load(),
			Ghosts:      ghosts,
			GhostTokens: ghosts * size,
		}
	}
	return cands
}
