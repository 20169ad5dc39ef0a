// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
)

// The last decisions that are kept to be shown, and how many candidates of each.
// As they are copied under the ledger's lock, so many may be kept at once, and then
// so many a second, whatever the number of requests.
const (
	keptDecisions      = 32
	keptCandidates     = 8
	decisionsPerSecond = 10
)

// decisions are some of the last decisions of a pool: all of them while there are
// few.
type decisions struct {
	// next is when a decision is next worth keeping, on the ledger's clock, if no
	// burst is granted.
	next atomic.Int64

	mu   sync.Mutex // guards what follows; taken under no other lock
	ring [keptDecisions]decision
	kept uint64 // since the pool was made
}

// decision is what is kept of one. It holds nothing of the prompt but its length.
type decision struct {
	at         time.Time
	reason     string
	latency    bool
	costed     bool // by cost, and not by sequences alone or by a preference
	prompt     int
	candidates int // there were
	shown      int
	list       [keptCandidates]weighed // the winner first, then by cost
}

// weighed is a candidate as it was weighed.
type weighed struct {
	address                                      string
	cached, uncached, prefill, decode, sequences int64
	load, cost                                   float64
	atLeast, excluded                            bool
}

// due grants the keeping of a decision, a burst at first.
func (d *decisions) due(now time.Duration) bool {
	const interval, burst = time.Second / decisionsPerSecond, keptDecisions * time.Second / decisionsPerSecond
	next := d.next.Load()
	if next > int64(now+burst) {
		return false
	}
	return d.next.CompareAndSwap(next, max(next, int64(now))+int64(interval))
}

// keep takes in the decision of an attempt that is charged. The choice kept what it
// was made by.
func (d *decisions) keep(a *attempt, c *candidates) {
	seen := c.choice.Kept()
	d.mu.Lock()
	defer d.mu.Unlock()
	e := &d.ring[d.kept%keptDecisions]
	d.kept++
	e.at = a.routing.policy.pool.now()
	e.reason = a.reason
	e.prompt = a.placement.PromptTokens
	e.latency = a.routing.policy.objective.Latency
	e.costed = len(a.routing.request.Chains) > 0 && !a.placement.Preferred
	e.candidates = len(seen.Candidates)
	e.list[0], e.shown = e.weigh(a, c, seen.Winner), 1
	for i := range seen.Candidates {
		if i != seen.Winner {
			e.insert(e.weigh(a, c, i))
		}
	}
}

// weigh describes a candidate.
func (e *decision) weigh(a *attempt, c *candidates, i int) weighed {
	o, seen := &a.routing.policy.objective, c.choice.Kept()
	cand := &seen.Candidates[i]
	w := weighed{
		address:   c.known[i].address,
		prefill:   cand.Prefill,
		decode:    cand.Decode,
		sequences: cand.Running,
		load:      choose.Load(o.Weights, *cand),
		excluded:  cand.Excluded,
	}
	if e.prompt > 0 { // else it is a guess, or there is none
		w.cached, w.uncached = int64(e.prompt)-cand.Uncached, cand.Uncached
	}
	if e.costed {
		w.cost = seen.Cost(o, i)
		w.atLeast = o.Latency && !seen.Terms[i].Priced
	}
	return w
}

// insert puts a loser in its place by cost, if there is room.
func (e *decision) insert(w weighed) {
	at := e.shown
	for at > 1 && w.before(&e.list[at-1]) {
		at--
	}
	if at == keptCandidates {
		return
	}
	e.shown = min(e.shown+1, keptCandidates)
	copy(e.list[at+1:e.shown], e.list[at:])
	e.list[at] = w
}

// before orders the losers: those that could have been chosen first, then by cost,
// or where none was told by sequences.
func (w *weighed) before(o *weighed) bool {
	if w.excluded != o.excluded {
		return o.excluded
	}
	return cmp.Or(cmp.Compare(w.cost, o.cost), cmp.Compare(w.sequences, o.sequences)) < 0
}

