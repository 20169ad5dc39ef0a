// SPDX-License-Identifier: Apache-2.0

package ours

import (
	"math"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/trace"
)

// config is a run of a generated workload at a rate of sessions' requests.
func config(t *testing.T, spec replay.Spec, workload string, requests int, fleet string, rate float64) replay.Config {
	t.Helper()
	tr, err := trace.Generate(workload, requests)
	if err != nil {
		t.Fatal(err)
	}
	f, err := replay.ParseFleet(fleet)
	if err != nil {
		t.Fatal(err)
	}
	return replay.Config{Trace: tr, Fleet: f, Policy: spec, Rate: rate, Seed: 1}
}

func replayed(t *testing.T, c replay.Config) *replay.Result {
	t.Helper()
	r, err := replay.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// watched is a policy whose router a test looks at afterwards.
func watched(spec replay.Spec, p **policy) replay.Spec {
	made := spec.New
	spec.New = func(s replay.Setting) replay.Policy {
		made := made(s)
		if l, ok := made.(*listening); ok {
			*p = l.policy
		} else {
			*p = made.(*policy)
		}
		return made
	}
	return spec
}

func TestTheLatencyServesBetterThanTheTokenLoad(t *testing.T) {
	all := All()
	var logs float64
	cells := 0
	for _, cell := range []struct {
		workload string
		fleet    string
		requests int
		rate     float64
	}{
		{"agents:input=40000,turns=20", "4", 1000, 1.5},
		{"chat", "4", 2000, 14},
		{"chat", "2xh100,2xh100@0.4", 2000, 10},
		{"one_hit", "4", 1500, 9},
	} {
		latency := replayed(t, config(t, all[0], cell.workload, cell.requests, cell.fleet, cell.rate))
		load := replayed(t, config(t, all[1], cell.workload, cell.requests, cell.fleet, cell.rate))
		ratio := latency.Score() / load.Score()
		t.Logf("%s on %s: %.2f of the token load's score, mean TTFT %.0f and %.0f ms, hit rate %.2f and %.2f",
			cell.workload, cell.fleet, ratio, latency.TTFT.Mean, load.TTFT.Mean, latency.HitRate, load.HitRate)
		if ratio > 1.1 {
			t.Errorf("%s on %s: %.2f of the token load's score", cell.workload, cell.fleet, ratio)
		}
		logs += math.Log(ratio)
		cells++
	}
	if mean := math.Exp(logs / float64(cells)); mean > 0.9 {
		t.Errorf("on average %.2f of the token load's score", mean)
	}
}

func TestEveryRequestIsGivenBack(t *testing.T) {
	for _, spec := range All() {
		for _, workload := range []string{"chat", "whole", "rl:samples=4,prompts=4"} {
			var p *policy
			c := config(t, watched(spec, &p), workload, 300, "3", 8)
			c.Events = []replay.Event{
				{Kind: replay.Restart, Replica: 1, After: 0.3, Down: 5 * time.Second},
				{Kind: replay.Leave, Replica: 2, After: 0.7},
			}
			if r := replayed(t, c); r.Requests < 250 {
				t.Errorf("%s, %s: served %d requests", spec.Name, workload, r.Requests)
			}
			for i, u := range p.replicas {
				s, held := p.router.Ledger.Snapshot(u.Load), p.router.Index.Stats(u.Slot)
				if s.Live != 0 || s.Running != 0 || s.PrefillTokens != 0 || s.DecodeTokens != 0 || held.Pinned != 0 || held.Generating != 0 {
					t.Errorf("%s, %s: replica %d is left with %+v and %+v", spec.Name, workload, i, s, held)
				}
			}
		}
	}
}

func TestTheSameRunGivesTheSameResult(t *testing.T) {
	for _, spec := range All() {
		c := config(t, spec, "chat", 500, "4", 14)
		if a, b := replayed(t, c).Score(), replayed(t, c).Score(); a != b {
			t.Errorf("%s: scores %v and %v", spec.Name, a, b)
		}
	}
}

func TestAReplicaThatLeftIsTakenToHoldNothing(t *testing.T) {
	p := All()[0].New(replay.Setting{BlockSize: 16}).(*policy)
	for i := range 2 {
		p.Joined(0, i, replay.Capacity{CacheTokens: 1 << 16})
	}
	chain := make([]uint64, 100)
	for i := range chain {
		chain[i] = uint64(i+1) * 0x9e3779b97f4a7c15
	}
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

func TestTheDefaultsKnowNothingOfTheEngines(t *testing.T) {
	var p *policy
	spec := All()[2]
	replayed(t, config(t, watched(spec, &p), "chat", 100, "h100,a10", 2))
	for i, r := range p.replicas {
		if got := p.router.Index.UseOf(r.Slot).Capacity; got != defaultCacheTokens/64 || r.maxSequences != 0 {
			t.Errorf("replica %d: %d blocks, %d sequences", i, got, r.maxSequences)
		}
	}
}
