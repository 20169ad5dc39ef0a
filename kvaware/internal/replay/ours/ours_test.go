// SPDX-License-Identifier: Apache-2.0

package ours

import (
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

var equal, mixed = []float64{1, 1, 1, 1}, []float64{1, 1, 0.4, 0.4}

// loads are small versions of what is routed: sessions that come back, samples of
// one prompt, and prompts that share nothing.
func loads(seed uint64) map[string][]*job {
	return map[string][]*job{
		"agents":   agents(seed, 60, 12, 4*time.Second),
		"rollouts": rollouts(seed, 60, 16, 700*time.Millisecond),
		"chats":    chats(seed, 1500, 40*time.Millisecond),
	}
}

func policies() (product, sum replay.Spec) {
	all := All()
	return all[0], all[1]
}

func TestTheProductBeatsTheSum(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates some hours of serving")
	}
	product, sum := policies()
	for fleet, speeds := range map[string][]float64{"equal": equal, "mixed": mixed} {
		for name := range loads(0) {
			var ours, theirs float64
			for seed := range uint64(2) {
				served, _, _ := run(product, speeds, loads(seed)[name], true)
				ours += measured(served).score()
				served, _, _ = run(sum, speeds, loads(seed)[name], true)
				theirs += measured(served).score()
			}
			t.Logf("%s, %s: %.3f of the sum's score", fleet, name, ours/theirs)
			if ours > theirs {
				t.Errorf("%s, %s: scores %.3f, the sum %.3f", fleet, name, ours/2, theirs/2)
			}
		}
	}
}

func TestEveryRequestIsGivenBack(t *testing.T) {
	for _, spec := range All() {
		for _, stream := range []bool{true, false} {
			var p *policy
			watched := spec
			watched.New = func(s replay.Setting) replay.Policy {
				p = spec.New(s).(*policy)
				return p
			}
			served, _, _ := run(watched, equal, loads(3)["agents"], stream)
			if len(served) < 100 {
				t.Fatalf("served %d requests", len(served))
			}
			for i, u := range p.replicas {
				if s := p.router.Ledger.Snapshot(u.Load); s.Live != 0 || s.Running != 0 || s.PrefillTokens != 0 || s.DecodeTokens != 0 {
					t.Errorf("%s: replica %d is left with %+v", spec.Name, i, s)
				}
			}
		}
	}
}

func TestTheSameRunGivesTheSameDecisions(t *testing.T) {
	for _, spec := range All() {
		var before []int
		for round := range 2 {
			served, _, _ := run(spec, equal, loads(4)["chats"], true)
			for i, j := range served {
				switch {
				case round == 0:
					before = append(before, j.replica)
				case before[i] != j.replica:
					t.Fatalf("%s: request %d went to %d, and before to %d", spec.Name, i, j.replica, before[i])
				}
			}
		}
	}
}

func TestAReplicaThatLeftIsTakenToHoldNothing(t *testing.T) {
	p := All()[0].New(replay.Setting{BlockSize: 16}).(*policy)
	for i := range 2 {
		p.Joined(0, i, replay.Capacity{CacheTokens: 1 << 16})
	}
	chain := agents(1, 1, 1, time.Second)[0].blocks
	r := &replay.Request{Prompt: len(chain)*16 + 1, Blocks: chain, Stream: true}
	at := p.Route(time.Second, r, []int{0, 1})
	p.Started(2*time.Second, r, at)
	p.Ended(3*time.Second, r, at, replay.Completed, replay.Usage{Output: 20})
	if held := p.router.Index.Stats(p.replicas[at].Slot); held.Idle != len(chain) {
		t.Fatalf("%+v after a prompt of %d blocks", held, len(chain))
	}
	p.Left(4*time.Second, at)
	if held := p.router.Index.Stats(p.replicas[at].Slot); held.Blocks != 0 {
		t.Errorf("%+v after it left", held)
	}
	r = &replay.Request{Prompt: 5, Stream: true}
	if got := p.Route(5*time.Second, r, []int{7}); got != 7 {
		t.Errorf("routed to %d, want the one in service", got)
	}
	p.Ended(6*time.Second, r, 7, replay.Failed, replay.Usage{})
	p.Ended(6*time.Second, r, 7, replay.Failed, replay.Usage{}) // and nothing more happens
}
