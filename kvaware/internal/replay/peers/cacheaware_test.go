// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

func TestSMGTakesTheLeastLoadedHolderWithinItsMargins(t *testing.T) {
	up := []int{0, 1, 2}
	prompt := chain(nil, 1, 10)
	for _, c := range []struct {
		name    string
		holders []int
		running []int
		want    []int
	}{
		{"equal holders at random", []int{1, 2}, []int{0, 0, 0}, []int{1, 2}},
		{"the less loaded holder", []int{1, 2}, []int{0, 5, 3}, []int{2}},
		{"over 1.5 times but within 64", []int{2}, []int{0, 0, 96}, []int{2}},      // 96 = 32 + 64
		{"over both margins", []int{2}, []int{0, 1, 97}, []int{0}},                 // 97 > 32.7 + 64
		{"over 64 but within 1.5 times", []int{2}, []int{150, 150, 300}, []int{2}}, // 300 = 200 · 1.5
		{"over both, high", []int{2}, []int{150, 150, 301}, []int{0}},              // 301 > 200.3 · 1.5
	} {
		t.Run(c.name, func(t *testing.T) {
			p := made[*smg](t, "smg_cache_aware")
			chooses(t, func() int {
				p = &smg{base: p.base, promptTree: promptTree{routed: newRouted(tailFirst)}}
				p.fleet(up)
				p.routed.fleet(2)
				for _, i := range c.holders {
					p.routed.use(i, prompt[:4], 0)
				}
				copy(p.running, c.running)
				return route(p, asking(prompt), up...)
			}, c.want...)
		})
	}
}

func TestSMGSendsMissesToTheFewestThenLeastRouted(t *testing.T) {
	p := made[*smg](t, "smg_cache_aware")
	up := []int{0, 1, 2}
	for k, want := range []int{0, 1, 2, 0} {
		r := asking(chain(nil, uint64(k), 5))
		if got := route(p, r, up...); got != want {
			t.Errorf("request %d went to %d, want %d", k, got, want)
		}
		p.Ended(0, r, want, replay.Completed, replay.Usage{})
	}
	// 3 of 10 blocks are not more than 0.3 of the prompt.
	prompt := chain(nil, 9, 10)
	p.routed.use(2, prompt[:3], 0)
	copy(p.running, []int{0, 0, 0})
	copy(p.ever, []int{4, 3, 5})
	if got := route(p, asking(prompt), up...); got != 1 {
		t.Errorf("went to %d, want 1", got)
	}
}

func TestSGLangFollowsTheLastHolderWhileBalanced(t *testing.T) {
	up := []int{0, 1, 2}
	prompt := chain(nil, 1, 10)
	for _, c := range []struct {
		name    string
		held    int
		running []int
		want    int
	}{
		{"holder that was last", 4, []int{0, 0, 0}, 1},
		{"not more than the threshold", 3, []int{1, 1, 0}, 2},
		{"64 apart is balanced", 4, []int{0, 64, 0}, 1},
		{"65 apart is not", 4, []int{0, 65, 0}, 0},
		{"far apart but within 1.5 times", 4, []int{200, 300, 200}, 1},
		{"over 1.5 times", 4, []int{200, 301, 200}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := made[*sglang](t, "sglang_cache_aware")
			p.fleet(up)
			p.routed.fleet(2)
			p.routed.use(1, prompt[:c.held], 1)
			p.routed.use(2, prompt[:c.held], 2)
			p.routed.use(1, prompt[:c.held], 3)
			copy(p.running, c.running)
			if got := p.Route(4, asking(prompt), up); got != c.want {
				t.Errorf("went to %d, want %d", got, c.want)
			}
		})
	}
}

func TestPromptTreesAreCleanedEveryTwoMinutes(t *testing.T) {
	const each = 16_777_216 / testBlock // 67,108,864 characters
	for _, c := range []struct {
		name string
		want int
	}{{"smg_cache_aware", each}, {"sglang_cache_aware", 2 * each}} {
		p := made[replay.Policy](t, c.name)
		var x *routed
		switch p := p.(type) {
		case *smg:
			x = p.routed
		case *sglang:
			x = p.routed
		}
		x.fleet(1)
		for k := range each/100 + 10 {
			for i := range 2 {
				x.use(i, chain(nil, uint64(2*k+i), 100), 0)
			}
		}
		before := x.size
		r := asking(nil)
		p.Route(119*time.Second, r, ofTwo)
		if x.size != before {
			t.Errorf("%s: %d blocks before it is time", c.name, x.size)
		}
		p.Route(121*time.Second, r, ofTwo)
		// Prompts of 100 blocks are forgotten as a whole.
		if x.size > c.want || x.size < c.want-200 {
			t.Errorf("%s: %d blocks, want just below %d", c.name, x.size, c.want)
		}
	}
}

func TestRayTakesTheShortestQueueOfTheHolders(t *testing.T) {
	p := made[*rayPrefix](t, "ray_prefix")
	up := []int{0, 1, 2}
	prompt := chain(nil, 1, 10)
	p.fleet(up)
	p.routed.fleet(2)
	p.routed.use(1, prompt[:1], 0)
	p.routed.use(2, prompt[:1], 0)
	copy(p.running, []int{0, 900, 901})
	// 0.1 of the prompt is enough, and no load is too much.
	if got := route(p, asking(prompt), up...); got != 1 {
		t.Errorf("went to %d, want 1", got)
	}
	// Less than 0.1: the smallest tree, here 0 with none.
	other := chain(prompt[:1], 2, 10)
	copy(p.running, []int{5, 0, 0})
	if got := route(p, asking(other), up...); got != 0 {
		t.Errorf("went to %d, want the smallest tree, 0", got)
	}
	// Now 0 has 11 blocks, 1 has 10 and 2 has 1.
	if got := route(p, asking(chain(nil, 3, 4)), up...); got != 2 {
		t.Errorf("went to %d, want the smallest tree, 2", got)
	}
}
