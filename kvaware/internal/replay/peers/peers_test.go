// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"slices"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// senses is what a policy may use, as its real counterpart does.
type senses struct {
	polled, events, sight    bool
	session, limit, capacity bool
}

var allowed = []struct {
	name string
	senses
}{
	{"random", senses{}},
	{"round_robin", senses{}},
	{"least_conn", senses{}},
	{"p2c", senses{}},
	{"session_hash", senses{session: true}},
	{"chwbl", senses{session: true}},
	{"smg_cache_aware", senses{}},
	{"sglang_cache_aware", senses{}},
	{"dynamo", senses{events: true}},
	{"dynamo_out", senses{events: true, limit: true}},
	{"dynamo_lmetric", senses{events: true}},
	{"lmetric", senses{events: true}},
	{"llmd", senses{capacity: true}},
	{"llmd_precise", senses{polled: true, events: true}},
	{"aibrix_prefix", senses{}},
	{"aibrix_token_load", senses{session: true}},
	{"prodstack_loadaware", senses{session: true, events: true}},
	{"ray_prefix", senses{}},
	{"oracle", senses{sight: true, capacity: true}},
}

func TestEveryPolicyIsListedOnceInAFixedOrder(t *testing.T) {
	all := All()
	if len(all) != len(allowed) {
		t.Fatalf("%d policies, want %d", len(all), len(allowed))
	}
	for k, s := range all {
		if s.Name != allowed[k].name {
			t.Errorf("policy %d is %q, want %q", k, s.Name, allowed[k].name)
		}
		if s.Summary == "" {
			t.Errorf("%s has no summary", s.Name)
		}
		if got, ok := ByName(s.Name); !ok || got.Name != s.Name {
			t.Errorf("ByName(%q) = %q, %v", s.Name, got.Name, ok)
		}
	}
	if _, ok := ByName("kv_aware"); ok {
		t.Error("a policy that is none of the peers' was found")
	}
}

// Metrics, events and the state of engines reach those only that read them in
// reality, and sessions and output limits change the choices of those only.
func TestNoPolicySeesMoreThanItsCounterpart(t *testing.T) {
	for _, a := range allowed {
		t.Run(a.name, func(t *testing.T) {
			p := made[replay.Policy](t, a.name)
			if _, ok := p.(replay.Poller); ok != a.polled {
				t.Errorf("polls: %v", ok)
			}
			if _, ok := p.(replay.Listener); ok != a.events {
				t.Errorf("hears events: %v", ok)
			}
			if _, ok := p.(replay.Seer); ok != a.sight {
				t.Errorf("sees the engines: %v", ok)
			}
			if a.session || a.limit {
				return
			}
			said, unsaid := newFleet(p, 5, 4), newFleet(made[replay.Policy](t, a.name), 5, 4)
			unsaid.plain = true
			for range 1500 {
				said.step()
				unsaid.step()
			}
			if !slices.Equal(said.chosen, unsaid.chosen) {
				t.Error("what clients say of session, tenant and limit changes the choice")
			}
		})
	}
}

func TestPollersAndListenersHaveADelay(t *testing.T) {
	for _, s := range All() {
		p := s.New(replay.Setting{BlockSize: testBlock, Rand: seeded(1)})
		if p, ok := p.(replay.Poller); ok && p.PollEvery() < 10*time.Millisecond {
			t.Errorf("%s polls every %v", s.Name, p.PollEvery())
		}
		if p, ok := p.(replay.Listener); ok && p.EventDelay() < time.Millisecond {
			t.Errorf("%s hears events after %v", s.Name, p.EventDelay())
		}
	}
}

