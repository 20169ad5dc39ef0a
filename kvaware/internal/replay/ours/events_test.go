// SPDX-License-Identifier: Apache-2.0

package ours

import (
	"slices"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

func TestWithEventsARouterFindsWhatOthersRequestsLeft(t *testing.T) {
	var results [2]*replay.Result
	for i, spec := range []replay.Spec{All()[0], All()[3]} {
		c := config(t, spec, "chat", 2000, "4", 12)
		c.Routers.N = 4
		results[i] = replayed(t, c)
	}
	blind, told := results[0], results[1]
	if told.HitRate < 1.3*blind.HitRate || told.Score() > 0.8*blind.Score() {
		t.Errorf("with events %.2f are hits and the score is %.0f, without %.2f and %.0f", told.HitRate, told.Score(), blind.HitRate, blind.Score())
	}
}

func TestWhatAnEngineSaysCountsAsFarAsItGoesOn(t *testing.T) {
	l := newListening(replay.Setting{BlockSize: 16})
	for id := range 3 {
		l.Joined(0, id, replay.Capacity{CacheTokens: 1 << 16})
	}
	chain := []uint64{3, 1, 4, 15, 9, 2, 6}
	for n, block := range chain[:5] {
		l.Stored(0, 2, block)
		if n < 2 {
			l.Stored(0, 0, block)
		}
	}
	l.Removed(0, 2, 9)
	match := func() []int32 {
		dst := make([]int32, 4)
		dst[l.replicas[1].Slot] = 1 // what was known before is not taken away
		l.held.Match(16, chain, dst)
		return []int32{dst[l.replicas[0].Slot], dst[l.replicas[1].Slot], dst[l.replicas[2].Slot]}
	}
	if got := match(); !slices.Equal(got, []int32{2, 1, 4}) {
		t.Errorf("matches %v", got)
	}
	l.Cleared(0, 2)
	if got := match(); !slices.Equal(got, []int32{2, 1, 0}) {
		t.Errorf("matches %v after one was cleared", got)
	}
	l.held.Match(16, chain, nil)
}
