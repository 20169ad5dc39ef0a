// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestAGrowingConversationStaysWhereItsPrefixIsHeld(t *testing.T) {
	a, b, d := proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(addrs(a, b, d), "", ""))
	messages := `{"role":"system","content":"` + prose("system", 100) + `"}`
	var home string
	cachedBefore := 0
	for turn := range 10 {
		messages += fmt.Sprintf(`,{"role":"user","content":"%s"}`, prose(fmt.Sprint("q", turn), 40))
		res := c.Post("/v1/chat/completions", `{"model":"m","stream":true,"messages":[`+messages+`]}`)
		proxytest.ReadAll(t, res)
		upstream := res.Header.Get("X-KV-Aware-Upstream")
		if home == "" {
			home = upstream
		}
		if upstream != home {
			t.Fatalf("turn %d went to %s, the prefix is at %s", turn, upstream, home)
		}
		var cached int
		_, _ = fmt.Sscan(res.Header.Get("X-KV-Aware-Cached-Tokens"), &cached)
		if turn > 0 && cached <= cachedBefore {
			t.Errorf("turn %d found %d cached tokens, the one before %d", turn, cached, cachedBefore)
		}
		cachedBefore = cached
		messages += `,{"role":"assistant","content":"` + prose("answer", 30) + `"}`
		wantIdle(t)
	}
}

func TestABurstOfPromptsSpreadsEvenly(t *testing.T) {
	var held sync.WaitGroup
	release := make(chan struct{})
	handler := func(w http.ResponseWriter, r *http.Request) {
		held.Done()
		<-release
		proxytest.Tokens(1)(w, r)
	}
	engines := []*proxytest.Engine{proxytest.NewEngine(t, handler), proxytest.NewEngine(t, handler), proxytest.NewEngine(t, handler)}
	c := proxytest.Start(t, "", site(addrs(engines...), "", ""))
	const n = 30
	held.Add(n)
	var sent sync.WaitGroup
	for i := range n {
		sent.Go(func() {
			res, err := start(t, c, context.Background(), prose(fmt.Sprint("p", i, "x"), 200))
			if err != nil {
				t.Error(err)
				return
			}
			proxytest.ReadAll(t, res)
		})
	}
	held.Wait()
	for i, e := range engines {
		if got := len(e.Requests()); got < n/3-2 || got > n/3+2 {
			t.Errorf("engine %d got %d of %d equal prompts that came at once", i, got, n)
		}
	}
	close(release)
	sent.Wait()
	wantIdle(t)
}

func TestRequestsWithoutTokensAreSpreadAndNotPinned(t *testing.T) {
	a, b := proxytest.NewEngine(t, proxytest.Tokens(0)), proxytest.NewEngine(t, proxytest.Tokens(0))
	c := proxytest.Start(t, "", site(addrs(a, b), "", ""))
	for range 60 {
		res, err := c.Client("site").Get("http://site/v1/models")
		if err != nil {
			t.Fatal(err)
		}
		proxytest.ReadAll(t, res)
	}
	if x, y := len(a.Requests()), len(b.Requests()); x < 10 || y < 10 {
		t.Errorf("60 requests one after the other went %d and %d ways", x, y)
	}
	wantIdle(t)
}

func TestMaxRequestsHoldsDuringABurst(t *testing.T) {
	release := make(chan struct{})
	arrived := make(chan struct{}, 100)
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-release
		proxytest.Tokens(1)(w, r)
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "", "health_passes 1\n\t\tunhealthy_request_count 2"))
	codes := make(chan int, 10)
	for i := range 10 {
		go func() {
			res, err := start(t, c, context.Background(), fmt.Sprint("n", i))
			if err != nil {
				codes <- 0
				return
			}
			proxytest.ReadAll(t, res)
			codes <- res.StatusCode
		}()
	}
	for range 8 {
		if code := <-codes; code != 503 {
			t.Errorf("beyond the limit a request got %d", code)
		}
	}
	close(release)
	for range 2 {
		if code := <-codes; code != 200 {
			t.Errorf("within the limit a request got %d", code)
		}
	}
	if n := len(arrived); n != 2 {
		t.Errorf("%d requests ran at an upstream of at most 2", n)
	}
	wantIdle(t)
}
