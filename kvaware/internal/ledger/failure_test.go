// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
)

// fleet simulates upstreams that answer after a while, or fail at once, on a
// virtual clock: every interval one request of equal size.
type fleet struct {
	l       *Ledger
	c       *clock
	ups     []*Upstream
	rnd     *rand.Rand
	broken  []bool
	takes   time.Duration // how long a healthy upstream works on a request
	outcome Outcome       // how a broken one ends it

	tokenless bool // requests carry no tokens
	running   []struct {
		t    *Ticket
		ends time.Duration
	}
	got []int
}

func newFleet(n int) *fleet {
	l, c, ups := pool(n)
	for _, u := range ups {
		setPace(u, 10_000, time.Hour) // the model keeps out of it
	}
	return &fleet{
		l: l, c: c, ups: ups, rnd: rand.New(rand.NewPCG(7, 7)), broken: make([]bool, n),
		takes: 2 * time.Second, outcome: Failed, got: make([]int, n),
	}
}

// run sends requests for a while and returns how many each upstream got.
func (f *fleet) run(d, every time.Duration) []int {
	clear(f.got)
	for end := f.c.at + d; f.c.at < end; f.c.at += every {
		for len(f.running) > 0 && f.running[0].ends <= f.c.at {
			f.running[0].t.Release(Completed, f.c.at)
			f.running = f.running[1:]
		}
		t := new(Ticket)
		dm, decide := one(2000, 0, -1, true), least(2000, f.rnd)
		if f.tokenless {
			dm, decide = Demand{}, func(cands []candidate) int {
				return choose.LeastRunning(choose.Weights{Prefill: 1, Decode: 1}, cands, f.rnd)
			}
		}
		i := f.l.Choose(t, &dm, f.ups, decide)
		f.got[i]++
		if f.broken[i] {
			t.Release(f.outcome, f.c.at)
			continue
		}
		t.Generated(0, 1, f.c.at)
		f.running = append(f.running, struct {
			t    *Ticket
			ends time.Duration
		}{t, f.c.at + f.takes})
	}
	return f.got
}

func TestAnUpstreamThatFailsAtOnceIsNoBlackHole(t *testing.T) {
	for _, every := range []time.Duration{25 * time.Millisecond, 8 * time.Millisecond} {
		f := newFleet(4)
		f.run(10*time.Second, every)
		f.broken[2] = true
		// The others carry 2 s of requests each, so a few doublings are needed to
		// outgrow their load, and then about one failure per half-life and less.
		load := f.l.Snapshot(f.ups[0]).DecodeTokens
		bound := 3 + int(math.Log2(float64(load)/ghostTokens))
		if got := f.run(failureHalfLife, every); got[2] > bound {
			t.Errorf("every %v: got %d requests in the first half-life, want at most %d (%v)", every, got[2], bound, got)
		}
		for range 10 {
			if got := f.run(failureHalfLife, every); got[2] > 2 {
				t.Errorf("every %v: got %d requests in a later half-life (%v)", every, got[2], got)
			}
		}
		if s := f.l.Snapshot(f.ups[2]); s.PrefillTokens|s.DecodeTokens|s.Running != 0 || s.FailureScore == 0 {
			t.Errorf("failures touched the sums: %+v", s)
		}

		f.broken[2] = false
		f.run(time.Minute, every)
		got := f.run(10*time.Second, every)
		if fair := int(10*time.Second/every) / 4; got[2] < fair*9/10 || got[2] > fair*11/10 {
			t.Errorf("every %v: after it recovered it got %v, want about %d each", every, got, fair)
		}
	}
}

func TestWhenAllFailTheyAreTriedEqually(t *testing.T) {
	f := newFleet(4)
	for i := range f.broken {
		f.broken[i] = true
	}
	f.run(time.Minute, 10*time.Millisecond)
	got := f.run(time.Minute, 10*time.Millisecond)
	for i, n := range got {
		if n < 1200 || n > 1800 {
			t.Errorf("upstream %d got %d of 6000 requests (%v)", i, n, got)
		}
	}
	// With equal scores the choice is by load alone.
	l, c, ups := pool(2)
	for _, u := range ups {
		place(l, u, one(1, 0, -1, true)).Release(Failed, c.at)
	}
	place(l, ups[0], one(500, 0, -1, true))
	d := one(100, 0, -1, true)
	if i := l.Choose(new(Ticket), &d, ups, least(100, nil)); i != 1 {
		t.Errorf("chose %d, want the one of less load", i)
	}
}

func TestOneBrokenAmongIdleOnesIsAvoided(t *testing.T) {
	f := newFleet(3)
	f.takes = 0
	f.broken[0] = true
	if got := f.run(time.Minute, 100*time.Millisecond); got[0] > 3 {
		t.Errorf("an idle fleet sent %d of 600 requests to the broken one", got[0])
	}
}

