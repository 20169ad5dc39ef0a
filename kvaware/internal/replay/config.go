// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/trace"
)

// Config is one run: a trace on a fleet under a policy.
type Config struct {
	Trace  *trace.Trace
	Fleet  Fleet
	Policy Spec
	Seed   uint64 // of arrivals and of the policy's chance

	// Rate is how many requests come in a second on average; 0 stands for the
	// trace's own times. Load is what it is called in the result.
	Rate float64
	Load float64
	// Clients, if above 0, is how many sessions go on at once, whatever the trace's
	// times: each starts when one has ended.
	Clients int

	Routers Routers
	// Hints has each request tell how long its answer will be, as its MaxTokens.
	Hints bool

	Events []Event
	// BlockSize is that of the engines and of Request.Blocks, in tokens; 0 stands
	// for 64.
	BlockSize int
	// ProgressEvery is after how many tokens of a streamed answer the policy hears
	// of them; 0 stands for a block, at most 64.
	ProgressEvery int
	// WarmUp is the share of the requests, those that arrive first, that are served
	// but not measured; 0 stands for a fifth, negative for none.
	WarmUp float64
	SLO    SLO
	// Points is how many points each replica's time series has at most; 0 for none.
	Points int
	// Records keeps records of measured requests, for pairs: of every RecordEvery-th
	// of the trace, which are the same under every policy; 0 stands for 1.
	Records     bool
	RecordEvery int
	// Progress is called from time to time with the number of requests that have
	// ended; nil if nobody waits.
	Progress func(ended, of int)
}

// SLO is what an answer must keep to be a good one.
type SLO struct {
	TTFT float64 `json:"ttft_ms"` // 0 stands for 2000
	ITL  float64 `json:"itl_ms"`  // mean time between its tokens; 0 stands for 100
}

func (c Config) withDefaults() (Config, error) {
	c.BlockSize = cmp.Or(c.BlockSize, 64)
	c.ProgressEvery = cmp.Or(c.ProgressEvery, min(c.BlockSize, 64))
	c.RecordEvery = max(c.RecordEvery, 1)
	c.Routers = c.Routers.withDefaults()
	c.SLO.TTFT = cmp.Or(c.SLO.TTFT, 2000)
	c.SLO.ITL = cmp.Or(c.SLO.ITL, 100)
	if c.WarmUp == 0 {
		c.WarmUp = 0.2
	}
	c.WarmUp = max(c.WarmUp, 0)
	switch {
	case c.Trace == nil:
		return c, errors.New("no trace")
	case len(c.Fleet.Replicas) == 0:
		return c, errors.New("no replicas")
	case c.Policy.New == nil:
		return c, errors.New("no policy")
	case c.BlockSize < 1 || c.ProgressEvery < 1:
		return c, fmt.Errorf("block size %d, progress every %d tokens: must be at least 1", c.BlockSize, c.ProgressEvery)
	case !(c.Rate >= 0) || math.IsInf(c.Rate, 0):
		return c, fmt.Errorf("rate %v: must be 0 or more requests a second", c.Rate)
	case c.Routers.N < 1 || c.Routers.N > MaxRouters:
		return c, fmt.Errorf("%v: must be from 1 to %d", c.Routers, MaxRouters)
	case !(c.WarmUp < 1):
		return c, fmt.Errorf("warm-up %v: must be below 1", c.WarmUp)
	}
	for i, r := range c.Fleet.Replicas {
		if !sane(r.Speed) {
			return c, fmt.Errorf("replica %d: speed %g: must be from %g to %g", i, r.Speed, 1/mostSpeed, mostSpeed)
		}
	}
	return c, c.validateEvents()
}
