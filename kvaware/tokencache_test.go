// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestTheSecondTurnOfAConversationIsEncodedFromMemory(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	history := `{"role":"user","content":"` + prose("history", 5000) + `"}`
	turn := func(more string) (tokens int) {
		res := c.Post("/v1/chat/completions", `{"model":"m","stream":true,"messages":[`+history+more+`]}`)
		proxytest.ReadAll(t, res)
		_, _ = fmt.Sscan(res.Header.Get("X-KV-Aware-Prompt-Tokens"), &tokens)
		return tokens
	}
	first := turn("")
	before := defaultPool(t).tokens.Load().Stats()
	// What the cache holds outlives collections and reloads.
	runtime.GC()
	runtime.GC()
	c.Reload("", site(engine.Addr(), "max_body 1MiB", ""))
	runtime.GC()
	runtime.GC()
	if second := turn(`,{"role":"user","content":"and now?"}`); second <= first {
		t.Errorf("the first turn has %d tokens, the second %d", first, second)
	}
	after := defaultPool(t).tokens.Load().Stats()
	if hits := after.Hits - before.Hits; hits < 5 {
		t.Errorf("%d pieces of the second turn were known", hits)
	}

	// Another size is another cache, which the next request uses.
	c.Reload("", site(engine.Addr(), "token_cache 1MiB", ""))
	if s := defaultPool(t).tokens.Load().Stats(); s.Hits+s.Misses != 0 {
		t.Fatalf("the cache was not replaced: %+v", s)
	}
	turn("")
	if s := defaultPool(t).tokens.Load().Stats(); s.Misses == 0 {
		t.Error("the new cache is not used")
	}
	wantIdle(t)
}

func TestWithoutRoomForTheTokenCacheRequestsAreRoutedAllTheSame(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "token_cache 1", ""))
	for range 2 {
		res := c.Post("/v1/chat/completions", chat(strings.Repeat("many words ", 3000), true))
		proxytest.ReadAll(t, res)
		if res.Header.Get("X-KV-Aware-Prompt-Tokens") == "0" {
			t.Error("no tokens were read")
		}
	}
	wantIdle(t)
}
