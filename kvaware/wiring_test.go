// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestRequestsThatTheEngineComputesWholeFindNothingCached(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	prompt := prose("known", 200)
	ask := func(more string) string {
		res := c.Post("/v1/completions", `{"model":"m","stream":true,"prompt":"`+prompt+`"`+more+`}`)
		proxytest.ReadAll(t, res)
		return res.Header.Get("X-KV-Aware-Cached-Tokens")
	}
	ask("")
	if n := ask(""); n == "0" {
		t.Fatal("nothing of a prompt is cached that was just answered")
	}
	for _, more := range []string{`,"prompt_logprobs":1`, `,"echo":true,"logprobs":1`} {
		if n := ask(more); n != "0" {
			t.Errorf("with %s %s tokens count as cached", more, n)
		}
	}
}

func TestEmbeddingsLeaveNothingInTheIndex(t *testing.T) {
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"object":"list","data":[{"index":0,"embedding":[0.1]}],"usage":{"prompt_tokens":400}}`))
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	proxytest.ReadAll(t, c.Post("/v1/embeddings", `{"model":"e","input":"`+prose("pooled", 200)+`"}`))
	wantIdle(t)
	pl := defaultPool(t)
	if n := pl.index.Stats(pl.lookup(engine.Addr(), nil).slot).Blocks; n != 0 {
		t.Errorf("%d blocks are believed held", n)
	}
}

func TestTheRoleOnlyChunkEndsThePrefillOnceTheUpstreamIsKnownForIt(t *testing.T) {
	gate := make(chan struct{})
	held := make(chan struct{}, 1)
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-held:
			w.Header().Set("Content-Type", "text/event-stream")
			proxytest.Event(w, `{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`)
			select {
			case <-gate:
				proxytest.Event(w, "[DONE]")
			case <-r.Context().Done():
			}
		default:
			w.Header().Set("Content-Type", "text/event-stream")
			proxytest.Event(w, `{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"},"token_ids":[1]}]}`)
			proxytest.Event(w, "[DONE]")
		}
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("known by its fields", true)))
	held <- struct{}{}
	res, err := start(t, c, context.Background(), prose("held back", 300))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the prefill ends", func() bool {
		s := loads(t)
		return s.PrefillTokens == 0 && s.DecodeTokens > 0 && s.ModelledDecodeTokens == 0
	})
	close(gate)
}

func TestStreamsWithUsageTeachTheTokensPerDelta(t *testing.T) {
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 20 {
			proxytest.Event(w, `{"choices":[{"index":0,"delta":{"content":"three tokens each"}}]}`)
		}
		proxytest.Event(w, `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":60}}`)
		proxytest.Event(w, "[DONE]")
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	for range 20 {
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("teach", true)))
	}
	wantIdle(t)
	if n := defaultPool(t).lookup(engine.Addr(), nil).load.TokensPerDelta(); n < 2.5 || n > 3.1 {
		t.Errorf("%v tokens per delta were learnt, want about 3", n)
	}
}

func TestAnUpstreamThatNobodyListsStaysWhileARequestRunsThere(t *testing.T) {
	now := time.Now()
	pl := newPool("", poolParams{tokenizer: "auto", blockSize: 16, cacheTokens: 1600, maxBuffered: 1}, func() time.Time { return now })
	u := pl.lookup("10.0.0.1:80", nil)
	var ticket ledger.Ticket
	pl.ledger.Choose(&ticket, &ledger.Demand{}, []*ledger.Upstream{u.load}, func([]choose.Candidate) int { return 0 })
	now = now.Add(2 * upstreamExpiry)
	pl.expire()
	if u.removed.Load() {
		t.Fatal("it left under a running request")
	}
	ticket.Release(ledger.Completed, pl.ledger.Now())
	pl.expire()
	if !u.removed.Load() {
		t.Error("it stayed after its last request")
	}
}

func TestALoadFadesWithTheOutputThatTheRequestAllows(t *testing.T) {
	gate := make(chan struct{})
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 6 {
			proxytest.Event(w, `{"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[1]}]}`)
		}
		select {
		case <-gate:
		case <-r.Context().Done():
		}
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	res := c.Post("/v1/completions", `{"model":"m","stream":true,"max_tokens":8,"prompt":"`+prose("fades", 400)+`"}`)
	defer res.Body.Close()
	prompt, err := strconv.ParseInt(res.Header.Get("X-KV-Aware-Prompt-Tokens"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	// Six of eight tokens are there: a quarter is left.
	eventually(t, "a quarter of the prompt and of the output counts", func() bool {
		s := loads(t)
		return s.PrefillTokens == 0 && s.DecodeTokens >= prompt/4 && s.DecodeTokens <= prompt/4+2
	})
	close(gate)
}

func TestTheFirstTokenOfAStreamTeachesThePrefillRate(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	rate := func() float64 { return defaultPool(t).lookup(engine.Addr(), nil).load.PrefillRate() }
	prior := rate()
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("streams", 500), true)))
	if r := rate(); r == prior {
		t.Errorf("the rate is still %v", r)
	}
}
