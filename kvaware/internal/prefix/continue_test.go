// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"slices"
	"testing"
)

// goOn gives blocks that may follow the prompt, in the family of chain.
func (d *duo) goOn(s *script) []uint64 {
	var chain []uint64
	for range s.next(12) {
		d.last = mix64(d.last + uint64(s.next(7)/5) + 1)
		chain = append(chain, d.last)
	}
	return chain
}

// goOn gives blocks of known content in place of the output's room.
func (m *model) goOn(p *modelPath, ns uint64, chain []uint64) {
	if !m.alive(p) || !p.whole {
		return
	}
	for _, hash := range chain[:min(len(chain), p.out)] {
		k := modelKey{ns, hash}
		b := p.cache.blocks[k]
		if b == nil {
			b = &modelBlock{at: len(p.keys)}
			p.cache.blocks[k] = b
		}
		b.pins++
		if p.seen {
			b.sure = true
		} else {
			b.unseen++
		}
		p.keys = append(p.keys, k)
		p.out--
		p.cache.generating--
	}
	p.cache.settle()
}

// chain is what the path goes through.
func (p *modelPath) chain() (hashes []uint64) {
	for _, k := range p.keys {
		hashes = append(hashes, k.hash)
	}
	return hashes
}

// stretch is n blocks of a kind behind others.
func stretch(before []uint64, kind, n int) []uint64 {
	chain := slices.Clone(before)
	for range n {
		last := uint64(0)
		if len(chain) > 0 {
			last = chain[len(chain)-1]
		}
		chain = append(chain, mix64(last+uint64(kind)+1))
	}
	return chain
}

func TestAnOutputThatIsKnownIsFoundAsFarAsItIsTheSame(t *testing.T) {
	for name, blocks := range map[string]int{"behind a prompt": 10, "at the start": 0} {
		x := unclocked()
		h := x.Add(100)
		prompt := stretch(nil, 1, blocks)
		whole := stretch(prompt, 2, 5)
		p := x.Pin(h, 1, prompt)
		x.Grow(&p, 6) // the last is not whole
		x.Confirm(&p)
		before := x.Stats(h).Blocks
		x.Continue(&p, 1, whole[blocks:])
		if got := x.Stats(h); got.Blocks != before || got.Generating != 1 {
			t.Errorf("%s: %+v, %d blocks before", name, got, before)
		}
		x.Done(&p)
		if got := x.Stats(h); got.Blocks != before || got.Idle != blocks+5 || got.Output != 1 {
			t.Errorf("%s: %+v, %d blocks while it ran", name, got, before)
		}
		for same := range 6 {
			next := stretch(whole[:blocks+same], 3, 9)
			if got := held(x, h, next); got != blocks+same {
				t.Errorf("%s: %d blocks of the prompt and %d of the output, and %d are found", name, blocks, same, got)
			}
		}
		if err := x.check(); err != nil {
			t.Error(err)
		}
	}
}

func TestNothingGoesOnBehindAPromptThatDidNotFit(t *testing.T) {
	x := unclocked()
	h := x.Add(10)
	prompt := stretch(nil, 1, 12)
	p := x.Pin(h, 1, prompt)
	x.Grow(&p, 3)
	x.Confirm(&p)
	x.Continue(&p, 1, stretch(prompt, 2, 2)[12:])
	x.Done(&p)
	if got := held(x, h, stretch(prompt, 2, 2)); got != 10 {
		t.Errorf("%d blocks are found of the 10 that fit", got)
	}
}

func TestAKnownOutputTakesNoMoreThanItsRoom(t *testing.T) {
	x := unclocked()
	h := x.Add(14)
	prompt := stretch(nil, 1, 10)
	p := x.Pin(h, 1, prompt)
	x.Grow(&p, 9) // of which 4 fit
	x.Confirm(&p)
	x.Continue(&p, 1, stretch(prompt, 2, 8)[10:])
	if got := x.Stats(h); got.Pinned != 14 || got.Generating != 0 {
		t.Errorf("%+v", got)
	}
	x.Done(&p)
	if got := held(x, h, stretch(prompt, 2, 8)); got != 14 {
		t.Errorf("%d blocks are found of the 14 that fit", got)
	}
}

func TestTheSameOutputTwiceIsHeldOnce(t *testing.T) {
	x := unclocked()
	h := x.Add(100)
	prompt := stretch(nil, 1, 10)
	for range 2 {
		p := x.Pin(h, 1, prompt)
		x.Grow(&p, 5)
		x.Confirm(&p)
		x.Continue(&p, 1, stretch(prompt, 2, 4)[10:])
		x.Done(&p)
	}
	if got := x.Stats(h); got.Idle != 14 {
		t.Errorf("%+v", got)
	}
}

// held is how much of a chain an upstream holds.
func held(x *Index, h Holder, chain []uint64) int {
	dst := make([]int32, x.Slots())
	x.Match(1, chain, dst)
	return int(dst[h])
}
