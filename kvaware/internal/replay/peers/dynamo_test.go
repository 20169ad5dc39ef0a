// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"slices"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

func TestDynamoAddsPrefillAndActiveBlocks(t *testing.T) {
	p := made[*dynamo](t, "dynamo")
	prompt := chain(nil, 1, 10)
	tell(p, 0, prompt[:6])
	ask := func() *replay.Request { return asking(prompt) }
	// 0: (0+640)/64 − 6 + 10 = 14, then (256+640)/64 − 6 + 10 = 18, then 22.
	// 1: 10 + 10 = 20.
	all := routes(t, p, ask, ofTwo, 0, 0, 1)
	if !slices.Equal(p.queued, []int{512, 640}) {
		t.Errorf("queued %v, want [512 640]", p.queued)
	}
	// The first token takes the prefill away, not the blocks: 0 is at 18, 1 at 30.
	p.Started(0, all[0], 0)
	p.Progress(0, all[0], 0, 500)
	if got := p.active[0].blocks(); got != 10 {
		t.Errorf("%v blocks active, want 10: outputs do not count", got)
	}
	routes(t, p, ask, ofTwo, 0)
	// 6 cached blocks cost 0 anyway where the whole prompt is less.
	tell(p, 1, prompt)
	if q := asking(prompt[:2]); route(p, q, 1) != 1 || p.tickets.of(q).queued != 0 {
		t.Error("a cached prompt is queued")
	}
}

func TestDynamoBreaksTiesAtRandom(t *testing.T) {
	for _, name := range []string{"dynamo", "dynamo_out", "dynamo_lmetric", "lmetric"} {
		wants(t, made[replay.Policy](t, name), func() *replay.Request { return asking(chain(nil, 1, 4)) }, []int{0, 1, 4}, 0, 1, 4)
	}
}

func TestDynamoForgetsTheCacheOfAReplicaThatLeaves(t *testing.T) {
	p := made[*dynamo](t, "dynamo")
	prompt := chain(nil, 1, 10)
	ask := func() *replay.Request { return asking(prompt) }
	for name, forget := range map[string]func(){
		"left":    func() { p.Left(0, 0) },
		"joined":  func() { p.Joined(0, 0, replay.Capacity{}) },
		"cleared": func() { p.Cleared(0, 0) },
		"removed": func() {
			for _, b := range prompt {
				p.Removed(0, 0, b)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			tell(p, 0, prompt)
			wants(t, p, ask, ofTwo, 0)
			forget()
			wants(t, p, ask, ofTwo, 0, 1)
		})
	}
}

func TestDynamoOutputBlocksDecayWhereTheLimitIsKnown(t *testing.T) {
	p := made[*dynamo](t, "dynamo_out")
	known, unknown := asking(chain(nil, 1, 10)), asking(chain(nil, 2, 10))
	known.MaxTokens = 128
	route(p, known, 0)
	route(p, unknown, 1)
	for _, c := range []struct {
		total     int
		know, not float64
	}{
		{63, 10, 10},
		{64, 5.5, 11}, // (10 + 1) · (1 − 64/128)
		{100, 5.5, 11},
		{128, 0, 12},
		{200, 0, 13},
	} {
		p.Progress(0, known, 0, c.total)
		p.Progress(0, unknown, 1, c.total)
		if a, b := p.active[0].blocks(), p.active[1].blocks(); a != c.know || b != c.not {
			t.Errorf("after %d tokens %v and %v blocks, want %v and %v", c.total, a, b, c.know, c.not)
		}
	}
	p.Ended(0, known, 0, replay.Completed, replay.Usage{})
	p.Ended(0, unknown, 1, replay.Completed, replay.Usage{})
	if p.active[0].blocks() != 0 || p.active[1].blocks() != 0 {
		t.Error("blocks are left")
	}
}

func TestDynamoLMetricMultiplies(t *testing.T) {
	p := made[*dynamo](t, "dynamo_lmetric")
	prompt := chain(nil, 1, 10)
	tell(p, 0, prompt[:6])
	// 0: 4 · 11 = 44, then 8 · 11 = 88, then 12 · 11 = 132. 1: 10 · 11 = 110.
	routes(t, p, func() *replay.Request { return asking(prompt) }, ofTwo, 0, 0, 1)
}

func TestLMetricMultipliesQueuedPrefillAndBatch(t *testing.T) {
	p := made[*lmetric](t, "lmetric")
	prompt := chain(nil, 1, 10)
	tell(p, 0, prompt[:6])
	ask := func() *replay.Request { return asking(prompt) }
	// 0: 256 · 1, then (256 + 256) · 2 = 1024 > 640 · 1.
	// Then 0 is at 1024 and 1 at (640 + 640) · 2 = 2560.
	all := routes(t, p, ask, ofTwo, 0, 1, 0)
	// 0: (512 + 256) · 3 = 2304 < 2560; without the first's prefill 1536.
	p.Started(0, all[0], 0)
	routes(t, p, ask, ofTwo, 0)
	// Fully cached and nothing queued costs nothing: fewer requests decide.
	p = made[*lmetric](t, "lmetric")
	tell(p, 0, prompt)
	tell(p, 1, prompt)
	p.fleet(ofTwo)
	p.running[0] = 1
	wants(t, p, ask, ofTwo, 1)
}
