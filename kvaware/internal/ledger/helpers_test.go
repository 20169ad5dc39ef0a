// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
)

// clock is a clock that a test moves.
type clock struct{ at time.Duration }

func (c *clock) now() time.Duration { return c.at }

// pool returns a ledger on a clock of the test's own, and n upstreams.
func pool(n int) (*Ledger, *clock, []*Upstream) {
	c := &clock{at: time.Hour}
	l := New(Options{Now: c.now})
	ups := make([]*Upstream, n)
	for i := range ups {
		ups[i] = l.NewUpstream()
	}
	return l, c, ups
}

// place charges d to u.
func place(l *Ledger, u *Upstream, d Demand) *Ticket {
	t := new(Ticket)
	l.Choose(t, &d, []*Upstream{u}, func([]choose.Candidate) int { return 0 })
	return t
}

// one is the demand of one prompt.
func one(tokens, cached, expected int, stream bool) Demand {
	return Demand{Prompts: []Prompt{{Tokens: tokens, Cached: cached, Prefill: time.Duration(max(0, tokens-cached)) * 50 * time.Microsecond}}, Choices: 1, Expected: expected, Stream: stream}
}

// expect checks an upstream's three sums.
func expect(t *testing.T, l *Ledger, u *Upstream, when string, p, d, r int64) {
	t.Helper()
	s := l.Snapshot(u)
	if s.PrefillTokens != p || s.DecodeTokens != d || s.Running != r {
		t.Errorf("%s: P, D, R = %d, %d, %d, want %d, %d, %d", when, s.PrefillTokens, s.DecodeTokens, s.Running, p, d, r)
	}
}

// expectZero checks that nothing is left of anything that can be released.
func expectZero(t *testing.T, l *Ledger, ups []*Upstream) {
	t.Helper()
	for i, u := range ups {
		s := l.Snapshot(u)
		if s.PrefillTokens|s.DecodeTokens|s.Running|s.Live|s.ModelledPrefillTokens|s.ModelledDecodeTokens != 0 {
			t.Errorf("upstream %d is not at zero: %+v", i, s)
		}
		if q, b, c := u.queue.Load(), u.batched.Load(), u.contexts.Load(); q != 0 || b != 0 || c != 0 {
			t.Errorf("upstream %d is left with %d ns of queue, %d of batches, and %d tokens of contexts", i, q, b, c)
		}
		for stage := range u.stages {
			if n := u.stages[stage].Load(); n != 0 {
				t.Errorf("upstream %d counts %d sequences at stage %d", i, n, stage)
			}
		}
		if u.oldest != nil || u.cursor != nil {
			t.Errorf("upstream %d still lists a ticket", i)
		}
	}
}

// least is the default decision for a prompt that is cached nowhere.
func least(n int64, rnd choose.Rand) func([]choose.Candidate) int {
	return func(cands []choose.Candidate) int {
		for i := range cands {
			cands[i].Uncached = n
		}
		return choose.Least(choose.Weights{Prefill: 1, Decode: 1}, cands, rnd)
	}
}
