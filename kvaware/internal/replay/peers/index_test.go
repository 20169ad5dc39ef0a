// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"slices"
	"testing"
)

func TestIndexAgreesWithAPlainModel(t *testing.T) {
	const replicas = 70 // more than one word of replicas
	rand, prompts := seeded(4), somePrompts(4, 20)
	x := newIndex()
	x.fleet(replicas - 1)
	model := make([]map[uint64]bool, replicas)
	for i := range model {
		model[i] = map[uint64]bool{}
	}
	// leaf tells if no block that replica i holds builds on b.
	leaf := func(i int, b uint64) bool {
		for _, p := range prompts {
			if k := slices.Index(p, b); k >= 0 && k+1 < len(p) && model[i][p[k+1]] {
				return false
			}
		}
		return true
	}
	for step := range 2500 {
		i, p := rand.IntN(replicas), prompts[rand.IntN(len(prompts))]
		switch rand.IntN(10) {
		case 0:
			x.clear(i)
			clear(model[i])
		case 1, 2, 3:
			// As engines do, what nothing builds on is removed first.
			for k := len(p) - 1; k >= rand.IntN(len(p)) && leaf(i, p[k]); k-- {
				x.remove(i, p[k])
				delete(model[i], p[k])
			}
		default:
			for _, b := range p {
				x.store(i, b)
				model[i][b] = true
			}
		}
		q := prompts[rand.IntN(len(prompts))]
		want := make([]int, replicas)
		for i := range model {
			want[i] = held(model[i], q)
		}
		if got := x.match(q); !slices.Equal(got, want) {
			t.Fatalf("step %d: match %v, want %v", step, got, want)
		}
	}
	for i := range replicas {
		x.clear(i)
	}
	if len(x.slots) != 0 || len(x.free) != len(x.blocks) {
		t.Errorf("%d blocks are left of nothing, %d of %d slots are free", len(x.slots), len(x.free), len(x.blocks))
	}
	// Slots are used again.
	distinct := map[uint64]bool{}
	for _, p := range prompts {
		for _, b := range p {
			distinct[b] = true
			x.store(3, b)
		}
	}
	if len(x.blocks) != len(distinct) {
		t.Errorf("%d slots for %d blocks", len(x.blocks), len(distinct))
	}
}

func TestIndexKnowsReplicasThatComeLater(t *testing.T) {
	x := newIndex()
	p := chain(nil, 1, 5)
	for k, i := range []int{0, 63, 64, 200} {
		x.fleet(i)
		for _, b := range p[:k+1] {
			x.store(i, b)
		}
	}
	got := x.match(p)
	if got[0] != 1 || got[63] != 2 || got[64] != 3 || got[200] != 4 || got[100] != 0 {
		t.Errorf("match %v", got)
	}
	x.remove(7, p[0])
	x.clear(999)
	if got := x.match(p); got[200] != 4 {
		t.Errorf("match %v", got)
	}
}
