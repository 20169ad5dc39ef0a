// SPDX-License-Identifier: Apache-2.0

package route

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/pace"
)

var (
	tokenLoad = &Objective{Weights: choose.Weights{Prefill: 1, Decode: 1}}
	latency   = &Objective{Weights: tokenLoad.Weights, Latency: true}
	both      = map[string]*Objective{"token_load": tokenLoad, "latency": latency}
)

// bed is a router on a clock that a test moves, with upstreams of so many blocks.
type bed struct {
	*Router
	at  time.Duration
	ups []*Upstream
}

func newBed(upstreams, blocks int) *bed {
	b := &bed{at: time.Hour}
	b.Router = New(Options{Now: func() time.Duration { return b.at }, Rand: rand.New(rand.NewPCG(1, 2))})
	for range upstreams {
		b.ups = append(b.ups, b.Add(blocks))
	}
	return b
}

func (b *bed) choice() *Choice {
	c := new(Choice)
	for _, u := range b.ups {
		c.Candidates = append(c.Candidates, Candidate{Upstream: u})
	}
	return c
}

// prompt is a chain of so many blocks; prompts of one family share what they can.
func prompt(family, blocks int) []uint64 {
	chain := make([]uint64, blocks)
	h := uint64(family) * 0x9e3779b97f4a7c15
	for i := range chain {
		h = (h + uint64(i)) * 0xd6e8feb86659fd93
		chain[i] = h
	}
	return chain
}

// asking is a streamed request for prompts of 16 tokens a block and one more.
func asking(chains ...[]uint64) *Request {
	q := &Request{
		Demand: ledger.Demand{Choices: 1, Expected: -1, Stream: true},
		Chains: chains, Ratio: 1, Namespace: 1, BlockSize: 16, Reuses: true, Keeps: true,
	}
	for _, chain := range chains {
		n := 16*len(chain) + 1
		q.Counted = append(q.Counted, n)
		q.Demand.Prompts = append(q.Demand.Prompts, ledger.Prompt{Tokens: n})
	}
	return q
}

func (b *bed) place(t *testing.T, o *Objective, q *Request) (*Placement, int) {
	t.Helper()
	p := new(Placement)
	i := b.Place(b.choice(), q, o, -1, p)
	if i < 0 {
		t.Fatal("nothing chosen")
	}
	return p, i
}

// serve answers a request at an upstream with so many tokens.
func (b *bed) serve(t *testing.T, at int, q *Request, tokens int) {
	t.Helper()
	p := new(Placement)
	if i := b.Place(b.choice(), q, tokenLoad, at, p); i != at {
		t.Fatalf("%d took the request, want %d", i, at)
	}
	p.Started(0, b.at)
	p.Generated(0, tokens, b.at)
	p.Release(ledger.Completed, true)
}

func (b *bed) expectNothing(t *testing.T) {
	t.Helper()
	for i, u := range b.ups {
		s, held, w := b.Ledger.Snapshot(u.Load), b.Index.Stats(u.Slot), u.Load.Work(b.at)
		if s.Live != 0 || s.Running != 0 || s.PrefillTokens != 0 || s.DecodeTokens != 0 || w.Queue != 0 || w.Contexts != 0 {
			t.Errorf("upstream %d is left with %+v and %+v", i, s, w)
		}
		if held.Pinned != 0 || held.Generating != 0 {
			t.Errorf("upstream %d is left with %+v", i, held)
		}
	}
}

func TestAPromptGoesWhereItsPrefixIs(t *testing.T) {
	for name, o := range both {
		b := newBed(5, 10_000)
		b.serve(t, 3, asking(prompt(1, 300)), 10)
		p, i := b.place(t, o, asking(prompt(1, 320)))
		if i != 3 || p.CachedTokens != 300*16 || p.PromptTokens != 320*16+1 {
			t.Errorf("%s: chose %d with %d of %d tokens cached", name, i, p.CachedTokens, p.PromptTokens)
		}
		p.Release(ledger.Canceled, false)
		b.expectNothing(t)
	}
}

func TestAHotPrefixSpreadsOnceItsHolderIsBusy(t *testing.T) {
	for name, o := range both {
		b := newBed(4, 10_000)
		b.serve(t, 0, asking(prompt(1, 100)), 10)
		used := map[int]bool{}
		for k := range 40 {
			_, i := b.place(t, o, asking(append(prompt(1, 100), prompt(100+k, 30)...)))
			used[i] = true
		}
		if len(used) != 4 {
			t.Errorf("%s: 40 requests at once went to %d of 4 upstreams", name, len(used))
		}
	}
}

