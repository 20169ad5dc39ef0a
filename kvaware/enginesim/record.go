// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"github.com/kvaware/caddy-kvaware/kvaware/internal/engine"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// recorder notes what becomes of the engine's blocks, as events. It is the
// engine's BlockSink, so all of it runs under replica.mu.
type recorder struct {
	blockSize int
	model     string // its prompts have no adapter
	events    []kvevents.Event
	// What would go on with the last event, if that is a store.
	by   *engine.Sequence
	next int
}

// take returns the events since it was last called.
func (r *recorder) take() []kvevents.Event {
	events := r.events
	r.events, r.by = nil, nil
	return events
}

// Stored adds to the last event, or begins one.
func (r *recorder) Stored(hash uint64, by *engine.Sequence, i int) {
	c := by.Owner.(*choice)
	if by != r.by || i != r.next {
		r.events = append(r.events, r.begin(c, by, i))
	}
	r.by, r.next = by, i+1
	e := &r.events[len(r.events)-1]
	e.Blocks = append(e.Blocks, hash)
	for at := i * r.blockSize; at < (i+1)*r.blockSize; at++ {
		e.Tokens = append(e.Tokens, c.token(at))
	}
	if e.Extra != nil {
		e.Extra = append(e.Extra, kvevents.Extra{})
	}
	if i == 0 && c.job.call.salt != "" {
		e.Extra = []kvevents.Extra{{Salt: []byte(c.job.call.salt)}}
	}
}

// begin is an event of no blocks yet. What is asked for under another name than
// the engine's model is an adapter's.
func (r *recorder) begin(c *choice, by *engine.Sequence, i int) kvevents.Event {
	e := kvevents.Event{
		Kind: kvevents.Stored, Tier: kvevents.GPU, Attention: kvevents.FullAttention,
		Group: 0, BlockSize: r.blockSize,
	}
	if i > 0 {
		e.HasParent, e.Parent = true, by.Block(i-1)
	}
	if model := c.job.call.model; model != r.model {
		e.LoRA = []byte(model)
	}
	return e
}

func (r *recorder) Removed(hash uint64) {
	if n := len(r.events); n == 0 || r.events[n-1].Kind != kvevents.Removed {
		r.events = append(r.events, kvevents.Event{Kind: kvevents.Removed, Tier: kvevents.GPU})
	}
	r.by = nil
	e := &r.events[len(r.events)-1]
	e.Blocks = append(e.Blocks, hash)
}

func (r *recorder) Cleared() {
	r.by = nil
	r.events = append(r.events, kvevents.Event{Kind: kvevents.Cleared})
}

// token returns the i-th token of prompt and answer.
func (c *choice) token(i int) uint32 {
	p := &c.job.call.prompts[c.prompt]
	if i < p.tokens {
		return p.ids[i]
	}
	return c.answer.token(i - p.tokens)
}
