// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/route"
)

// rankHeader is how vLLM and SGLang are told which data-parallel rank takes a
// request.
const rankHeader = "X-Data-Parallel-Rank"

// pinnedRank gives the rank that the client asks for, or -1.
func pinnedRank(r *http.Request) int {
	asked := r.Header[rankHeader]
	if len(asked) != 1 {
		return -1
	}
	rank, err := strconv.Atoi(asked[0])
	if err != nil || rank < 0 {
		return -1
	}
	return rank
}

// sendRank tells the engine which of its ranks was chosen. What the client asks
// for stays as it is. The request is the proxy's own clone, whose header may be
// that of an earlier attempt.
func (rt *routing) sendRank(req *http.Request) {
	a := rt.current.Load()
	if a == nil || rt.pinnedRank >= 0 {
		return
	}
	if a.upstream.engine.ranks.Load() == nil {
		if rt.sentRank {
			req.Header.Del(rankHeader)
			rt.sentRank = false
		}
		return
	}
	req.Header.Set(rankHeader, strconv.Itoa(a.upstream.rank))
	rt.sentRank = true
}

// rankSet are the data-parallel ranks of an engine, by number. It does not change.
type rankSet struct {
	upstreams []*upstream
	routed    []*route.Upstream // the same ones to the router
}

func (s *rankSet) add(rank *upstream) {
	s.upstreams = append(s.upstreams, rank)
	s.routed = append(s.routed, rank.routed)
}

// rankVotes is learnt from where blocks turn up that a request was to compute:
// above 0 if at the rank that it was sent to, below if at another.
type rankVotes struct{ balance atomic.Int32 }

// Votes beyond maxRankVotes on one side are not counted, so that an engine that
// was set up anew is known soon; so many more against are needed to believe it.
const (
	maxRankVotes    = 16
	rankVotesNeeded = 4
)

// ignored reports whether the engine places requests as it likes.
func (v *rankVotes) ignored() bool { return v.balance.Load() <= -rankVotesNeeded }

func (v *rankVotes) vote(heeded bool) {
	step := int32(1)
	if !heeded {
		step = -1
	}
	for {
		old := v.balance.Load()
		next := max(-maxRankVotes, min(maxRankVotes, old+step))
		if old == next || v.balance.CompareAndSwap(old, next) {
			return
		}
	}
}

// rankProbe is a block that tells where an engine placed a request: the last one of
// its prompt, which the rank that it is sent to does not hold yet.
type rankProbe struct {
	block uint64 // its hash, 0 for no probe
	size  int    // tokens
}

// watchRank chooses the block by which the attempt is going to tell.
func (a *attempt) watchRank() {
	rt := a.routing
	if rt.pinnedRank >= 0 || len(rt.request.Reported) == 0 || a.upstream.engine.ranks.Load() == nil {
		return
	}
	r := &rt.request.Reported[0]
	if len(r.Chains) != 1 || a.placement.CachedTokens >= len(r.Chains[0])*r.BlockSize-1 {
		return
	}
	a.probe = rankProbe{r.Chains[0][len(r.Chains[0])-1], r.BlockSize}
}

// voteRank looks where the block has turned up, now that the request was served.
func (a *attempt) voteRank() {
	ranks, reports := a.upstream.engine.ranks.Load(), a.routing.policy.pool.reported()
	if a.probe.block == 0 || ranks == nil || reports == nil {
		return
	}
	held := make([]int32, a.routing.policy.pool.index.Slots())
	reports.Match(a.probe.size, []uint64{a.probe.block}, held)
	holds := func(u *upstream) bool { return int(u.slot) < len(held) && held[u.slot] > 0 }
	if holds(a.upstream) {
		a.upstream.engine.heeds.vote(true)
		return
	}
	for _, rank := range ranks.upstreams {
		if holds(rank) {
			a.upstream.engine.heeds.vote(false)
			return
		}
	}
}
