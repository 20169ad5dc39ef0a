// SPDX-License-Identifier: Apache-2.0

package route

import (
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"
)

// run places a request, answers it, and has the engine report cached tokens.
func (b *bed) run(t *testing.T, q *Request, reported, block int) prefix.Correction {
	t.Helper()
	var p Placement
	if i := b.Place(b.choice(), q, tokenLoad, -1, &p); i < 0 {
		t.Fatal("not placed")
	}
	b.at += time.Second
	p.Started(0, b.at)
	got := p.Reported(reported, block)
	p.Release(ledger.Completed, true)
	b.at += time.Second
	return got
}

func TestReportsOfCachedTokensCorrectWithinABlock(t *testing.T) {
	type test struct {
		reported, block int
		ratio           float64
		want            prefix.Correction
	}
	for _, x := range []test{
		{reported: 160, want: prefix.Agreed},
		{reported: 144, want: prefix.Agreed}, // a block less
		{reported: 143, want: prefix.Shortened},
		{reported: 0, want: prefix.Shortened},
		{reported: 128, block: 64, want: prefix.Agreed}, // the engine's blocks are larger
		{reported: 112, block: 64, want: prefix.Agreed},
		{reported: 111, block: 64, want: prefix.Shortened},
		{reported: 0, block: 784, want: prefix.Agreed},
		{reported: 0, block: 128, want: prefix.Shortened},
		{reported: 176, want: prefix.Agreed},
		{reported: 177, want: prefix.Extended},
		{reported: 320, ratio: 2, want: prefix.Agreed},
		{reported: 160, ratio: 2, want: prefix.Shortened},
		{reported: 80, ratio: 0.5, want: prefix.Agreed},
	} {
		b := newBed(1, 100)
		q := func(blocks int) *Request {
			q := asking(prompt(1, blocks))
			if x.ratio > 0 {
				q.Ratio = x.ratio
			}
			return q
		}
		b.run(t, q(10), 0, 0)
		if got := b.run(t, q(20), x.reported, x.block); got != x.want {
			t.Errorf("%+v: %v", x, got)
		}
	}
}

func TestReportsOfBatchesAndOfWhatTheEngineComputesWholeCorrectNothing(t *testing.T) {
	chain := prompt(1, 10)
	for name, change := range map[string]func() *Request{
		"batch":   func() *Request { return asking(chain, chain) },
		"choices": func() *Request { q := asking(chain); q.Demand.Choices = 2; return q },
		"whole":   func() *Request { q := asking(chain); q.Reuses = false; return q },
		"pooling": func() *Request { q := asking(chain); q.Reuses, q.Keeps = false, false; return q },
		"none":    func() *Request { return asking() },
	} {
		b := newBed(1, 1000)
		b.run(t, asking(chain), 0, 0)
		if got := b.run(t, change(), 0, 0); got != prefix.Agreed {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := new(Placement).Reported(0, 0); got != prefix.Agreed {
		t.Errorf("nothing was placed, yet %v", got)
	}
}

// What a longer answer left behind the prompt may be found as well.
func TestOutputBehindThePromptExplainsMoreThanItsBlocks(t *testing.T) {
	b := newBed(1, 100)
	var p Placement
	b.Place(b.choice(), asking(prompt(1, 10)), tokenLoad, -1, &p)
	p.Started(0, b.at)
	p.Generated(0, 79, b.at) // with the last token of the prompt 5 blocks
	p.Release(ledger.Completed, true)
	if got := b.run(t, asking(prompt(1, 30)), 240, 1); got != prefix.Agreed {
		t.Errorf("output: %v", got)
	}
}

// Events tell what is evicted, and any rank may have answered where the engine
// chooses.
func TestReportsOfUpstreamsWithEventsAndOfBlendedRanksCorrectNothing(t *testing.T) {
	for _, blended := range []bool{false, true} {
		b := newBed(1, 1000)
		b.Index.SetReported(b.ups[0].Slot, !blended)
		ask := func() *Request { q := asking(prompt(1, 100)); q.Fresh = true; return q }
		b.run(t, ask(), 0, 0)
		c := b.choice()
		if blended {
			c.Candidates[0].Blended, c.Candidates[0].Ranks = true, b.ups
		}
		var p Placement
		b.Place(c, ask(), latency, -1, &p)
		p.Started(0, b.at)
		if got := p.Reported(0, 0); got != prefix.Agreed {
			t.Errorf("blended %v: %v", blended, got)
		}
		if got := b.Index.Stats(b.ups[0].Slot).Capacity; got != 1000 {
			t.Errorf("blended %v: capacity %d", blended, got)
		}
	}
}
