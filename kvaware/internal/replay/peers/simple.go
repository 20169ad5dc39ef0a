// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

type random struct{ base }

func newRandom(s replay.Setting) replay.Policy { return &random{newBase(s)} }

func (p *random) Route(_ time.Duration, _ *replay.Request, up []int) int {
	return up[p.rand.IntN(len(up))]
}

// roundRobin goes through the indexes, so that replicas that leave and join do
// not shift the turn of the others.
type roundRobin struct {
	base
	last int
}

func newRoundRobin(s replay.Setting) replay.Policy { return &roundRobin{newBase(s), -1} }

func (p *roundRobin) Route(_ time.Duration, _ *replay.Request, up []int) int {
	next := up[0]
	for _, i := range up {
		if i > p.last {
			next = i
			break
		}
	}
	p.last = next
	return next
}

type leastConn struct{ base }

func newLeastConn(s replay.Setting) replay.Policy { return &leastConn{newBase(s)} }

func (p *leastConn) Route(_ time.Duration, _ *replay.Request, up []int) int {
	p.fleet(up)
	i := p.fewest(up)
	p.sent(i)
	return i
}

// twoChoices is the power of two choices over requests in flight.
type twoChoices struct{ base }

func newTwoChoices(s replay.Setting) replay.Policy { return &twoChoices{newBase(s)} }

func (p *twoChoices) Route(_ time.Duration, _ *replay.Request, up []int) int {
	p.fleet(up)
	i := up[p.rand.IntN(len(up))]
	if len(up) > 1 {
		k := p.rand.IntN(len(up) - 1)
		if up[k] >= i {
			k++
		}
		// i was drawn first, so that equal loads are at random.
		if p.running[up[k]] < p.running[i] {
			i = up[k]
		}
	}
	p.sent(i)
	return i
}
