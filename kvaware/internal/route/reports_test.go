// SPDX-License-Identifier: Apache-2.0

package route

import (
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
)

// told are reports of which each upstream holds so many blocks of whatever is
// asked for, by block size and slot.
type told map[int]map[int]int32

func (t told) Match(blockSize int, chain []uint64, dst []int32) {
	for slot, blocks := range t[blockSize] {
		if slot < len(dst) {
			dst[slot] = max(dst[slot], min(blocks, int32(len(chain))))
		}
	}
}

// saying has a request believe reports, in blocks of these sizes.
func saying(q *Request, reports Reports, sizes ...int) *Request {
	q.Reports = reports
	for _, size := range sizes {
		r := ReportedChains{BlockSize: size}
		for j := range q.Chains {
			r.Chains = append(r.Chains, make([]uint64, q.Counted[j]/size))
		}
		q.Reported = append(q.Reported, r)
	}
	return q
}

func TestTheBetterOfWhatIsReportedAndWhatIsPredictedCounts(t *testing.T) {
	for name, o := range both {
		b := newBed(3, 10_000)
		b.serve(t, 0, asking(prompt(1, 200)), 0)
		reports := told{16: {1: 150, 2: 300}}
		seen := b.Look(b.choice(), saying(asking(prompt(1, 320)), reports, 16), o)
		for i, want := range []int64{200, 150, 300} {
			if got := 320*16 + 1 - seen.Candidates[i].Uncached; got != want*16 {
				t.Errorf("%s: upstream %d is credited with %d tokens, want %d", name, i, got, want*16)
			}
		}
		if seen.Winner != 2 {
			t.Errorf("%s: %d won", name, seen.Winner)
		}
		p, i := b.place(t, o, saying(asking(prompt(1, 320)), reports, 16))
		if i != 2 || p.CachedTokens != 300*16 {
			t.Errorf("%s: upstream %d was charged with %d tokens cached", name, i, p.CachedTokens)
		}
		p.Release(ledger.Completed, true)
		b.expectNothing(t)
	}
}

func TestOfAnEngineThatReportsPredictionsCountUntilItsEventsAreIn(t *testing.T) {
	for name, o := range both {
		b := newBed(2, 10_000)
		b.Index.SetReported(b.ups[0].Slot, true)
		b.serve(t, 0, asking(prompt(1, 200)), 0)
		b.serve(t, 1, asking(prompt(1, 200)), 0)
		for _, step := range []struct {
			after     time.Duration
			fresh     bool
			zero, one int64
		}{{0, true, 200, 200}, {time.Minute, true, 30, 200}, {time.Minute, false, 200, 200}} {
			b.at += step.after
			q := saying(asking(prompt(1, 320)), told{16: {0: 30}}, 16)
			q.Fresh = step.fresh
			seen := b.Look(b.choice(), q, o)
			for i, want := range []int64{step.zero, step.one} {
				if got := 320*16 + 1 - seen.Candidates[i].Uncached; got != want*16 {
					t.Errorf("%s: %+v: upstream %d is credited with %d tokens", name, step, i, got)
				}
			}
		}
	}
}

func TestReportsInBlocksOfAnotherSizeCountInTokens(t *testing.T) {
	b := newBed(3, 10_000)
	reports := told{64: {0: 10}, 48: {1: 10}, 16: {2: 10}}
	seen := b.Look(b.choice(), saying(asking(prompt(1, 320)), reports, 64, 48, 16), tokenLoad)
	for i, want := range []int64{640, 480, 160} {
		if got := 320*16 + 1 - seen.Candidates[i].Uncached; got != want {
			t.Errorf("upstream %d is credited with %d tokens, want %d", i, got, want)
		}
	}
}

func TestWhatIsHeldCountsInWholeBlocksOfTheEngine(t *testing.T) {
	b := newBed(4, 10_000)
	for i, block := range []int{0, 16, 32, 48} {
		b.ups[i].SetEngineBlock(block)
		b.serve(t, i, asking(prompt(1, 23)), 0)
	}
	seen := b.Look(b.choice(), asking(prompt(1, 23)), latency)
	for i, want := range []int64{23 * 16, 23 * 16, 11 * 32, 7 * 48} {
		if got := 23*16 + 1 - seen.Candidates[i].Uncached; got != want {
			t.Errorf("upstream %d is credited with %d tokens, want %d", i, got, want)
		}
	}
	// The last token is always computed, and with it the block that it ends.
	q := asking(prompt(2, 24))
	q.Counted[0], q.Demand.Prompts[0].Tokens = 24*16, 24*16
	b.serve(t, 2, q, 0)
	q = asking(prompt(2, 24))
	q.Counted[0], q.Demand.Prompts[0].Tokens = 24*16, 24*16
	if got := 24*16 - b.Look(b.choice(), q, latency).Candidates[2].Uncached; got != 11*32 {
		t.Errorf("credited with %d tokens of 12 blocks of 32", got)
	}
}

