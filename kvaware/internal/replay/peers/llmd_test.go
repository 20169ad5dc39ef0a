// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

func TestLLMDKeepsToHoldersUntilTheyAreSaturated(t *testing.T) {
	prompt := chain(nil, 1, 10)
	for _, c := range []struct {
		held   int // of 10 blocks, at replica 0
		queued []int
		want   []int
	}{
		{8, []int{286_704, 0}, []int{0}}, // 18 s at 15,928 tokens a second
		{8, []int{286_705, 0}, []int{1}},
		{8, []int{286_705, 1}, []int{0}},
		{7, []int{448, 0}, []int{0, 1}}, // no affinity: 448 + 192 = 640
		{7, []int{449, 0}, []int{1}},
		{7, []int{447, 0}, []int{0}},
		{0, []int{5_000_000, 6_000_000}, []int{0, 1}}, // both beyond what is told apart
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			up := slices.Clone(c.want)
			for range 64 {
				p := made[*llmd](t, "llmd")
				p.rand = seeded(uint64(len(up)) + p.rand.Uint64())
				p.routed.fleet(1)
				p.routed.use(0, prompt[:c.held], 0)
				p.queued = slices.Clone(c.queued)
				if got := route(p, asking(prompt), ofTwo...); !slices.Contains(c.want, got) {
					t.Fatalf("went to %d, want one of %v", got, c.want)
				}
			}
		})
	}
}

func TestLLMDCountsUncachedTokensUntilTheFirstChunk(t *testing.T) {
	p := made[*llmd](t, "llmd")
	r := asking(chain(nil, 1, 10))
	r.Prompt += 30
	route(p, r, 0)
	if p.queued[0] != 670 {
		t.Errorf("%d tokens, want 670", p.queued[0])
	}
	again := asking(r.Blocks)
	again.Prompt += 30
	route(p, again, 0)
	if p.queued[0] != 700 {
		t.Errorf("%d tokens, want 670 and the 30 that are not of the index", p.queued[0])
	}
	p.Started(0, r, 0)
	if p.queued[0] != 30 || p.running[0] != 2 {
		t.Errorf("%d tokens of %d requests, want 30 of 2", p.queued[0], p.running[0])
	}
	// Beyond 131,072 tokens, 2048 blocks, nothing of a prompt is looked at.
	long := asking(chain(nil, 2, 2050))
	route(p, long, 1)
	if n := p.routed.uses[1].size; n != 2048 {
		t.Errorf("%d blocks are indexed, want 2048", n)
	}
	long2 := asking(long.Blocks)
	p.queued = []int{0, 0}
	route(p, long2, 1)
	if p.queued[1] != 128 {
		t.Errorf("%d tokens, want the last 2 blocks", p.queued[1])
	}
}

func TestLLMDIndexHoldsFourTimesTheEnginesCache(t *testing.T) {
	p := made[*llmd](t, "llmd")
	p.routed.fleet(0)
	p.Joined(0, 0, replay.Capacity{CacheTokens: 1024}) // 64 blocks of 16, of 64 each here
	for k := range uint64(30) {
		route(p, asking(chain(nil, k, 7)), 0)
	}
	if n := p.routed.uses[0].size; n != 64 {
		t.Errorf("%d blocks, want 64", n)
	}
	// 64 = 9 · 7 + 1: of the tenth prompt from the end the tail is left.
	if got := p.routed.count(chain(nil, 20, 7))[0]; got != 0 {
		t.Errorf("%d blocks of a prompt that lost its head, want 0", got)
	}
	p.Left(0, 0)
	if p.routed.size != 0 {
		t.Errorf("%d blocks of a replica that left", p.routed.size)
	}
	q := made[*llmd](t, "llmd")
	if got := q.limitOf(3); got != 31_250 {
		t.Errorf("%d blocks without a known capacity, want 31250", got)
	}
}

func TestLLMDPreciseSumsItsScores(t *testing.T) {
	p := made[*llmdPrecise](t, "llmd_precise")
	prompt := chain(nil, 1, 10)
	ask := func() *replay.Request { return asking(prompt) }
	wants(t, p, ask, ofTwo, 0, 1)
	tell(p, 0, prompt[:5])
	p.Polled(0, 0, replay.Metrics{Waiting: 4, KVUsage: 0.5})
	// 0: 2 · 0.5 + 0.5 + 0 = 1.5. 1: 0 + 1 + 1 = 2.
	wants(t, p, ask, ofTwo, 1)
	p.Polled(0, 1, replay.Metrics{Waiting: 4})
	// Equal queues score 1 each: 2.5 and 2.
	wants(t, p, ask, ofTwo, 0)
	// A third one sets the scale: 2 · 0.5 + 0.5 + (6−4)/(6−4) and 0 + 1 + 1, and
	// 0 + 1 + 0.
	p.Polled(0, 2, replay.Metrics{Waiting: 6})
	wants(t, p, ask, []int{0, 1, 2}, 0)
}
