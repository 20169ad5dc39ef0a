// SPDX-License-Identifier: Apache-2.0

package route

import (
	"math"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
)

// of asks for a prompt of so many tokens.
func of(family, tokens int) *Request {
	q := asking(prompt(family, tokens/16))
	q.Counted[0], q.Demand.Prompts[0].Tokens = tokens, tokens
	return q
}

// The example of README.md and docs/objective.md: a prompt of 2,000 tokens, of
// which A has 1,600 cached, and a request of 3,000 tokens that waits; B has
// nothing. Each has one request that decodes.
func TestTheExampleOfTheDocs(t *testing.T) {
	at := func(waits bool) (seen Seen, loads []float64) {
		b := newBed(2, 25_000)
		// A prefix that was served, and nothing learnt of it.
		p := new(Placement)
		b.Place(b.choice(), of(1, 1600), tokenLoad, 0, p)
		p.Release(ledger.Completed, true)
		decoding := func(upstream, tokens int) {
			p := new(Placement)
			b.Place(b.choice(), of(10+upstream, tokens-1), tokenLoad, upstream, p)
			p.Started(0, b.at)
			p.Generated(0, 1, b.at)
		}
		decoding(0, 4000)
		decoding(1, 5000)
		if waits {
			b.Place(b.choice(), of(20, 3000), tokenLoad, 0, new(Placement))
		}
		seen = b.Look(b.choice(), of(1, 2000), latency)
		for _, c := range seen.Candidates {
			loads = append(loads, choose.Load(tokenLoad.Weights, c))
		}
		return seen, loads
	}
	near := func(what string, got, want, within float64) {
		t.Helper()
		if math.Abs(got-want) > within {
			t.Errorf("%s is %.5f, want %v", what, got, want)
		}
	}
	busy, loads := at(true)
	a, b := busy.Terms[0], busy.Terms[1]
	near("A's queue", a.Queue, 0.167, 0.0006)
	near("A's own", a.Own, 0.033, 0.0006)
	near("A's delay", a.Delay, 0.016, 0.0006)
	near("A's step", a.Step, 0.012, 0.0006)
	near("A's sequences", a.Sequences, 3, 0)
	near("A's KV use", a.KVUse, 0.023, 0.0006)
	near("B's own", b.Own, 0.114, 0.0006)
	near("B's sequences", b.Sequences, 2, 0)
	near("B's KV use", b.KVUse, 0.018, 0.0006)
	near("A's load", loads[0], 7400, 1)
	near("B's load", loads[1], 7000, 1)
	calm, _ := at(false)
	near("A's latency", choose.Latency(&a), 0.0091, 0.00006)
	near("B's latency", choose.Latency(&b), 0.0039, 0.00006)
	near("A's latency with nothing waiting", choose.Latency(&calm.Terms[0]), 0.0013, 0.00006)
	if busy.Winner != 1 || calm.Winner != 0 {
		t.Errorf("chose %d, and %d with nothing waiting", busy.Winner, calm.Winner)
	}
}
