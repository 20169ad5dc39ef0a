// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

func TestRoundRobinTakesTurnsWhoeverLeaves(t *testing.T) {
	p := made[replay.Policy](t, "round_robin")
	r := asking(nil)
	for k, c := range []struct {
		up   []int
		want int
	}{
		{[]int{0, 1, 2}, 0}, {[]int{0, 1, 2}, 1}, {[]int{0, 2, 5}, 2}, {[]int{0, 2, 5}, 5},
		{[]int{0, 2}, 0}, {[]int{1, 2}, 1},
	} {
		if got := route(p, r, c.up...); got != c.want {
			t.Errorf("turn %d: %d, want %d of %v", k, got, c.want, c.up)
		}
	}
}

func TestRequestsInFlightDecide(t *testing.T) {
	up := []int{0, 1, 2}
	plain := func() *replay.Request { return asking(nil) }
	for _, name := range []string{"least_conn", "p2c"} {
		t.Run(name, func(t *testing.T) {
			p := made[replay.Policy](t, name)
			wants(t, p, plain, up, 0, 1, 2)
			b := p.(interface{ counts() []int }).counts()
			copy(b, []int{3, 2, 1})
			if name == "least_conn" {
				wants(t, p, plain, up, 2)
			} else {
				wants(t, p, plain, up, 1, 2) // never the worst of any two
			}
		})
	}
}

func TestASessionStaysWhereItsHashIs(t *testing.T) {
	p := made[replay.Policy](t, "session_hash")
	up := []int{0, 1, 2, 3, 4, 5, 6, 7}
	without := []int{0, 1, 2, 4, 5, 6, 7}
	places, moved := map[int]int{}, 0
	for s := uint64(1); s <= 4000; s++ {
		r := &replay.Request{Session: s}
		i := route(p, r, up...)
		places[i]++
		if j := route(p, r, without...); j != i {
			moved++
			if i != 3 {
				t.Fatalf("session %d moved from %d to %d when 3 left", s, i, j)
			}
		}
	}
	for i := range up {
		if places[i] < 300 || places[i] > 700 {
			t.Errorf("%d of 4000 sessions are at %d", places[i], i)
		}
	}
	if moved != places[3] {
		t.Errorf("%d sessions moved, want the %d of the replica that left", moved, places[3])
	}
	wants(t, p, func() *replay.Request { return asking(nil) }, []int{0, 1}, 0, 1)
}

func TestBoundedHashLeavesAReplicaOverTheBound(t *testing.T) {
	p := made[*boundedHash](t, "chwbl")
	up := []int{0, 1, 2, 3}
	blocks := chain(nil, 1, 3)
	home := route(p, asking(blocks), up...)
	// One in flight: the bound is 1.25 · 2/4 = 0.625 < 1.
	away := route(p, asking(blocks), up...)
	if away == home {
		t.Fatal("stayed over the bound")
	}
	// The prompt's first block alone decides.
	p.running, p.total = []int{2, 2, 2, 2}, 8
	other := asking(chain(blocks[:1], 9, 40))
	if got := route(p, other, up...); got != home { // 2 ≤ 1.25 · 9/4 = 2.8
		t.Errorf("a prompt with the same start went to %d, want %d", got, home)
	}
	p.Ended(0, other, home, replay.Completed, replay.Usage{})
	// A session goes to its own place, whatever its prompt.
	at := map[int]bool{}
	for s := range uint64(40) {
		first := asking(blocks)
		first.Session = s + 1
		at[route(p, first, up...)] = true
	}
	if len(at) < 2 {
		t.Error("all sessions with one system prompt went to one replica")
	}
	p.running, p.total = []int{2, 2, 2, 2}, 8
	// 3 > 1.25 · 9/4: the next one within the bound.
	p.running[home], p.running[away] = 3, 1
	if got := route(p, asking(blocks), up...); got != away {
		t.Errorf("went to %d, want the next on the ring, %d", got, away)
	}
}
