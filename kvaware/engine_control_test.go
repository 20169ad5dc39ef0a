// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestARequestThatEmptiesAnEngineWithdrawsWhatItHeld(t *testing.T) {
	a, b := newTelling(t), newTelling(t)
	c := proxytest.Start(t, "", site(addrs(a.Engine, b.Engine), "", ""))
	pl := defaultPool(t)
	both := map[string]*upstream{a.Addr(): pl.lookup(a.Addr(), nil), b.Addr(): pl.lookup(b.Addr(), nil)}
	for _, tt := range []struct {
		method, path string
		status       int
		withdraws    bool
	}{
		{"POST", "/reset_prefix_cache", 200, true},
		{"POST", "/reset_prefix_cache?reset_running_requests=true", 200, true},
		{"POST", "/behind/a/prefix/reset_prefix_cache", 204, true},
		{"POST", "/reset_prefix_cache", 404, false},
		{"POST", "/reset_prefix_cache", 503, false},
		{"PUT", "/reset_prefix_cache", 200, false},
		{"GET", "/flush_cache", 200, true},
		{"POST", "/flush_cache", 200, true},
		{"POST", "/flush_cache", 400, false}, // requests were running
		{"POST", "/pause", 200, true},
		{"POST", "/pause?mode=keep", 200, false},
		{"POST", "/pause?clear_cache=False", 200, false},
		{"POST", "/resume", 200, false},
		{"POST", "/collective_rpc", 200, true},
		{"POST", "/update_weights", 200, true},
		{"POST", "/finish_weight_update", 200, true},
		{"POST", "/update_weights_from_disk", 200, true},
		{"POST", "/update_weights_from_tensor", 200, true},
		{"POST", "/update_weights_from_distributed", 200, true},
		{"POST", "/update_weights_from_ipc", 200, true},
		{"POST", "/end_weight_update", 200, true},
		{"POST", "/begin_weight_update", 200, false},
		{"POST", "/init_weights_update_group", 200, false},
		{"POST", "/pd_role_switch", 200, true},
		{"POST", "/reset_mm_cache", 200, false},
		{"POST", "/load_lora_adapter", 200, false},
		{"GET", "/is_sleeping", 200, false},
	} {
		path, _, _ := strings.Cut(tt.path, "?")
		for _, e := range []*telling{a, b} {
			e.page(path, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(tt.status) })
		}
		for _, u := range both {
			held := pl.index.Pin(u.slot, 1, []uint64{1, 2, 3})
			pl.index.Done(&held)
		}
		var told [2]withdrawals
		removeA, removeB := both[a.Addr()].onInvalidate(told[0].add), both[b.Addr()].onInvalidate(told[1].add)
		req, err := http.NewRequest(tt.method, "http://site"+tt.path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Client("site").Do(req)
		if err != nil {
			t.Fatal(err)
		}
		proxytest.ReadAll(t, res)
		answered := res.Header.Get("X-KV-Aware-Upstream")
		for i, e := range []*telling{a, b} {
			gone := pl.index.Stats(both[e.Addr()].slot).Blocks == 0
			if want := tt.withdraws && e.Addr() == answered; gone != want || len(told[i].all()) > 0 != want {
				t.Errorf("%s %s answered by %s with %d: blocks of %s are gone: %v, told %v", tt.method, tt.path, answered, tt.status, e.Addr(), gone, told[i].all())
			}
		}
		removeA()
		removeB()
	}
}

func TestAnEnginePutToSleepIsLeftOutUntilItIsWokenUp(t *testing.T) {
	for _, tt := range []struct{ sleep, wake string }{
		{"/sleep", "/wake_up"}, {"/sleep?level=2", "/wake_up?tags=weights&tags=kv_cache"},
		{"/sleep?level=0", "/wake_up"}, {"/release_kv_cache_memory", "/wake_up"},
		{"/release_memory_occupation", "/resume_memory_occupation"},
	} {
		a, b := newTelling(t), newTelling(t)
		for _, e := range []*telling{a, b} {
			for _, path := range []string{"/sleep", "/wake_up", "/release_kv_cache_memory", "/release_memory_occupation", "/resume_memory_occupation"} {
				e.says(path, "{}")
			}
		}
		c := proxytest.Start(t, "", site(addrs(a.Engine, b.Engine), "", ""))
		at := func(path string) string {
			res := c.Post(path, "{}")
			proxytest.ReadAll(t, res)
			return res.Header.Get("X-KV-Aware-Upstream")
		}
		sleeper := at(tt.sleep)
		if got := upstreamsOf(t, c); !got[sleeper].Asleep {
			t.Fatalf("%s: %s does not sleep", tt.sleep, sleeper)
		}
		if by := took(t, c, 5, func(i int) string { return chat(fmt.Sprint(i, prose("n", 30)), true) }); by[sleeper] != 0 {
			t.Errorf("%s: it still takes requests: %v", tt.sleep, by)
		}
		if woken := at("/wake_up?tags=weights"); !upstreamsOf(t, c)[sleeper].Asleep {
			t.Errorf("weights alone woke %s up", woken)
		}
		if woken := at(tt.wake); woken != sleeper || upstreamsOf(t, c)[sleeper].Asleep {
			t.Errorf("%s reached %s, while %s sleeps", tt.wake, woken, sleeper)
		}
		c.Stop()
	}
}

