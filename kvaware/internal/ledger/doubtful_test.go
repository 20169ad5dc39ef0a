// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/pace"
)

// An engine refuses a prompt that is too long at once, and drops one whose client has
// gone. Those that came before and after are not faster for it than they would be.
func TestPromptsThatNobodyPrefillsDoNotMakeOthersLookFast(t *testing.T) {
	for _, outcome := range []Outcome{Failed, Busy, Rejected, Canceled, Superseded} {
		for _, stream := range []bool{true, false} {
			for _, ahead := range []bool{true, false} {
				l, c, ups := pool(1)
				u := ups[0]
				for range 100 {
					var refused *Ticket
					if ahead {
						refused = place(l, u, taking(1_000_000, time.Minute))
					}
					d := one(2000, 0, -1, stream)
					w := u.Work(c.at)
					d.FirstToken = time.Duration(w.Queue/w.PrefillPace*1e9) + 100*time.Millisecond
					tk := place(l, u, d)
					if !ahead {
						refused = place(l, u, taking(1_000_000, time.Minute))
					}
					c.at += time.Millisecond
					refused.Release(outcome, c.at)
					c.at += 99 * time.Millisecond
					if stream {
						tk.Started(0, c.at)
						tk.Release(Canceled, c.at)
					} else {
						c.at += time.Duration(100 * pace.Prior.Decode(1, 2000) * 1e9)
						tk.finishAt(100, c.at)
					}
				}
				w := u.Work(c.at)
				if math.Abs(w.PrefillPace-1) > 0.1 || math.Abs(w.DecodePace-1) > 0.1 || u.PrefillRate() > 2*priorPrefillRate {
					t.Errorf("outcome %d, streamed %v, refused ahead %v: learnt paces %v and %v, %v tokens a second", outcome, stream, ahead, w.PrefillPace, w.DecodePace, u.PrefillRate())
				}
				expectZero(t, l, ups)
			}
		}
	}
}

// Where some prompts are refused all the time, the others teach all the same.
func TestPacesAreLearntBesidePromptsThatAreRefused(t *testing.T) {
	l, c, ups := pool(1)
	for k := range 200 {
		d := one(2000, 0, -1, true)
		d.FirstToken = 100 * time.Millisecond
		tk := place(l, ups[0], d)
		refused := one(100, 0, -1, true) // no tenth of it
		if k%2 == 0 {
			refused = taking(1_000_000, time.Minute)
		}
		place(l, ups[0], refused).Release(Rejected, c.at)
		c.at += 300 * time.Millisecond
		tk.Started(0, c.at)
		tk.Release(Completed, c.at)
	}
	if got := ups[0].Work(c.at).PrefillPace; math.Abs(got-3) > 0.2 {
		t.Errorf("first tokens take three times as long, learnt %v", got)
	}
}

// The prompts of a batch are charged one by one, and computed once as far as they are
// alike.
func TestBatchesDoNotMakeOthersLookFast(t *testing.T) {
	for _, stream := range []bool{true, false} {
		for _, ahead := range []bool{true, false} {
			for _, lasts := range []bool{true, false} {
				l, c, ups := pool(1)
				u := ups[0]
				batch := func() *Ticket {
					d := Demand{Choices: 1, Expected: 10}
					for range 70 {
						d.Prompts = append(d.Prompts, Prompt{Tokens: 20_000, Prefill: time.Second})
					}
					return place(l, u, d)
				}
				for range 100 {
					var other *Ticket
					if ahead {
						other = batch()
					}
					d := one(2000, 0, -1, stream)
					w := u.Work(c.at)
					d.FirstToken = time.Duration(w.Queue/w.PrefillPace*1e9) + 100*time.Millisecond
					tk := place(l, u, d)
					if !ahead {
						other = batch()
					}
					c.at += 500 * time.Millisecond // of which the batch takes 400
					if !lasts {
						other.Release(Completed, c.at)
					}
					if stream {
						tk.Started(0, c.at)
						tk.Release(Canceled, c.at)
					} else {
						c.at += time.Duration(100 * pace.Prior.Decode(71, 70*20_000) * 1e9)
						tk.finishAt(100, c.at)
					}
					other.Release(Completed, c.at)
				}
				if w := u.Work(c.at); w.PrefillPace < 0.5 || w.DecodePace < 0.5 {
					t.Errorf("streamed %v, batch ahead %v, and lasts %v: learnt paces %v and %v", stream, ahead, lasts, w.PrefillPace, w.DecodePace)
				}
				expectZero(t, l, ups)
			}
		}
	}
}

// While a pace is being learnt, the queue holds prompts that were charged when it was
// thought to be another.
func TestAPaceThatIsFarOffIsLearntUnderAQueueWithoutOvershooting(t *testing.T) {
	for _, truth := range []float64{0.02, 0.2, 1, 5, 50} {
		for _, stream := range []bool{true, false} {
			l, c, ups := pool(1)
			u := ups[0]
			var queue []*Ticket
			for range 300 {
				for len(queue) < 10 {
					d := one(20_000, 0, -1, stream) // a second
					w := u.Work(c.at)
					d.FirstToken = time.Duration((w.Queue/w.PrefillPace + 1) * 1e9)
					queue = append(queue, place(l, u, d))
				}
				c.at += time.Duration(truth * 1e9)
				if tk := queue[0]; stream {
					tk.Started(0, c.at)
					tk.Release(Completed, c.at)
				} else {
					tk.finishAt(1, c.at)
				}
				queue = queue[1:]
				if got := u.PrefillPace(); got < min(1, truth)/1.5 || got > max(1, truth)*1.5 {
					t.Fatalf("pace %v of 1 at first and %v in truth, streamed %v", got, truth, stream)
				}
			}
			if got := u.PrefillPace(); math.Abs(got-truth) > truth/3 {
				t.Errorf("it takes %v times as long, streamed %v: learnt %v", truth, stream, got)
			}
		}
	}
}
