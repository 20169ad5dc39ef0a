// SPDX-License-Identifier: Apache-2.0

package route

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"
)

// Reports tell what engines say that they hold.
type Reports interface {
	// Match raises dst[slot] to the leading blocks of the chain that the upstream of
	// that slot is to be credited with, where its blocks are of that many tokens.
	// Slots beyond dst's end are left out.
	Match(blockSize int, chain []uint64, dst []int32)
}

// ReportedChains are a request's chains in blocks of one size, for Reports.
type ReportedChains struct {
	BlockSize int        // tokens
	Chains    [][]uint64 // as Request.Chains
}

// reported is what engines say of a request's prompts, in blocks of the request's
// size: rows of one number by slot, one row for each prompt.
type reported struct {
	rows    []int32
	stride  int
	prompts int
	other   []int32 // by slot: a match in blocks of another size
}

// ask looks up what engines say that they hold. It goes on outside of the ledger's
// lock: events come when they come, and what is charged in between is known to the
// predicted index.
func (r *Router) ask(c *Choice, q *Request) {
	s := &c.said
	s.prompts = 0
	if q.Reports == nil || !q.Reuses {
		return
	}
	slots := r.Index.Slots()
	s.stride = slots + slots/2
	if n := s.stride * len(q.Chains); cap(s.rows) < n {
		s.rows = make([]int32, n)
	}
	s.prompts = len(q.Chains)
	for prompt := range q.Chains {
		row := s.rows[:cap(s.rows)][prompt*s.stride : (prompt+1)*s.stride]
		clear(row)
		for i := range q.Reported {
			s.match(q, &q.Reported[i], prompt, row)
		}
	}
}

func (s *reported) match(q *Request, r *ReportedChains, prompt int, row []int32) {
	if prompt >= len(r.Chains) || len(r.Chains[prompt]) == 0 {
		return
	}
	if r.BlockSize == q.BlockSize {
		q.Reports.Match(r.BlockSize, r.Chains[prompt], row)
		return
	}
	if cap(s.other) < s.stride {
		s.other = make([]int32, s.stride)
	}
	other := s.other[:s.stride]
	clear(other)
	q.Reports.Match(r.BlockSize, r.Chains[prompt], other)
	for slot, blocks := range other {
		row[slot] = max(row[slot], int32(int(blocks)*r.BlockSize/q.BlockSize))
	}
}

// raise takes in what is said of a prompt: the better of it and what is predicted
// counts, the former as far as the engine was seen to find what it reports.
func (s *reported) raise(prompt int, candidates []Candidate, held []int32) {
	if prompt >= s.prompts {
		return
	}
	for i := range candidates {
		cand := &candidates[i]
		if blocks := s.of(prompt, cand.Slot); blocks > held[cand.Slot] {
			held[cand.Slot] = max(held[cand.Slot], int32(math.Round(float64(blocks)*cand.found.load())))
		}
	}
}

// of gives the blocks of a prompt that an upstream says that it holds.
func (s *reported) of(prompt int, slot prefix.Holder) int32 {
	if prompt >= s.prompts || int(slot) >= s.stride {
		return 0
	}
	return s.rows[:cap(s.rows)][prompt*s.stride+int(slot)]
}

// reportShare is what part an upstream finds in its cache of what its events say
// that it holds. Models of several kinds of layers find less: a hit needs the
// blocks of all of them, and events tell of those with full attention.
type reportShare struct {
	mu        sync.Mutex // guards the sums
	said, met float64    // tokens, older ones fading
	share     atomic.Uint64
}

const (
	// keepOfShare is what is left of older answers after each new one.
	keepOfShare = 1 - 1./50
	// mostOfAnswer bounds the tokens by which one answer counts.
	mostOfAnswer = 4096
	// trusted is how many tokens were found of as many, before anything was seen.
	trusted = 16 * mostOfAnswer
	// wholeShare is the share from which all counts: less is missing now and then of
	// any engine, which evicts while a request is on its way.
	wholeShare = 0.9
)

// load gives the share, from 0 to 1.
func (r *reportShare) load() float64 {
	if bits := r.share.Load(); bits != 0 {
		return math.Float64frombits(bits)
	}
	return 1
}

func (r *reportShare) learn(said, met int) {
	if said <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.said == 0 {
		r.said, r.met = trusted, trusted
	}
	weight := float64(min(said, mostOfAnswer))
	r.said = r.said*keepOfShare + weight
	r.met = r.met*keepOfShare + weight*float64(max(0, min(said, met)))/float64(said)
	share := max(1e-9, r.met/r.said)
	if share > wholeShare {
		share = 1
	}
	r.share.Store(math.Float64bits(share))
}

// FoundShare returns what part the upstream finds of what its events say that it
// holds, from 0 to 1.
func (u *Upstream) FoundShare() float64 { return u.found.load() }

// SaidCached returns how many of the prompt's tokens the engine's own events said
// that it holds, if that is more than was predicted; else 0.
func (p *Placement) SaidCached() int { return p.said }

// FoundCached takes in how many tokens such an engine found: where that is less
// than its events say, they count for less from now on.
func (p *Placement) FoundCached(tokens int) { p.upstream.found.learn(p.said, tokens) }
