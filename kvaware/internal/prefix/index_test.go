// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"math"
	"slices"
	"testing"
	"time"
)

// prompt makes the chain of a prompt out of stretches of n blocks that differ
// by id.
func prompt(stretches ...[2]int) []uint64 {
	var chain []uint64
	hash := uint64(0)
	for _, st := range stretches {
		for range st[1] {
			hash = mix64(hash ^ uint64(st[0])*0x9e3779b97f4a7c15)
			chain = append(chain, hash)
		}
	}
	return chain
}

// unclocked returns an index to which all that is idle is of one age.
func unclocked() *Index { return New(func() time.Duration { return 0 }) }

func (x *Index) held(t *testing.T, chain []uint64) []int32 {
	t.Helper()
	if err := x.check(); err != nil {
		t.Fatal(err)
	}
	dst := make([]int32, x.Slots())
	x.Match(0, chain, dst)
	return dst
}

func wantHeld(t *testing.T, x *Index, chain []uint64, want ...int32) {
	t.Helper()
	if got := x.held(t, chain); !slices.Equal(got, want) {
		t.Fatalf("held %v, want %v", got, want)
	}
}

func wantStats(t *testing.T, x *Index, h Holder, want Stats) {
	t.Helper()
	if got := x.Stats(h); got != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
}

func serve(x *Index, h Holder, chain []uint64, output int) {
	p := x.Pin(h, 0, chain)
	x.Grow(&p, output)
	x.Done(&p)
}

func TestMatchCountsLeadingBlocksPerUpstream(t *testing.T) {
	x := unclocked()
	a, b, c := x.Add(100), x.Add(100), x.Add(100)
	serve(x, a, prompt([2]int{1, 10}), 0)
	serve(x, b, prompt([2]int{1, 6}, [2]int{2, 3}), 0)
	_ = c
	wantHeld(t, x, prompt([2]int{1, 12}), 10, 6, 0)
	wantHeld(t, x, prompt([2]int{1, 6}, [2]int{2, 9}), 6, 9, 0)
	wantHeld(t, x, prompt([2]int{1, 4}), 4, 4, 0)
	wantHeld(t, x, prompt([2]int{3, 4}), 0, 0, 0)
	wantHeld(t, x, nil, 0, 0, 0)
}

func TestMatchOverwritesDstAndLeavesOutWhatIsBeyondIt(t *testing.T) {
	x := unclocked()
	a, b := x.Add(100), x.Add(100)
	chain := prompt([2]int{1, 5})
	serve(x, a, chain, 0)
	serve(x, b, chain, 0)
	dst := []int32{9}
	x.Match(0, chain, dst)
	if dst[0] != 5 {
		t.Fatalf("held %v, want 5", dst)
	}
	x.Match(0, chain, nil)
	dst = []int32{9, 9, 9}
	x.Match(0, chain, dst)
	if !slices.Equal(dst, []int32{5, 5, 0}) {
		t.Fatalf("held %v", dst)
	}
}

func TestNamespacesNeverMatchEachOther(t *testing.T) {
	x := unclocked()
	h := x.Add(100)
	chain := prompt([2]int{1, 5})
	p := x.Pin(h, 7, chain)
	x.Done(&p)
	dst := make([]int32, 1)
	for ns, want := range map[uint64]int32{7: 5, 0: 0, 8: 0, math.MaxUint64: 0} {
		if x.Match(ns, chain, dst); dst[0] != want {
			t.Errorf("namespace %d: held %d, want %d", ns, dst[0], want)
		}
	}
}

func TestRunningPromptsAreNeverEvicted(t *testing.T) {
	x := unclocked()
	h := x.Add(10)
	running := x.Pin(h, 0, prompt([2]int{1, 6}))
	for i := range 20 {
		serve(x, h, prompt([2]int{100 + i, 4}), 0)
	}
	wantHeld(t, x, prompt([2]int{1, 6}), 6)
	x.Done(&running)
	serve(x, h, prompt([2]int{200, 10}), 0)
	wantHeld(t, x, prompt([2]int{1, 6}), 0)
}

