// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// slotAnswer is a completion of one token, with nothing said of the cache.
func slotAnswer(w http.ResponseWriter, _ *http.Request) {
	proxytest.Event(w, `{"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}`)
	proxytest.Event(w, "[DONE]")
}

func TestAnEngineWithOneSlotHoldsItsLastSequenceOnly(t *testing.T) {
	c := proxytest.Start(t, "", site(proxytest.NewEngine(t, slotAnswer).Addr(), "cache slots 1", ""))
	for i, x := range []struct{ first, want int }{{1, 0}, {1, 192}, {2, 0}, {1, 0}, {1, 192}} {
		if cached, _ := cachedTokens(t, c, "/v1/completions", asks(x.first, "")); cached != x.want {
			t.Errorf("request %d: %d cached, want %d", i, cached, x.want)
		}
	}
}

func TestPromptsGoToTheUpstreamWhoseSlotTheyContinue(t *testing.T) {
	a, b := proxytest.NewEngine(t, slotAnswer), proxytest.NewEngine(t, slotAnswer)
	c := proxytest.Start(t, "", site(addrs(a, b), "cache slots 1", ""))
	for range 5 {
		for first := 1; first <= 2; first++ {
			cachedTokens(t, c, "/v1/completions", asks(first, ""))
		}
	}
	for _, e := range []*proxytest.Engine{a, b} {
		prompts := map[string]bool{}
		for _, seen := range e.Requests() {
			prompts[seen.Body] = true
		}
		if len(prompts) != 1 {
			t.Errorf("%d different prompts at an upstream with one slot", len(prompts))
		}
	}
}

func TestAPromptBeyondASlotsContextCountsAsLongAsThat(t *testing.T) {
	c := proxytest.Start(t, "", site(proxytest.NewEngine(t, slotAnswer).Addr(), "cache slots 2 128", ""))
	for range 2 {
		if cached, prompt := cachedTokens(t, c, "/v1/completions", asks(1, "")); cached != 0 || prompt != 128 {
			t.Errorf("%d of %d tokens cached", cached, prompt)
		}
	}
	short := fmt.Sprintf(`{"model":"m","stream":true,"prompt":%s}`, ids(5000, 100))
	cachedTokens(t, c, "/v1/completions", short)
	if cached, prompt := cachedTokens(t, c, "/v1/completions", short); cached != 96 || prompt != 100 {
		t.Errorf("%d of %d tokens cached", cached, prompt)
	}
}

func TestSlotsGoOnOverAReloadAndAnotherNumberForgets(t *testing.T) {
	e := proxytest.NewEngine(t, slotAnswer)
	c := proxytest.Start(t, "", site(e.Addr(), "cache slots 2", ""))
	cachedTokens(t, c, "/v1/completions", asks(1, ""))
	for _, x := range []struct {
		options string
		want    int
	}{{"cache slots 2\nmax_sequences 7", 192}, {"cache slots 3", 0}, {"", 0}, {"cache_tokens 16000", 192}} {
		c.Reload("", site(e.Addr(), x.options, ""))
		if cached, _ := cachedTokens(t, c, "/v1/completions", asks(1, "")); cached != x.want {
			t.Errorf("%q: %d cached, want %d", x.options, cached, x.want)
		}
	}
}

func TestSlotsThatMakeNoSenseAreRefused(t *testing.T) {
	for want, cache := range map[string]*Cache{
		"cache: 0 slots":         {},
		"cache: 300 slots":       {Slots: 300},
		"cache: slots of 8 tok":  {Slots: 1, Context: 8},
		"cache: slots of -1 tok": {Slots: 1, Context: -1},
	} {
		p := &Policy{Cache: cache}
		if err := p.resolveOptions(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	p := &Policy{Cache: &Cache{Slots: 4, Context: 8192}}
	if err := p.resolveOptions(); err != nil || p.MaxSequences != 4 {
		t.Errorf("max_sequences %d, %v", p.MaxSequences, err)
	}
}
