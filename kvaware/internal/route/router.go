// SPDX-License-Identifier: Apache-2.0

package route

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/output"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"
)

// Router places the requests of one pool. It is safe for concurrent use.
type Router struct {
	Ledger  *ledger.Ledger
	Index   *prefix.Index
	outputs outputShares
	// rand breaks ties. It is used under the ledger's lock.
	rand choose.Rand
}

// Options are what a router takes from outside.
type Options struct {
	Now  func() time.Duration // a monotonic clock, called under locks; nil means time since New
	Rand choose.Rand          // nil means the top-level source of math/rand/v2
}

// New returns a router without upstreams.
func New(opt Options) *Router {
	if opt.Now == nil {
		origin := time.Now()
		opt.Now = func() time.Duration { return time.Since(origin) }
	}
	return &Router{
		Ledger: ledger.New(ledger.Options{Now: opt.Now}),
		Index:  prefix.New(opt.Now),
		rand:   opt.Rand,
	}
}

// Upstream is what a router keeps of one upstream.
type Upstream struct {
	Load *ledger.Upstream
	Slot prefix.Holder

	found reportShare
	block atomic.Int32 // tokens in a block of its engine, 0 if unknown
}

// SetEngineBlock tells how many tokens the engine's own KV blocks have, where that
// is known. What is held is then credited in whole ones, if they are larger than the
// blocks in which it is counted here.
func (u *Upstream) SetEngineBlock(tokens int) { u.block.Store(int32(min(max(0, tokens), 1<<20))) }

// Add enters an upstream whose KV cache has so many blocks. It is taken out with
// Index.Remove of its slot.
func (r *Router) Add(capacityBlocks int) *Upstream {
	return &Upstream{Load: r.Ledger.NewUpstream(), Slot: r.Index.Add(capacityBlocks)}
}

// Objective is what a choice minimises.
type Objective struct {
	// Latency says that it is the latency and not the token load.
	Latency bool
	// Weights are those of the token load. With the latency, they tell the load
	// that is shown, and break ties of requests without a prompt.
	Weights choose.Weights
}

// MaxMatchedPrompts bounds the prompts of one request that the index sees:
// matching and pinning go on under the ledger's lock.
const MaxMatchedPrompts = 64

// Request is what a request asks for.
type Request struct {
	// Demand is what the ledger charges. Place sets the parts of it that are set
	// while choosing.
	Demand ledger.Demand
	// Chains are the chains of block hashes of the first prompts, at most
	// MaxMatchedPrompts; none if no prompt was read.
	Chains [][]uint64
	// Counted are the tokens of the prompts as the blocks are made of them. Those
	// of the demand are as the engine counts, Ratio times as many.
	Counted   []int
	Ratio     float64 // positive
	Namespace uint64  // chains match within it only
	Model     uint64  // any hash of it
	BlockSize int     // tokens in a block, 1 or more

	// Reports are asked for what engines say that they hold of the prompts; nil if
	// none says so, or not of this request.
	Reports Reports
	// Reported are the prompts as those engines' blocks, once for each size.
	Reported []ReportedChains
	// Fresh says that Reports see all of the prompts that such an engine holds: what
	// is predicted of it counts only until its events are in.
	Fresh bool

	Reuses bool // the engine may take prompt tokens from its cache
	Keeps  bool // the prompt stays in the engine's cache
}

// Corrected turns a count of the blocks' tokens into what the engine would count.
func (q *Request) Corrected(tokens int) int { return corrected(tokens, q.Ratio) }

func corrected(tokens int, ratio float64) int {
	if ratio == 1 {
		return tokens
	}
	return int(math.Round(float64(tokens) * ratio))
}

// cachedTokens is what an engine reuses of a prompt of which it holds the
// leading blocks: whole blocks, and never the last token, which it must compute
// to have something to sample from.
func (q *Request) cachedTokens(prompt int, blocks int32) int {
	return q.measure(prompt).cachedTokens(int(blocks))
}