func TestLeastRecentlyEndedGoesFirstAndTailBeforeHead(t *testing.T) {
	x := unclocked()
	h := x.Add(20)
	old, recent := prompt([2]int{1, 10}), prompt([2]int{2, 8})
	p, q := x.Pin(h, 0, old), x.Pin(h, 0, recent)
	x.Done(&q)
	x.Done(&p) // old ends last: now it is the recent one
	serve(x, h, prompt([2]int{3, 5}), 0)
	wantHeld(t, x, old, 10)
	wantHeld(t, x, recent, 5)
	serve(x, h, prompt([2]int{4, 8}), 0)
	wantHeld(t, x, old, 7)
	wantHeld(t, x, recent, 0)
	if got := x.Stats(h).Evicted; got != 11 {
		t.Errorf("%d evicted, want 11", got)
	}
}

func TestSharedHeadOutlivesItsBranches(t *testing.T) {
	x := unclocked()
	h := x.Add(12)
	for i := range 10 {
		serve(x, h, prompt([2]int{1, 4}, [2]int{10 + i, 4}), 0)
	}
	wantHeld(t, x, prompt([2]int{1, 4}, [2]int{19, 4}), 8)
	wantHeld(t, x, prompt([2]int{1, 4}, [2]int{18, 4}), 8)
	wantHeld(t, x, prompt([2]int{1, 4}, [2]int{17, 4}), 4)
}

func TestOutputTakesRoomAndGoesFirst(t *testing.T) {
	x := unclocked()
	h := x.Add(20)
	serve(x, h, prompt([2]int{1, 8}), 0)
	p := x.Pin(h, 0, prompt([2]int{2, 5}))
	x.Grow(&p, 10)
	wantStats(t, x, h, Stats{Capacity: 20, Blocks: 20, Pinned: 5, Idle: 5, Generating: 10, Evicted: 3})
	x.Grow(&p, 8) // usage corrects the count downwards
	wantStats(t, x, h, Stats{Capacity: 20, Blocks: 18, Pinned: 5, Idle: 5, Generating: 8, Evicted: 3})
	x.Done(&p)
	wantStats(t, x, h, Stats{Capacity: 20, Blocks: 18, Idle: 10, Output: 8, Evicted: 3})
	serve(x, h, prompt([2]int{3, 10}), 0) // 2 free, then the 5 of the first prompt, then output
	wantHeld(t, x, prompt([2]int{1, 8}), 0)
	wantHeld(t, x, prompt([2]int{2, 5}), 5)
	wantStats(t, x, h, Stats{Capacity: 20, Blocks: 20, Idle: 15, Output: 5, Evicted: 11})
}

func TestOutputFillsNoMoreThanTheRoomLeft(t *testing.T) {
	x := unclocked()
	h := x.Add(10)
	p, q := x.Pin(h, 0, prompt([2]int{1, 4})), x.Pin(h, 0, nil)
	x.Grow(&p, math.MaxInt)
	x.Grow(&q, 3)
	wantStats(t, x, h, Stats{Capacity: 10, Blocks: 10, Pinned: 4, Generating: 6})
	x.Grow(&p, math.MinInt)
	x.Grow(&q, 3)
	wantStats(t, x, h, Stats{Capacity: 10, Blocks: 7, Pinned: 4, Generating: 3})
	x.Done(&q) // no prompt: output alone
	wantStats(t, x, h, Stats{Capacity: 10, Blocks: 7, Pinned: 4, Output: 3})
	x.Done(&p)
	x.held(t, nil)
}

