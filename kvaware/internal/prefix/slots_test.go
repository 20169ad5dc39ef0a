// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/pace"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/reuse"
)

func withSlots(n, context int) (x *Index, h Holder) {
	x = unclocked()
	h = x.Add(1000)
	x.SetSlots(h, n, context)
	return x, h
}

func TestASlotKeepsTheLastSequenceThatRanThere(t *testing.T) {
	x, h := withSlots(1, 0)
	serve(x, h, prompt([2]int{1, 10}, [2]int{2, 10}), 3)
	wantHeld(t, x, prompt([2]int{1, 10}, [2]int{2, 15}), 20)
	wantHeld(t, x, prompt([2]int{1, 10}, [2]int{3, 10}), 10)
	wantStats(t, x, h, Stats{Capacity: 1000, Blocks: 23, Idle: 20, Output: 3})
	serve(x, h, prompt([2]int{1, 10}, [2]int{3, 5}), 0)
	wantHeld(t, x, prompt([2]int{1, 10}, [2]int{2, 15}), 10)
	wantHeld(t, x, prompt([2]int{1, 10}, [2]int{3, 15}), 15)
	wantStats(t, x, h, Stats{Capacity: 1000, Blocks: 15, Idle: 15, Evicted: 13})
}

func TestTheSlotWithMostInCommonIsTakenElseTheOneUsedLeastRecently(t *testing.T) {
	x, h := withSlots(3, 0)
	for i := 1; i <= 3; i++ {
		serve(x, h, prompt([2]int{i, 20}), 0)
	}
	serve(x, h, prompt([2]int{2, 20}, [2]int{9, 5}), 0) // goes on with the second
	serve(x, h, prompt([2]int{4, 20}), 0)               // takes the first, which was used longest ago
	for i, want := range []int32{0, 20, 20, 20} {
		wantHeld(t, x, prompt([2]int{i + 1, 20}), want)
	}
	// A tenth in common is too little to be taken for similar: the third is next,
	// although the second begins alike.
	serve(x, h, prompt([2]int{2, 2}, [2]int{8, 18}), 0)
	for i, want := range []int32{0, 20, 0, 20} {
		wantHeld(t, x, prompt([2]int{i + 1, 20}), want)
	}
}

func TestWhereNoSlotIsIdleRequestsWaitForTheNextOne(t *testing.T) {
	x, h := withSlots(1, 0)
	first := x.Pin(h, 0, prompt([2]int{1, 10}))
	second := x.Pin(h, 0, prompt([2]int{1, 10}, [2]int{2, 10}))
	third := x.Pin(h, 0, prompt([2]int{3, 10}))
	if got := second.Before(); got != (Before{Held: 10}) {
		t.Errorf("%+v", got)
	}
	x.Grow(&second, 4)
	wantHeld(t, x, prompt([2]int{1, 10}), 10)
	wantStats(t, x, h, Stats{Capacity: 1000, Blocks: 10, Pinned: 10})
	x.Done(&first)
	wantStats(t, x, h, Stats{Capacity: 1000, Blocks: 20, Pinned: 20})
	x.Abort(&third) // it never ran
	x.Done(&second)
	wantHeld(t, x, prompt([2]int{1, 10}, [2]int{2, 10}), 20)
	wantStats(t, x, h, Stats{Capacity: 1000, Blocks: 20, Idle: 20})
}

func TestAnAbortedRequestLeavesWhatItFound(t *testing.T) {
	x, h := withSlots(1, 0)
	serve(x, h, prompt([2]int{1, 10}), 0)
	p := x.Pin(h, 0, prompt([2]int{1, 5}, [2]int{2, 10}))
	wantHeld(t, x, prompt([2]int{1, 10}), 5)
	x.Abort(&p)
	wantHeld(t, x, prompt([2]int{1, 5}, [2]int{2, 10}), 5)
	p = x.Pin(h, 0, prompt([2]int{1, 5}, [2]int{2, 10}))
	if got := p.Before(); got != (Before{Held: 5, Sure: 5}) {
		t.Errorf("%+v", got)
	}
	x.Confirm(&p)
	x.Abort(&p)
	wantHeld(t, x, prompt([2]int{1, 5}, [2]int{2, 10}), 15)
}

func TestASequenceEndsAtItsContext(t *testing.T) {
	x, h := withSlots(2, 12)
	serve(x, h, prompt([2]int{1, 20}), 5)
	serve(x, h, prompt([2]int{2, 10}), 5)
	wantHeld(t, x, prompt([2]int{1, 20}), 12)
	wantStats(t, x, h, Stats{Capacity: 24, Blocks: 24, Idle: 22, Output: 2})
}

