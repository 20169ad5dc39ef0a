// SPDX-License-Identifier: Apache-2.0

package route

import (
	"sync"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"
)

const (
	// outputStep is by how much of the difference one report changes a share.
	outputStep = 1.0 / 8
	// maxModels bounds the models of which shares are kept: names come from clients.
	maxModels = 1024
)

// outputShares is what is learnt, by model, of how much of an answer a longer
// prompt finds in the cache where it goes on with it: 1 where its rendering has the
// tokens that were generated, 0 where it differs from the first on. It begins at 0,
// since reasoning is left out of later turns, tool calls are rendered anew, and
// even plain text need not become the same tokens again. The zero value is ready.
type outputShares struct {
	mu     sync.RWMutex // guards models; nothing else is locked under it
	models map[uint64]*[prefix.Contents]float32
}

// of returns a model's shares by content.
func (o *outputShares) of(model uint64) (shares [prefix.Contents]float32) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if m := o.models[model]; m != nil {
		shares = *m
	}
	return shares
}

// learn takes in which share of an output was found.
func (o *outputShares) learn(model uint64, content prefix.Content, share float32) {
	if content == prefix.UnknownContent {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	m := o.models[model]
	if m == nil {
		if share <= 0 {
			return // as it begins
		}
		if o.models == nil || len(o.models) >= maxModels {
			o.models = make(map[uint64]*[prefix.Contents]float32)
		}
		m = new([prefix.Contents]float32)
		o.models[model] = m
	}
	m[content] += (max(0, min(1, share)) - m[content]) * outputStep
}

// creditOutputs adds to what upstreams hold of a prompt what is expected of the
// outputs behind it.
func (c *Choice) creditOutputs(chain []uint64, shares *[prefix.Contents]float32) {
	for i := range c.Candidates {
		slot := c.Candidates[i].Slot
		if o := c.outputs[slot]; o.Blocks > 0 {
			c.held[slot] += int32(shares[o.Content]*float32(min(int(o.Blocks), len(chain)-int(c.held[slot]))) + 0.5)
		}
	}
}

// learnOutputs takes in of a prompt that went on behind an output how many of its
// leading blocks were found.
func (p *Placement) learnOutputs(found int) {
	before := p.prompts[0].path.Before()
	behind := min(int(before.Output.Blocks), p.blocks-before.Held)
	if behind > 0 && found >= before.Held {
		p.router.outputs.learn(p.model, before.Output.Content, float32(found-before.Held)/float32(behind))
	}
}

// Continued tells which whole blocks prompt and output make behind those of the
// prompt, the output without its last token, where all of its tokens are known. The
// next turn is credited with them up to the first that differs.
func (p *Placement) Continued(chain []uint64) {
	if len(p.prompts) == 1 && p.choices == 1 && p.prompts[0].started.Load() {
		p.router.Index.Continue(&p.prompts[0].path, p.namespace, chain)
	}
}

// Answered tells whether the output held reasoning or tool calls, when it is over.
// Of several choices nobody knows which one the next turn goes on with.
func (p *Placement) Answered(inner bool) {
	content := prefix.PlainText
	if inner {
		content = prefix.Inner
	}
	if len(p.prompts) == 1 && p.choices == 1 {
		p.router.Index.Answered(&p.prompts[0].path, content)
	}
}
