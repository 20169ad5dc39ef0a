// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/route"
)

// The objectives.
const (
	objectiveTokenLoad = "token_load"
	objectiveLatency   = "latency"
)

var objectives = []string{objectiveTokenLoad, objectiveLatency}

const maxSequences = 1_000_000

// Weights are the weights of the token load
//
//	load = prefill · (waiting uncached tokens + uncached tokens of the request)
//	     + decode · (KV tokens of running decodes) + request · (running sequences)
//
// each from 0 to 1,000,000.
type Weights struct {
	// Weight of an uncached prompt token. Default: 1.
	Prefill *float64 `json:"prefill,omitempty"`
	// Weight of a KV token held by a running decode. Default: 1.
	Decode *float64 `json:"decode,omitempty"`
	// Weight of a running sequence, in tokens. Default: 0.
	Request *float64 `json:"request,omitempty"`
}

// resolveObjective fills in what the choice goes by.
func (p *Policy) resolveObjective() {
	if p.Objective == "" {
		p.Objective = objectiveLatency
		if p.Weights != (Weights{}) {
			p.Objective = objectiveTokenLoad // it alone has weights
		}
	}
	p.objective = route.Objective{
		Latency: p.Objective == objectiveLatency,
		Weights: choose.Weights{
			Prefill: valueOr(p.Weights.Prefill, 1),
			Decode:  valueOr(p.Weights.Decode, 1),
			Request: valueOr(p.Weights.Request, 0),
		},
	}
}

func (p *Policy) checkObjective() error {
	if p.MaxSequences < 0 || p.MaxSequences > maxSequences {
		return fmt.Errorf("max_sequences %d: expecting 1 to %d, or nothing where it is unknown", p.MaxSequences, maxSequences)
	}
	if !slices.Contains(objectives, p.Objective) {
		return fmt.Errorf("objective %q: expecting %s", p.Objective, strings.Join(objectives, " or "))
	}
	if p.objective.Latency && p.Weights != (Weights{}) {
		return fmt.Errorf("weights: they are those of objective %s: leave them out with objective %s, which has none", objectiveTokenLoad, objectiveLatency)
	}
	weights := p.objective.Weights
	for name, w := range map[string]float64{"prefill": weights.Prefill, "decode": weights.Decode, "request": weights.Request} {
		if !(w >= 0 && w <= maxWeight) {
			return fmt.Errorf("weights: %s %v: expecting a number from 0 to %d", name, w, maxWeight)
		}
	}
	if weights == (choose.Weights{}) {
		return fmt.Errorf("weights: all are 0, so every upstream would weigh the same: give at least one of prefill, decode and request")
	}
	return nil
}

// keysNow are the keys for the hashes of a request. Apps start in no particular
// order: a request that comes before ours has started gets the keys that the
// pool has until then.
func (p *Policy) keysNow() *hashKeys {
	if k := p.keys.Load(); k != nil {
		return k
	}
	return p.pool.keys.Load()
}
