// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay/ours"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay/peers"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/trace"
)

// Whatever happens to the fleet, every policy has every request answered, and does
// the same again for the same seed.
func TestEveryPolicyServesEverythingTwiceAlike(t *testing.T) {
	fleet, err := replay.ParseFleet("3xh100,h100@0.4")
	if err != nil {
		t.Fatal(err)
	}
	events := []replay.Event{
		{Kind: replay.Slow, Replica: 0, After: 0.2, Factor: 3},
		{Kind: replay.Restart, Replica: 1, After: 0.4, Down: 3 * time.Second},
		{Kind: replay.Leave, Replica: 2, After: 0.6},
		{Kind: replay.Update, After: 0.7},
		{Kind: replay.Join, Replica: 2, After: 0.8},
	}
	for name, rate := range map[string]float64{"chat": 12, "rl:output=300": 20, "whole": 12} {
		tr, err := trace.Generate(name, 300)
		if err != nil {
			t.Fatal(err)
		}
		var configs []replay.Config
		for _, p := range append(peers.All(), ours.All()...) {
			c := replay.Config{Trace: tr, Fleet: fleet, Policy: p, Rate: rate, Seed: 2, Events: events, WarmUp: -1}
			configs = append(configs, c, c)
		}
		var results []*replay.Result
		for _, c := range configs {
			r, err := replay.Run(context.Background(), c)
			if err != nil {
				t.Fatal(err)
			}
			results = append(results, r)
		}
		for i := 0; i < len(results); i += 2 {
			a, b := results[i], results[i+1]
			if a.Requests != 300 || a.Rejected != 0 || a.Retries == 0 {
				t.Errorf("%s: %s answered %d of 300, rejected %d, tried %d anew", name, a.Policy, a.Requests, a.Rejected, a.Retries)
			}
			x, _ := json.Marshal(a)
			y, _ := json.Marshal(b)
			if !bytes.Equal(x, y) {
				t.Errorf("%s: %s does not do the same twice", name, a.Policy)
			}
		}
	}
}