func TestLongerPromptTakesOverTheOutputItContinues(t *testing.T) {
	x := unclocked()
	h := x.Add(100)
	serve(x, h, prompt([2]int{1, 5}), 10)
	serve(x, h, prompt([2]int{1, 5}), 3) // a second answer to the same prompt
	wantStats(t, x, h, Stats{Capacity: 100, Blocks: 18, Idle: 5, Output: 13})
	serve(x, h, prompt([2]int{1, 5}, [2]int{2, 4}), 0)
	wantStats(t, x, h, Stats{Capacity: 100, Blocks: 19, Idle: 9, Output: 10})
	serve(x, h, prompt([2]int{1, 5}, [2]int{3, 4}), 0) // another branch, the older answer
	wantStats(t, x, h, Stats{Capacity: 100, Blocks: 19, Idle: 13, Output: 6})
	serve(x, h, prompt([2]int{1, 3}, [2]int{3, 2}), 0) // leaves before the output
	wantStats(t, x, h, Stats{Capacity: 100, Blocks: 21, Idle: 15, Output: 6})
	x.held(t, nil)
}

func TestPathEntersAsFarAsItFitsBesideRunningOnes(t *testing.T) {
	x := unclocked()
	h := x.Add(10)
	first := x.Pin(h, 0, prompt([2]int{1, 6}))
	second := x.Pin(h, 0, prompt([2]int{1, 3}, [2]int{2, 9}))
	wantHeld(t, x, prompt([2]int{1, 3}, [2]int{2, 9}), 7)
	third := x.Pin(h, 0, prompt([2]int{3, 1}))
	wantHeld(t, x, prompt([2]int{3, 1}), 0)
	wantStats(t, x, h, Stats{Capacity: 10, Blocks: 10, Pinned: 10})
	for _, p := range []*Path{&third, &first, &second} {
		x.Done(p)
	}
	wantStats(t, x, h, Stats{Capacity: 10, Blocks: 10, Idle: 10})
	x.held(t, nil)
}

func TestAbortTakesAwayWhatNobodyElseUsed(t *testing.T) {
	chain := prompt([2]int{1, 4}, [2]int{2, 4})
	for name, tc := range map[string]struct {
		other func(x *Index, h Holder) // meanwhile, after the aborted request came
		want  int32
	}{
		"alone":              {func(*Index, Holder) {}, 0},
		"still running":      {func(x *Index, h Holder) { x.Pin(h, 0, chain[:6]) }, 6},
		"served":             {func(x *Index, h Holder) { serve(x, h, chain[:6], 0) }, 6},
		"aborted too":        {func(x *Index, h Holder) { p := x.Pin(h, 0, chain[:6]); x.Abort(&p) }, 0},
		"had a first token":  {func(x *Index, h Holder) { p := x.Pin(h, 0, chain[:6]); x.Confirm(&p); x.Abort(&p) }, 6},
		"a different prompt": {func(x *Index, h Holder) { serve(x, h, prompt([2]int{1, 3}, [2]int{5, 5}), 0) }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			x := unclocked()
			h := x.Add(100)
			p := x.Pin(h, 0, chain)
			tc.other(x, h)
			x.Grow(&p, 3)
			x.Abort(&p)
			wantHeld(t, x, chain, tc.want)
			if st := x.Stats(h); st.Generating != 0 || st.Output != 0 {
				t.Errorf("output left: %+v", st)
			}
		})
	}
}

func TestAbortKeepsWhatWasThereBefore(t *testing.T) {
	x := unclocked()
	h, other := x.Add(12), x.Add(100)
	chain := prompt([2]int{1, 10})
	serve(x, other, chain, 0)
	serve(x, h, chain, 0)
	serve(x, h, prompt([2]int{2, 6}), 0) // leaves 6 of the 10
	wantHeld(t, x, chain, 6, 10)
	p := x.Pin(h, 0, chain)
	wantHeld(t, x, chain, 10, 10)
	x.Abort(&p)
	wantHeld(t, x, chain, 6, 10)
}

func TestConfirmedPromptOutlivesAbort(t *testing.T) {
	x := unclocked()
	h := x.Add(100)
	chain := prompt([2]int{1, 10})
	p := x.Pin(h, 0, chain)
	x.Confirm(&p)
	x.Confirm(&p)
	x.Abort(&p)
	wantHeld(t, x, chain, 10)
}

