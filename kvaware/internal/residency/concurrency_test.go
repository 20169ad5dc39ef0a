// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// Everything at once: engines that store, evict, clear and are forgotten, and readers
// that must never be credited more than there is.
func TestConcurrentUseKeepsCreditWithinTheChain(t *testing.T) {
	x := newTestIndex()
	x.remember = 50
	const engines, rounds = 4, 150
	var writers, readers sync.WaitGroup
	var done atomic.Bool
	holders := make([]*Holder, engines)
	for i := range engines {
		page := []int{16, 16, 4, 64}[i]
		holders[i] = x.Open(i)
		writers.Go(func() {
			w := &world{r: rand.New(rand.NewPCG(uint64(i), 7)), page: page, depth: 12}
			h := holders[i]
			for range rounds {
				b := kvevents.Batch{Events: w.teach()}
				for range 40 {
					b.Events = append(b.Events, w.event())
				}
				h.Apply(&b)
				switch w.r.IntN(20) {
				case 0:
					h.Forget()
				case 1:
					if i > 0 {
						h.Close()
						holders[i] = x.Open(i)
						h = holders[i]
					}
				}
			}
		})
	}
	first := holders[0]
	writers.Go(func() {
		for range rounds / 10 {
			first.Forget() // by another goroutine than the one that applies
		}
	})
	for i := range 2 {
		readers.Go(func() {
			w := &world{r: rand.New(rand.NewPCG(uint64(i), 8)), page: 16, depth: 12}
			for !done.Load() {
				root, tokens := w.prompt()
				dst := make([]int32, engines)
				for _, size := range x.BlockSizes(nil) {
					chain := chainOf(testChains.Root(worldRoots[root][0], worldRoots[root][1]), tokens, size)
					x.Match(size, chain, dst)
					for slot, n := range dst {
						if n < 0 || int(n) > len(tokens)/16 {
							t.Errorf("slot %d is credited %d blocks", slot, n)
						}
					}
				}
				first.Stats()
				x.Size()
			}
		})
	}
	writers.Wait()
	done.Store(true)
	readers.Wait()
	if err := x.check(holders...); err != nil {
		t.Fatal(err)
	}
	for _, h := range holders {
		h.Close()
	}
	if sz := x.Size(); sz.Blocks != 0 {
		t.Errorf("%+v is left", sz)
	}
}

// What nobody changes is found, however much happens around it.
func TestBlocksThatStayAreFoundWhileOthersComeAndGo(t *testing.T) {
	x := newTestIndex()
	steady, busy := openEngine(t, x, 0, 16), openEngine(t, x, 1, 16)
	const blocks = 3000
	steady.Apply(&kvevents.Batch{Events: []kvevents.Event{steady.store(kvevents.GPU, 1, 0, blocks)}})
	chain := chainOf(testChains.Root("", ""), textOf(1, blocks*16), 16)
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		r := rand.New(rand.NewPCG(1, 2))
		for n := 0; !done.Load(); n++ {
			from := r.IntN(blocks - 100)
			busy.Apply(&kvevents.Batch{Events: []kvevents.Event{
				busy.store(kvevents.GPU, 1, 0, 1+r.IntN(blocks)),
				busy.store(kvevents.GPU, 2+n%7, 0, 500),
				busy.remove(kvevents.GPU, 1, from, from+100),
				busy.remove(kvevents.GPU, 2+(n+3)%7, 0, 500),
			}})
			if n%10 == 9 {
				busy.Apply(&kvevents.Batch{Events: []kvevents.Event{cleared}})
			}
		}
	})
	missed := 0
	for range 300 {
		dst := make([]int32, 2)
		x.Match(16, chain, dst)
		if dst[0] != blocks {
			missed++
		}
	}
	done.Store(true)
	wg.Wait()
	// A lookup gives up where slots move under it four times in a row.
	if missed > 3 {
		t.Errorf("%d of 300 lookups missed blocks that were there all the time", missed)
	}
	if err := x.check(steady.Holder, busy.Holder); err != nil {
		t.Fatal(err)
	}
}

// Chunks, segments and sets come and go with the blocks, in whatever order those do.
func TestMemoryIsGivenBackWhenBlocksGo(t *testing.T) {
	x := newTestIndex()
	r := rand.New(rand.NewPCG(3, 4))
	a, b := openEngine(t, x, 0, 16), openEngine(t, x, 1, 16)
	const prompts, blocks = 120, 100
	for round := range 3 {
		for prompt := range prompts {
			e := []*engine{a, b}[prompt%2]
			e.Apply(&kvevents.Batch{Events: []kvevents.Event{e.store(kvevents.GPU, prompt, 0, blocks)}})
			if prompt%3 == 0 {
				a.Apply(&kvevents.Batch{Events: []kvevents.Event{a.store(kvevents.GPU, prompt, 0, r.IntN(blocks)+1)}})
			}
		}
		full := x.Size()
		if err := x.check(a.Holder, b.Holder); err != nil {
			t.Fatal(err)
		}
		if full.Blocks != prompts*blocks || full.Bytes > full.Blocks*50 {
			t.Fatalf("round %d: %+v", round, full)
		}
		for i, n := range r.Perm(prompts * blocks) {
			for _, e := range []*engine{a, b} {
				for range 2 { // copies, and one removal too many
					e.Apply(&kvevents.Batch{Events: []kvevents.Event{e.remove(kvevents.GPU, n/blocks, n%blocks, n%blocks+1)}})
				}
			}
			if i%3000 == 2999 {
				if err := x.check(a.Holder, b.Holder); err != nil {
					t.Fatal(err)
				}
			}
		}
		empty := x.Size()
		if empty.Blocks != 0 || empty.Sets != 0 || empty.Bytes > full.Bytes/2 {
			t.Errorf("round %d: %+v of %+v", round, empty, full)
		}
		if st := a.Stats(); st.Blocks[0] != 0 || st.Bytes > 50_000 {
			t.Errorf("round %d: %+v", round, st)
		}
	}
}