func TestAnOutputLiesBehindItsSequence(t *testing.T) {
	x, h := withSlots(1, 0)
	p := x.Pin(h, 0, prompt([2]int{1, 10}))
	x.Grow(&p, 4)
	x.Answered(&p, PlainText)
	x.Done(&p)
	held, outs := make([]int32, 1), make([]Output, 1)
	for _, c := range []struct {
		chain []uint64
		want  Output
	}{
		{prompt([2]int{1, 10}, [2]int{2, 5}), Output{Blocks: 3, Content: PlainText}},
		{prompt([2]int{1, 10}), Output{}},
		{prompt([2]int{1, 9}, [2]int{2, 5}), Output{}},
	} {
		if x.Find(0, c.chain, &Found{Held: held, Outputs: outs}); outs[0] != c.want {
			t.Errorf("%v", outs)
		}
	}
	q := x.Pin(h, 0, prompt([2]int{1, 10}, [2]int{2, 5}))
	if got := q.Before(); got != (Before{Held: 10, Sure: 10, Output: Output{Blocks: 3, Content: PlainText}}) {
		t.Errorf("%+v", got)
	}
}

func TestThePriceOfASlotIsWhatItsSequenceLoses(t *testing.T) {
	x, h := withSlots(2, 0)
	price := func(chain []uint64) float64 {
		return x.Price(h, len(chain), &Eviction{Pace: &pace.Prior, BlockSize: 16, Chain: chain})
	}
	use := make([]Use, 1)
	serve(x, h, prompt([2]int{1, 10}), 0)
	if x.Uses(use); use[0].Free != 990 {
		t.Errorf("%+v with an empty slot", use[0])
	}
	if got := price(prompt([2]int{2, 10})); got != 0 {
		t.Errorf("an empty slot costs %v", got)
	}
	serve(x, h, prompt([2]int{2, 10}), 0)
	if x.Uses(use); use[0].Free != 0 {
		t.Errorf("%+v", use[0])
	}
	half, whole := price(prompt([2]int{1, 5}, [2]int{3, 3})), price(prompt([2]int{4, 10}))
	if want := pace.Prior.Recompute(0, 160) * x.history.Chance(0); whole != want || !(0 < half && half < whole) {
		t.Errorf("%v for half a sequence, %v for a whole one, want %v", half, whole, want)
	}
	if got := price(prompt([2]int{1, 10}, [2]int{5, 3})); got != 0 {
		t.Errorf("%v where nothing is lost", got)
	}
}

func TestSlotsComeAndGoWithWhatTheyHold(t *testing.T) {
	x, h := withSlots(2, 0)
	blocks := x.Add(100)
	chain := prompt([2]int{1, 10})
	serve(x, blocks, chain, 0)
	serve(x, h, chain, 0)
	running := x.Pin(h, 0, prompt([2]int{2, 10}))
	wantHeld(t, x, chain, 10, 10)
	x.SetSlots(h, 2, 0) // as it is
	wantHeld(t, x, chain, 10, 10)
	x.Forget(h)
	x.Grow(&running, 3)
	x.Done(&running)
	wantHeld(t, x, chain, 0, 10)
	serve(x, h, chain, 0)
	serve(x, h, prompt([2]int{2, 10}), 0)
	wantHeld(t, x, chain, 10, 10) // there are two still
	x.SetSlots(h, 0, 0)
	wantHeld(t, x, chain, 0, 10)
	serve(x, h, chain, 0)
	wantStats(t, x, h, Stats{Capacity: 1000, Blocks: 10, Idle: 10, Evicted: x.Stats(h).Evicted})
	x.SetSlots(h, 3, 0)
	x.Remove(h)
	if x.slottedCaches != 0 {
		t.Errorf("%d caches of slots", x.slottedCaches)
	}
	wantHeld(t, x, chain, 0, 10)
}

// naiveSlots is the rules of slots over plain lists.
type naiveSlots struct {
	slots   []*naiveSlot // most recently used last
	waiting []*naivePath
	most    int
}

type naiveSlot struct {
	blocks  []uint64
	sure    int
	out     int
	running *naivePath
}

type naivePath struct {
	blocks []uint64
	slot   *naiveSlot
	kept   int
	over   bool
}

func commonBlocks(a, b []uint64) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func (s *naiveSlots) pick(blocks []uint64) *naiveSlot {
	idle := slices.DeleteFunc(slices.Clone(s.slots), func(sl *naiveSlot) bool { return sl.running != nil })
	if len(idle) == 0 {
		return s.slots[0]
	}
	best := idle[0]
	most := 0
	for _, sl := range idle {
		if k := commonBlocks(sl.blocks, blocks); k*similar > len(blocks) && k > most {
			best, most = sl, k
		}
	}
	return best
}

// tied reports whether several idle slots have most in common with a prompt.
func (s *naiveSlots) tied(blocks []uint64) bool {
	most, n := 0, 0
	for _, sl := range s.slots {
		switch k := commonBlocks(sl.blocks, blocks); {
		case sl.running != nil:
		case k > most:
			most, n = k, 1
		case k == most:
			n++
		}
	}
	return most > 0 && n > 1
}

func (s *naiveSlots) use(sl *naiveSlot) {
	i := slices.Index(s.slots, sl)
	s.slots = append(slices.Delete(s.slots, i, i+1), sl)
}

