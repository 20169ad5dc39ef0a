// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/dashboard"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/route"
)

// BenchmarkBesideTheDashboard tells by how much ten clients of the dashboard's
// stream slow routing down at 1,000 requests a second. Each turn is a second without
// clients and a second with them, one after the other in either order, so that what
// else the machine does weighs on both alike:
//
//	go test ./kvaware -run '^$' -bench BesideTheDashboard -benchtime 20x
//
// slower_median_% is of the median Select of the seconds; slower_mean_% of all time
// spent in Select, the slowest hundredth of each second left out.
func BenchmarkBesideTheDashboard(b *testing.B) {
	for _, upstreams := range []int{8, 200} {
		b.Run(fmt.Sprintf("upstreams=%d", upstreams), func(b *testing.B) {
			p, pool := benchPolicy(b, upstreams)
			p.objective.Latency = true
			// The dashboard looks for it where pools in use are.
			name := "bench " + b.Name()
			if _, _, err := pools.LoadOrNew(name, func() (caddy.Destructor, error) { return p.pool, nil }); err != nil {
				b.Fatal(err)
			}
			defer func() { _, _ = pools.Delete(name) }()
			handler := dashboard.NewHandler(dashboard.NewHub(ownSource{}))
			server := httptest.NewServer(handler)
			defer server.Close()
			defer handler.Close()

			bodies := make([]string, 64)
			shared := prose("shared words of a system prompt ", 500/8)
			for i := range bodies {
				bodies[i] = chat(shared+prose(fmt.Sprint("own words of turn ", i, " "), 500/9), true)
			}
			second := func(clients int) (median, mean time.Duration) {
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				for range clients {
					watchWhile(b, ctx, server.URL)
				}
				return aSecond(b, p, pool, bodies)
			}
			second(0)
			var alone, beside, aloneMean, besideMean time.Duration
			b.ResetTimer()
			for i := range b.N {
				for _, clients := range [2][]int{{0, 10}, {10, 0}}[i%2] {
					median, mean := second(clients)
					if clients == 0 {
						alone, aloneMean = alone+median, aloneMean+mean
					} else {
						beside, besideMean = beside+median, besideMean+mean
					}
				}
			}
			b.ReportMetric(float64(alone)/float64(b.N), "select_ns")
			b.ReportMetric(100*(float64(beside)/float64(alone)-1), "slower_median_%")
			b.ReportMetric(100*(float64(besideMean)/float64(aloneMean)-1), "slower_mean_%")
		})
	}
}

// watchWhile reads a stream until ctx ends.
func watchWhile(b *testing.B, ctx context.Context, url string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/?stream", nil)
	if err != nil {
		b.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != http.StatusOK {
		b.Fatal(res, err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}()
}

// aSecond routes a thousand requests, one every millisecond, and gives the median of
// the time that Select took and the mean of all but the slowest hundredth.
func aSecond(b *testing.B, p *Policy, pool reverseproxy.UpstreamPool, bodies []string) (median, mean time.Duration) {
	const requests = 1000
	took := make([]time.Duration, 0, requests)
	tick := time.NewTicker(time.Second / requests)
	defer tick.Stop()
	for i := range requests {
		ctx, cancel := context.WithCancel(context.WithValue(context.Background(), caddy.ReplacerCtxKey, caddy.NewReplacer()))
		r := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(bodies[i%len(bodies)])).WithContext(ctx)
		r.Header.Set("Content-Type", "application/json")
		<-tick.C
		began := time.Now()
		chosen := p.Select(pool, r, nil)
		took = append(took, time.Since(began))
		if chosen == nil {
			b.Fatal("nothing chosen")
		}
		rt := p.routed(r.Context())
		a := rt.current.Load()
		a.answered.Store(true)
		a.Started(0, true)
		a.Generated(0, 1)
		a.finish(ledger.Completed)
		rt.replay.drop()
		rt.disarm()
		cancel()
	}
	slices.Sort(took)
	var sum time.Duration
	for _, t := range took[:requests*99/100] {
		sum += t
	}
	return took[requests/2], sum / (requests * 99 / 100)
}

// BenchmarkKeepDecision tells what it costs a request that its decision is kept, which
// at most ten a second are beyond a burst: kept_ns on top of choose_ns.
func BenchmarkKeepDecision(b *testing.B) {
	for _, upstreams := range []int{3, 64, 1000} {
		b.Run(fmt.Sprintf("upstreams=%d", upstreams), func(b *testing.B) {
			p, pool := benchPolicy(b, upstreams)
			p.objective.Latency = true
			r := httptest.NewRequest("POST", "/v1/chat/completions", nil)
			var took [2]time.Duration
			for i := range 2 * b.N {
				rt := &routing{policy: p, request: route.Request{BlockSize: DefaultBlockSize, Reuses: true, Keeps: true, Ratio: 1, Counted: []int{1000}}, stop: func() bool { return true }}
				rt.request.Chains = [][]uint64{{uint64(i)}}
				rt.request.Demand = ledger.Demand{Prompts: []ledger.Prompt{{Tokens: 1000}}, Choices: 1, Expected: -1, Stream: true}
				kept := i % 2
				p.pool.decisions.next.Store([2]int64{1 << 62, 0}[kept])
				began := time.Now()
				if rt.choose(pool, r, nil, nil) == nil {
					b.Fatal("nothing chosen")
				}
				took[kept] += time.Since(began)
				rt.current.Load().finish(ledger.Completed)
			}
			b.ReportMetric(float64(took[0])/float64(b.N), "choose_ns")
			b.ReportMetric(float64(took[1]-took[0])/float64(b.N), "kept_ns")
		})
	}
}
