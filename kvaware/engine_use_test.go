// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/enginefacts"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// chatFor is a chat request to a model.
func chatFor(model, text string) string {
	return fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":%q}]}`, model, text)
}

// took gives the upstreams that take n requests with bodies of their own.
func took(t *testing.T, c *proxytest.Caddy, n int, body func(i int) string) (by map[string]int) {
	t.Helper()
	by = make(map[string]int)
	for i := range n {
		res := c.Post("/v1/chat/completions", body(i))
		proxytest.ReadAll(t, res)
		by[res.Header.Get("X-KV-Aware-Upstream")]++
	}
	return by
}

// listed waits until as many engines' models are known.
func listed(t *testing.T, engines int) {
	t.Helper()
	pl := defaultPool(t)
	eventually(t, "all lists of models are known", func() bool {
		m := pl.served.Load()
		if m == nil {
			return engines == 0
		}
		n := 0
		for _, u := range pl.all() {
			if m.listed.has(u.slot) {
				n++
			}
		}
		return n == engines
	})
}

func TestARequestGoesWhereItsModelIsServed(t *testing.T) {
	a, b, unknown := newTelling(t), newTelling(t), newTelling(t)
	a.models("alpha", "lora*")
	b.models("beta", "beta-alias")
	conf := site(addrs(a.Engine, b.Engine), "model_alias beta beta-alias other-beta\n\t\t\t"+learning, "")
	c := proxytest.Start(t, "", conf)
	listed(t, 2)
	for model, want := range map[string]*telling{"alpha": a, "lora": a, "beta": b, "beta-alias": b, "other-beta": b} {
		by := took(t, c, 6, func(i int) string { return chatFor(model, fmt.Sprint(model, i, prose("x", 30))) })
		if by[want.Addr()] != 6 {
			t.Errorf("%s: %v, want all at %s", model, by, want.Addr())
		}
	}
	// A model that nobody lists, and a request that names none, may go to any.
	misses := countOf(t, c, "unlisted_models_total")
	for _, model := range []string{"gamma", ""} {
		by := took(t, c, 8, func(i int) string { return chatFor(model, fmt.Sprint(i, prose("y", 30))) })
		if by[a.Addr()]+by[b.Addr()] != 8 {
			t.Errorf("%q: %v", model, by)
		}
	}
	if n := countOf(t, c, "unlisted_models_total") - misses; n != 8 {
		t.Errorf("%v requests were counted as for models that nobody lists", n)
	}
	// An upstream of which nothing is known may serve any model.
	c.Reload("", site(addrs(b.Engine, unknown.Engine), learning, ""))
	unknown.learns(t)
	if by := took(t, c, 6, func(i int) string { return chatFor("alpha", fmt.Sprint(i, prose("z", 30))) }); by[b.Addr()]+by[unknown.Addr()] != 6 {
		t.Errorf("with an unknown one: %v", by)
	}
	// A list that changes counts.
	b.models("delta")
	unknown.models("beta")
	eventually(t, "the new lists count", func() bool {
		m := defaultPool(t).served.Load()
		return m != nil && m.by["delta"] != nil && m.by["beta"].has(defaultPool(t).lookup(unknown.Addr(), nil).slot)
	})
	if by := took(t, c, 4, func(i int) string { return chatFor("beta", fmt.Sprint(i, prose("w", 30))) }); by[unknown.Addr()] != 4 {
		t.Errorf("after lists changed: %v", by)
	}
	// With models off, nobody is asked and all may serve all.
	c.Reload("", site(addrs(a.Engine, b.Engine), "engine {\n\t\t\t\tscrape 100ms\n\t\t\t\tmodels off\n\t\t\t}", ""))
	listed(t, 0)
	before := a.asked("/v1/models")
	a.learns(t)
	if n := a.asked("/v1/models") - before; n != 0 {
		t.Errorf("asked %d times", n)
	}
}

func TestARequestIsTriedAgainWhereItsModelIsAndNotElsewhere(t *testing.T) {
	a, b := newTelling(t), newTelling(t)
	a.models("alpha")
	b.models("beta")
	failures := 0
	a.page("/v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		if failures++; failures < 3 {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		proxytest.Tokens(3)(w, r)
	})
	c := proxytest.Start(t, "", site(addrs(a.Engine, b.Engine), learning, "lb_retries 4\n\t\tlb_retry_match {\n\t\t\tmethod POST\n\t\t}"))
	listed(t, 2)
	res := c.Post("/v1/chat/completions", chatFor("alpha", prose("again", 40)))
	if proxytest.ReadAll(t, res); res.StatusCode != http.StatusServiceUnavailable && res.StatusCode != 200 {
		t.Errorf("got %d", res.StatusCode)
	}
	// Nothing listens where the model is: it is not sent where it is not.
	refused := proxytest.Refused(t)
	c.Reload("", site(addrs(a.Engine, b.Engine)+" "+refused, learning, "lb_retries 4"))
	listed(t, 2)
	for i := range 6 {
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chatFor("alpha", fmt.Sprint(i, prose("again", 40)))))
	}
	if n := b.asked("/v1/chat/completions"); n != 0 {
		t.Errorf("%d requests for alpha went to beta's engine", n)
	}
	wantIdle(t)
}