func TestReportsOfABatchAreToldApartByPrompt(t *testing.T) {
	b := newBed(2, 10_000)
	q := saying(asking(prompt(1, 10), prompt(2, 300), prompt(3, 40)), told{16: {1: 30}}, 16)
	p, i := b.place(t, tokenLoad, q)
	if want := (10 + 30 + 30) * 16; i != 1 || p.CachedTokens != want {
		t.Errorf("upstream %d was charged with %d tokens cached, want %d", i, p.CachedTokens, want)
	}
	p.Release(ledger.Completed, true)
	b.expectNothing(t)
}

func TestARequestThatReusesNothingAsksForNoReports(t *testing.T) {
	b := newBed(2, 10_000)
	q := saying(asking(prompt(1, 300)), told{16: {1: 300}}, 16)
	q.Reuses = false
	for i, c := range b.Look(b.choice(), q, tokenLoad).Candidates {
		if c.Uncached != 300*16+1 {
			t.Errorf("upstream %d is credited", i)
		}
	}
	// The memory of a choice is used again.
	c := b.choice()
	b.Look(c, saying(asking(prompt(1, 300)), told{16: {1: 300}}, 16), tokenLoad)
	for i, cand := range b.Look(c, asking(prompt(1, 300)), tokenLoad).Candidates {
		if cand.Uncached != 300*16+1 {
			t.Errorf("upstream %d is credited with what another request was told", i)
		}
	}
}

func TestRanksOfAnEngineThatPlacesAsItLikesAreCreditedWithTheirMean(t *testing.T) {
	for name, o := range both {
		b := newBed(5, 10_000)
		c := b.choice()
		for i := 1; i < 4; i++ {
			c.Candidates[i].Ranks, c.Candidates[i].Blended = b.ups[1:4], true
		}
		q := saying(asking(prompt(1, 320)), told{16: {0: 100, 1: 300, 4: 7}}, 16)
		seen := b.Look(c, q, o)
		for i, want := range []int64{100, 100, 100, 100, 7} {
			if got := 320*16 + 1 - seen.Candidates[i].Uncached; got != want*16 {
				t.Errorf("%s: candidate %d is credited with %d tokens, want %d", name, i, got, want*16)
			}
		}
	}
}

func TestRanksShareTheMostRequestsOfTheirEngine(t *testing.T) {
	b := newBed(3, 10_000)
	c := b.choice()
	for i := 1; i < 3; i++ {
		c.Candidates[i].Ranks, c.Candidates[i].MaxRequests = b.ups[1:3], 1
	}
	first, second := new(Placement), new(Placement)
	if i := b.Place(c, asking(prompt(1, 10)), tokenLoad, 1, first); i != 1 {
		t.Fatalf("%d took the request", i)
	}
	if i := b.Place(c, asking(prompt(2, 10)), tokenLoad, 2, second); i != 0 {
		t.Errorf("%d took a request that its engine has no room for", i)
	}
	first.Release(ledger.Completed, true)
	second.Release(ledger.Completed, true)
	b.expectNothing(t)
}

func TestAnEngineThatFindsLessThanItReportsIsCreditedWithLess(t *testing.T) {
	b := newBed(2, 10_000)
	serve := func(found int) int {
		p := new(Placement)
		q := saying(asking(prompt(1, 320)), told{16: {0: 300, 1: 300}}, 16)
		q.Fresh = true
		if i := b.Place(b.choice(), q, tokenLoad, 0, p); i != 0 {
			t.Fatalf("%d took the request", i)
		}
		if p.SaidCached() != 300*16 {
			t.Fatalf("the engine said that it holds %d tokens", p.SaidCached())
		}
		p.FoundCached(found)
		p.Release(ledger.Completed, true)
		b.Index.Forget(b.ups[0].Slot)
		return p.CachedTokens
	}
	for range 5 {
		if got := serve(300 * 16); got != 300*16 {
			t.Fatalf("credited with %d tokens", got)
		}
	}
	for range 300 {
		serve(150 * 16)
	}
	if got := serve(150 * 16); got < 145*16 || got > 155*16 {
		t.Errorf("an engine that finds half of what it reports is credited with %d of %d tokens", got, 300*16)
	}
	seen := b.Look(b.choice(), saying(asking(prompt(1, 320)), told{16: {0: 300, 1: 300}}, 16), tokenLoad)
	if got := 320*16 + 1 - seen.Candidates[1].Uncached; got != 300*16 {
		t.Errorf("another one is credited with %d tokens", got)
	}
	for range 300 {
		serve(300 * 16)
	}
	if got := serve(300 * 16); got != 300*16 {
		t.Errorf("an engine that finds all again is credited with %d tokens", got)
	}
}

func TestAFewMissesTakeNothingFromWhatAnEngineReports(t *testing.T) {
	var r reportShare
	for i := range 1000 {
		met := 10_000
		if i%50 == 0 {
			met = 0
		}
		r.learn(10_000, met)
		if r.load() != 1 {
			t.Fatalf("after %d answers %v counts", i+1, r.load())
		}
	}
}
