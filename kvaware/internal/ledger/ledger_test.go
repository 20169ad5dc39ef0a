// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
)

type candidate = choose.Candidate

func TestChoosingChargesWhatTheDecisionSaysIsCached(t *testing.T) {
	l, _, ups := pool(3)
	d := one(1000, 0, -1, true)
	var tk Ticket
	i := l.Choose(&tk, &d, ups, func(cands []candidate) int {
		if len(cands) != 3 {
			t.Errorf("%d candidates, want 3", len(cands))
		}
		d.Prompts[0].Cached = 768
		return 1
	})
	if i != 1 || tk.Upstream() != ups[1] {
		t.Errorf("charged %d, want 1", i)
	}
	expect(t, l, ups[0], "not chosen", 0, 0, 0)
	expect(t, l, ups[1], "chosen", 232, 0, 1)
}

func TestNoChoiceChargesNothing(t *testing.T) {
	l, _, ups := pool(2)
	d := one(1000, 0, -1, true)
	var tk Ticket
	for _, answer := range []int{-1, -7, 2, 1 << 40} {
		if i := l.Choose(&tk, &d, ups, func([]candidate) int { return answer }); i != -1 {
			t.Errorf("answer %d gave %d, want -1", answer, i)
		}
	}
	if i := l.Choose(&tk, &d, nil, func(c []candidate) int { return choose.Least(choose.Weights{}, c, nil) }); i != -1 {
		t.Errorf("chose %d of no upstream", i)
	}
	expectZero(t, l, ups)
}

func TestAPanickingDecisionReleasesTheLockAndChargesNothing(t *testing.T) {
	l, _, ups := pool(1)
	d := one(10, 0, -1, true)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		l.Choose(new(Ticket), &d, ups, func([]candidate) int { panic("decision") })
	}()
	expectZero(t, l, ups)
	if l.Choose(new(Ticket), &d, ups, func([]candidate) int { return 0 }) != 0 {
		t.Error("no choice after a panic")
	}
}

func TestLookingChargesNothing(t *testing.T) {
	l, c, ups := pool(2)
	place(l, ups[1], one(300, 0, -1, true)).Generated(0, 4, c.at)
	d := one(10, 0, -1, true)
	l.Look(&d, ups, func(cands []candidate) {
		if cands[0] != (candidate{}) || cands[1] != (candidate{Decode: 304, Running: 1}) {
			t.Errorf("shown %+v", cands)
		}
	})
	expect(t, l, ups[0], "looked at", 0, 0, 0)
}

func TestABurstOfEqualRequestsSpreadsEvenly(t *testing.T) {
	l, _, ups := pool(8)
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 80 {
		d := one(1000, 0, -1, true)
		l.Choose(new(Ticket), &d, ups, least(1000, rnd))
	}
	for i, u := range ups {
		if u.Running() != 10 || u.Live() != 10 {
			t.Errorf("upstream %d got %d of 80 equal requests, want 10", i, u.Running())
		}
	}
}

func TestABurstFromManyGoroutinesSpreadsAsEvenly(t *testing.T) {
	l, _, ups := pool(8)
	var burst sync.WaitGroup
	for range 400 {
		burst.Go(func() {
			d := one(1000, 0, -1, true)
			decide := least(1000, nil)
			l.Choose(new(Ticket), &d, ups, func(cands []candidate) int {
				i := decide(cands)
				runtime.Gosched() // somebody else would choose now
				return i
			})
		})
	}
	burst.Wait()
	for i, u := range ups {
		if u.Running() != 50 {
			t.Errorf("upstream %d got %d of 400 equal requests, want 50", i, u.Running())
		}
	}
}

func TestAReusedTicketNeedsNoAllocation(t *testing.T) {
	l, c, ups := pool(64)
	d := one(1000, 0, 100, true)
	decide := least(1000, nil)
	var tk Ticket
	cycle := func() {
		l.Choose(&tk, &d, ups, decide)
		tk.Started(0, c.at)
		tk.Generated(0, 1, c.at)
		tk.Finished(0)
		tk.Release(Completed, c.at)
	}
	cycle()
	if n := testing.AllocsPerRun(100, cycle); n != 0 {
		t.Errorf("%v allocations per request, want 0", n)
	}
}
