// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/output"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/pace"
)

// taking is the demand of a streamed prompt that takes so long to prefill.
func taking(tokens int, prefill time.Duration) Demand {
	d := one(tokens, 0, -1, true)
	d.Prompts[0].Prefill = prefill
	return d
}

func expectQueue(t *testing.T, u *Upstream, when string, now time.Duration, want float64) {
	t.Helper()
	if got := u.Work(now).Queue; math.Abs(got-want) > 1e-9 {
		t.Errorf("%s: %v s of queue, want %v", when, got, want)
	}
}

func TestTheQueueIsWhatIsLeftSinceItLastMoved(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	a := place(l, u, taking(1000, 2*time.Second))
	expectQueue(t, u, "charged", c.at, 2)
	c.at += time.Second
	expectQueue(t, u, "after a second", c.at, 1)
	b := place(l, u, taking(1000, 4*time.Second))
	expectQueue(t, u, "with another", c.at, 5)
	c.at += 500 * time.Millisecond
	a.Started(0, c.at)
	expectQueue(t, u, "the first began", c.at, 4)
	c.at += time.Hour
	expectQueue(t, u, "the other hangs", c.at, 0.4)
	b.Release(Failed, c.at)
	expectQueue(t, u, "the other failed", c.at, 0)
	a.Release(Completed, c.at)
	expectZero(t, l, ups)
}

func TestContextsAreAllTokensThatDecodesRead(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	d := one(1000, 900, 50, true)
	d.Choices = 2
	tk := place(l, u, d)
	contexts := func(when string, want float64) {
		t.Helper()
		if got := u.Work(c.at).Contexts; got != want {
			t.Errorf("%s: %v tokens of context, want %v", when, got, want)
		}
	}
	contexts("waiting", 0)
	tk.Generated(0, 10, c.at)
	contexts("one decodes", 1010)
	tk.Generated(1, 40, c.at)
	contexts("both decode", 2050)
	tk.Finished(0)
	contexts("one has ended", 1040)
	tk.Release(Completed, c.at)
	expectZero(t, l, ups)
}

// streamAt lets n sequences decode at an upstream whose steps take pace times as
// long as the prior says.
func streamAt(l *Ledger, c *clock, u *Upstream, n, tokens int, slower float64) {
	var tickets []*Ticket
	for range n {
		tk := place(l, u, one(2000, 0, -1, true))
		tk.Generated(0, 1, c.at)
		tickets = append(tickets, tk)
	}
	for i := range tokens {
		step := slower * pace.Prior.Decode(float64(n), u.Work(c.at).Contexts)
		c.at += time.Duration(step * float64(time.Second))
		for _, tk := range tickets {
			tk.Generated(0, 2+i, c.at)
		}
	}
	for _, tk := range tickets {
		tk.Release(Completed, c.at)
	}
}

func TestTheDecodePaceIsLearntWhileNothingIsPrefilled(t *testing.T) {
	for _, slower := range []float64{0.5, 1, 3} {
		l, c, ups := pool(1)
		streamAt(l, c, ups[0], 8, 100, slower)
		if got := ups[0].Work(c.at).DecodePace; math.Abs(got-slower) > 0.1*slower {
			t.Errorf("steps take %v times as long, learnt %v", slower, got)
		}
	}
	l, c, ups := pool(1)
	place(l, ups[0], taking(1000, time.Hour))
	streamAt(l, c, ups[0], 8, 100, 3)
	if got := ups[0].Work(c.at).DecodePace; got != 1 {
		t.Errorf("a prefill went on all the time, yet the pace is %v", got)
	}
}

func TestThePrefillPaceIsLearntFromFirstTokens(t *testing.T) {
	l, c, ups := pool(1)
	for range 40 {
		d := one(10_000, 0, -1, true)
		d.FirstToken = time.Second
		tk := place(l, ups[0], d)
		c.at += 3 * time.Second
		tk.Started(0, c.at)
		tk.Release(Completed, c.at)
	}
	if got := ups[0].Work(c.at).PrefillPace; got < 2.8 || got > 3.1 {
		t.Errorf("first tokens take three times as long, learnt %v", got)
	}
	w := New(Options{}).NewUpstream().Work(c.at)
	if w.PrefillPace != 1 || w.DecodePace != 1 {
		t.Errorf("the first upstream has the paces %v and %v", w.PrefillPace, w.DecodePace)
	}
}

