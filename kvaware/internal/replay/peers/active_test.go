// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"math"
	"testing"
)

func TestActiveCountsSharedBlocksOnce(t *testing.T) {
	a := newActive()
	system := chain(nil, 1, 4)
	first := a.acquire(chain(system, 2, 6)) // 10 blocks
	second := chain(system, 3, 3)
	if got := a.missing(second); got != 3 {
		t.Errorf("%d of 7 blocks missing, want 3", got)
	}
	h := a.acquire(second)
	if a.blocks() != 13 {
		t.Errorf("%v blocks, want 13", a.blocks())
	}
	again := a.acquire(system)
	if a.blocks() != 13 {
		t.Errorf("%v blocks with a prompt that others begin with, want 13", a.blocks())
	}
	a.release(&first)
	if a.blocks() != 7 {
		t.Errorf("%v blocks, want 7", a.blocks())
	}
	a.release(&h)
	if a.blocks() != 4 {
		t.Errorf("%v blocks, want 4", a.blocks())
	}
	a.release(&again)
	if a.blocks() != 0 || len(a.spans) != 0 {
		t.Errorf("%v blocks in %d spans, want none", a.blocks(), len(a.spans))
	}
}

func TestDecayWeighsWhatOnlyTheRequestHolds(t *testing.T) {
	a := newActive()
	system := chain(nil, 1, 4)
	first, second := a.acquire(chain(system, 2, 6)), a.acquire(chain(system, 3, 3))
	a.grow(&first, 2)
	if a.blocks() != 15 {
		t.Errorf("%v blocks, want 13 + 2", a.blocks())
	}
	a.decay(&first, 0.5)
	if want := 4 + 3 + 0.5*6 + 0.5*2; a.blocks() != want {
		t.Errorf("%v blocks, want %v", a.blocks(), want)
	}
	a.release(&second)
	if want := 4 + 0.5*6 + 0.5*2; a.blocks() != want {
		t.Errorf("%v blocks, want %v", a.blocks(), want)
	}
	// Now all of its prompt is its own.
	a.decay(&first, 0.25)
	if want := 0.25 * (4 + 6 + 2); a.blocks() != want {
		t.Errorf("%v blocks, want %v", a.blocks(), want)
	}
	a.release(&first)
	if a.blocks() != 0 {
		t.Errorf("%v blocks, want none", a.blocks())
	}
}

func TestActiveAgreesWithAPlainModel(t *testing.T) {
	rand := seeded(7)
	a := newActive()
	type held struct {
		blocks []uint64
		h      holding
	}
	var all []held
	owners := map[uint64]int{}
	prompts := [][]uint64{nil}
	for step := range 3000 {
		if len(all) == 0 || rand.IntN(5) < 3 && len(all) < 60 {
			front := prompts[rand.IntN(len(prompts))]
			p := chain(front[:rand.IntN(len(front)+1)], rand.Uint64N(4), rand.IntN(7))
			if len(prompts) < 30 {
				prompts = append(prompts, p)
			}
			want := 0
			for _, b := range p {
				if owners[b] == 0 {
					want++
				}
			}
			if got := a.missing(p); got != want {
				t.Fatalf("step %d: %d missing, want %d", step, got, want)
			}
			all = append(all, held{p, a.acquire(p)})
			for _, b := range p {
				owners[b]++
			}
		} else {
			k := rand.IntN(len(all))
			a.release(&all[k].h)
			for _, b := range all[k].blocks {
				if owners[b]--; owners[b] == 0 {
					delete(owners, b)
				}
			}
			all[k] = all[len(all)-1]
			all = all[:len(all)-1]
		}
		if got := a.blocks(); math.Abs(got-float64(len(owners))) > 1e-9 {
			t.Fatalf("step %d: %v blocks, want %d", step, got, len(owners))
		}
	}
}
