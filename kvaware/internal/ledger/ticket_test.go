// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"testing"
	"time"
)

func TestTheFirstTokenMovesTheChargeFromPrefillToDecode(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	tk := place(l, u, one(1000, 600, -1, true))
	expect(t, l, u, "charged", 400, 0, 1)
	tk.Started(0, c.at)
	expect(t, l, u, "started", 0, 1000, 1)
	tk.Generated(0, 1, c.at)
	expect(t, l, u, "one token", 0, 1001, 1)
	tk.Generated(0, 250, c.at)
	expect(t, l, u, "many tokens", 0, 1250, 1)
	if !tk.Release(Completed, c.at) {
		t.Error("the first release did not release")
	}
	expectZero(t, l, ups)
}

func TestACountWithoutAStartImpliesIt(t *testing.T) {
	l, c, ups := pool(1)
	tk := place(l, ups[0], one(100, 0, -1, true))
	tk.Generated(0, 3, c.at)
	expect(t, l, ups[0], "counted", 0, 103, 1)
}

func TestAnExpectationFadesTheWholeRequest(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	tk := place(l, u, one(1000, 0, 100, true))
	for _, step := range []struct {
		generated int
		want      int64
	}{{0, 1000}, {25, 750 + 18}, {50, 500 + 25}, {99, 10 + 0}, {100, 0}, {150, 0}, {50, 525}} {
		tk.Generated(0, step.generated, c.at)
		expect(t, l, u, "faded", 0, step.want, 1)
	}
}

func TestAPromptSharedByChoicesCountsOnceByItsLeastAdvanced(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	d := one(1000, 200, 100, true)
	d.Choices = 3
	tk := place(l, u, d)
	expect(t, l, u, "charged", 800, 0, 3)
	tk.Generated(1, 50, c.at)
	expect(t, l, u, "one choice ahead", 0, 1000+25, 3)
	tk.Generated(0, 20, c.at)
	tk.Generated(2, 20, c.at)
	expect(t, l, u, "all begun", 0, 800+25+16+16, 3)
	tk.Finished(0)
	expect(t, l, u, "one of the least finished", 0, 800+25+16, 2)
	tk.Finished(2)
	expect(t, l, u, "the other too", 0, 500+25, 1)
	tk.Finished(2)
	expect(t, l, u, "again", 0, 525, 1)
	tk.Generated(2, 30, c.at) // a late correction weighs nothing
	expect(t, l, u, "corrected late", 0, 525, 1)
	tk.Finished(1)
	expect(t, l, u, "all finished", 0, 0, 0)
	tk.Release(Completed, c.at)
	expectZero(t, l, ups)
	if got := l.Snapshot(u).GeneratedTokens; got != 100 {
		t.Errorf("generated total %d, want 100", got)
	}
}

func TestEachPromptOfABatchEndsItsOwnPrefill(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	tk := place(l, u, Demand{Prompts: []Prompt{{Tokens: 100, Cached: 0}, {Tokens: 200, Cached: 50}, {Tokens: 300, Cached: 0}}, Choices: 2, Expected: -1, Stream: true})
	expect(t, l, u, "charged", 550, 0, 6)
	tk.Started(3, c.at)
	expect(t, l, u, "second prompt started", 400, 200, 6)
	tk.Started(2, c.at)
	expect(t, l, u, "its other choice too", 400, 200, 6)
	tk.Generated(4, 7, c.at)
	expect(t, l, u, "third prompt started", 100, 507, 6)
	tk.Finished(0)
	expect(t, l, u, "one choice of the first ended unseen", 100, 507, 5)
	tk.Finished(1)
	expect(t, l, u, "both", 0, 507, 4)
	tk.Release(Canceled, c.at)
	expectZero(t, l, ups)
}

func TestPoolingHoldsNothingAfterItsPrefill(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	d := one(500, 0, -1, false)
	d.Pooling = true
	tk := place(l, u, d)
	expect(t, l, u, "charged", 500, 0, 1)
	tk.Generated(0, 0, c.at)
	expect(t, l, u, "answered", 0, 0, 1)
	tk.Release(Completed, c.at)
	expectZero(t, l, ups)
}

func TestARequestWithoutTokensIsOneRunningAndNothingElse(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	tk := place(l, u, Demand{Expected: -1})
	expect(t, l, u, "charged", 0, 0, 1)
	c.at += time.Hour
	expect(t, l, u, "after an hour", 0, 0, 1)
	tk.Release(Completed, c.at)
	expectZero(t, l, ups)
	if s := l.Snapshot(u); s.Requests != 1 || s.PromptTokens != 0 {
		t.Errorf("totals %+v", s)
	}
}

