// SPDX-License-Identifier: Apache-2.0

package residency

import "github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"

// learnt is what a holder's events have shown of its engine.
type learnt struct {
	page  int // the engine's own block size, in tokens; 0: not known
	votes int // tokens stored in blocks of that size, less those in others, bounded

	groups  [64]kvevents.Attention // by number
	counted int                    // 1 + the group that counts; 0: none yet

	offloads bool                // a tier besides the GPU's was seen
	cover    [kvevents.Tiers]int // how many blocks one offloaded block covers; 0: no store seen
	depths   [kvevents.Tiers]depths
}

// counts reports whether an event's group is the one that counts: that of full
// attention, the first seen if there are several. As long as no group's kind was told,
// it is the first one seen. Events without a group are taken for that one's.
func (h *Holder) counts(e *kvevents.Event) bool {
	if e.Group < 0 {
		return e.Attention != kvevents.OtherAttention
	}
	le := &h.learnt
	if e.Group >= len(le.groups) {
		return false
	}
	if e.Attention != kvevents.AttentionUnknown {
		le.groups[e.Group] = e.Attention
	}
	if le.counted == 1+e.Group && le.groups[e.Group] != kvevents.OtherAttention {
		return true
	}
	if e.Kind != kvevents.Stored {
		return false
	}
	kind := le.groups[e.Group]
	switch {
	case le.counted == 0 && kind != kvevents.OtherAttention:
	case le.counted == 0:
		return false
	case le.groups[le.counted-1] == kvevents.OtherAttention && kind != kvevents.OtherAttention:
		h.restart() // what counted was the wrong one
	case le.groups[le.counted-1] == kvevents.AttentionUnknown && kind == kvevents.FullAttention:
		h.restart()
	case le.counted == 1+e.Group: // it turned out to be the wrong one
		h.restart()
		le.counted = 0
		return false
	default:
		return false
	}
	le.counted = 1 + e.Group
	return true
}

// maxPage bounds what is taken for an engine's block size.
const maxPage = 1 << 16

// voteBlocks is after how many blocks of another size the size is taken for changed.
// Engines store parts of a block now and then.
const voteBlocks = 16

// learn takes note of an event's block size, and reports whether it is the engine's.
func (h *Holder) learn(e *kvevents.Event) bool {
	le := &h.learnt
	if e.Tier != kvevents.GPU {
		h.learnCover(e)
		return e.BlockSize == le.page
	}
	if e.BlockSize > maxPage {
		return false
	}
	if e.BlockSize == le.page {
		le.votes = min(le.votes+len(e.Tokens), voteBlocks*le.page)
		return true
	}
	if le.votes -= len(e.Tokens); le.votes >= 0 {
		return false
	}
	if le.page != 0 {
		h.restart()
	}
	le.page, le.votes = e.BlockSize, min(len(e.Tokens), voteBlocks*e.BlockSize)
	h.life.pages.size = le.page
	h.life.blocks = h.x.join(indexBlock(le.page))
	return true
}

// restart drops what the holder has, but not what was learnt of its groups.
func (h *Holder) restart() {
	h.end()
	h.start()
	le := &h.learnt
	le.page, le.votes, le.offloads = 0, 0, false
	le.cover, le.depths = [kvevents.Tiers]int{}, [kvevents.Tiers]depths{}
	h.stats.Restarts++
}