func TestPathEndsOnce(t *testing.T) {
	x := unclocked()
	h := x.Add(100)
	chain := prompt([2]int{1, 10})
	p, q := x.Pin(h, 0, chain), x.Pin(h, 0, chain)
	x.Grow(&p, 5)
	x.Done(&p)
	x.Abort(&p)
	x.Done(&p)
	x.Grow(&p, 50)
	wantStats(t, x, h, Stats{Capacity: 100, Blocks: 15, Pinned: 10, Output: 5})
	x.Done(&q)
	var none Path
	x.Grow(&none, 1)
	x.Confirm(&none)
	x.Done(&none)
	x.Abort(&none)
	wantStats(t, x, h, Stats{Capacity: 100, Blocks: 15, Idle: 10, Output: 5})
}

func TestUnknownUpstreamsAreIgnored(t *testing.T) {
	x := unclocked()
	const nobody = Holder(5)
	p := x.Pin(nobody, 0, prompt([2]int{1, 3}))
	x.Grow(&p, 3)
	x.Done(&p)
	x.Forget(nobody)
	x.Remove(nobody)
	x.SetCapacity(nobody, 10)
	wantStats(t, x, nobody, Stats{})
	if x.Slots() != 0 || x.Size() != (Size{}) {
		t.Fatalf("%d slots, %+v", x.Slots(), x.Size())
	}
}

func TestBlocksHeldByNobodyLeaveTheTrie(t *testing.T) {
	x := unclocked()
	chain := prompt([2]int{1, 100})
	whole := x.Add(100)
	a, b := x.Add(100), x.Add(100)
	for _, h := range []Holder{whole, a, b} {
		serve(x, h, chain, 0)
	}
	x.SetCapacity(a, 50)
	x.SetCapacity(b, 60)
	x.Forget(whole)
	wantHeld(t, x, chain, 0, 50, 60)
	serve(x, whole, chain[:70], 0) // cuts where neither a nor b reaches
	wantHeld(t, x, chain, 70, 50, 60)
	if sz := x.Size(); sz.Nodes != 1 || sz.Blocks != 70 {
		t.Errorf("%+v, want one node of 70 blocks", sz)
	}
	x.Forget(whole)
	x.Forget(b)
	wantHeld(t, x, chain, 0, 50, 0)
	if sz := x.Size(); sz.Nodes != 1 || sz.Blocks != 50 {
		t.Errorf("%+v, want one node of 50 blocks", sz)
	}
}

// Match looks for those that stop at a node, and stops once it has them.
func TestHoldersThatStopAtANodeStandFirst(t *testing.T) {
	x := unclocked()
	chain := prompt([2]int{1, 200})
	for i := range 20 {
		serve(x, x.Add(1000), chain[:10*(20-i)], 0)
	}
	for i := range 20 {
		serve(x, x.Add(1000), chain[:10*(i+1)], 0)
	}
	for h := range Holder(5) {
		x.SetCapacity(h, 37)
	}
	serve(x, x.Add(1000), chain[:38], 0) // splits where some hold a part only
	x.held(t, chain)
	node := uint32(0)
	for depth := 0; depth < len(chain); {
		node = x.nodes.find(chain[depth]^seedOf(0), node)
		n := x.nodes.at(node)
		depth += n.blocks()
		stops := true
		for id := n.first; id != 0; id = x.spans.at(id).right {
			slot := x.slotOf[x.spans.at(id).cache]
			dst := make([]int32, x.Slots())
			x.Match(0, chain, dst)
			if int(dst[slot]) > depth {
				stops = false
			} else if !stops {
				t.Fatalf("%d blocks deep: upstream %d stops here, but stands behind others", depth, slot)
			}
		}
	}
}

func TestMatchDoesNotAllocate(t *testing.T) {
	x := unclocked()
	chain := prompt([2]int{1, 100}, [2]int{2, 100})
	for i := range 32 {
		serve(x, x.Add(1000), chain[:6*i], 3)
	}
	dst := make([]int32, x.Slots())
	if n := testing.AllocsPerRun(100, func() { x.Match(0, chain, dst) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
