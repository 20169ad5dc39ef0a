// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"slices"
	"testing"
	"time"
)

// lru is the plain model of an LRU list of blocks, the most recent last.
type lru []uint64

func (l *lru) touch(b uint64) {
	*l = append(slices.DeleteFunc(*l, func(x uint64) bool { return x == b }), b)
}

// counted returns how many of the blocks each set has, up to the first that none
// has, and how many of the first ones.
func counted(sets []map[uint64]bool, blocks []uint64) (count, prefix []int) {
	count, prefix = make([]int, len(sets)), make([]int, len(sets))
	for i, s := range sets {
		prefix[i] = held(s, blocks)
	}
	for _, b := range blocks {
		some := false
		for i, s := range sets {
			if s[b] {
				count[i]++
				some = true
			}
		}
		if !some {
			break
		}
	}
	return count, prefix
}

func TestRoutedIsAnLRUOfEachReplicasBlocks(t *testing.T) {
	const replicas, limit = 5, 40
	rand, prompts := seeded(3), somePrompts(3, 30)
	p := newRouted(headFirst)
	p.fleet(replicas - 1)
	lists, sets := make([]lru, replicas), make([]map[uint64]bool, replicas)
	for step := range 2000 {
		i, q := rand.IntN(replicas), prompts[rand.IntN(len(prompts))]
		if rand.IntN(40) == 0 {
			p.clear(i)
			lists[i] = nil
		} else {
			p.use(i, q, time.Duration(step))
			p.trim(&p.uses[i], limit)
			for _, b := range q {
				lists[i].touch(b)
			}
			lists[i] = lists[i][max(len(lists[i])-limit, 0):]
		}
		size := 0
		for i, l := range lists {
			sets[i] = map[uint64]bool{}
			for _, b := range l {
				sets[i][b] = true
			}
			size += len(l)
			if p.uses[i].size != len(l) {
				t.Fatalf("step %d: %d blocks at %d, want %d", step, p.uses[i].size, i, len(l))
			}
		}
		q = prompts[rand.IntN(len(prompts))]
		count, prefix := counted(sets, q)
		if got := p.count(q); !slices.Equal(got, count) {
			t.Fatalf("step %d: count %v, want %v", step, got, count)
		}
		if got := p.prefix(q); !slices.Equal(got, prefix) {
			t.Fatalf("step %d: prefix %v, want %v", step, got, prefix)
		}
		if p.size != size {
			t.Fatalf("step %d: %d blocks, want %d", step, p.size, size)
		}
	}
	for i := range replicas {
		p.clear(i)
	}
	if p.size != 0 || len(p.stretches) != 0 {
		t.Errorf("%d blocks in %d stretches are left of nothing", p.size, len(p.stretches))
	}
}

func TestSharedRoutedIsOneLRUForAllReplicas(t *testing.T) {
	const replicas, limit = 5, 60
	rand, prompts := seeded(5), somePrompts(5, 30)
	p := newSharedRouted(headFirst)
	p.fleet(replicas - 1)
	var all lru
	sets := make([]map[uint64]bool, replicas)
	for i := range sets {
		sets[i] = map[uint64]bool{}
	}
	for step := range 2000 {
		i, q := rand.IntN(replicas), prompts[rand.IntN(len(prompts))]
		if rand.IntN(40) == 0 {
			p.clear(i)
			clear(sets[i])
		} else {
			p.use(i, q, time.Duration(step))
			p.trim(&p.uses[0], limit)
			for _, b := range q {
				all.touch(b)
				sets[i][b] = true
			}
			gone := all[:max(len(all)-limit, 0)]
			all = all[len(gone):]
			for _, s := range sets {
				for _, b := range gone {
					delete(s, b)
				}
			}
		}
		q = prompts[rand.IntN(len(prompts))]
		if _, prefix := counted(sets, q); !slices.Equal(p.prefix(q), prefix) {
			t.Fatalf("step %d: prefix %v, want %v", step, p.prefix(q), prefix)
		}
		if p.size != len(all) {
			t.Fatalf("step %d: %d blocks, want %d", step, p.size, len(all))
		}
	}
	p.trim(&p.uses[0], 0)
	if p.size != 0 || len(p.stretches) != 0 {
		t.Errorf("%d blocks in %d stretches are left of nothing", p.size, len(p.stretches))
	}
}

// A tree forgets whole stretches, leaves first, so what a replica holds always
// has what it builds on, and nothing used later is forgotten before it.
func TestRoutedTreeForgetsLeavesFirst(t *testing.T) {
	const replicas, limit = 4, 60
	for _, all := range []bool{false, true} {
		rand, prompts := seeded(6), somePrompts(6, 30)
		p := newRouted(tailFirst)
		p.fleet(replicas - 1)
		used := make([]map[uint64]int, replicas) // when, by block
		for i := range used {
			used[i] = map[uint64]int{}
		}
		for step := range 1200 {
			i, q := rand.IntN(replicas), prompts[rand.IntN(len(prompts))]
			p.use(i, q, time.Duration(step))
			for _, b := range q {
				used[i][b] = step
			}
			if all {
				p.trimAll(limit)
			} else {
				p.trim(&p.uses[i], limit)
			}
			size := 0
			oldest, forgotten := make([]int, replicas), make([]int, replicas)
			for i := range replicas {
				oldest[i], forgotten[i] = step, -1
				for _, q := range prompts {
					n := p.prefix(q)[i]
					for k, b := range q {
						if when, ok := used[i][b]; ok && k < n {
							oldest[i] = min(oldest[i], when)
						} else if ok {
							forgotten[i] = max(forgotten[i], when)
							delete(used[i], b)
						} else if k < n {
							t.Fatalf("step %d: holds a block that was not routed or was forgotten", step)
						}
					}
				}
				kept := len(used[i])
				if p.uses[i].size != kept {
					t.Fatalf("step %d: %d blocks at %d, want %d", step, p.uses[i].size, i, kept)
				}
				if forgotten[i] > oldest[i] {
					t.Fatalf("step %d: forgot what was used at %d and kept what was at %d", step, forgotten[i], oldest[i])
				}
				size += kept
			}
			if p.size != size || all && size > limit || !all && p.uses[i].size > limit {
				t.Fatalf("step %d: %d blocks, counted %d", step, p.size, size)
			}
			if all && slices.Max(forgotten) > slices.Min(oldest) {
				t.Fatalf("step %d: forgot at one replica what was used later than what is kept at another", step)
			}
			// The longest match is the longest of any replica.
			q = prompts[rand.IntN(len(prompts))]
			depth, end := p.longest(q)
			if want := slices.Max(p.prefix(q)); depth != want {
				t.Fatalf("step %d: longest %d, want %d", step, depth, want)
			}
			if depth == 0 {
				continue
			}
			var want []int
			for i, n := range p.prefix(q) {
				if n == depth {
					want = append(want, i)
				}
			}
			if got := end.among([]int{0, 1, 2, 3}, nil); !slices.Equal(got, want) {
				t.Fatalf("step %d: held by %v, want %v", step, got, want)
			}
		}
	}
}
