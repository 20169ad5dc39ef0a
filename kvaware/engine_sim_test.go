// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"strings"
	"testing"

	_ "github.com/kvaware/caddy-kvaware/kvaware/enginesim" // engines to learn from
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestAFleetOfSimulatedEnginesIsLearnt(t *testing.T) {
	const sim = `http:// {
	bind {SITE%d}
	kv_aware_engine %s {
		model %s
		adapters %s
		speed 1000
		kv_tokens %d
	}
}
`
	// Three sockets are there: the proxy's and two engines'.
	fleet := fmt.Sprintf(sim, 2, "a", "alpha", "poet", 32_000) + fmt.Sprintf(sim, 3, "b", "beta", "sql", 64_000)
	c := proxytest.Start(t, "", site("{SITE2} {SITE3}", learning, "")+fleet)
	pl := defaultPool(t)
	listed(t, 2)
	var a, b *upstream
	for _, u := range pl.all() {
		switch {
		case strings.Contains(u.address, "site2."):
			a = u
		case strings.Contains(u.address, "site3."):
			b = u
		}
	}
	eventually(t, "the capacities are known", func() bool {
		by := upstreamsOf(t, c)
		return by[a.address].CacheTokens == 32_000 && by[b.address].CacheTokens == 64_000
	})
	if !pl.isAdapter("poet") || !pl.isAdapter("sql") || pl.isAdapter("alpha") {
		t.Error("the adapters are not known")
	}
	for model, want := range map[string]*upstream{"alpha": a, "poet": a, "beta": b, "sql": b} {
		if by := took(t, c, 4, func(i int) string { return chatFor(model, fmt.Sprint(i, prose("sim", 40))) }); by[want.address] != 4 {
			t.Errorf("%s: %v", model, by)
		}
	}
	proxytest.ReadAll(t, c.Post("/sleep", "")) // one of them
	asleep := a
	if !upstreamsOf(t, c)[a.address].Asleep {
		asleep = b
	}
	if pl.index.Stats(asleep.slot).Blocks != 0 {
		t.Error("it sleeps and is believed to hold something")
	}
	eventually(t, "its metric confirms that it sleeps", func() bool {
		f := asleep.facts.Load()
		return f != nil && upstreamsOf(t, c)[asleep.address].Asleep && asleep.asleepUntil.Load() > pl.now().Add(2*unconfirmedSleep).UnixNano()
	})
	proxytest.ReadAll(t, c.Post("/wake_up", ""))
	eventually(t, "it is awake", func() bool { return !upstreamsOf(t, c)[asleep.address].Asleep })
	wantIdle(t)
}
