// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// lmetric multiplies what a replica would have to prefill by its batch:
//
//	cost = (queued + uncached prompt) · (requests there + 1)
//
// in tokens. Equal costs go to fewer requests, then at random.
//
// Source: Zhang et al., LMetric: Simple is Better, arXiv 2603.15202: new prefill
// tokens if routed to an instance, times the instance's batch size. The request
// itself counts as one of the batch, as in
// sglang:sgl-model-gateway/src/policies/lmetric.rs: else every idle replica costs
// nothing, whatever it holds. The paper's indicators are exact; here the cache is
// known through KV events and the rest from the router's own requests.
type lmetric struct {
	queue
	listener
}

// StreamsAll says that the indicators are exact whatever the client asked for.
func (p *lmetric) StreamsAll() {}

func newLMetric(s replay.Setting) replay.Policy {
	return &lmetric{queue: newQueue(s), listener: newListener()}
}

func (p *lmetric) Route(_ time.Duration, r *replay.Request, up []int) int {
	p.fleet(up)
	p.index.fleet(up[len(up)-1])
	cached := p.index.match(r.Blocks)
	uncached := func(i int) int { return max(r.Prompt-cached[i]*p.block, 0) }
	cost := func(i int) int { return (p.queued[i] + uncached(i)) * (p.running[i] + 1) }
	best, ties := up[0], 1
	for _, i := range up[1:] {
		switch c, least := cost(i), cost(best); {
		case c < least, c == least && p.running[i] < p.running[best]:
			best, ties = i, 1
		case c == least && p.running[i] == p.running[best]:
			if ties++; p.rand.IntN(ties) == 0 {
				best = i
			}
		}
	}
	p.enqueue(r, best, uncached(best))
	return best
}
