// SPDX-License-Identifier: Apache-2.0

package route

import "testing"

func TestAnEngineThatKeepsNoPrefixesIsCreditedWithNone(t *testing.T) {
	for name, o := range both {
		b := newBed(2, 500)
		for k := range 40 { // its cache looks full, of prefixes that others would miss
			b.serve(t, 0, asking(prompt(100+k, 12)), 16)
		}
		b.serve(t, 0, asking(prompt(1, 300)), 10)
		choice := func() *Choice {
			c := b.choice()
			c.Candidates[0].NoCache = true
			return c
		}
		q := asking(prompt(1, 300))
		seen := b.Look(choice(), q, o)
		if seen.Candidates[0].Uncached != 300*16+1 {
			t.Errorf("%s: %d tokens are uncached there", name, seen.Candidates[0].Uncached)
		}
		if o.Latency && seen.Terms[0].Eviction != 0 {
			t.Errorf("%s: evictions cost %v there", name, seen.Terms[0].Eviction)
		}
		p := new(Placement)
		if i := b.Place(choice(), q, o, 0, p); i != 0 || p.CachedTokens != 0 {
			t.Errorf("%s: at %d with %d tokens cached", name, i, p.CachedTokens)
		}
	}
}