func TestAWakeUpInPartsReachesTheEngineThatSleeps(t *testing.T) {
	a, b := newTelling(t), newTelling(t)
	for _, e := range []*telling{a, b} {
		e.says("/sleep", "{}")
		e.says("/wake_up", "{}")
	}
	c := proxytest.Start(t, "", site(addrs(a.Engine, b.Engine), "", ""))
	for range 5 {
		var at []string
		for _, path := range []string{"/sleep", "/wake_up?tags=weights", "/wake_up?tags=kv_cache"} {
			res := c.Post(path, "{}")
			proxytest.ReadAll(t, res)
			at = append(at, res.Header.Get("X-KV-Aware-Upstream"))
		}
		if at[1] != at[0] || at[2] != at[0] {
			t.Errorf("slept at %s, woken up at %s and %s", at[0], at[1], at[2])
		}
	}
}

func TestAnEngineThatGeneratesIsAwake(t *testing.T) {
	e := newTelling(t)
	e.says("/sleep", "{}")
	c := proxytest.Start(t, "", site(e.Addr(), "", ""))
	proxytest.ReadAll(t, c.Post("/sleep", ""))
	if !upstreamsOf(t, c)[e.Addr()].Asleep {
		t.Fatal("it does not sleep")
	}
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("all sleep, so one of them", true)))
	if upstreamsOf(t, c)[e.Addr()].Asleep {
		t.Error("it answered and is taken to sleep")
	}
}

func TestWhatTheEngineSaysOfItsSleepCountsAfterWhatItWasTold(t *testing.T) {
	e := newTelling(t)
	e.says("/sleep", "{}")
	e.metrics(32_000)
	e.says("/is_sleeping", `{"is_sleeping":true}`)
	c := proxytest.Start(t, "", site(e.Addr(), learning, ""))
	proxytest.ReadAll(t, c.Post("/sleep", ""))
	u := defaultPool(t).lookup(e.Addr(), nil)
	eventually(t, "an engine without the metric confirms it otherwise", func() bool {
		return u.asleep(time.Now().Add(2 * unconfirmedSleep).UnixNano())
	})
	e.says("/is_sleeping", `{"is_sleeping":false}`)
	eventually(t, "it says that it is awake", func() bool { return !upstreamsOf(t, c)[e.Addr()].Asleep })
	before := e.asked("/is_sleeping")
	e.learns(t)
	if n := e.asked("/is_sleeping") - before; n != 0 {
		t.Errorf("asked %d times more", n)
	}
	e.metrics(32_000, `vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1.0`)
	e.learns(t)
	proxytest.ReadAll(t, c.Post("/sleep", ""))
	eventually(t, "the metric says that it is awake", func() bool { return !upstreamsOf(t, c)[e.Addr()].Asleep })
}

func TestAdaptersThatAreLoadedAreKnownAtOnce(t *testing.T) {
	e := newTelling(t)
	e.metrics(32_000)
	e.models("base")
	e.page("/v1/load_lora_adapter", func(w http.ResponseWriter, _ *http.Request) { e.models("base", "new*") })
	c := proxytest.Start(t, "", site(e.Addr(), "engine {\n\t\t\t\tscrape 1h\n\t\t\t}", ""))
	listed(t, 1)
	pl := defaultPool(t)
	if pl.isAdapter("new") {
		t.Fatal("it is known before it is loaded")
	}
	proxytest.ReadAll(t, c.Post("/v1/load_lora_adapter", `{"lora_name":"new"}`))
	eventually(t, "it is known", func() bool { return pl.isAdapter("new") })
}

func TestControlsOfEnginesAreTold(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(controls)) {
		for _, path := range []string{"/" + name, "/p/" + name} {
			if c := controlOf(httptest.NewRequest("POST", "http://x"+path, nil)); c == nil || *c != controls[name] {
				t.Errorf("%s is not told", path)
			}
		}
		for _, path := range []string{"/" + name + "/x", "/x" + name} {
			if controlOf(httptest.NewRequest("POST", "http://x"+path, nil)) != nil {
				t.Errorf("%s is taken for %s", path, name)
			}
		}
		if controlOf(httptest.NewRequest("DELETE", "http://x/"+name, nil)) != nil {
			t.Errorf("DELETE of %s is taken for it", name)
		}
	}
}
