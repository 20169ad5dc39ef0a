// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/trace"
)

// blind is a policy that looks at nothing.
type blind struct {
	pick func(up []int) int
}

func (b *blind) Route(_ time.Duration, _ *Request, up []int) int    { return b.pick(up) }
func (b *blind) Started(time.Duration, *Request, int)               {}
func (b *blind) Progress(time.Duration, *Request, int, int)         {}
func (b *blind) Ended(time.Duration, *Request, int, Outcome, Usage) {}

func roundRobin() Spec {
	return Spec{Name: "round_robin", New: func(Setting) Policy {
		n := 0
		return &blind{func(up []int) int { n++; return up[n%len(up)] }}
	}}
}

func atRandom() Spec {
	return Spec{Name: "random", New: func(s Setting) Policy {
		rng := s.Rand
		if rng == nil {
			rng = rand.New(rand.NewPCG(1, 1))
		}
		return &blind{func(up []int) int { return up[rng.IntN(len(up))] }}
	}}
}

func workload(t testing.TB, spec string, requests int) *trace.Trace {
	t.Helper()
	tr, err := trace.Generate(spec, requests)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func fleet(t testing.TB, text string) Fleet {
	t.Helper()
	f, err := ParseFleet(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func simulated(t testing.TB, c Config) *Result {
	t.Helper()
	r, err := Run(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func BenchmarkRun(b *testing.B) {
	for _, c := range []struct {
		name, spec, fleet string
		rate              float64
		block             int
	}{
		{"uniform", "uniform", "32xh100", 1000, 64},
		{"chat", "chat", "32xh100", 80, 64},
		{"chat512", "chat", "32xh100", 80, 512},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			requests := 100_000
			tr := workload(b, c.spec, requests)
			f := fleet(b, c.fleet)
			for b.Loop() {
				r := simulated(b, Config{Trace: tr, Fleet: f, Policy: roundRobin(), Rate: c.rate, BlockSize: c.block})
				b.ReportMetric(r.TTFT.Mean, "ttft-ms")
				b.ReportMetric(r.E2E.Mean, "e2e-ms")
				b.ReportMetric(r.HitRate, "hit-rate")
				st := 0.0
				for _, p := range r.Replicas {
					st += float64(p.Steps)
				}
				b.ReportMetric(st/float64(requests), "steps/request")
			}
			b.ReportMetric(float64(requests*b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
