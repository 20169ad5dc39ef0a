// SPDX-License-Identifier: Apache-2.0

package route

import (
	"sync/atomic"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/pace"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"
)

// Placement is one attempt at a request at one upstream: its charge in the ledger
// and its hold on the index. The zero value is ready for [Router.Place]. Release
// is safe from any goroutine; the others are called on one at a time.
type Placement struct {
	// What was decided; set by Place.
	PromptTokens, CachedTokens int
	Load                       float64 // token load of the upstream with this request
	Preferred                  bool    // the preferred candidate took it

	router   *Router
	upstream *Upstream
	said     int // see SaidCached
	ticket   ledger.Ticket
	sent     time.Duration

	blockSize, choices int
	namespace          uint64
	// Of the only prompt, if there is but one.
	measure     measure
	blocks      int // in its chain
	model       uint64
	prompts     []pinnedPrompt
	onePrompt   [1]pinnedPrompt
	generated   []int // tokens by sequence
	oneSequence [1]int

	ended atomic.Bool
}

// pinnedPrompt is a prompt of a running request in the index.
type pinnedPrompt struct {
	path    prefix.Path
	started atomic.Bool // its first token was seen, so it is really cached
	tail    int         // tokens after its last whole block
	blocks  int         // room that tail and output take
}

// Sent is when the request was charged, on the ledger's clock.
func (p *Placement) Sent() time.Duration { return p.sent }

// Ended reports whether it was released.
func (p *Placement) Ended() bool { return p.ended.Load() }

// charge tells the ledger what of the prompts is cached at candidate i, and
// pins them in the index. All are looked up before the first is pinned: the
// prompts of a batch are told apart as they were weighed. The ledger's lock is
// held.
func (r *Router) charge(c *Choice, q *Request, p *Placement, i int, now time.Duration) {
	slot := c.Candidates[i].Slot
	p.upstream = c.Candidates[i].Upstream
	uncached := int64(0)
	for j := range q.Demand.Prompts {
		d := &q.Demand.Prompts[j]
		d.Cached = 0
		p.PromptTokens += d.Tokens
		if q.Reuses && j < len(q.Chains) && len(q.Chains[j]) > 0 {
			held := c.held // of the last prompt that was weighed
			if len(q.Chains) > 1 {
				held = r.match(c, q, j, false)
			}
			d.Cached = q.cachedTokens(j, held[slot])
			p.CachedTokens += d.Cached
			if said := q.cachedTokens(j, c.said.of(j, slot)); len(q.Chains) == 1 && said > 0 && said >= d.Cached && !c.Candidates[i].Blended {
				p.said = said
			}
		}
		uncached += int64(d.Tokens - d.Cached)
	}
	r.predict(c, q, i, uncached, now)
	if q.Demand.Estimated {
		p.PromptTokens = 0 // a guess is charged, but not told
	}
	p.blockSize, p.choices, p.namespace = q.BlockSize, max(1, q.Demand.Choices), q.Namespace
	if n := min(max(1, len(q.Demand.Prompts))*p.choices, ledger.MaxSequences); n > len(p.oneSequence) {
		p.generated = make([]int, n)
	} else {
		p.generated = p.oneSequence[:]
	}
	if !q.Keeps {
		return
	}
	corrects := !c.Candidates[i].Blended && !(q.Fresh && r.Index.Reported(slot)) // see Reported
	if corrects && q.Reuses && len(q.Demand.Prompts) == 1 && len(q.Chains) == 1 {
		p.measure, p.blocks, p.model = q.measure(0), len(q.Chains[0]), q.Model
	}
	p.prompts = p.onePrompt[:]
	if len(q.Chains) > len(p.onePrompt) {
		p.prompts = make([]pinnedPrompt, len(q.Chains))
	}
	for j := range q.Chains {
		prompt := &p.prompts[j]
		prompt.path = r.Index.Pin(slot, q.Namespace, q.Chains[j])
		prompt.tail = max(0, q.Counted[j]-len(q.Chains[j])*q.BlockSize)
	}
}

// predict tells the ledger how long candidate i computes on the prompts, and when
// their first token would come.
func (r *Router) predict(c *Choice, q *Request, i int, uncached int64, now time.Duration) {
	u := c.Candidates[i].Load
	w := u.Work(now)
	steps := pace.Prior.Steps(uncached) // of all prompts together
	own := steps
	for j := range q.Demand.Prompts {
		d := &q.Demand.Prompts[j]
		seconds := pace.Prior.Compute(int64(d.Cached), int64(d.Tokens))
		own += seconds
		if j == 0 {
			seconds += steps
		}
		d.Prefill = duration(seconds)
	}
	q.Demand.FirstToken = 0
	use := r.Index.UseOf(c.Candidates[i].Slot)
	if float64(use.Running) <= choose.FullKVUse*float64(use.Capacity) {
		// It begins when the step under way has ended. Where memory is short,
		// requests wait for other reasons than the pace.
		step := pace.Prior.Decode(float64(u.Running()), w.Contexts)
		q.Demand.FirstToken = duration(w.Queue/w.PrefillPace + own + step/2)
	}
}

// duration turns seconds into a duration; what is beyond a day is a day.
func duration(seconds float64) time.Duration {
	return time.Duration(max(0, min(seconds, 86400)) * float64(time.Second))
}

// Started tells that a sequence's first output was seen.
func (p *Placement) Started(seq int, now time.Duration) {
	p.ticket.Started(seq, now)
	if prompt := p.promptOf(seq); prompt != nil && !prompt.started.Load() {
		prompt.started.Store(true)
		p.router.Index.Confirm(&prompt.path)
	}
}

// Generated tells how many tokens a sequence has generated so far.
func (p *Placement) Generated(seq, total int, now time.Duration) {
	if seq < 0 || seq >= len(p.generated) {
		return
	}
	p.ticket.Generated(seq, total, now)
	p.generated[seq] = total
	p.grow(seq)
}

// Finished tells that a sequence has ended.
func (p *Placement) Finished(seq int) { p.ticket.Finished(seq) }

// grow gives the output room in the index, block by block. It begins in the
// prompt's last block, if that is not whole; each choice has one of its own.
func (p *Placement) grow(seq int) {
	prompt := p.promptOf(seq)
	if prompt == nil {
		return
	}
	first := seq / p.choices * p.choices
	blocks := 0
	for _, n := range p.generated[first:min(first+p.choices, len(p.generated))] {
		if n > 0 {
			blocks += (prompt.tail + n + p.blockSize - 1) / p.blockSize
		}
	}
	if blocks != prompt.blocks {
		prompt.blocks = blocks
		p.router.Index.Grow(&prompt.path, blocks)
	}
}

// promptOf gives the pinned prompt that a sequence answers, or nil.
func (p *Placement) promptOf(seq int) *pinnedPrompt {
	if seq < 0 || len(p.prompts) == 0 || seq/p.choices >= len(p.prompts) {
		return nil
	}
	return &p.prompts[seq/p.choices]
}

// Release gives everything back, once, and reports whether it did so. Served says
// that the answer was a success that ended: then the prompts stay in the index,
// as do those whose first token was seen.
func (p *Placement) Release(outcome ledger.Outcome, served bool) bool {
	if p.router == nil || !p.ended.CompareAndSwap(false, true) {
		return false
	}
	r := p.router
	p.ticket.Release(outcome, r.Ledger.Now())
	for i := range p.prompts {
		prompt := &p.prompts[i]
		if served || prompt.started.Load() {
			r.Index.Done(&prompt.path)
		} else {
			r.Index.Abort(&prompt.path)
		}
	}
	return true
}
