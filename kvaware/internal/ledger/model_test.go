// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"testing"
	"time"
)

// setPace makes an upstream prefill and decode at the given pace.
func setPace(u *Upstream, tokensPerSecond float64, gap time.Duration) {
	u.paces.prefill.set(1, tokensPerSecond)
	u.paces.gap.set(gap.Seconds(), 1)
}

func TestAnUnstreamedRequestAdvancesByModel(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	setPace(u, 1000, 10*time.Millisecond)
	place(l, u, one(2000-stepTokens, 0, -1, true)) // ahead
	tk := place(l, u, one(1500, 500, 1000, false)) // done after 3 s
	p := int64(2000 - stepTokens)
	c.at += 2990 * time.Millisecond
	expect(t, l, u, "prefill", p+1000, 0, 2)
	c.at += 1000 * time.Millisecond // 0.99 s into the decode: 99 tokens
	expect(t, l, u, "decode", p, 1500*901/1000+99*901/1000, 2)
	s := l.Snapshot(u)
	if s.ModelledPrefillTokens != 1000 || s.ModelledDecodeTokens != s.DecodeTokens {
		t.Errorf("modelled share %d and %d, want all of it: 1000 and %d",
			s.ModelledPrefillTokens, s.ModelledDecodeTokens, s.DecodeTokens)
	}
	tk.Generated(0, 40, c.at) // the usage at its end
	expect(t, l, u, "reconciled", p, 1500*96/100+40*96/100, 2)
	if s := l.Snapshot(u); s.ModelledPrefillTokens != 0 || s.ModelledDecodeTokens != 0 {
		t.Errorf("still modelled after the usage: %+v", s)
	}
	tk.Release(Completed, c.at)
	expect(t, l, u, "released", p, 0, 1)
}

func TestAnUnstreamedPrefillEndsWhenItsFirstTokenWasPredicted(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	setPace(u, 100, 10*time.Millisecond) // tokens say 12 s
	u.paces.prefillPace.pool.learn(2, 200, 100)
	d := one(1000, 0, -1, false)
	d.FirstToken = 500 * time.Millisecond
	tk := place(l, u, d)
	c.at += 990 * time.Millisecond
	expect(t, l, u, "at half the prior's pace, within a second", 1000, 0, 1)
	c.at += 30 * time.Millisecond
	expect(t, l, u, "after it", 0, 1002, 1)
	if q := u.Work(c.at).Queue; q > 0.01 {
		t.Errorf("a queue of %v s, want a tenth of its 50 ms at most", q)
	}
	tk.Release(Completed, c.at)
	expectZero(t, l, ups)
}

func TestTheModelGrowsUpToTheExpectationAndLeavesATenth(t *testing.T) {
	l, c, ups := pool(1)
	setPace(ups[0], 1000, 10*time.Millisecond)
	tk := place(l, ups[0], one(1000, 0, 200, false))
	c.at += time.Hour
	expect(t, l, ups[0], "hung", 0, 100+20, 1)
	if got := tk.sequences[0].modelled; got != 200 {
		t.Errorf("modelled %d tokens, want the 200 expected", got)
	}
	tk.Generated(0, 195, c.at)
	expect(t, l, ups[0], "reported", 0, 25+4, 1)
	tk.Release(Completed, c.at)

	tk = place(l, ups[0], one(1000, 0, -1, false))
	c.at += 1000 * time.Hour
	expect(t, l, ups[0], "hung, no expectation", 0, 1000+modelMax, 1)
	tk.Release(Canceled, c.at)
	expectZero(t, l, ups)
}

func TestAHangingPoolingRequestKeepsATenth(t *testing.T) {
	l, c, ups := pool(1)
	setPace(ups[0], 1000, 10*time.Millisecond)
	d := one(1005, 0, -1, false)
	d.Pooling = true
	tk := place(l, ups[0], d)
	c.at += time.Hour
	expect(t, l, ups[0], "hung", 101, 0, 1)
	tk.Release(Failed, c.at)
	expectZero(t, l, ups)
}

func TestAStreamIsGivenTimeBeforeItCountsAsSilent(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	setPace(u, 1000, 10*time.Millisecond)
	tk := place(l, u, one(1000-stepTokens, 0, -1, true))
	c.at += 1990 * time.Millisecond
	expect(t, l, u, "within twice its time", 744, 0, 1)
	c.at += 510 * time.Millisecond
	expect(t, l, u, "beyond it", 0, 744+50, 1)
	setPace(u, 1000, 10*time.Millisecond)
	tk.Started(0, c.at)
	expect(t, l, u, "the first token replaces the model", 0, 744, 1)
	setPace(u, 1000, 10*time.Millisecond) // what that first token taught
	c.at += 50 * time.Millisecond
	tk.Generated(0, 5, c.at)
	c.at += (silentGaps - 1) * 10 * time.Millisecond
	expect(t, l, u, "a pause", 0, 749, 1)
	c.at += 4 * 10 * time.Millisecond
	expect(t, l, u, "silence", 0, 749+silentGaps+3, 1)
	if s := l.Snapshot(u); s.ModelledDecodeTokens == 0 || s.ModelledDecodeTokens > silentGaps+3 {
		t.Errorf("modelled share %d of a stream that fell silent", s.ModelledDecodeTokens)
	}
	tk.Generated(0, 6, c.at)
	expect(t, l, u, "the next token replaces the model, downwards", 0, 750, 1)
	tk.Release(Completed, c.at)
	expectZero(t, l, ups)
}