// measure is how blocks of a prompt become tokens.
type measure struct {
	counted, blockSize int
	ratio              float64
}

func (q *Request) measure(prompt int) measure {
	return measure{counted: q.Counted[prompt], blockSize: q.BlockSize, ratio: q.Ratio}
}

func (m measure) cachedTokens(blocks int) int {
	return corrected(max(0, min(blocks*m.blockSize, m.counted-1)/m.blockSize*m.blockSize), m.ratio)
}

// blocks is how many leading blocks so many tokens of the engine's cover.
func (m measure) blocks(tokens int) int {
	return int(float64(tokens) / m.ratio / float64(m.blockSize))
}

// Candidate is an upstream that may take a request.
type Candidate struct {
	*Upstream
	// MaxRequests is how many requests it takes at once; 0 means any number.
	MaxRequests int
	// MaxSequences is how many sequences its engine runs at once; 0 if unknown.
	// More wait there.
	MaxSequences int
	// Ranks are all data-parallel ranks of its engine, itself among them, which
	// share MaxRequests; nil if it has no others.
	Ranks []*Upstream
	// Tried says that this request was tried there in vain: it is left out while
	// another is free.
	Tried bool
	// NoCache says that prefixes do not stay in its engine's KV cache: it is credited
	// with none, and evicts nothing that anybody would miss.
	NoCache bool
	// Blended says that the engine places requests on its ranks as it likes: what
	// they hold on average is what any of them is credited with.
	Blended bool
}

// full reports whether nothing more may be sent there.
func (c *Candidate) full() bool {
	if c.MaxRequests <= 0 {
		return false
	}
	live := 0
	for _, rank := range c.Ranks {
		live += rank.Load.Live()
	}
	if c.Ranks == nil {
		live = c.Load.Live()
	}
	return live >= c.MaxRequests
}

// Choice is the memory of one choice, to be reused by later ones. The caller sets
// the candidates.
type Choice struct {
	Candidates []Candidate
	// Keep says that Place is to keep what it chose by, for Kept.
	Keep bool
	kept Seen

	loads  []*ledger.Upstream
	terms  []choose.Terms
	needs  []int    // by candidate: blocks that the request would newly take
	held   []int32  // by slot: leading blocks of the last prompt matched
	said   reported // what engines say of each prompt
	pinned []int32  // by slot: of these, pinned ones

	outputs []prefix.Output // by slot: behind them
	uses    []prefix.Use    // by slot
	price   prefix.Eviction

	outlook output.Outlook
}

// Release lets go of everything that belongs to a request.
func (c *Choice) Release() {
	clear(c.Candidates[:cap(c.Candidates)])
	clear(c.loads[:cap(c.loads)])
	c.price = prefix.Eviction{}
	c.Keep = false
	c.Candidates, c.loads = c.Candidates[:0], c.loads[:0]
}

func (c *Choice) list() []*ledger.Upstream {
	c.loads = c.loads[:0]
	for i := range c.Candidates {
		c.loads = append(c.loads, c.Candidates[i].Load)
	}
	return c.loads
}

// Place chooses among the candidates, charges the request to p and pins its
// prompts, and returns which candidate it was; -1, with nothing charged, if none
// may take it. Preferred, if not -1, takes the request if it is not full, and was
// not tried while another is free. P must be new.
func (r *Router) Place(c *Choice, q *Request, o *Objective, preferred int, p *Placement) int {
	r.ask(c, q)
	i := r.Ledger.Choose(&p.ticket, &q.Demand, c.list(), func(cands []choose.Candidate) int {
		return r.decide(c, q, o, preferred, p, cands)
	})
	if i >= 0 {
		p.router = r
	}
	return i
}

