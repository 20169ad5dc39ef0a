// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

var testChains = tokenize.NewChains(42)

func chainOf(root uint64, tokens []uint32, size int) (chain []uint64) {
	for h := root; len(tokens) >= size; tokens = tokens[size:] {
		h = testChains.Extend(h, tokens[:size])
		chain = append(chain, h)
	}
	return chain
}

// world makes random events of an engine, and prompts, over few prefixes, so that all
// kinds of meetings happen.
type world struct {
	r     *rand.Rand
	page  int
	depth int // of prompts, in pages
	keys  []kvevents.Key
}

var worldRoots = [...][2]string{{"", ""}, {"lora", ""}, {"", "salt"}, {"lora", "salt"}}

// prompt is one of few, cut from a tree with few branches.
func (w *world) prompt() (root int, tokens []uint32) {
	root = w.r.IntN(len(worldRoots))
	for range w.depth {
		branch := uint32(0)
		if w.r.IntN(6) == 0 {
			branch = 1
		}
		for i := range w.page {
			tokens = append(tokens, branch*uint32(1+i%3))
		}
	}
	return root, tokens
}

// keyOf is the engine's identity of a prefix; an engine that tells not all extra keys
// has several for what looks the same.
func (w *world) keyOf(root int, tokens []uint32, alias int, odd bool) kvevents.Key {
	h := uint64(root + 1)
	for _, t := range tokens {
		h = mix64(h ^ uint64(t+1)<<8)
	}
	if odd {
		h = mix64(h + 99)
	}
	return h + uint64(alias)
}

func (w *world) event() kvevents.Event {
	e := kvevents.Event{Group: 0, Attention: kvevents.FullAttention, BlockSize: w.page}
	switch n := w.r.IntN(100); {
	case n < 1:
		return kvevents.Event{Kind: kvevents.Cleared, Group: -1}
	case n < 45:
		e.Kind, e.Tokens = kvevents.Stored, nil
		if w.r.IntN(4) == 0 {
			e.Tier, e.Group = kvevents.Tier(w.r.IntN(kvevents.Tiers)), w.r.IntN(2)-1
		}
		root, tokens := w.prompt()
		alias := max(0, w.r.IntN(8)-6)
		odd := w.r.IntN(20) == 0
		from := w.r.IntN(w.depth)
		to := from + 1 + w.r.IntN(w.depth-from)
		if w.r.IntN(3) > 0 {
			from = 0
		}
		for i := from; i < to; i++ {
			e.Blocks = append(e.Blocks, w.keyOf(root, tokens[:(i+1)*w.page], alias, odd))
			if odd {
				e.Extra = append(e.Extra, kvevents.Extra{Other: 7})
			} else {
				e.Extra = append(e.Extra, kvevents.Extra{})
			}
		}
		e.Tokens = tokens[from*w.page : to*w.page]
		if from == 0 {
			e.LoRA = []byte(worldRoots[root][0])
			e.Extra[0].Salt = []byte(worldRoots[root][1])
		} else {
			e.HasParent, e.Parent = true, w.keyOf(root, tokens[:from*w.page], alias, odd)
			if !odd && w.r.IntN(2) == 0 {
				e.Extra = nil
			}
		}
		if w.r.IntN(10) == 0 { // of a group that does not count
			e.Group, e.Attention = 1, kvevents.OtherAttention
			return e
		}
		w.keys = append(w.keys, e.Blocks...)
		return e
	case n < 55:
		e.Kind, e.Tier, e.BlockSize = kvevents.Stored, kvevents.Tier(1+w.r.IntN(2)), 0
		if e.Tier == kvevents.CPU {
			e.BlockSize = 2 * w.page
		}
		e.Blocks = w.some(3)
		return e
	}
	e.Kind, e.BlockSize, e.Attention = kvevents.Removed, 0, kvevents.AttentionUnknown
	if w.r.IntN(4) == 0 {
		e.Tier = kvevents.Tier(w.r.IntN(kvevents.Tiers))
	}
	if w.r.IntN(10) == 0 {
		e.Group, e.Attention = 1, kvevents.OtherAttention
	}
	e.Blocks = w.some(5)
	return e
}

