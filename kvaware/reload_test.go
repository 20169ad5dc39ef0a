// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestAReloadWithAStreamOpenKeepsIndexAndLoadAndCutsNothing(t *testing.T) {
	gate := make(chan struct{})
	engine := proxytest.NewEngine(t, gated(gate))
	other := proxytest.NewEngine(t, nil)
	conf := site(engine.Addr(), "", "")
	c := proxytest.Start(t, "", conf)
	prompt := prose("stays", 500)
	res, err := start(t, c, context.Background(), prompt)
	if err != nil {
		t.Fatal(err)
	}
	body := bufio.NewReader(res.Body)
	if _, err := body.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first token is counted", func() bool { return loads(t).DecodeTokens > 0 })
	before := loads(t)
	pl := defaultPool(t)

	c.Reload("", site(addrs(engine, other), "", ""))
	if got := defaultPool(t); got != pl {
		t.Fatal("the reload made a new pool")
	}
	if s := loads(t); s.DecodeTokens != before.DecodeTokens || s.Running != 1 {
		t.Errorf("the reload changed the load from %+v to %+v", before, s)
	}
	c.Reload("", conf)

	// New requests see the stream of the old configuration and its prefix.
	status, _, answer := c.Admin("POST", "/kv_aware/explain", chat(prompt, true))
	known := regexp.MustCompile(`"address":"` + regexp.QuoteMeta(engine.Addr()) + `","chosen":\w+,"cached_tokens":[1-9]\d*,.*?"decode_tokens":[1-9]`)
	if status != 200 || !known.MatchString(answer) {
		t.Errorf("explain: %d %s", status, answer)
	}
	u := pl.lookup(engine.Addr(), nil)
	if n := pl.index.Stats(u.slot).Pinned; n < 50 {
		t.Errorf("%d blocks of the running prompt are left after the reload", n)
	}
	close(gate)
	rest, err := io.ReadAll(body)
	if err != nil || !strings.Contains(string(rest), "[DONE]") {
		t.Errorf("the stream ended with %v after %q", err, rest)
	}
	wantIdle(t)
}

func TestAPoolOutlivesItsConfigurationUntilTheLastStreamEnds(t *testing.T) {
	gate := make(chan struct{})
	engine := proxytest.NewEngine(t, gated(gate))
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	res, err := start(t, c, context.Background(), prose("outlives", 100))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stream runs", func() bool { return loads(t).Live == 1 })
	pl := defaultPool(t)

	c.Reload("", "http://site {\n\tbind {SITE}\n\trespond nothing\n}")
	if s := pl.ledger.Snapshot(pl.all()[0].load); s.Live != 1 {
		t.Fatalf("the stream's charge is gone: %+v", s)
	}
	c.Reload("", site(engine.Addr(), "", ""))
	if defaultPool(t) != pl {
		t.Error("the pool was lost although a stream still held it")
	}
	c.Reload("", "http://site {\n\tbind {SITE}\n\trespond nothing\n}")
	close(gate)
	if rest := proxytest.ReadAll(t, res); !strings.Contains(rest, "[DONE]") {
		t.Errorf("the stream ended with %q", rest)
	}
	eventually(t, "the last stream gave the pool back", func() bool {
		_, there := pools.References("")
		return !there
	})
}

func TestAConfigurationThatFailsTakesNothingFromTheRunningOne(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	conf := site(engine.Addr(), "", "")
	c := proxytest.Start(t, "", conf)
	prompt := chat(prose("kept", 200), true)
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", prompt))
	wantIdle(t)
	pl := defaultPool(t)
	refs, _ := pools.References("")
	blocks := pl.index.Stats(pl.all()[0].slot).Blocks

	for name, bad := range map[string]string{
		"a policy that fails before the pool is taken": site(engine.Addr(), "cache_tokens 8", ""),
		"an encoding that is not known":                site(engine.Addr(), "tokenizer tiktoken nothing", ""),
		"a handler that fails after the policy":        site(engine.Addr(), "", "trusted_proxies not-an-address"),
		"two pools' values that contradict": site(engine.Addr(), "cache_tokens 1000", "") +
			strings.Replace(site(engine.Addr(), "cache_tokens 2000", ""), "{SITE}", "{SITE2}", 1),
	} {
		if err := c.TryReload("", bad); err == nil {
			t.Errorf("%s: the configuration was taken", name)
		}
		if n, ok := pools.References(""); !ok || n != refs {
			t.Errorf("%s: the pool had %d references and has %d", name, refs, n)
		}
		if n := pl.index.Stats(pl.all()[0].slot).Blocks; n != blocks {
			t.Errorf("%s: the index held %d blocks and holds %d", name, blocks, n)
		}
	}
	res := c.Post("/v1/chat/completions", prompt)
	proxytest.ReadAll(t, res)
	if res.Header.Get("X-KV-Aware-Cached-Tokens") == "0" {
		t.Error("what was cached is forgotten")
	}
	wantIdle(t)
}