func (s *naiveSlots) start(p *naivePath) {
	sl := s.pick(p.blocks)
	p.kept = commonBlocks(sl.blocks, p.blocks)
	*sl = naiveSlot{blocks: p.blocks, sure: min(sl.sure, p.kept), running: p}
	p.slot = sl
	s.use(sl)
}

func (s *naiveSlots) pin(chain []uint64) *naivePath {
	p := &naivePath{blocks: chain[:min(len(chain), s.most)]}
	if s.pick(nil).running != nil {
		s.waiting = append(s.waiting, p)
	} else {
		s.start(p)
	}
	return p
}

func (s *naiveSlots) finish(p *naivePath, served bool) {
	if p.over {
		return
	}
	p.over = true
	sl := p.slot
	if sl == nil {
		i := slices.Index(s.waiting, p)
		s.waiting = slices.Delete(s.waiting, i, i+1)
		return
	}
	if served {
		sl.sure = len(sl.blocks)
	} else if sl.sure < len(sl.blocks) {
		sl.blocks, sl.out, sl.sure = sl.blocks[:p.kept], 0, min(sl.sure, p.kept)
	}
	sl.running = nil
	s.use(sl)
	if len(s.waiting) > 0 {
		next := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.start(next)
	}
}

// rehearseSlots runs a script against slots and the naive rules. Ties of slots
// that have equally much in common are left out: either is right.
func rehearseSlots(s script) error {
	x := New(func() time.Duration { return time.Duration(len(s)) * reuse.Tick })
	h := x.Add(1000)
	m := &naiveSlots{most: 5 + s.next(30)}
	for range 1 + s.next(4) {
		m.slots = append(m.slots, new(naiveSlot))
	}
	x.SetSlots(h, len(m.slots), m.most)
	type pair struct {
		real  Path
		naive *naivePath
	}
	var running []*pair
	held := make([]int32, 1)
	for step := 0; len(s) > 0; step++ {
		op := s.next(10)
		switch {
		case op < 4 && len(running) < 6:
			chain := s.chain()
			if !m.tied(chain[:min(len(chain), m.most)]) {
				running = append(running, &pair{x.Pin(h, 0, chain), m.pin(chain)})
			}
		case len(running) == 0:
		case op < 6:
			p, n := running[s.next(len(running))], s.next(20)
			x.Grow(&p.real, n)
			if sl := p.naive.slot; sl != nil {
				sl.out = min(n, m.most-len(sl.blocks))
			}
		case op < 7:
			p := running[s.next(len(running))]
			x.Confirm(&p.real)
			if sl := p.naive.slot; sl != nil {
				sl.sure = len(sl.blocks)
			}
		default:
			i := s.next(len(running))
			p := running[i]
			running = slices.Delete(running, i, i+1)
			if op == 9 {
				x.Abort(&p.real)
			} else {
				x.Done(&p.real)
			}
			m.finish(p.naive, op != 9)
		}
		want := Stats{Capacity: m.most * len(m.slots), Evicted: x.Stats(h).Evicted}
		for _, sl := range m.slots {
			if sl.running != nil {
				want.Pinned += len(sl.blocks)
				want.Generating += sl.out
			} else {
				want.Idle += len(sl.blocks)
				want.Output += sl.out
			}
		}
		want.Blocks = want.Pinned + want.Idle + want.Generating + want.Output
		if got := x.Stats(h); got != want {
			return fmt.Errorf("step %d, operation %d: %+v, want %+v", step, op, got, want)
		}
		for _, sl := range m.slots {
			chain := append(slices.Clone(sl.blocks), 99)
			x.Match(0, chain, held)
			if want := commonBlocks(m.pick(chain).blocks, chain); int(held[0]) != want {
				return fmt.Errorf("step %d: held %d of %d blocks, want %d", step, held[0], len(chain), want)
			}
		}
		if err := x.check(); err != nil {
			return err
		}
	}
	return nil
}

func TestSlotsAgreeWithTheRulesOnRandomTraffic(t *testing.T) {
	for seed := range uint64(50) {
		if err := rehearseSlots(randomScript(rand.New(rand.NewPCG(seed, 5)), 3000)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func FuzzSlotsAgreeWithTheRules(f *testing.F) {
	for seed := range uint64(4) {
		f.Add([]byte(randomScript(rand.New(rand.NewPCG(seed, 13)), 300)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := rehearseSlots(script(b[:min(len(b), 1000)])); err != nil {
			t.Fatal(err)
		}
	})
}

// 8192 blocks, 64 upstreams of 8 slots each.
func BenchmarkFindSlots(b *testing.B) {
	x := unclocked()
	long := longPrompt()
	for h := range Holder(64) {
		x.Add(maxCapacity)
		x.SetSlots(h, 8, 0)
		for i := range 8 {
			serve(x, h, long[:len(long)/(i+1)], 0)
		}
	}
	dst := make([]int32, x.Slots())
	b.ReportAllocs()
	for b.Loop() {
		x.Match(0, long, dst)
	}
}
