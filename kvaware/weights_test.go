// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// Symptom: with a weight of 1e308 loads were infinite, the admin API answered
// 500, and X-KV-Aware-Load was negative.
func TestAWeightThatMakesLoadsInfiniteIsRefused(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	for _, weight := range []string{"prefill 1e308", "decode 1e7", "request 1000001"} {
		err := c.TryReload("", site(engine.Addr(), "weights {\n"+weight+"\n}", ""))
		if err == nil || !strings.Contains(err.Error(), strings.Fields(weight)[0]) {
			t.Errorf("%s: %v", weight, err)
		}
	}
	c.Reload("", site(engine.Addr(), "weights {\nprefill 1e6\ndecode 1e6\n}", ""))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("heavy", 1000), true)))
	wantIdle(t)
}
