// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math"
	"testing"
	"time"
)

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.Abs(got-want) > within*want {
		t.Errorf("%s is %.4g, want %.4g within %.0f %%", what, got, want, 100*within)
	}
}

func TestPriorsAreAsDocumented(t *testing.T) {
	u := New(Options{}).NewUpstream()
	near(t, "rate", u.PrefillRate(), 10_000, 1e-9)
	near(t, "gap", u.TokenGap().Seconds(), 0.020, 1e-6)
	near(t, "packing", u.TokensPerDelta(), 1, 1e-9)
}

func TestPacesAreLearntFromStreams(t *testing.T) {
	for _, truth := range []struct {
		rate float64
		gap  time.Duration
	}{{50_000, 2 * time.Millisecond}, {10_000, 20 * time.Millisecond}, {300, 400 * time.Millisecond}} {
		l, c, ups := pool(1)
		u := ups[0]
		for range 60 {
			tk := place(l, u, one(4000, 1000, -1, true))
			c.at += time.Duration((3000 + stepTokens) / truth.rate * float64(time.Second))
			for n := 1; n <= 100; n++ {
				tk.Generated(0, n, c.at)
				c.at += truth.gap
			}
			tk.Finished(0)
			tk.Release(Completed, c.at)
		}
		near(t, "rate", u.PrefillRate(), truth.rate, 0.02)
		near(t, "gap", u.TokenGap().Seconds(), truth.gap.Seconds(), 0.02)
	}
}

func TestQueueingIsPartOfTheRate(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	for range 40 {
		var ts [4]*Ticket
		for i := range ts {
			ts[i] = place(l, u, one(8000, 0, -1, true))
		}
		for i := range ts {
			took := 8000 * time.Second / 5000
			if i == 0 {
				took += stepTokens * time.Second / 5000
			}
			c.at += took
			ts[i].Started(0, c.at)
		}
		for i := range ts {
			ts[i].Release(Completed, c.at)
		}
	}
	near(t, "rate", u.PrefillRate(), 5000, 0.02)
}

func TestBigPromptsDominateTheRate(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	for i := range 200 {
		n, took := 20, 100*time.Millisecond // mostly network
		if i%4 == 0 {
			n, took = 40_000, 2*time.Second
		}
		tk := place(l, u, one(n, 0, -1, true))
		c.at += took
		tk.Started(0, c.at)
		tk.Release(Completed, c.at)
	}
	near(t, "rate", u.PrefillRate(), 20_000, 0.25)
}

func TestOneHangingRequestShiftsARateAndDoesNotReplaceIt(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	run := func(took time.Duration) {
		tk := place(l, u, one(10_000, 0, -1, true))
		c.at += took
		tk.Started(0, c.at)
		tk.Release(Completed, c.at)
	}
	for range 50 {
		run(time.Second)
	}
	before := u.PrefillRate()
	run(30 * time.Minute)
	if after := u.PrefillRate(); after < before*0.75 || after >= before {
		t.Errorf("rate went from %.0f to %.0f", before, after)
	}
}

func TestUnstreamedRequestsTeachTheGapAtTheirEnd(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	setPace(u, 10_000, 20*time.Millisecond)
	for range 60 {
		tk := place(l, u, one(10_000-stepTokens, 0, -1, false))
		c.at += time.Second + 200*5*time.Millisecond
		tk.Started(0, c.at) // everything is seen at once, at the end
		tk.Generated(0, 200, c.at)
		tk.Finished(0)
		tk.Release(Completed, c.at)
	}
	near(t, "gap", u.TokenGap().Seconds(), 0.005, 0.02)
	near(t, "rate", u.PrefillRate(), 10_000, 1e-9)
}

func TestAnAnswerThatIsNothingButPrefillTeachesTheRate(t *testing.T) {
	for name, d := range map[string]Demand{
		"pooling":   {Prompts: []Prompt{{Tokens: 1000, Cached: 0}, {Tokens: 1000 - stepTokens, Cached: 0}}, Expected: -1, Pooling: true},
		"one token": one(2000-stepTokens, 0, 1, false),
	} {
		l, c, ups := pool(1)
		for range 60 {
			tk := place(l, ups[0], d)
			c.at += 100 * time.Millisecond
			if !d.Pooling {
				tk.Generated(0, 1, c.at)
			}
			tk.Release(Completed, c.at)
		}
		near(t, "rate by "+name, ups[0].PrefillRate(), 20_000, 0.02)
	}
}

func TestGuessesAndFailuresTeachNothing(t *testing.T) {
	l, c, ups := pool(1)
	u := ups[0]
	e := one(5000, 0, -1, true)
	e.Estimated = true
	tk := place(l, u, e)
	c.at += time.Minute
	tk.Started(0, c.at)
	tk.Release(Completed, c.at)
	tk = place(l, u, one(5000, 0, -1, false))
	tk.Generated(0, 100, c.at)
	c.at += time.Minute
	tk.Release(Failed, c.at)
	near(t, "rate", u.PrefillRate(), priorPrefillRate, 1e-9)
	near(t, "gap", u.TokenGap().Seconds(), priorTokenGap, 1e-6)
}

func TestTokensPerDeltaFollowsReportedUsage(t *testing.T) {
	u := New(Options{}).NewUpstream()
	u.LearnTokensPerDelta(0, 5)
	u.LearnTokensPerDelta(5, 0)
	u.LearnTokensPerDelta(-5, -5)
	near(t, "packing", u.TokensPerDelta(), 1, 1e-9)
	u.LearnTokensPerDelta(390, 100)
	near(t, "packing after one stream", u.TokensPerDelta(), 3.9, 0.02)
	for range 200 {
		u.LearnTokensPerDelta(120, 100)
	}
	near(t, "packing after a change", u.TokensPerDelta(), 1.2, 0.05)
}