// decide runs under the ledger's lock.
func (r *Router) decide(c *Choice, q *Request, o *Objective, preferred int, p *Placement, cands []choose.Candidate) int {
	r.weigh(c, q, o, cands)
	now := r.Ledger.Now()
	p.sent = now

	untried := false
	for i := range cands {
		cand := &c.Candidates[i]
		cands[i].Excluded = cand.full() || cand.Tried
		untried = untried || !cands[i].Excluded
	}
	for i := range cands {
		cands[i].Excluded = cands[i].Excluded && (untried || c.Candidates[i].full())
	}

	var i int
	estimated := false
	switch {
	case preferred >= 0 && !cands[preferred].Excluded:
		i, p.Preferred = preferred, true
	case len(q.Chains) == 0:
		i = choose.LeastRunning(o.Weights, cands, r.rand)
	case o.Latency:
		r.estimate(c, q, cands, now)
		estimated = true
		i = choose.LeastLatency(c.terms, func(i int) float64 { return r.priceEviction(c, q, i) }, r.rand)
	default:
		i = choose.Least(o.Weights, cands, r.rand)
	}
	if c.Keep {
		c.kept.Candidates, c.kept.Winner = append(c.kept.Candidates[:0], cands...), i
		c.kept.Terms = nil
		if estimated {
			c.kept.Terms = c.terms
		}
	}
	if i < 0 {
		return -1
	}
	p.Load = choose.Load(o.Weights, cands[i])
	r.charge(c, q, p, i, now)
	return i
}

// Seen is how the upstreams look to a request.
type Seen struct {
	Candidates []choose.Candidate
	Terms      []choose.Terms // in the order of the candidates; nil unless the objective is the latency
	Winner     int            // -1 if there is none
}

// Kept is what the last Place chose by, if it was to keep it. It is valid until the
// choice is used again or released. There are no terms where none decided: for a
// request without a prompt, or one that a preferred candidate took. An eviction
// that is not priced counts as none, as that candidate could not have won.
func (c *Choice) Kept() *Seen { return &c.kept }

// Cost is what the choice makes least, of candidate i.
func (s *Seen) Cost(o *Objective, i int) float64 {
	if o.Latency {
		return choose.Latency(&s.Terms[i])
	}
	return choose.Cost(o.Weights, s.Candidates[i])
}

// Tied reports whether candidate i might have won as well as the winner did:
// chance decides.
func (s *Seen) Tied(o *Objective, i int) bool {
	return s.Winner >= 0 && s.Cost(o, i) == s.Cost(o, s.Winner) &&
		(o.Latency || s.Candidates[i].Running == s.Candidates[s.Winner].Running)
}

// Look shows what Place would choose by, and charges nothing.
func (r *Router) Look(c *Choice, q *Request, o *Objective) (seen Seen) {
	r.ask(c, q)
	r.Ledger.Look(&q.Demand, c.list(), func(cands []choose.Candidate) {
		r.weigh(c, q, o, cands)
		seen.Candidates = slices.Clone(cands)
		if !o.Latency {
			seen.Winner = choose.Least(o.Weights, cands, r.rand)
			return
		}
		r.estimate(c, q, cands, r.Ledger.Now())
		for i := range c.terms {
			if t := &c.terms[i]; !t.Priced {
				t.Eviction, t.Priced = r.priceEviction(c, q, i), true
			}
		}
		seen.Winner = choose.LeastLatency(c.terms, nil, r.rand)
		seen.Terms = slices.Clone(c.terms)
	})
	return seen
}

// weigh fills in what the request's prompts would cost each candidate. The
// index's lock is taken inside the ledger's.
func (r *Router) weigh(c *Choice, q *Request, o *Objective, cands []choose.Candidate) {
	total := int64(0)
	for i := range q.Demand.Prompts {
		total += int64(q.Demand.Prompts[i].Tokens)
	}
	for i := range cands {
		cands[i].Uncached = total
	}
	if !q.Reuses {
		return
	}
	for j := range q.Chains {
		if len(q.Chains[j]) == 0 {
			continue
		}
		held := r.match(c, q, j, o.Latency)
		for i := range cands {
			cands[i].Uncached -= int64(q.cachedTokens(j, held[c.Candidates[i].Slot]))
		}
	}
}
