// SPDX-License-Identifier: Apache-2.0

package route

import "github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"

// Reported takes in how many of the prompt's tokens the engine says that it found
// in its cache, and corrects what its upstream is believed to hold. It is called
// before Release, at most once. Of batches and of several choices nothing is
// learnt, since they share what they report; nor of ranks that the engine chooses
// itself, since any of them may have answered, and of upstreams whose own events
// correct what they are believed to hold.
//
// Engines find whole blocks of their own, of so many tokens, 0 if unknown. A
// difference within one of ours is none.
func (p *Placement) Reported(tokens, block int) prefix.Correction {
	if p.measure.counted == 0 || p.choices != 1 {
		return prefix.Agreed
	}
	path := &p.prompts[0].path
	before := path.Before()
	slack, block := corrected(p.blockSize, p.measure.ratio), max(1, block)
	least := p.measure.cachedTokens(before.Sure)
	if p.measure.ratio != 1 {
		least -= slack // it may fall short of a whole block
	}
	p.learnOutputs(p.measure.blocks(tokens))
	if tokens < least/block*block-slack {
		return p.router.Index.Missed(path, p.measure.blocks(tokens))
	}
	if before.Sure > 0 {
		p.router.Index.Met(path)
	}
	if tokens-slack > p.measure.cachedTokens(before.Held+int(before.Output.Blocks)) {
		return p.router.Index.Exceeded(path)
	}
	return prefix.Agreed
}
