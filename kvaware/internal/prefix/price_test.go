// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/pace"
)

// aged is an index on a clock that a test moves.
func aged() (*Index, *time.Duration) {
	at := new(time.Duration)
	return New(func() time.Duration { return *at }), at
}

func TestRoomThatIsFreeCostsNothing(t *testing.T) {
	x, _ := aged()
	h := x.Add(100)
	serve(x, h, prompt([2]int{1, 40}), 0)
	e := &Eviction{Pace: &pace.Prior, BlockSize: 16}
	if got := x.Price(h, 60, e); got != 0 {
		t.Errorf("free room costs %v", got)
	}
	if got := x.Price(h, 61, e); got <= 0 {
		t.Errorf("evicting a block costs %v", got)
	}
	if got := x.Price(h+1, 61, e); got != 0 {
		t.Errorf("where no upstream is, room costs %v", got)
	}
}

// What nobody came back to for long is cheap to push out, once it was seen that
// prefixes come back soon or never.
func TestOldIdlePrefixesAreCheaperThanYoungOnes(t *testing.T) {
	x, at := aged()
	teacher := x.Add(1000)
	for i := range 3000 {
		serve(x, teacher, prompt([2]int{i, 10}), 0)
		*at += time.Second
		serve(x, teacher, prompt([2]int{i, 10}), 0) // once more, and then never
	}
	old, young := x.Add(100), x.Add(100)
	serve(x, old, prompt([2]int{-1, 100}), 0)
	*at += 10 * time.Minute
	serve(x, young, prompt([2]int{-2, 100}), 0)
	e := &Eviction{Pace: &pace.Prior, BlockSize: 16}
	if o, y := x.Price(old, 50, e), x.Price(young, 50, e); o*5 > y {
		t.Errorf("old blocks cost %v, young ones %v", o, y)
	}
}

func TestAPromptDoesNotPayForItsOwnBlocks(t *testing.T) {
	x, _ := aged()
	h := x.Add(100)
	own := prompt([2]int{1, 60})
	serve(x, h, own, 0)
	serve(x, h, prompt([2]int{2, 40}), 0)
	other := &Eviction{Pace: &pace.Prior, BlockSize: 16}
	if got, want := x.Price(h, 10, &Eviction{Pace: &pace.Prior, BlockSize: 16, Chain: own}), x.Price(h, 10, other); got <= 0 || got >= want {
		t.Errorf("the oldest blocks are its own: costs %v; another's cost %v", got, want)
	}
}

func TestManySpansArePricedLikeTheFirst(t *testing.T) {
	x, _ := aged()
	h := x.Add(10 * 100)
	for i := range 100 {
		serve(x, h, prompt([2]int{i, 10}), 0)
	}
	e := &Eviction{Pace: &pace.Prior, BlockSize: 16}
	one, all := x.Price(h, 10, e), x.Price(h, 1000, e)
	if all < 99*one || all > 101*one {
		t.Errorf("ten blocks cost %v, a hundred times as many %v", one, all)
	}
	if more := x.Price(h, 1_000_000, e); more < 0.99*all || more > 1.01*all {
		t.Errorf("more than can be evicted costs %v, all that can %v", more, all)
	}
}

// Full caches, of which each price looks at as many spans as it may.
func BenchmarkPrice(b *testing.B) {
	x := unclocked()
	for h := range Holder(64) {
		x.Add(20_000)
		for i := range 400 {
			serve(x, h, prompt([2]int{i, 64}), 0)
		}
	}
	chain := longPrompt()
	e := &Eviction{Pace: &pace.Prior, BlockSize: 16, Chain: chain}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		x.Price(Holder(i%64), len(chain), e)
	}
}

// What all upstreams hold of a conversation of 200 turns, and what of it is
// pinned.
func BenchmarkMatchPinnedLongConversation(b *testing.B) {
	x := unclocked()
	long := longPrompt()
	for h := range Holder(64) {
		x.Add(maxCapacity)
		for n := 41; n <= len(long); n += 41 {
			serve(x, h, long[:n], 0)
		}
	}
	dst, pinned := make([]int32, x.Slots()), make([]int32, x.Slots())
	b.ReportAllocs()
	for b.Loop() {
		x.Find(0, long, &Found{Held: dst, Pinned: pinned})
	}
}

func BenchmarkUses(b *testing.B) {
	x := unclocked()
	for range 64 {
		x.Add(20_000)
	}
	dst := make([]Use, x.Slots())
	b.ReportAllocs()
	for b.Loop() {
		x.Uses(dst)
	}
}
