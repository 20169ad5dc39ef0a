// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

func TestAIBrixPrefixWantsAHolderThatIsNotBusy(t *testing.T) {
	prompt := chain(nil, 1, 10)
	for _, c := range []struct {
		name    string
		held    []int
		running []int
		want    []int
	}{
		{"the higher percentage", []int{4, 8}, []int{0, 0}, []int{1}},
		{"equal ones by requests", []int{8, 8}, []int{2, 1}, []int{1}},
		{"equal ones at random", []int{8, 8}, []int{1, 1}, []int{0, 1}},
		{"busy within a deviation", []int{8, 0}, []int{8, 0}, []int{0}},          // 8 ≤ 4 + 5.66
		{"out of balance", []int{8, 0}, []int{9, 0}, []int{1}},                   // 9 − 0 > 8
		{"beyond a deviation", []int{8, 0, 0}, []int{8, 0, 0}, []int{1, 2}},      // 8 > 2.67 + 4.62
		{"next best within", []int{8, 3, 0}, []int{8, 1, 0}, []int{1}},           // 8 > 3 + 4.36
		{"holders with the fewest", []int{8, 4, 0}, []int{12, 1, 1}, []int{1}},   // 12 − 1 > 8
		{"nothing held", []int{0, 0, 0}, []int{1, 0, 0}, []int{1, 2}},            //
		{"one percent is none better", []int{1, 1}, []int{1, 0}, []int{1}},       //
		{"the best of them beyond", []int{2, 1, 1}, []int{4, 3, 3}, []int{1, 2}}, // 4 > 3.33 + 0.58
	} {
		t.Run(c.name, func(t *testing.T) {
			p := made[*aibrixPrefix](t, "aibrix_prefix")
			up := make([]int, len(c.held))
			for i := range up {
				up[i] = i
			}
			p.fleet(up)
			p.routed.fleet(len(up))
			for i, n := range c.held {
				p.routed.use(i, prompt[:n], 0)
			}
			copy(p.running, c.running)
			chooses(t, func() int { return p.choose(asking(prompt), up) }, c.want...)
		})
	}
}

func TestAIBrixTableIsOneForAllAndForgets(t *testing.T) {
	p := made[*aibrixPrefix](t, "aibrix_prefix")
	limit := 200_000 * 32 / testBlock
	up := []int{0, 1, 2}
	for k := range uint64(30) {
		p.Route(time.Duration(k), asking(chain(nil, k, 5000)), up)
	}
	if p.routed.size != limit {
		t.Errorf("%d blocks, want %d", p.routed.size, limit)
	}
	p.Route(21*time.Minute, asking(chain(nil, 99, 3)), up)
	if p.routed.size != 3 {
		t.Errorf("%d blocks after 21 minutes, want 3", p.routed.size)
	}
}

func TestAIBrixTokenLoadWeighsPrefillAndResidentTokens(t *testing.T) {
	p := made[*aibrixTokenLoad](t, "aibrix_token_load")
	p.fleet(ofTwo)
	at := func(tokens, want int) *replay.Request {
		t.Helper()
		r := &replay.Request{Prompt: tokens}
		if got := route(p, r, ofTwo...); got != want {
			t.Fatalf("%d tokens went to %d, want %d", tokens, got, want)
		}
		return r
	}
	first := &replay.Request{Prompt: 640}
	route(p, first, 0)     // 0: 1.3 · 4140 = 5382
	at(2000, 1)            // 1: 1.3 · 5500 = 7150
	at(640, 0)             // 0: 10764
	p.Started(0, first, 0) // 0: 4140 + 0.3 · 8280 = 6624
	at(640, 0)
	if p.prefill[0] != 8280 || p.resident[0] != 12_420 {
		t.Errorf("%d in prefill and %d resident, want 8280 and 12420", p.prefill[0], p.resident[0])
	}
	p.Ended(0, first, 0, replay.Completed, replay.Usage{})
	if p.prefill[0] != 8280 || p.resident[0] != 8280 {
		t.Errorf("%d in prefill and %d resident, want 8280 each", p.prefill[0], p.resident[0])
	}
}

func TestAIBrixTokenLoadChargesWhatASessionGrew(t *testing.T) {
	p := made[*aibrixTokenLoad](t, "aibrix_token_load")
	for k, c := range []struct {
		at      time.Duration
		session uint64
		prompt  int
		charge  int
	}{
		{0, 7, 640, 4140},
		{time.Second, 7, 768, 3628},
		{2 * time.Second, 7, 700, 4200}, // shorter: not a further turn
		{3 * time.Second, 0, 800, 4300},
		{4 * time.Second, 8, 800, 4300},
		{40 * time.Minute, 7, 900, 4400}, // forgotten after half an hour
	} {
		r := &replay.Request{Session: c.session, Prompt: c.prompt}
		p.Route(c.at, r, ofTwo)
		if got := p.tickets.of(r).prefill; got != c.charge {
			t.Errorf("request %d is charged %d, want %d", k, got, c.charge)
		}
	}
	for s := range uint64(100_010) {
		p.fresh(0, &replay.Request{Session: s + 1})
	}
	if len(p.sessions) != 100_000 {
		t.Errorf("%d sessions are remembered, want 100000", len(p.sessions))
	}
}