func TestWhereNobodyAvailableServesTheModelOthersAreTried(t *testing.T) {
	a, b := newTelling(t), newTelling(t)
	a.models("alpha")
	b.models("beta")
	healthy := make(chan bool, 1)
	healthy <- true
	a.page("/health", func(w http.ResponseWriter, _ *http.Request) {
		up := <-healthy
		healthy <- up
		if !up {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	b.says("/health", "ok")
	c := proxytest.Start(t, "", site(addrs(a.Engine, b.Engine), learning, "health_uri /health\n\t\thealth_interval 20ms"))
	listed(t, 2)
	<-healthy
	healthy <- false
	eventually(t, "alpha's engine counts as down and beta's takes its requests", func() bool {
		return took(t, c, 1, func(int) string { return chatFor("alpha", prose("down", 20)) })[b.Addr()] == 1
	})
}

func TestExplainSaysWhoIsLeftOutAndWhy(t *testing.T) {
	a, b, sleeper := newTelling(t), newTelling(t), newTelling(t)
	a.models("alpha")
	b.models("beta")
	sleeper.models("alpha")
	sleeper.metrics(32_000, `vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0`)
	c := proxytest.Start(t, "", site(addrs(a.Engine, b.Engine, sleeper.Engine), learning, ""))
	listed(t, 3)
	eventually(t, "the sleeper sleeps", func() bool { return upstreamsOf(t, c)[sleeper.Addr()].Asleep })
	misses := countOf(t, c, "unlisted_models_total")
	_, _, body := c.Admin("POST", "/kv_aware/explain", chatFor("alpha", prose("explained", 30)))
	var e explanation
	if err := json.Unmarshal([]byte(body), &e); err != nil || len(e.Upstreams) != 3 {
		t.Fatalf("%v: %s", err, body)
	}
	got := map[string]string{}
	for _, u := range e.Upstreams {
		got[u.Address] = fmt.Sprint(u.Chosen, u.Excluded)
	}
	if e.Upstreams[0].Address != a.Addr() || got[a.Addr()] != "true" || got[b.Addr()] != "falsemodel" || got[sleeper.Addr()] != "falseasleep" {
		t.Errorf("explained %v", got)
	}
	c.Admin("POST", "/kv_aware/explain", chatFor("gamma", "nobody's"))
	if n := countOf(t, c, "unlisted_models_total"); n != misses {
		t.Error("an explanation is counted as a request")
	}
}

func TestAnEngineThatSleepsIsLeftOutWhileAnotherIsAwake(t *testing.T) {
	a, b := newTelling(t), newTelling(t)
	state := func(awake string) string {
		return `vllm:engine_sleep_state{engine="0",sleep_state="awake"} ` + awake + `
vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1.0`
	}
	a.metrics(32_000, state("0.0"))
	b.metrics(32_000, state("1.0"))
	c := proxytest.Start(t, "", site(addrs(a.Engine, b.Engine), learning+"\n\t\t\tfallback first", ""))
	asleep := func(e *telling) bool { return upstreamsOf(t, c)[e.Addr()].Asleep }
	eventually(t, "the metric is believed", func() bool { return asleep(a) && !asleep(b) })
	if by := took(t, c, 6, func(i int) string { return chat(fmt.Sprint(i, prose("s", 30)), true) }); by[b.Addr()] != 6 {
		t.Errorf("with one asleep: %v", by)
	}
	// A fallback policy does not know that it sleeps.
	res := c.Post("/v1/audio/translations", "nothing to read")
	proxytest.ReadAll(t, res)
	if at := res.Header.Get("X-KV-Aware-Upstream"); at != b.Addr() {
		t.Errorf("the fallback sent to %s", at)
	}
	// Where all sleep, some request has to wake one.
	b.metrics(32_000, state("0.0"))
	eventually(t, "both sleep", func() bool { return asleep(a) && asleep(b) })
	if by := took(t, c, 2, func(i int) string { return chat(fmt.Sprint(i, prose("s", 30)), true) }); by[a.Addr()]+by[b.Addr()] != 2 {
		t.Errorf("with both asleep: %v", by)
	}
	a.metrics(32_000, state("1.0"))
	eventually(t, "one woke up", func() bool { return !asleep(a) })
}

func TestAnEngineWithoutPrefixCachingGetsNoCreditUntilItHasIt(t *testing.T) {
	e := newTelling(t)
	off := "vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"False\",engine=\"0\",kv_cache_size_tokens=\"32000\"} 1.0\n"
	e.says("/metrics", off)
	c := proxytest.Start(t, "", site(e.Addr(), learning, ""))
	eventually(t, "it is known", func() bool { return upstreamsOf(t, c)[e.Addr()].CacheTokens == 32_000 })
	prompt := chat(prose("twice", 200), true)
	cached := func() string {
		res := c.Post("/v1/chat/completions", prompt)
		proxytest.ReadAll(t, res)
		wantIdle(t)
		return res.Header.Get("X-KV-Aware-Cached-Tokens")
	}
	cached()
	if n := cached(); n != "0" {
		t.Errorf("%s tokens are credited", n)
	}
	e.metrics(32_000)
	u := defaultPool(t).lookup(e.Addr(), nil)
	eventually(t, "the change is known", func() bool { return !u.noCache.Load() })
	if n := cached(); n == "0" {
		t.Error("nothing is credited with prefix caching on")
	}
}

func TestAnEngineThatStartedAnewHoldsNothing(t *testing.T) {
	for name, process := range map[string]func(at int) string{
		"by its start": func(at int) string { return fmt.Sprintf("process_start_time_seconds %d.5", 1_795_968_000+10*at) },
		"by a count":   func(at int) string { return fmt.Sprintf("vllm:prompt_tokens_total{engine=\"0\"} %d", 5000-1000*at) },
	} {
		e := newTelling(t)
		e.metrics(32_000, process(1))
		c := proxytest.Start(t, "", site(e.Addr(), learning, ""))
		eventually(t, "it is known", func() bool { return upstreamsOf(t, c)[e.Addr()].CacheTokens == 32_000 })
		u := defaultPool(t).lookup(e.Addr(), nil)
		var told withdrawals
		u.onInvalidate(told.add)
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("held", 100), true)))
		wantIdle(t)
		e.learns(t)
		if n := defaultPool(t).index.Stats(u.slot).Blocks; n == 0 {
			t.Fatalf("%s: nothing is held", name)
		}
		defaultPool(t).observedCapacity(u, 16_000)
		e.metrics(32_000, process(2))
		eventually(t, "its blocks are forgotten "+name, func() bool { return defaultPool(t).index.Stats(u.slot).Blocks == 0 })
		eventually(t, "what it was seen to hold is forgotten", func() bool { return upstreamsOf(t, c)[e.Addr()].CacheTokens == 32_000 })
		e.learns(t)
		if got := told.all(); !slices.Equal(got, []string{"restarted"}) {
			t.Errorf("%s: told %v", name, got)
		}
		c.Stop()
	}
}

