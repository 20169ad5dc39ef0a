// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"math"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// gauged is a Sight of two replicas.
type gauged struct {
	output    int
	cached    [2]int
	metrics   [2]replay.Metrics
	backlog   [2]float64
	remaining [2]int
}

func (b *gauged) Output(*replay.Request) int          { return b.output }
func (b *gauged) Cached(_ *replay.Request, i int) int { return b.cached[i] }
func (b *gauged) Metrics(i int) replay.Metrics        { return b.metrics[i] }
func (b *gauged) Backlog(i int) float64               { return b.backlog[i] }
func (b *gauged) Remaining(i int) int                 { return b.remaining[i] }
func (b *gauged) Speed(int) float64                   { return 1 }

func TestOraclePredictsARequestAndItsHarm(t *testing.T) {
	p := made[*oracle](t, "oracle")
	sight := &gauged{output: 10}
	sight.metrics[0] = replay.Metrics{Running: 3, KVUsage: 0.9}
	sight.backlog[0], sight.remaining[0] = 2, 30
	p.See(sight)
	p.pace.Step, p.pace.Token, p.pace.Context, p.pace.Pair = 0.010, 0.001, 0, 0
	p.Joined(0, 0, replay.Capacity{MaxBatched: 2048})
	p.prompts, p.outputs = []*active{newActive()}, []int{0}
	r := &replay.Request{Prompt: 1000}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	f := p.fate(r, 10, 0)
	near("own prefill", f.own, 1.01)
	// Steps: 2 s of 2.058 s each and one of its own, each longer by 3 tokens.
	near("TTFT", f.ttft, 2+1.01+(2/2.058+1)*0.003)
	near("decode", f.decode, 10*0.014)
	near("harm", f.slower, 0.001*30)

	// What runs will hold 10 blocks and 60 tokens of output, 700 tokens; this one 5
	// blocks more and 10 tokens. Memory is for 1000: 30 of 700 have to be freed,
	// and all are within 2 · 10 steps.
	p.Joined(0, 0, replay.Capacity{CacheTokens: 1000, MaxBatched: 2048})
	p.prompts[0].acquire(chain(nil, 1, 10))
	p.outputs[0] = 60
	sight.metrics[0].KVUsage = 0.7
	sight.cached[0] = 700
	r.Blocks = chain(chain(nil, 1, 10), 2, 5)
	near("held back by memory", p.fate(r, 10, 0).ttft, 2+0.31+(2/2.058+1)*0.003+30.0/700*20*0.014)
	p.Joined(0, 0, replay.Capacity{MaxSeqs: 3, MaxBatched: 2048})
	near("held back by the batch", p.fate(r, 10, 0).ttft, 2+0.31+(2/2.058+1)*0.003+1.0/3*20*0.014)
}

func TestOracleWeighsWaitAgainstCacheAndHarm(t *testing.T) {
	for _, c := range []struct {
		name  string
		sight gauged
		want  []int
	}{
		{"cached", gauged{output: 10, cached: [2]int{500, 0}}, []int{0}},
		{"cached but busy", gauged{output: 10, cached: [2]int{500, 0}, backlog: [2]float64{2, 0}}, []int{1}},
		{"others to delay", gauged{output: 10, metrics: [2]replay.Metrics{{Running: 9}, {}}, remaining: [2]int{900, 0}}, []int{1}},
		{"equal", gauged{output: 10}, []int{0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := made[*oracle](t, "oracle")
			p.See(&c.sight)
			wants(t, p, func() *replay.Request { return &replay.Request{Prompt: 20_000} }, ofTwo, c.want...)
		})
	}
}