func TestContradictingValuesOfAPoolAreRefusedWithBothNamed(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1", "", ""))
	err := c.TryReload("", site("127.0.0.1:1", "cache_tokens 1000", "")+
		strings.Replace(site("127.0.0.1:2", "cache_tokens 2000", ""), "{SITE}", "{SITE2}", 1))
	if err == nil {
		t.Fatal("two values of cache_tokens in one pool were taken")
	}
	for _, want := range []string{"cache_tokens", "1000", "2000", "127.0.0.1:1", "127.0.0.1:2", "pool"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %q: %v", want, err)
		}
	}
}

func TestHandlersThatNameOnePoolShareWhatIsKnown(t *testing.T) {
	a, b := proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil)
	one := site(addrs(a, b), "pool shared", "")
	two := strings.Replace(site(addrs(b, a), "pool shared\n\t\t\tmax_body 1MiB\n\t\t\tweights {\n\t\t\t\tdecode 2\n\t\t\t}", ""), "{SITE}", "{SITE2}", 1)
	apart := strings.Replace(site(addrs(b, a), "pool apart", ""), "{SITE}", "{SITE3}", 1)
	two = strings.Replace(two, "http://site", "http://site2", 1)
	apart = strings.Replace(apart, "http://site", "http://site3", 1)
	c := proxytest.Start(t, "", one+"\n"+two+"\n"+apart)
	body := chat(prose("shared", 200), true)
	post := func(site string) *http.Response {
		res, err := c.Client(site).Post("http://"+site+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		proxytest.ReadAll(t, res)
		return res
	}
	first := post("site")
	second := post("site2")
	if first.Header.Get("X-KV-Aware-Upstream") != second.Header.Get("X-KV-Aware-Upstream") || second.Header.Get("X-KV-Aware-Cached-Tokens") == "0" {
		t.Errorf("the second handler does not know what the first one did: %v, %v", first.Header, second.Header)
	}
	if third := post("site3"); third.Header.Get("X-KV-Aware-Cached-Tokens") != "0" {
		t.Errorf("a pool of another name knows what it should not: %v", third.Header)
	}
}

func TestDynamicUpstreamsLeaveAfterAnHourUnseenAndListedOnesStay(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	_, port, _ := strings.Cut(engine.Addr(), ":")
	c := proxytest.Start(t, "", fmt.Sprintf(`http://site {
	bind {SITE}
	reverse_proxy {
		dynamic multi {
			a localhost %s
		}
		lb_policy kv_aware
		lb_retries 3
	}
}
http://site2 {
	bind {SITE2}
	reverse_proxy 127.0.0.9:9 {
		lb_policy kv_aware
	}
}`, port))
	if res := c.Post("/v1/chat/completions", chat(prose("dyn", 100), true)); res.StatusCode != 200 {
		t.Fatalf("got %d", res.StatusCode)
	} else {
		proxytest.ReadAll(t, res)
	}
	wantIdle(t)
	pl := defaultPool(t)
	count := len(pl.all())
	if count < 2 {
		t.Fatalf("%d upstreams are known, want the dynamic and the listed one", count)
	}
	pl.expire()
	if n := len(pl.all()); n != count {
		t.Fatalf("%d of %d upstreams are left at once", n, count)
	}
	for _, u := range pl.all() {
		u.lastSeen.Store(pl.now().Add(-upstreamExpiry - 1).UnixNano())
	}
	pl.expire()
	left := pl.all()
	if len(left) != 1 || left[0].address != "127.0.0.9:9" {
		t.Errorf("after an hour %d upstreams are left", len(left))
	}
	// The same upstream is welcome again.
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("dyn", 100), true)))
	wantIdle(t)
}
