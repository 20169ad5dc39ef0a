// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/json"
	"fmt"
	"testing"

	_ "github.com/kvaware/caddy-kvaware/kvaware/enginesim" // kv_aware_engine
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

// What an engine publishes of a prompt is found under the router's own hashes of the
// prompt's tokens.
func TestWhatAnEnginePublishesIsFoundByThePromptsTokens(t *testing.T) {
	c := proxytest.Start(t, "", `
http:// {
	bind {SITE2}
	kv_aware_engine a {
		model demo
		kv_events {
			endpoint        ipc://{DIR}/pub
			replay_endpoint ipc://{DIR}/replay
		}
	}
}
`+site("{SITE2}", `kv_events {
	endpoint ipc://{DIR}/pub {SITE2}
	replay ipc://{DIR}/replay {SITE2}
}`, ""))
	ids := make([]uint32, 200)
	for i := range ids {
		ids[i] = uint32(1000 + i)
	}
	prompt, err := json.Marshal(ids)
	if err != nil {
		t.Fatal(err)
	}
	res := c.Post("/v1/completions", fmt.Sprintf(`{"model":"demo","max_tokens":1,"prompt":%s}`, prompt))
	if answer := proxytest.ReadAll(t, res); answer == "" {
		t.Fatal("the engine answers nothing")
	}
	wantFollowed(t, c, 12)

	pl := defaultPool(t)
	chains := tokenize.NewChains(pl.keys.Load().chains)
	var chain []uint64
	h := chains.Root("", "")
	for i := 0; i+16 <= len(ids); i += 16 {
		h = chains.Extend(h, ids[i:i+16])
		chain = append(chain, h)
	}
	held := make([]int32, pl.index.Slots())
	pl.reported().Match(16, chain, held)
	if held[pl.all()[0].slot] != 12 {
		t.Errorf("of 12 blocks %v are found", held)
	}
}