func TestRequestsWithoutTokensAvoidABrokenUpstreamToo(t *testing.T) {
	f := newFleet(4)
	f.tokenless, f.broken[3] = true, true
	if got := f.run(time.Minute, 10*time.Millisecond); got[3] > 40 || got[3] == 0 {
		t.Errorf("the broken one of four got %v", got)
	}
	f.broken[3] = false
	f.run(time.Minute, 10*time.Millisecond)
	if got := f.run(10*time.Second, 10*time.Millisecond); got[3] < 225 || got[3] > 275 {
		t.Errorf("after it recovered it got %v, want about 250 each", got)
	}
}

func TestBusyUpstreamsAreAvoidedForLess(t *testing.T) {
	f := newFleet(4)
	f.outcome = Busy
	f.broken[1] = true
	got := f.run(time.Minute, 10*time.Millisecond)
	if got[1] > 30 {
		t.Errorf("a busy upstream got %d of 6000 requests", got[1])
	}
	l, c, ups := pool(1)
	end := func(o Outcome) float64 {
		for range 20 {
			place(l, ups[0], one(10, 0, -1, true)).Release(o, c.at)
		}
		return l.Snapshot(ups[0]).FailureScore
	}
	if got := end(Busy); got != busyMost {
		t.Errorf("score %v after many, want its bound", got)
	}
	if got := end(Failed); got != failureMost {
		t.Errorf("score %v after failures too, want their bound", got)
	}
	if got := end(Busy); got != failureMost {
		t.Errorf("busy answers took failures back: score %v", got)
	}

	s := f.l.Snapshot(f.ups[1])
	if s.Failures != 0 || s.Busy == 0 || s.FailureScore > busyMost {
		t.Errorf("busy counted as %+v", s)
	}
}

func TestRequestsAtFaultAndClientsThatLeaveWeighNothing(t *testing.T) {
	l, c, ups := pool(1)
	for _, o := range []Outcome{Rejected, Canceled, Superseded, Completed} {
		place(l, ups[0], one(10, 0, -1, true)).Release(o, c.at)
	}
	if s := l.Snapshot(ups[0]); s.FailureScore != 0 || s.Failures != 0 {
		t.Errorf("counted %+v", s)
	}
}

func TestFailuresInARowDoubleAndHalveWithTime(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	score := func() float64 { return l.Snapshot(u).FailureScore }
	for _, want := range []float64{1, 3, 7, 15} {
		place(l, u, one(10, 0, -1, true)).Release(Failed, c.at)
		if got := score(); got != want {
			t.Errorf("score %v, want %v", got, want)
		}
	}
	c.at += failureHalfLife
	near(t, "score after a half-life", score(), 7.5, 1e-9)
	place(l, u, one(10, 0, -1, true)).Release(Completed, c.at)
	near(t, "score after a success", score(), 3.75, 1e-9)
	place(l, u, one(10, 0, -1, true)).Release(Failed, c.at)
	near(t, "score after a new failure", score(), 4.75, 1e-9)
	place(l, u, Demand{}).Release(Completed, c.at)
	near(t, "score after a GET went well", score(), 4.75, 1e-9)
	for range 100 {
		place(l, u, one(10, 0, -1, true)).Release(Failed, c.at)
	}
	if got := score(); got != failureMost {
		t.Errorf("score %v, want its bound", got)
	}
	c.at += 20 * failureHalfLife
	if got := score(); got != 0 || u.failing.Load() {
		t.Errorf("score %v never ends", got)
	}
}

func TestStreamsCutTogetherAreOneFailure(t *testing.T) {
	l, c, ups := pool(1)
	var ts []*Ticket
	for range 100 {
		ts = append(ts, place(l, ups[0], one(10, 0, -1, true)))
	}
	old := place(l, ups[0], one(10, 0, -1, true))
	c.at += time.Second
	for _, tk := range ts {
		tk.Release(Failed, c.at)
	}
	s := l.Snapshot(ups[0])
	if s.FailureScore != 1 || s.Failures != 100 {
		t.Errorf("score %v after %d failures, want 1 after 100", s.FailureScore, s.Failures)
	}
	old.Release(Completed, c.at)
	if got := l.Snapshot(ups[0]).FailureScore; got != 1 {
		t.Errorf("a request from before the failure took it back: %v", got)
	}
}

func TestAGhostWeighsAsMuchAsTheRequestButNoLessThanTheFloor(t *testing.T) {
	l, c, ups := pool(1)
	place(l, ups[0], one(10, 0, -1, true)).Release(Failed, c.at)
	for _, tt := range []struct {
		d    Demand
		want float64
	}{{Demand{}, ghostTokens}, {one(100, 0, -1, true), ghostTokens}, {one(100_000, 0, -1, true), 100_000}} {
		l.Look(&tt.d, ups, func(cands []candidate) {
			if cands[0].Ghosts != 1 || cands[0].GhostTokens != tt.want {
				t.Errorf("ghosts %+v, want 1 of %v", cands[0], tt.want)
			}
		})
	}
}
