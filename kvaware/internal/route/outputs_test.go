// SPDX-License-Identifier: Apache-2.0

package route

import (
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"
)

// converse asks for 10 blocks, has them answered in 80 tokens, and goes on with a
// prompt of 30 blocks, of which the engine finds so many. It returns how many of
// the second prompt's blocks were believed cached.
func (b *bed) converse(t *testing.T, family int, model uint64, inner bool, found int) (cached int) {
	t.Helper()
	turn := func(blocks, output, found int) int {
		q := asking(prompt(family, blocks))
		q.Model = model
		var p Placement
		if b.Place(b.choice(), q, latency, -1, &p) < 0 {
			t.Fatal("not placed")
		}
		p.Started(0, b.at)
		p.Generated(0, output, b.at)
		p.Answered(inner)
		if found >= 0 {
			p.Reported(16*found, 16)
		}
		p.Release(ledger.Completed, true)
		return p.CachedTokens / 16
	}
	turn(10, 80, -1) // 81 tokens with the prompt's last one: 5 whole blocks are cached
	return turn(30, 1, found)
}

func TestAnOutputCountsAsFarAsItsModelsReportsSay(t *testing.T) {
	b := newBed(1, 100_000)
	const plain, half, changed, other = 1, 2, 3, 4
	family := 0
	next := func() int { family++; return family }
	if got := b.converse(t, next(), plain, false, 15); got != 10 {
		t.Errorf("%d blocks before anything is known of outputs", got)
	}
	for range 40 {
		b.converse(t, next(), plain, false, 15)
		b.converse(t, next(), half, false, 12)
		b.converse(t, next(), changed, true, 10)
	}
	for model, want := range map[uint64]int{plain: 15, half: 12, changed: 10, other: 10} {
		if got := b.converse(t, next(), model, model == changed, -1); got != want {
			t.Errorf("model %d: %d blocks, want %d", model, got, want)
		}
	}
	if got := b.converse(t, next(), plain, true, -1); got != 10 {
		t.Errorf("%d blocks of reasoning, of which nothing is known", got)
	}
	for range 40 {
		b.converse(t, next(), plain, false, 10) // its template has changed
	}
	if got := b.converse(t, next(), plain, false, -1); got != 10 {
		t.Errorf("%d blocks after outputs were not found for long", got)
	}
}

func TestAnOutputOfKnownTokensCountsWithoutReports(t *testing.T) {
	for name, x := range map[string]struct {
		prompts, choices int
		started          bool
		want             int
	}{
		"one":            {1, 1, true, 15},
		"of two choices": {1, 2, true, 10},
		"of two prompts": {2, 1, true, 10},
		"not even begun": {1, 1, false, 10},
	} {
		b := newBed(1, 100_000)
		q := asking(prompt(1, 10), prompt(2, 10))
		if x.prompts == 1 {
			q = asking(prompt(1, 10))
		}
		q.Demand.Choices = x.choices
		var p Placement
		if b.Place(b.choice(), q, latency, -1, &p) < 0 {
			t.Fatal("not placed")
		}
		if x.started {
			p.Started(0, b.at)
		}
		p.Generated(0, 80, b.at)
		p.Continued(prompt(1, 15)[10:])
		p.Release(ledger.Completed, true)
		p = Placement{}
		if b.Place(b.choice(), asking(prompt(1, 30)), latency, -1, &p) < 0 {
			t.Fatal("not placed")
		}
		if got := p.CachedTokens / 16; got != x.want {
			t.Errorf("%s: %d blocks, want %d", name, got, x.want)
		}
		p.Release(ledger.Canceled, false)
	}
}

// A prompt that misses blocks of its own says nothing of the output behind them.
func TestAMissBeforeAnOutputTeachesNothingOfIt(t *testing.T) {
	b := newBed(1, 100_000)
	for i := range 20 {
		b.converse(t, i, 1, false, 15)
	}
	before := b.outputs.of(1)
	b.converse(t, 100, 1, false, 3)
	if after := b.outputs.of(1); after != before {
		t.Errorf("%v, before %v", after, before)
	}
}

func TestModelsOfWhichSharesAreKeptAreBounded(t *testing.T) {
	var o outputShares
	for model := range uint64(10 * maxModels) {
		o.learn(model, prefix.PlainText, 1)
	}
	if n := len(o.models); n > maxModels || n == 0 {
		t.Errorf("%d models", n)
	}
	o.learn(1<<40, prefix.Inner, 0)
	if o.models[1<<40] != nil {
		t.Error("a model of which nothing is known takes room")
	}
}
