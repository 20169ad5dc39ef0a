// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"net/http"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestTheLatencyFollowsAPrefixAndIsExplainedInSeconds(t *testing.T) {
	engines := []*proxytest.Engine{proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil)}
	c := proxytest.Start(t, "", site(addrs(engines...), "objective latency", ""))
	home := c.Post("/v1/chat/completions", chat(prose("a", 2000), true))
	proxytest.ReadAll(t, home)
	wantIdle(t)

	body := chat(prose("a", 2000)+prose("b", 50), true)
	var e explanation
	ask(t, c, "POST", "/kv_aware/explain", body, 200, &e)
	if e.Objective != "latency" || len(e.Upstreams) != 3 || e.Tied != 1 {
		t.Fatalf("explained as %+v", e)
	}
	for i, u := range e.Upstreams {
		if u.Own == nil || u.Queue == nil || u.Wait == nil || u.Delay == nil || u.Memory == nil || u.Eviction == nil || u.Step == nil || u.KVUse == nil {
			t.Fatalf("terms are missing: %+v", u)
		}
		terms := choose.Terms{Own: *u.Own, Queue: *u.Queue, Wait: *u.Wait, Delay: *u.Delay, Memory: *u.Memory, Eviction: *u.Eviction, Step: *u.Step, KVUse: *u.KVUse, Sequences: float64(u.Sequences) + 1}
		if got := choose.Latency(&terms); got != u.Cost || u.FailurePenalty != 0 {
			t.Errorf("cost %v with a penalty of %v, its terms make %v", u.Cost, u.FailurePenalty, got)
		}
		if *u.Own <= 0 || *u.Step <= 0 || *u.KVUse <= 0 || i > 0 && *u.Own <= *e.Upstreams[0].Own {
			t.Errorf("terms %+v", terms)
		}
	}
	res := c.Post("/v1/chat/completions", body)
	proxytest.ReadAll(t, res)
	if got, want := res.Header.Get("X-KV-Aware-Upstream"), home.Header.Get("X-KV-Aware-Upstream"); got != want || e.Upstreams[0].Address != want {
		t.Errorf("the prefix is at %s, explained was %s, chosen %s", want, e.Upstreams[0].Address, got)
	}
	wantIdle(t)
}

func TestTheTokenLoadIsExplainedWithoutSeconds(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1 127.0.0.1:2", "objective token_load", ""))
	_, _, text := c.Admin("POST", "/kv_aware/explain", chat("hello", false))
	if !strings.Contains(text, `"objective":"token_load"`) || strings.Contains(text, "_seconds") || strings.Contains(text, "kv_use") {
		t.Errorf("explained as %s", text)
	}
}

func TestIdleUpstreamsTieByLatency(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1 127.0.0.1:2 127.0.0.1:3", "objective latency", ""))
	var e explanation
	ask(t, c, "POST", "/kv_aware/explain", chat("hello", false), 200, &e)
	if e.Tied != 3 {
		t.Errorf("three idle upstreams are told as %+v", e)
	}
}

func TestAFailingUpstreamIsLeftAloneByLatency(t *testing.T) {
	broken := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	sound := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(addrs(broken, sound), "objective latency", ""))
	for range 40 {
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("x", 100), true)))
	}
	if n := len(broken.Requests()); n > 8 {
		t.Errorf("%d of 40 requests went to the upstream that fails", n)
	}
	wantIdle(t)
}

func TestObjectivesThatCannotBeAreRefused(t *testing.T) {
	one := 1.0
	for want, p := range map[string]*Policy{
		`objective "fastest"`:                      {Objective: "fastest"},
		"leave them out with objective latency":    {Objective: "latency", Weights: Weights{Prefill: &one}},
		"max_sequences -1":                         {MaxSequences: -1},
		"weights: they are those of objective tok": {Objective: "latency", Weights: Weights{Request: new(float64)}},
	} {
		if err := p.resolveOptions(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for _, p := range []*Policy{{}, {Objective: "token_load", Weights: Weights{Prefill: &one}}, {Objective: "latency"}} {
		if err := p.resolveOptions(); err != nil {
			t.Errorf("objective %q: %v", p.Objective, err)
		}
	}
}