func TestAStreamThatShowsNothingDoesNotFade(t *testing.T) {
	l, c, ups := pool(1)
	setPace(ups[0], 1000, 10*time.Millisecond)
	tk := place(l, ups[0], one(1000, 400, 50, true))
	c.at += time.Hour
	expect(t, l, ups[0], "hung", 0, 1050, 1)
	tk.Started(0, c.at)
	expect(t, l, ups[0], "started after all", 0, 1000, 1)
	setPace(ups[0], 1000, 10*time.Millisecond)
	tk.Generated(0, 10, c.at)
	c.at += 20 * 10 * time.Millisecond
	expect(t, l, ups[0], "silent", 0, 400+12, 1)
	tk.Release(Failed, c.at)
	expectZero(t, l, ups)
}

func TestPromptsOfAnUnstreamedBatchAreModelledOneAfterAnother(t *testing.T) {
	l, c, ups := pool(1)
	setPace(ups[0], 1000, 10*time.Millisecond)
	tk := place(l, ups[0], Demand{Prompts: []Prompt{{Tokens: 1000 - stepTokens, Cached: 0}, {Tokens: 1000, Cached: 0}}, Choices: 2, Expected: -1})
	c.at += 1100 * time.Millisecond
	expect(t, l, ups[0], "the first is done", 1000, 744+20, 4)
	c.at += 1000 * time.Millisecond
	expect(t, l, ups[0], "both are", 0, 744+220+1000+20, 4)
	tk.Release(Canceled, c.at)
	expectZero(t, l, ups)
}

func TestSilenceBehindAWaitingPromptIsModelled(t *testing.T) {
	l, c, ups := pool(1)
	setPace(ups[0], 1, 10*time.Millisecond)
	tk := place(l, ups[0], Demand{Prompts: []Prompt{{Tokens: 1000, Cached: 0}, {Tokens: 1000, Cached: 0}}, Expected: -1, Stream: true})
	tk.Started(1, c.at)
	c.at += time.Second
	expect(t, l, ups[0], "silent", 1000, 1100, 2)
}

func TestTheModelLooksAtABoundedNumberOfTicketsInTurn(t *testing.T) {
	l, c, ups := pool(2)
	for _, u := range ups {
		setPace(u, 1e9, 10*time.Millisecond)
		for range 1000 {
			place(l, u, one(100, 0, -1, false))
		}
	}
	d := Demand{}
	waiting := func() int64 { return (ups[0].prefill.Load() + ups[1].prefill.Load()) / 100 }
	for range 10 { // enough for all 2000, if neither upstream waits for the other
		c.at += advanceEvery
		before := waiting()
		l.Look(&d, ups, func([]candidate) {})
		if moved := before - waiting(); moved > advanceBudget {
			t.Fatalf("one look moved %d tickets, the budget is %d", moved, advanceBudget)
		}
	}
	for i, u := range ups {
		if p := u.prefill.Load(); p != 0 {
			t.Errorf("upstream %d: %d tickets never had their turn", i, p/100)
		}
	}
}

func TestTheModelIsNotEvaluatedMoreOftenThanItsInterval(t *testing.T) {
	l, c, ups := pool(1)
	setPace(ups[0], 1e9, time.Millisecond)
	place(l, ups[0], one(100, 0, -1, false))
	c.at += advanceEvery
	before := l.Snapshot(ups[0])
	c.at += advanceEvery - 1
	if after := l.Snapshot(ups[0]); after != before {
		t.Errorf("went from %+v to %+v", before, after)
	}
	c.at++
	if after := l.Snapshot(ups[0]); after.DecodeTokens != before.DecodeTokens+20 {
		t.Errorf("went from %+v to %+v", before, after)
	}
}

func TestTheModelGoesOnWhereAReleasedTicketStood(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	setPace(u, 1e9, 10*time.Millisecond)
	tickets := make([]*Ticket, advanceBudget+2)
	for i := range tickets {
		tickets[i] = place(l, u, one(100, 0, -1, false))
	}
	c.at += advanceEvery
	expect(t, l, u, "two left", 200, 101*advanceBudget, int64(len(tickets)))
	tickets[advanceBudget].Release(Canceled, c.at) // it was the next one
	c.at += advanceEvery
	if s := l.Snapshot(u); s.PrefillTokens != 0 {
		t.Errorf("the model stopped: %+v", s)
	}
	for _, tk := range tickets {
		tk.Release(Canceled, c.at)
	}
	expectZero(t, l, ups)
}

func TestATicketThatIsBusyIsSkipped(t *testing.T) {
	l, c, ups := pool(1)
	setPace(ups[0], 1e9, 10*time.Millisecond)
	busy, idle := place(l, ups[0], one(100, 0, -1, false)), place(l, ups[0], one(1000, 0, -1, false))
	c.at += advanceEvery
	busy.mu.Lock()
	expect(t, l, ups[0], "one busy", 100, 1000+1, 2)
	busy.mu.Unlock()
	busy.Release(Completed, c.at)
	idle.Release(Completed, c.at)
	expectZero(t, l, ups)
}