func TestChoicesAreOfReplicasInService(t *testing.T) {
	for _, s := range All() {
		t.Run(s.Name, func(t *testing.T) {
			for seed := range uint64(3) {
				f := newFleet(s.New(replay.Setting{BlockSize: testBlock, Rand: seeded(seed)}), seed, 1+int(seed))
				for range 1200 {
					n := len(f.chosen)
					before := slices.Clone(f.up)
					f.step()
					for _, i := range f.chosen[n:] {
						// A replica that leaves in this step is not chosen in it.
						if !slices.Contains(before, i) || !slices.Contains(f.up, i) {
							t.Fatalf("replica %d chosen of %v", i, f.up)
						}
					}
				}
			}
		})
	}
}

func TestChoicesDependOnCallsAndChanceAlone(t *testing.T) {
	for _, s := range All() {
		t.Run(s.Name, func(t *testing.T) {
			var runs [2][]int
			for k := range runs {
				f := newFleet(s.New(replay.Setting{BlockSize: testBlock, Rand: seeded(9)}), 3, 6)
				for range 1500 {
					f.step()
				}
				runs[k] = f.chosen
			}
			if !slices.Equal(runs[0], runs[1]) {
				t.Error("two equal runs chose differently")
			}
		})
	}
}

// Whatever happens to requests and replicas, what is left when no request is in
// flight is exactly nothing, and on the way it is never less but by a rounding.
func TestLoadReturnsToZero(t *testing.T) {
	for _, s := range All() {
		t.Run(s.Name, func(t *testing.T) {
			for seed := range uint64(4) {
				p := s.New(replay.Setting{BlockSize: testBlock, Rand: seeded(seed)})
				f := newFleet(p, seed, 5)
				for k := range 1200 {
					f.step()
					if k%100 == 0 {
						for i, load := range loads(p) {
							if load < -1e-9 {
								t.Fatalf("seed %d, step %d: load %d is %v", seed, k, i, load)
							}
						}
					}
				}
				f.drain()
				for i, load := range loads(p) {
					if load != 0 {
						t.Fatalf("seed %d: load %d is %v at the end", seed, i, load)
					}
				}
			}
		})
	}
}

// loads lists every count of load that a policy keeps.
func loads(p replay.Policy) []float64 {
	var all []float64
	add := func(counts []int) {
		for _, n := range counts {
			all = append(all, float64(n))
		}
	}
	if b, ok := p.(interface{ counts() []int }); ok {
		add(b.counts())
	}
	switch p := p.(type) {
	case *boundedHash:
		add([]int{p.total})
	case *dynamo:
		add(p.queued)
		for _, a := range p.active {
			all = append(all, a.prompt, a.output, float64(a.outputs), float64(len(a.spans)))
		}
	case *oracle:
		add(p.outputs)
		for _, a := range p.prompts {
			all = append(all, a.prompt, float64(len(a.spans)))
		}
	case *lmetric:
		add(p.queued)
	case *llmd:
		add(p.queued)
	case *aibrixTokenLoad:
		add(p.prefill)
		add(p.resident)
	}
	return all
}

func (b *base) counts() []int { return b.running }

func TestAnEndOfARequestNeverRoutedChangesNothing(t *testing.T) {
	for _, s := range All() {
		t.Run(s.Name, func(t *testing.T) {
			p := s.New(replay.Setting{BlockSize: testBlock, Rand: seeded(1)})
			newFleet(p, 1, 2)
			r := asking(chain(nil, 1, 4))
			p.Started(0, r, 1)
			p.Progress(0, r, 1, 10)
			p.Ended(0, r, 1, replay.Completed, replay.Usage{})
			for _, load := range loads(p) {
				if load != 0 {
					t.Fatalf("load %v", load)
				}
			}
		})
	}
}

func TestOneReplicaTakesAll(t *testing.T) {
	for _, s := range All() {
		p := s.New(replay.Setting{BlockSize: testBlock, Rand: seeded(1)})
		newFleet(p, 1, 8)
		for k := range 20 {
			if i := route(p, asking(chain(nil, uint64(k%3), k)), 7); i != 7 {
				t.Errorf("%s chose %d of 7", s.Name, i)
			}
		}
	}
}