func (w *world) some(n int) (keys []kvevents.Key) {
	for range 1 + w.r.IntN(n) {
		if len(w.keys) == 0 || w.r.IntN(20) == 0 {
			keys = append(keys, w.r.Uint64())
			continue
		}
		keys = append(keys, w.keys[w.r.IntN(len(w.keys))])
	}
	if len(w.keys) > 200 {
		w.keys = w.keys[100:]
	}
	return keys
}

// teach is how a stream begins: with the block size, and a store in an offloading tier.
func (w *world) teach() []kvevents.Event {
	e := kvevents.Event{BlockSize: w.page, Attention: kvevents.FullAttention, Tokens: slices.Repeat([]uint32{1 << 20}, 40*w.page)}
	for i := range 40 {
		e.Blocks = append(e.Blocks, kvevents.Key(i+1))
	}
	return []kvevents.Event{e, {Tier: kvevents.CPU, Blocks: e.Blocks[1:2], BlockSize: 2 * w.page}}
}

func TestWhatIsHeldIsWhatAModelOfTheEventsHolds(t *testing.T) {
	credit := [kvevents.Tiers]float32{1, 0.75, 0.25}
	pages := []int{1, 4, 5, 15, 16, 64}
	for seed := range uint64(48) {
		x := New(Options{Chains: testChains, TierCredit: credit})
		x.remember = 1 << 20 // the model forgets nothing
		var holders []*Holder
		var models []*model
		var worlds []*world
		for i := range 3 {
			page := pages[(int(seed)+i/2)%len(pages)]
			w := &world{r: rand.New(rand.NewPCG(seed, uint64(i))), page: page, depth: 6}
			if page < 16 {
				w.depth = 3 * indexBlock(page) / page
			}
			h, m := x.Open(i), newModel(page)
			m.rules = Rules{LastRemoval: seed%4 == 1, ClearsAll: seed%4 == 2}
			h.SetRules(m.rules)
			holders, models, worlds = append(holders, h), append(models, m), append(worlds, w)
			first := w.teach()
			h.Apply(&kvevents.Batch{Events: first})
			m.applyAll(first)
		}
		r := rand.New(rand.NewPCG(seed, 99))
		for step := range 60 {
			i := r.IntN(len(holders))
			var b kvevents.Batch
			for range 1 + r.IntN(30) {
				e := worlds[i].event()
				b.Events = append(b.Events, e)
				models[i].apply(&e)
			}
			if r.IntN(50) == 0 {
				holders[i].Forget()
				models[i].keys, models[i].parked = map[kvevents.Key]*modelBlock{}, nil
				models[i].cover = [kvevents.Tiers]int{}
				b.Events = append(worlds[i].teach(), b.Events...)
				models[i].applyAll(b.Events)
			}
			holders[i].Apply(&b)
			if err := x.check(holders...); err != nil {
				t.Fatalf("seed %d step %d: %v", seed, step, err)
			}
			if st := holders[i].Stats(); st.Blocks != models[i].held() {
				t.Fatalf("seed %d step %d: slot %d has %v, not %v", seed, step, i, st.Blocks, models[i].held())
			}
			for range 5 {
				root, tokens := worlds[i].prompt()
				text := worldRoots[root]
				got, want := make([]int32, 3), make([]int32, 3)
				for _, size := range x.BlockSizes(nil) {
					x.Match(size, chainOf(testChains.Root(text[0], text[1]), tokens, size), got)
				}
				for k, m := range models {
					want[k] = m.match(modelRoot(text[0], text[1]), tokens, [kvevents.Tiers]float64{1, 0.75, 0.25})
				}
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d step %d: pages %v: matched %v, not %v", seed, step, pagesOf(models), got, want)
				}
			}
		}
		for _, h := range holders {
			h.Close()
		}
		if sz := x.Size(); sz.Blocks != 0 || len(x.BlockSizes(nil)) != 0 {
			t.Fatalf("seed %d: %+v is left of nobody", seed, sz)
		}
	}
}

func pagesOf(models []*model) string {
	s := ""
	for _, m := range models {
		s += fmt.Sprint(m.page, " ")
	}
	return s
}