func TestFullAndTriedUpstreamsAreLeftOut(t *testing.T) {
	for name, o := range both {
		b := newBed(3, 10_000)
		b.serve(t, 0, asking(prompt(1, 300)), 10)
		q := asking(prompt(1, 300))
		for _, tt := range []struct {
			name      string
			set       func(c *Choice)
			preferred int
			want      func(i int) bool
		}{
			{"free", func(*Choice) {}, -1, func(i int) bool { return i == 0 }},
			{"tried", func(c *Choice) { c.Candidates[0].Tried = true }, -1, func(i int) bool { return i > 0 }},
			{"all tried", func(c *Choice) {
				for i := range c.Candidates {
					c.Candidates[i].Tried = true
				}
			}, -1, func(i int) bool { return i == 0 }},
			{"full", func(c *Choice) { c.Candidates[0].MaxRequests = 1 }, -1, func(i int) bool { return i > 0 }},
			{"preferred", func(*Choice) {}, 2, func(i int) bool { return i == 2 }},
			{"preferred and tried", func(c *Choice) { c.Candidates[2].Tried = true }, 2, func(i int) bool { return i == 0 }},
			{"all full", func(c *Choice) {
				for i := range c.Candidates {
					c.Candidates[i].MaxRequests = 1
				}
			}, 2, func(i int) bool { return i == -1 }},
		} {
			var running []*Placement
			c := b.choice()
			tt.set(c)
			for i := range c.Candidates {
				if c.Candidates[i].MaxRequests > 0 {
					r := new(Placement)
					b.Place(b.choice(), asking(prompt(9, 1)), o, i, r)
					running = append(running, r)
				}
			}
			p := new(Placement)
			if i := b.Place(c, q, o, tt.preferred, p); !tt.want(i) || p.Preferred != (i >= 0 && i == tt.preferred) {
				t.Errorf("%s, %s: chose %d, preferred %v", name, tt.name, i, p.Preferred)
			}
			for _, r := range append(running, p) {
				r.Release(ledger.Canceled, false)
			}
		}
		b.expectNothing(t)
	}
}

func TestRequestsWithoutAPromptGoToTheFewestRunning(t *testing.T) {
	for name, o := range both {
		b := newBed(3, 1000)
		b.place(t, o, asking(prompt(1, 10)))
		b.place(t, o, asking(prompt(2, 10)))
		free := -1
		for i, u := range b.ups {
			if u.Load.Running() == 0 {
				free = i
			}
		}
		bare := &Request{Demand: ledger.Demand{Choices: 1, Expected: -1}, Ratio: 1, BlockSize: 16}
		if _, i := b.place(t, o, bare); i != free {
			t.Errorf("%s: chose %d, want %d", name, i, free)
		}
	}
}

func TestALongColdPromptGoesWhereTheOldestPrefixesAre(t *testing.T) {
	b := newBed(2, 1000)
	// Prefixes come back within a minute or never.
	for i := range 400 {
		b.serve(t, 0, asking(prompt(i, 40)), 16)
		b.serve(t, 1, asking(prompt(1000+i, 40)), 16)
		b.at += 20 * time.Second
		b.serve(t, 0, asking(prompt(i, 40)), 16)
		b.serve(t, 1, asking(prompt(1000+i, 40)), 16)
	}
	b.at += 20 * time.Minute
	for i := range 30 {
		b.serve(t, 1, asking(prompt(5000+i, 40)), 16) // young ones
	}
	for range 20 {
		p, i := b.place(t, latency, asking(prompt(-1, 600)))
		if i != 0 {
			t.Fatal("chose the upstream whose prefixes are young")
		}
		p.Release(ledger.Canceled, false)
	}
}

func TestAnEngineWhoseSequencesAreAllTakenIsLeftToThoseItRuns(t *testing.T) {
	b := newBed(2, 100_000)
	b.serve(t, 0, asking(prompt(1, 200)), 10)
	for range 8 {
		p := new(Placement)
		b.Place(b.choice(), asking(prompt(1, 200)), latency, 0, p)
		p.Started(0, b.at)
		p.Generated(0, 1, b.at)
	}
	at := func(most int) int {
		c, p := b.choice(), new(Placement)
		for i := range c.Candidates {
			c.Candidates[i].MaxSequences = most
		}
		defer p.Release(ledger.Canceled, false)
		return b.Place(c, asking(prompt(1, 200)), latency, -1, p)
	}
	if i := at(0); i != 0 {
		t.Errorf("with no limit known chose %d, want the holder of the prompt", i)
	}
	if i := at(8); i != 1 {
		t.Errorf("chose %d, where eight of eight sequences run", i)
	}
}

func TestASlowUpstreamGetsLessOnceItsPaceIsKnown(t *testing.T) {
	b := newBed(2, 100_000)
	for range 30 { // upstream 0 takes three times as long
		p := new(Placement)
		q := asking(prompt(rand.IntN(1e9), 500))
		b.Place(b.choice(), q, latency, 0, p)
		b.at += 3 * q.Demand.FirstToken
		p.Started(0, b.at)
		p.Generated(0, 1, b.at)
		p.Release(ledger.Completed, true)
	}
	if _, i := b.place(t, latency, asking(prompt(-1, 500))); i != 1 {
		t.Error("chose the slow one of two idle upstreams")
	}
}