func TestEnginesBehindOneAddressAreNotTakenForRestarts(t *testing.T) {
	for name, process := range map[string]func(n int) string{
		"by their starts": func(n int) string { return fmt.Sprintf("process_start_time_seconds %d", 1_795_968_000-100*(n%2)) },
		"by their counts": func(n int) string { return fmt.Sprintf("sglang:prompt_tokens_total %d", 5000+n-1000*(n%2)) },
	} {
		e := newTelling(t)
		n := 0
		e.page("/metrics", func(w http.ResponseWriter, _ *http.Request) {
			n++
			_, _ = fmt.Fprintln(w, process(n))
		})
		c := proxytest.Start(t, "", site(e.Addr(), learning, ""))
		e.learns(t)
		e.learns(t)
		u := defaultPool(t).lookup(e.Addr(), nil)
		var told withdrawals
		u.onInvalidate(told.add)
		e.learns(t)
		e.learns(t)
		if got := told.all(); len(got) > 0 {
			t.Errorf("%s: told %v", name, got)
		}
		c.Stop()
	}
}

func TestAnEngineAtWhichNothingListensIsForgottenOnce(t *testing.T) {
	e := newTelling(t)
	e.metrics(32_000)
	c := proxytest.Start(t, "", site(e.Addr(), learning, "transport http {\n\t\t\tkeepalive off\n\t\t}"))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("held", 100), true)))
	wantIdle(t)
	e.learns(t)
	pl := defaultPool(t)
	u := pl.lookup(e.Addr(), nil)
	var told withdrawals
	u.onInvalidate(told.add)
	u.mark(true, time.Now())
	e.Close()
	eventually(t, "its blocks are forgotten", func() bool { return pl.index.Stats(u.slot).Blocks == 0 })
	eventually(t, "it was asked a few times more", func() bool {
		return countOf(t, c, `endpoint="metrics",pool="",result="unreachable"`) > 3
	})
	if got := told.all(); !slices.Equal(got, []string{"refused"}) || u.asleep(time.Now().UnixNano()) {
		t.Errorf("told %v", got)
	}
}