func TestAnUpstreamThatNobodyTriedIsExpectedToBeLikeTheOthers(t *testing.T) {
	for _, times := range []float64{0.1, 1, 3} {
		l, c, ups := pool(3)
		for range 20 {
			for _, u := range ups[:2] {
				d := one(2000, 0, -1, true)
				d.FirstToken = time.Second
				tk := place(l, u, d)
				c.at += time.Duration(times * float64(time.Second))
				tk.Started(0, c.at)
				step := pace.Prior.Decode(1, 2000) * times
				for k := range 50 {
					c.at += time.Duration(step * float64(time.Second))
					tk.Generated(0, 2+k, c.at)
				}
				tk.Release(Completed, c.at)
			}
		}
		for name, w := range map[string]Work{"an untried": ups[2].Work(c.at), "a new": l.NewUpstream().Work(c.at)} {
			if math.Abs(w.PrefillPace-times) > 0.15*times || math.Abs(w.DecodePace-times) > 0.15*times {
				t.Errorf("others take %v times as long: %s upstream is expected to take %v and %v", times, name, w.PrefillPace, w.DecodePace)
			}
		}
		// Its own observations soon count for more.
		for range 10 {
			d := one(2000, 0, -1, true)
			d.FirstToken = time.Second
			tk := place(l, ups[2], d)
			c.at += time.Duration(2 * times * float64(time.Second))
			tk.Started(0, c.at)
			tk.Release(Completed, c.at)
		}
		if got := ups[2].Work(c.at).PrefillPace; math.Abs(got-2*times) > 0.2*times {
			t.Errorf("it takes %v times as long, learnt %v", 2*times, got)
		}
	}
}

func TestAnswersThatComeAsAWholeTeachBothPaces(t *testing.T) {
	l, c, ups := pool(1)
	for range 200 {
		d := one(2000, 0, -1, false)
		d.FirstToken = 100 * time.Millisecond
		tk := place(l, ups[0], d)
		alone := 0.1 + 300*pace.Prior.Decode(1, 2000)
		c.at += time.Duration(2.5 * alone * float64(time.Second))
		tk.finishAt(300, c.at)
	}
	if w := ups[0].Work(c.at); math.Abs(w.PrefillPace-2.5) > 0.2 || math.Abs(w.DecodePace-2.5) > 0.2 {
		t.Errorf("answers take 2.5 times as long, learnt %v and %v", w.PrefillPace, w.DecodePace)
	}
}

func TestPrefillsOfOthersDoNotMakeAnAnswerSlow(t *testing.T) {
	l, c, ups := pool(1)
	for range 200 {
		d := one(2000, 0, -1, false)
		d.FirstToken = 100 * time.Millisecond
		tk := place(l, ups[0], d)
		c.at += 100 * time.Millisecond
		other := place(l, ups[0], one(20_000, 0, -1, true)) // a second
		c.at += time.Second
		other.Started(0, c.at)
		other.Release(Canceled, c.at)
		c.at += time.Duration(300 * pace.Prior.Decode(1, 2000) * float64(time.Second))
		tk.finishAt(300, c.at)
	}
	if w := ups[0].Work(c.at); math.Abs(w.PrefillPace-1) > 0.05 || math.Abs(w.DecodePace-1) > 0.05 {
		t.Errorf("an upstream at the prior's pace was learnt to be at %v and %v", w.PrefillPace, w.DecodePace)
	}
}

func TestRemainingIsThatOfTheSequencesThatDecode(t *testing.T) {
	l, c, ups := pool(2)
	for range 2000 {
		place(l, ups[0], one(10, 0, -1, true)).finishAt(1000, c.at)
	}
	var o output.Outlook
	l.Outlook(&o)
	if math.Abs(o.Mean-1000) > 20 {
		t.Errorf("outputs of 1000 tokens, on average %v", o.Mean)
	}
	late, early := o.Remaining[output.Stage(700)], o.Remaining[output.Stage(100)]
	tk := place(l, ups[1], one(10, 0, -1, true))
	tk.Generated(0, 700, c.at)
	if got := ups[1].Remaining(&o); got != late || got > 400 {
		t.Errorf("%v tokens remain, want %v", got, late)
	}
	others := []*Ticket{place(l, ups[1], one(10, 0, -1, true)), place(l, ups[1], one(10, 0, -1, true)), place(l, ups[1], one(10, 0, -1, true))}
	for _, tk := range others[:2] {
		tk.Generated(0, 100, c.at) // the third is not prefilled
	}
	if got, want := ups[1].Remaining(&o), (late+2*early)/3; math.Abs(got-want) > 1e-9 {
		t.Errorf("%v tokens remain, want %v", got, want)
	}
	for _, tk := range append(others, tk) {
		tk.Release(Canceled, c.at)
	}
	if got := ups[1].Remaining(&o); got != o.Mean {
		t.Errorf("nothing runs: %v remain, want the mean", got)
	}
	expectZero(t, l, ups)
}

func (t *Ticket) finishAt(tokens int, now time.Duration) {
	t.Generated(0, tokens, now)
	t.Release(Completed, now)
}

func BenchmarkWork(b *testing.B) {
	l, c, ups := pool(1)
	place(l, ups[0], taking(1000, time.Second))
	b.ReportAllocs()
	for b.Loop() {
		ups[0].Work(c.at)
	}
}

func BenchmarkRemaining(b *testing.B) {
	l, _, ups := pool(1)
	var o output.Outlook
	l.Outlook(&o)
	b.ReportAllocs()
	for b.Loop() {
		ups[0].Remaining(&o)
	}
}