// Decision is one of the last decisions of a pool.
type Decision struct {
	Time     time.Time `json:"time"`
	Upstream string    `json:"upstream"` // that took the request
	Reason   string    `json:"reason"`   // as in the placeholder of that name
	Why      string    `json:"why"`      // the same in words
	// Tokens of the prompt, and what of them the upstream is believed to hold; 0 if
	// no prompt was read.
	PromptTokens int64 `json:"prompt_tokens"`
	CachedTokens int64 `json:"cached_tokens"`
	// The candidates, the winner first, then by cost; of many, the first few.
	Candidates      []DecisionCandidate `json:"candidates"`
	CandidatesTotal int                 `json:"candidates_total"`
}

// DecisionCandidate is an upstream as a decision saw it.
type DecisionCandidate struct {
	Address        string  `json:"address"`
	Chosen         bool    `json:"chosen"`
	CachedTokens   int64   `json:"cached_tokens"`
	UncachedTokens int64   `json:"uncached_tokens"`
	PrefillTokens  int64   `json:"prefill_tokens"` // waiting there
	DecodeTokens   int64   `json:"decode_tokens"`
	Sequences      int64   `json:"sequences"`
	Load           float64 `json:"load"`
	// What the objective makes least; null where no cost decided. CostAtLeast: it is
	// that much or more, and was not told exactly as it could not win.
	Cost        *float64 `json:"cost"`
	CostAtLeast bool     `json:"cost_at_least,omitempty"`
	// Full, or tried by this request before.
	Excluded bool `json:"excluded,omitempty"`
}

// last gives the kept decisions, newest first.
func (d *decisions) last() []Decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := int(min(d.kept, keptDecisions))
	list := make([]Decision, n)
	for i := range n {
		list[i] = d.ring[(d.kept-1-uint64(i))%keptDecisions].describe()
	}
	return list
}

func (e *decision) describe() Decision {
	winner := &e.list[0]
	d := Decision{
		Time:            e.at,
		Upstream:        winner.address,
		Reason:          e.reason,
		Why:             e.why(),
		PromptTokens:    int64(e.prompt),
		CachedTokens:    winner.cached,
		Candidates:      make([]DecisionCandidate, e.shown),
		CandidatesTotal: e.candidates,
	}
	for i := range d.Candidates {
		w := &e.list[i]
		d.Candidates[i] = DecisionCandidate{
			Address:        w.address,
			Chosen:         i == 0,
			CachedTokens:   w.cached,
			UncachedTokens: w.uncached,
			PrefillTokens:  w.prefill,
			DecodeTokens:   w.decode,
			Sequences:      w.sequences,
			Load:           w.load,
			CostAtLeast:    w.atLeast,
			Excluded:       w.excluded,
		}
		if e.costed {
			cost := w.cost
			d.Candidates[i].Cost = &cost
		}
	}
	return d
}

// why words the decision.
func (e *decision) why() string {
	winner, others := &e.list[0], e.list[1:e.shown]
	if i := slices.IndexFunc(others, func(w weighed) bool { return w.excluded }); i >= 0 {
		others = others[:i] // the rest could not be chosen
	}
	reason, detail, _ := strings.Cut(e.reason, ":")
	switch {
	case reason == "affinity":
		return "It made the response that the request continues."
	case reason == "fallback":
		return "The fallback policy chose it for a request without a prompt."
	case len(others) == 0 && e.shown > 1:
		return "The others are full, or have failed at this request."
	case len(others) == 0:
		return "It was the only upstream available."
	case reason == "no_tokens":
		return fmt.Sprintf("No prompt was read (%s): the fewest sequences ran there.", detail)
	case !e.costed:
		return "The fewest sequences ran there."
	}
	most := slices.MaxFunc(others, func(a, b weighed) int { return cmp.Compare(a.cached, b.cached) })
	switch {
	case most.cached > winner.cached:
		return fmt.Sprintf("%s holds more of the prompt, but costs more.", most.address)
	case winner.cached > 0 && most.cached < winner.cached:
		return "It holds the most of the prompt, and costs least."
	case winner.cached > 0:
		return "Others hold as much of the prompt; it costs least."
	}
	return "No upstream holds any of the prompt; it costs least."
}