func TestCapacityIsTheLeastOfWhatIsToldAndSeen(t *testing.T) {
	params := poolParams{tokenizer: "auto", blockSize: 16, cacheTokens: 1600, cacheAuto: true, maxBuffered: 1, ranks: 1}
	pl := newPool("", params, time.Now)
	u := pl.lookup("10.0.0.1:80", nil)
	check := func(when string, want int, from string) {
		t.Helper()
		if n := pl.index.Stats(u.slot).Capacity; n != want/16 {
			t.Errorf("%s: %d blocks, want %d", when, n, want/16)
		}
		if tokens, source := pl.params.capacityOf(u); int(tokens) != want || source != from {
			t.Errorf("%s: %d tokens from %s, want %d from %s", when, tokens, source, want, from)
		}
	}
	tell := func(tokens int64, engines int) {
		pl.told(u, &engineFacts{Facts: enginefacts.Facts{KVTokens: tokens, Engines: engines}}, zap.NewNop())
	}
	check("at first", 1600, "configuration")
	tell(3200, 1)
	check("told", 3200, "engine")
	tell(3200, 2)
	check("told of two engines that are one upstream", 6400, "engine")
	pl.observedCapacity(u, 800)
	check("seen to evict", 800, "events")
	pl.observedCapacity(u, 64_000)
	check("seen to hold more than it says", 6400, "engine")
	pl.observedCapacity(u, 0)
	tell(1, 1)
	if n := pl.index.Stats(u.slot).Capacity; n != 1 {
		t.Errorf("%d blocks for a token", n)
	}
	tell(1<<48, 1)
	if n := pl.index.Stats(u.slot).Capacity; n <= 1<<29 || n > 1<<30 {
		t.Errorf("%d blocks for very many tokens", n)
	}

	params.ranks = 2
	pl = newPool("", params, time.Now)
	u = pl.lookup("10.0.0.1:80", nil)
	tell(3200, 2)
	u.each(func(rank *upstream) {
		if n := pl.index.Stats(rank.slot).Capacity; n != 200 {
			t.Errorf("rank %d has %d blocks", rank.rank, n)
		}
	})
	params.cacheAuto = false
	pl = newPool("", params, time.Now)
	u = pl.lookup("10.0.0.1:80", nil)
	tell(3200, 1)
	pl.observedCapacity(u, 160)
	if n := pl.index.Stats(u.slot).Capacity; n != 100 {
		t.Errorf("%d blocks where the configuration says so", n)
	}
}

func TestWhatEnginesTellIsLoggedOnce(t *testing.T) {
	pl := newPool("", poolParams{tokenizer: "auto", blockSize: 16, cacheTokens: 1600, maxBuffered: 1}, time.Now)
	u := pl.lookup("10.0.0.1:80", nil)
	core, logs := observer.New(zapcore.WarnLevel)
	for _, size := range []int{16, 1, 528, 528, 16, 32, 32} {
		pl.told(u, &engineFacts{Facts: enginefacts.Facts{BlockSize: size, PrefixCaching: enginefacts.No}}, zap.New(core))
	}
	var got []string
	for _, l := range logs.All() {
		size, _ := l.ContextMap()["engine_block_size"].(int64)
		got = append(got, fmt.Sprint(strings.Contains(l.Message, "set block_size"), size))
	}
	if !slices.Equal(got, []string{"false 0", "true 528", "true 32"}) {
		t.Errorf("logged %v", got)
	}
	p := &enginePoller{pool: pl, up: u}
	by := &Policy{logger: zap.New(core)}
	logs.TakeAll()
	for _, err := range []error{nil, &askError{result: askedStatus, status: 404}, &askError{result: askedStatus, status: 404}, &askError{result: askedTimeout}, nil, nil} {
		p.note(by, "metrics", err)
	}
	if n := logs.Len(); n != 2 {
		t.Errorf("%d warnings for two kinds of trouble", n)
	}
}