func TestEventsAfterTheReleaseAreNoOps(t *testing.T) {
	l, c, ups := pool(1)
	tk := place(l, ups[0], one(100, 0, 10, true))
	tk.Generated(0, 1, c.at)
	tk.Release(Canceled, c.at)
	tk.Started(0, c.at)
	tk.Generated(0, 9, c.at)
	tk.Finished(0)
	if tk.Release(Failed, c.at) {
		t.Error("released twice")
	}
	expectZero(t, l, ups)
	if s := l.Snapshot(ups[0]); s.Failures != 0 || s.GeneratedTokens != 1 {
		t.Errorf("the second release counted: %+v", s)
	}
}

func TestAnUnchargedTicketDoesNothing(t *testing.T) {
	var tk Ticket
	tk.Started(0, 0)
	tk.Generated(5, 5, 0)
	tk.Finished(1)
	if tk.Release(Failed, 0) || tk.Upstream() != nil {
		t.Error("an uncharged ticket was released")
	}
}

func TestChargingALivingTicketSupersedesIt(t *testing.T) {
	l, c, ups := pool(2)
	tk := place(l, ups[0], one(100, 0, -1, true))
	tk.Generated(0, 10, c.at)
	d := one(100, 0, -1, true)
	l.Choose(tk, &d, ups, func(cs []candidate) int { return 1 })
	expect(t, l, ups[0], "old", 0, 0, 0)
	expect(t, l, ups[1], "new", 100, 0, 1)
	if tk.Upstream() != ups[1] {
		t.Error("the ticket names the wrong upstream")
	}
	tk.Release(Completed, c.at)
	expectZero(t, l, ups)
	if s := l.Snapshot(ups[0]); s.Failures != 0 || s.FailureScore != 0 {
		t.Errorf("a superseded attempt counted as a failure: %+v", s)
	}
}

func TestAbsurdNumbersStayInRange(t *testing.T) {
	l, c, ups := pool(1)
	huge := int(^uint(0) >> 1)
	many := make([]Prompt, 3*MaxSequences)
	for i := range many {
		many[i] = Prompt{Tokens: 1}
	}
	for _, d := range []Demand{
		{Prompts: []Prompt{{Tokens: huge, Cached: -huge}, {Tokens: huge, Cached: huge}, {Tokens: -huge, Cached: -huge}}, Choices: huge, Expected: huge, Stream: true},
		{Prompts: []Prompt{{Tokens: 1, Cached: 5}}, Choices: -3, Expected: -huge},
		{Prompts: many, Choices: 7, Expected: -1},
	} {
		tk := place(l, ups[0], d)
		if s := l.Snapshot(ups[0]); s.PrefillTokens < 0 || s.Running < 1 || s.Running > MaxSequences {
			t.Errorf("charged %+v", s)
		}
		for _, seq := range []int{-huge, -1, 0, 1, 2, 10_000, huge} {
			for _, total := range []int{huge, -huge, 5} {
				tk.Generated(seq, total, c.at)
				if s := l.Snapshot(ups[0]); s.PrefillTokens < 0 || s.DecodeTokens < 0 {
					t.Errorf("negative: %+v", s)
				}
			}
			tk.Finished(seq)
		}
		tk.Release(Completed, c.at)
		expectZero(t, l, ups)
	}
	if got := place(l, ups[0], Demand{Prompts: many, Choices: 7}).holds.prefill; got != int64(len(many)) {
		t.Errorf("a batch beyond the bound is charged %d tokens, want all %d", got, len(many))
	}
}

func TestTotalsCountAnsweredPromptsOnce(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	a := place(l, u, one(1000, 600, -1, true))
	a.Started(0, c.at)
	a.Generated(0, 30, c.at)
	a.Release(Completed, c.at)
	place(l, u, one(500, 100, -1, false)).Release(Completed, c.at)
	place(l, u, one(9, 0, -1, true)).Release(Rejected, c.at)
	place(l, u, one(9, 0, -1, true)).Release(Failed, c.at)
	place(l, u, one(9, 0, -1, true)).Release(Busy, c.at)
	e := one(7777, 0, -1, false)
	e.Estimated = true
	place(l, u, e).Release(Completed, c.at)
	s := l.Snapshot(u)
	if s.PromptTokens != 1500 || s.CachedTokens != 700 || s.GeneratedTokens != 30 ||
		s.Requests != 6 || s.Failures != 1 || s.Busy != 1 {
		t.Errorf("totals %+v", s)
	}
	expectZero(t, l, ups)
}