func TestRecentFailuresKeepRequestsAway(t *testing.T) {
	for name, o := range both {
		b := newBed(2, 10_000)
		b.serve(t, 0, asking(prompt(1, 100)), 10)
		for range 3 {
			p := new(Placement)
			b.Place(b.choice(), asking(prompt(2, 10)), o, 0, p)
			b.at += time.Millisecond
			p.Release(ledger.Failed, false)
		}
		if _, i := b.place(t, o, asking(prompt(1, 100))); i != 1 {
			t.Errorf("%s: chose the one that fails", name)
		}
	}
}

func TestLookShowsWhatPlaceGoesBy(t *testing.T) {
	for name, o := range both {
		b := newBed(4, 500)
		rnd := rand.New(rand.NewPCG(5, 6))
		for range 300 {
			b.at += time.Duration(rnd.IntN(1000)) * time.Millisecond
			q := asking(prompt(rnd.IntN(20), 1+rnd.IntN(200)))
			seen := b.Look(b.choice(), q, o)
			p, i := b.place(t, o, q)
			cost := func(k int) float64 {
				if o.Latency {
					return choose.Latency(&seen.Terms[k])
				}
				return choose.Cost(o.Weights, seen.Candidates[k])
			}
			if cost(i) != cost(seen.Winner) {
				t.Fatalf("%s: chose %d of cost %v, shown was %d of cost %v", name, i, cost(i), seen.Winner, cost(seen.Winner))
			}
			if rnd.IntN(3) > 0 {
				p.Started(0, b.at)
				p.Generated(0, 1+rnd.IntN(100), b.at)
				p.Release(ledger.Completed, true)
			}
		}
	}
}

func TestTermsAreFiniteAndNotNegativeWhateverHappens(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	for range 30 {
		b := newBed(1+rnd.IntN(5), rnd.IntN(300))
		var running []*Placement
		for range 200 {
			b.at += time.Duration(rnd.IntN(3000)) * time.Millisecond
			var chains [][]uint64
			for range 1 + rnd.IntN(3)*rnd.IntN(2) {
				chains = append(chains, prompt(rnd.IntN(10), rnd.IntN(100)))
			}
			q := asking(chains...)
			q.Ratio = 0.5 + rnd.Float64()
			q.Demand.Choices = rnd.IntN(4)
			q.Demand.Expected = rnd.IntN(100) - 1
			q.Demand.Stream = rnd.IntN(2) == 0
			q.Demand.Pooling = rnd.IntN(5) == 0
			q.Reuses, q.Keeps = rnd.IntN(5) > 0, rnd.IntN(5) > 0
			for i := range q.Demand.Prompts {
				q.Demand.Prompts[i].Tokens = q.Corrected(q.Counted[i])
			}
			for _, s := range b.Look(b.choice(), q, latency).Terms {
				for _, x := range []float64{s.Own, s.Queue, s.Wait, s.Delay, s.Memory, s.Eviction, s.Step, s.KVUse, s.Ghosts, s.GhostSeconds, choose.Latency(&s)} {
					if !(x >= 0) || math.IsInf(x, 0) {
						t.Fatalf("terms %+v", s)
					}
				}
				if s.Sequences < 1 || s.Step <= 0 {
					t.Fatalf("terms %+v", s)
				}
			}
			p, _ := b.place(t, latency, q)
			running = append(running, p)
			k := rnd.IntN(len(running))
			running[k].Started(rnd.IntN(4), b.at)
			running[k].Generated(rnd.IntN(4), rnd.IntN(200), b.at)
			if rnd.IntN(2) == 0 {
				running[k].Release(ledger.Outcome(rnd.IntN(6)), rnd.IntN(2) == 0)
			}
		}
		for _, p := range running {
			p.Release(ledger.Canceled, false)
			if p.Release(ledger.Completed, true) {
				t.Fatal("released twice")
			}
		}
		b.expectNothing(t)
	}
}

func TestAPlacementThatWasNeverMadeHoldsNothing(t *testing.T) {
	p := new(Placement)
	p.Started(0, 0)
	p.Generated(0, 5, 0)
	p.Finished(0)
	if p.Release(ledger.Completed, true) {
		t.Error("released what was never placed")
	}
}

func TestAFleetThatIsFasterThanThePriorIsUsedFromItsColdStartOn(t *testing.T) {
	for _, times := range []float64{0.05, 0.2, 1, 5} {
		b := newBed(4, 100_000)
		used := map[int]int{}
		var running []*Placement
		for k := range 100 { // up to 32 streams at a time
			q := asking(prompt(1000+k, 400))
			p, i := b.place(t, latency, q)
			used[i]++
			b.at += time.Duration(times * float64(q.Demand.FirstToken))
			p.Started(0, b.at)
			step := times * pace.Prior.Decode(float64(len(running)/4+1), float64(len(running)/4+1)*6400)
			for n := range 8 {
				b.at += time.Duration(step * float64(time.Second))
				p.Generated(0, 1+n, b.at)
			}
			if running = append(running, p); len(running) > 32 {
				running[0].Release(ledger.Completed, true)
				running = running[1:]
			}
		}
		for i := range b.ups {
			if used[i] < 12 {
				t.Errorf("%v times as long as by the prior: of 100 requests upstreams took %v", times, used)
				break
			}
		}
	}
}
