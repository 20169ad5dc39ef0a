// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/route"
)

// benchPolicy is a policy outside of any Caddy, over n upstreams.
func benchPolicy(b *testing.B, n int) (*Policy, reverseproxy.UpstreamPool) {
	b.Helper()
	tokens, err := new(Tokenizer).provision(caddy.NewReplacer())
	if err != nil {
		b.Fatal(err)
	}
	params := poolParams{tokenizer: tokens.described, blockSize: DefaultBlockSize, cacheTokens: DefaultCacheTokens, maxBuffered: DefaultMaxBuffered, tokenCache: DefaultTokenCache}
	p := &Policy{
		MaxBody: DefaultMaxBody, BlockSize: DefaultBlockSize,
		objective: route.Objective{Weights: choose.Weights{Prefill: 1, Decode: 1}},
		tokens:    tokens, params: params, logger: zap.NewNop(),
		pool:  newPool("bench", params, time.Now),
		proxy: new(reverseproxy.Handler),
	}
	for i := range n {
		p.proxy.Upstreams = append(p.proxy.Upstreams, &reverseproxy.Upstream{
			Host: new(reverseproxy.Host), Dial: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250),
		})
	}
	for _, u := range p.proxy.Upstreams {
		p.pool.lookup(u.Dial, nil) // what is made at first sight of an upstream is not measured
	}
	return p, p.proxy.Upstreams
}

// BenchmarkSelect is the whole of Select on one request: reading the body,
// tokens, block hashes, match, choice and charge, and giving the charge back.
// Each prompt is a new one that shares its first half with others.
func BenchmarkSelect(b *testing.B) {
	for _, tokens := range []int{1_000, 8_000, 32_000, 128_000} {
		for _, upstreams := range []int{3, 64, 1000} {
			b.Run(fmt.Sprintf("tokens=%dk/upstreams=%d", tokens/1000, upstreams), func(b *testing.B) {
				p, pool := benchPolicy(b, upstreams)
				shared := prose("shared words of a system prompt ", tokens/2/8)
				repl := caddy.NewReplacer()
				ctx := context.WithValue(context.Background(), caddy.ReplacerCtxKey, repl)
				b.ReportAllocs()
				b.ResetTimer()
				for i := range b.N {
					b.StopTimer()
					body := chat(shared+prose(fmt.Sprint("own words of turn ", i, " "), tokens/2/9), true)
					ctx, cancel := context.WithCancel(ctx)
					r := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body)).WithContext(ctx)
					r.Header.Set("Content-Type", "application/json")
					b.StartTimer()
					if p.Select(pool, r, nil) == nil {
						b.Fatal("nothing chosen")
					}
					b.StopTimer()
					rt := p.routed(r.Context())
					a := rt.current.Load()
					a.answered.Store(true)
					a.finish(ledger.Completed)
					rt.replay.drop()
					rt.disarm()
					cancel()
					b.StartTimer()
				}
			})
		}
	}
}

// BenchmarkChoose is what is done under the ledger's lock: match, weigh,
// choose, charge, pin; and giving it all back.
func BenchmarkChoose(b *testing.B) {
	for _, objective := range objectives {
		for _, tokens := range []int{1_000, 8_000, 32_000, 128_000} {
			for _, upstreams := range []int{3, 64, 1000} {
				b.Run(fmt.Sprintf("%s/tokens=%dk/upstreams=%d", objective, tokens/1000, upstreams), func(b *testing.B) {
					p, pool := benchPolicy(b, upstreams)
					p.objective.Latency = objective == objectiveLatency
					chain := make([]uint64, tokens/DefaultBlockSize)
					r := httptest.NewRequest("POST", "/v1/chat/completions", nil)
					repl := caddy.NewReplacer()
					b.ReportAllocs()
					b.ResetTimer()
					for i := range b.N {
						for j := len(chain) / 2; j < len(chain); j++ {
							chain[j] = uint64(i)<<32 | uint64(j)
						}
						rt := &routing{policy: p, request: route.Request{BlockSize: DefaultBlockSize, Reuses: true, Keeps: true, Namespace: 1}, stop: func() bool { return true }}
						rt.request.Chains = append(rt.chainSpace[:0], chain)
						rt.prompt[0].Tokens = tokens
						rt.request.Counted, rt.request.Ratio = []int{tokens}, 1
						rt.request.Demand = ledger.Demand{Prompts: rt.prompt[:], Choices: 1, Expected: -1, Stream: true}
						if rt.choose(pool, r, nil, repl) == nil {
							b.Fatal("nothing chosen")
						}
						a := rt.current.Load()
						a.answered.Store(true)
						a.finish(ledger.Completed)
					}
				})
			}
		}
	}
}

// BenchmarkProxy is whole requests through a whole Caddy in this process, with
// clients and engines in it too: compare the policies within one run.
func BenchmarkProxy(b *testing.B) {
	short := chat("What is the capital of France?", true)
	long := chat(prose("some words of a longer prompt ", 300), true)
	for name, body := range map[string]string{"short": short, "2k_tokens": long} {
		for _, policy := range []string{"least_conn", "kv_aware"} {
			b.Run(name+"/"+policy, func(b *testing.B) {
				engines := []*proxytest.Engine{
					proxytest.NewEngine(b, proxytest.Tokens(8)), proxytest.NewEngine(b, proxytest.Tokens(8)), proxytest.NewEngine(b, proxytest.Tokens(8)),
				}
				c := proxytest.Start(b, "\tlog {\n\t\tlevel ERROR\n\t}\n", fmt.Sprintf("http://site {\n\tbind {SITE}\n\treverse_proxy %s {\n\t\tlb_policy %s\n\t}\n}", addrs(engines...), policy))
				client := c.Client("site")
				client.Transport.(*http.Transport).DisableKeepAlives = false
				client.Transport.(*http.Transport).MaxIdleConnsPerHost = 64
				var failed atomic.Int64
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						res, err := client.Post("http://site/v1/chat/completions", "application/json", strings.NewReader(body))
						if err != nil {
							failed.Add(1)
							continue
						}
						_, _ = io.Copy(io.Discard, res.Body)
						res.Body.Close()
					}
				})
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
				if failed.Load() > 0 {
					b.Errorf("%d requests failed", failed.Load())
				}
			})
		}
	}
}
