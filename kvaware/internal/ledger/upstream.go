// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/output"
)

// Upstream is the load of one upstream. Its identity is its pointer; the pool
// maps addresses to it. An upstream that leaves its pool stays valid for as
// long as tickets live on it.
type Upstream struct {
	// Sums over the living tickets, in tokens and sequences. Each ticket
	// changes them under its own mu by exactly what it remembers.
	prefill, decode, running atomic.Int64
	// Of these, what only the model says: tokens that it has taken out of
	// prefill, and tokens that it holds in decode.
	modelledPrefill, modelledDecode atomic.Int64
	live                            atomic.Int64 // living tickets
	// Sums of seconds and steps, likewise: see Work.
	queue    atomic.Int64 // prefill times of prompts in P at the prior's pace, in nanoseconds
	contexts atomic.Int64 // KV tokens that the running decodes read
	waiting  atomic.Int64 // prompts in the queue
	passed   atomic.Int64 // nanoseconds that have left the queue; only grows
	// batched is the part of the queue that is of requests with several prompts: an
	// engine computes once what these share, so it may be far too much. Doubtful are
	// nanoseconds that left the queue in another way than passed: such prompts, and
	// those that were not prefilled.
	batched, doubtful atomic.Int64
	stages            [output.Bins]atomic.Int32 // sequences that decode, by how far their output is
	// progressed is when the queue last moved, on the ledger's clock: a first
	// token came, or a request found it empty.
	progressed atomic.Int64

	failing  atomic.Bool  // failures is worth a look
	advanced atomic.Int64 // when the model was last advanced, on the ledger's clock

	// Totals; they only grow.
	requests, failed, busy        atomic.Int64
	prompted, cached, generations atomic.Int64

	mu       sync.Mutex
	oldest   *Ticket  // guarded by mu; a ring of the living tickets, by next and prev
	cursor   *Ticket  // guarded by mu; where the model goes on
	paces    paces    // guarded by mu, but for what it publishes
	failures failures // guarded by mu
}

// NewUpstream returns an upstream that carries nothing, and of which nothing is
// known but what the ledger's others have shown.
func (l *Ledger) NewUpstream() *Upstream {
	u := &Upstream{}
	u.paces.prefillPace.pool, u.paces.decodePace.pool = l.prefillPace, l.decodePace
	u.advanced.Store(int64(-advanceEvery))
	u.paces.init()
	return u
}

// Live returns the number of tickets charged and not yet released.
func (u *Upstream) Live() int { return int(u.live.Load()) }

// Running returns the running sequences, R.
func (u *Upstream) Running() int64 { return u.running.Load() }

// Snapshot is an upstream's state at one time. The sums are read one by one
// while requests go on, so they may belong to instants some nanoseconds apart.
type Snapshot struct {
	PrefillTokens int64 // P
	DecodeTokens  int64 // D
	Running       int64 // R, sequences
	Live          int64 // tickets not yet released

	// The modelled share: prompt tokens that left P, and KV tokens that are in
	// D, because the model says so and no event has shown it yet.
	ModelledPrefillTokens int64
	ModelledDecodeTokens  int64

	// FailureScore is the number of requests that recent failures weigh.
	FailureScore float64

	// What was learnt, or the prior.
	PrefillRate    float64       // tokens per second
	TokenGap       time.Duration // between two tokens of a sequence
	TokensPerDelta float64       // tokens per streamed delta
	// Times of prefills and decode steps over those of pace.Prior, see Work.
	PrefillPace, DecodePace float64

	// Totals since the upstream was made.
	Requests        int64 // charged
	Failures        int64 // of these, Failed
	Busy            int64 // of these, Busy
	PromptTokens    int64 // of prompts that were answered
	CachedTokens    int64 // of these, held by the upstream as it was chosen
	GeneratedTokens int64 // observed, counted when the request ends
}

// Snapshot advances the model of this upstream and returns its state.
func (l *Ledger) Snapshot(u *Upstream) Snapshot {
	now := l.now()
	u.advance(now, advanceBudget)
	return Snapshot{
		PrefillTokens:         u.prefill.Load(),
		DecodeTokens:          u.decode.Load(),
		Running:               u.running.Load(),
		Live:                  u.live.Load(),
		ModelledPrefillTokens: u.modelledPrefill.Load(),
		ModelledDecodeTokens:  u.modelledDecode.Load(),
		FailureScore:          u.ghosts(now),
		PrefillRate:           u.PrefillRate(),
		TokenGap:              u.TokenGap(),
		TokensPerDelta:        u.TokensPerDelta(),
		PrefillPace:           u.paces.prefillPace.load(),
		DecodePace:            u.paces.decodePace.load(),
		Requests:              u.requests.Load(),
		Failures:              u.failed.Load(),
		Busy:                  u.busy.Load(),
		PromptTokens:          u.prompted.Load(),
		CachedTokens:          u.cached.Load(),
		GeneratedTokens:       u.generations.Load(),
	}
}

// link adds t to the ring of living tickets. t.mu is held.
func (u *Upstream) link(t *Ticket) {
	u.live.Add(1)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.oldest == nil {
		t.next, t.prev = t, t
		u.oldest, u.cursor = t, t
		return
	}
	t.next, t.prev = u.oldest, u.oldest.prev
	t.prev.next, t.next.prev = t, t
}

// unlink takes t out of the ring. t.mu is held.
func (u *Upstream) unlink(t *Ticket) {
	u.mu.Lock()
	if t.next == t {
		u.oldest, u.cursor = nil, nil
	} else {
		t.prev.next, t.next.prev = t.next, t.prev
		if u.oldest == t {
			u.oldest = t.next
		}
		if u.cursor == t {
			u.cursor = t.next
		}
	}
	t.next, t.prev = nil, nil
	u.mu.Unlock()
	u.live.Add(-1)
}
