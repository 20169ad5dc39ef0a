// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Each auditor holds the driver to its word, so that what another's request does
// would be told to the wrong one does not pass either.
func TestSeveralRoutersHearOfTheirOwnRequestsAndOfAllThatEnginesPublish(t *testing.T) {
	events := []Event{
		{Kind: Leave, Replica: 0, After: 0.2},
		{Kind: Restart, Replica: 2, After: 0.3, Down: 5 * time.Second},
		{Kind: Join, Replica: 0, After: 0.5},
		{Kind: Update, After: 0.6},
	}
	for _, name := range []string{"chat", "whole", "rl"} {
		c := Config{Trace: workload(t, name, 800), Fleet: fleet(t, "3xa10,l4"), Events: events, Seed: 1, WarmUp: -1, BlockSize: 16, Routers: Routers{N: 3}}
		c.Rate = c.guess() * 0.8
		all, r := audits(t, c)
		if len(all) != 3 || r.Routers.N != 3 {
			t.Fatalf("%s: %d policies, %d routers", name, len(all), r.Routers.N)
		}
		completed, failed := 0, 0
		for i, a := range all {
			if a.completed < 200 || a.routed != a.completed+a.failed || len(a.at) != 0 {
				t.Errorf("%s: router %d routed %d, %d completed, %d failed, %d under way", name, i, a.routed, a.completed, a.failed, len(a.at))
			}
			if a.stored == 0 || a.stored != all[0].stored || a.removed != all[0].removed || a.cleared != all[0].cleared || a.polls != all[0].polls {
				t.Errorf("%s: router %d heard of %d, %d, %d blocks and polled %d times, router 0 of %d, %d, %d and %d times", name, i,
					a.stored, a.removed, a.cleared, a.polls, all[0].stored, all[0].removed, all[0].cleared, all[0].polls)
			}
			if !maps.Equal(a.up, all[0].up) || len(a.up) != 4 || a.sight == nil {
				t.Errorf("%s: router %d has %v in service, router 0 %v", name, i, a.up, all[0].up)
			}
			completed += a.completed
			failed += a.failed
		}
		if completed != r.Requests || completed+r.Rejected != 800 || failed != r.Retries || failed == 0 {
			t.Errorf("%s: %d completed, %d failed; %d completed, %d rejected, %d retried", name, completed, failed, r.Requests, r.Rejected, r.Retries)
		}
	}
}

func TestARequestComesToTheSameRouterUnderEveryPolicy(t *testing.T) {
	moved := 0 // requests that came to another router than their session's last
	split := func(pick func(up []int) int, seed uint64, sticky bool) []int {
		var at []int
		sessions := make(map[uint64]int)
		routers := 0
		spec := Spec{Name: "mine", New: func(Setting) Policy {
			router := routers
			routers++
			return &heard{blind: blind{pick}, route: func(r *Request) {
				at = append(at, make([]int, max(0, r.ID+1-len(at)))...)
				at[r.ID] = router
				if home, ok := sessions[r.Session]; ok && home != router {
					moved++
				}
				sessions[r.Session] = router
			}}
		}}
		simulated(t, Config{Trace: workload(t, "chat", 500), Fleet: fleet(t, "2xh100"), Policy: spec, Rate: 5, Seed: seed, Routers: Routers{4, sticky}})
		return at
	}
	first := func(up []int) int { return up[0] }
	one, other := split(first, 1, false), split(func(up []int) int { return up[len(up)-1] }, 1, false)
	if !slices.Equal(one, other) {
		t.Error("the requests of a router depend on the policy")
	}
	if slices.Equal(one, split(first, 2, false)) {
		t.Error("they do not depend on the seed")
	}
	if moved == 0 {
		t.Error("sessions stay at a router that they are not to stay at")
	}
	moved = 0
	if split(first, 1, true); moved > 0 {
		t.Errorf("sessions moved %d times", moved)
	}
}

// heard is a policy that tells what it hears of; ended may be nil.
type heard struct {
	blind
	route func(*Request)
	ended func(*Request, Usage)
}

func (p *heard) Route(now time.Duration, r *Request, up []int) int {
	p.route(r)
	return p.blind.Route(now, r, up)
}

func (p *heard) Ended(_ time.Duration, r *Request, _ int, _ Outcome, u Usage) {
	if p.ended != nil {
		p.ended(r, u)
	}
}

func TestOneRouterIsTheDefaultAndEachHasChanceOfItsOwn(t *testing.T) {
	var chances []uint64
	spec := Spec{Name: "chance", New: func(s Setting) Policy {
		chances = append(chances, s.Rand.Uint64())
		return atRandom().New(Setting{Rand: rand.New(rand.NewPCG(1, 1))})
	}}
	c := Config{Trace: workload(t, "uniform", 100), Fleet: fleet(t, "2xh100"), Policy: spec, Rate: 5}
	none, _ := json.Marshal(simulated(t, c))
	c.Routers.N = 1
	one, _ := json.Marshal(simulated(t, c))
	if string(none) != string(one) || len(chances) != 2 || chances[0] != chances[1] {
		t.Errorf("one router is not the default: chances %v", chances)
	}
	c.Routers.N = 2
	simulated(t, c)
	if len(chances) != 4 || chances[2] != chances[0] || chances[3] == chances[2] {
		t.Errorf("chances %v", chances)
	}
	for _, n := range []int{-1, MaxRouters + 1} {
		c.Routers.N = n
		if _, err := Run(context.Background(), c); err == nil {
			t.Errorf("%d routers run", n)
		}
	}
}

// What load 1.0 is must not depend on it, or cells of one load could not be compared.
func TestTheLoadIsFoundWithOneRouter(t *testing.T) {
	c := Config{Trace: workload(t, "chat", 300), Fleet: fleet(t, "2xh100"), Seed: 1}
	want, err := Calibrate(context.Background(), c, sticky())
	if err != nil {
		t.Fatal(err)
	}
	c.Routers.N = 4
	if got, err := Calibrate(context.Background(), c, sticky()); err != nil || got != want {
		t.Errorf("%+v, %v; with one router %+v", got, err, want)
	}
}
