// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"slices"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// engine makes the events of one engine for prompts of counted tokens.
type engine struct {
	*Holder
	t     *testing.T
	page  int
	group int
}

func openEngine(t *testing.T, x *Index, slot, page int) *engine {
	return &engine{x.Open(slot), t, page, 0}
}

func textOf(prompt, tokens int) (ids []uint32) {
	for i := range tokens {
		ids = append(ids, uint32(prompt*1000+i))
	}
	return ids
}

// key is the identity of block i of a prompt.
func key(prompt, i int) kvevents.Key { return kvevents.Key(prompt*1_000_000 + i + 1) }

// store is the event for blocks [from, to) of a prompt.
func (e *engine) store(tier kvevents.Tier, prompt, from, to int) kvevents.Event {
	ev := kvevents.Event{
		Tier: tier, Group: e.group, Attention: kvevents.FullAttention, BlockSize: e.page,
		Tokens: textOf(prompt, to*e.page)[from*e.page:],
	}
	if from > 0 {
		ev.HasParent, ev.Parent = true, key(prompt, from-1)
	}
	ev.Blocks = keysOf(prompt, from, to)
	return ev
}

func keysOf(prompt, from, to int) (keys []kvevents.Key) {
	for i := from; i < to; i++ {
		keys = append(keys, key(prompt, i))
	}
	return keys
}

func (e *engine) remove(tier kvevents.Tier, prompt, from, to int) kvevents.Event {
	return kvevents.Event{Kind: kvevents.Removed, Tier: tier, Group: e.group, Blocks: keysOf(prompt, from, to)}
}

// keyed is the event of an offloading tier that tells the keys alone.
func (e *engine) keyed(tier kvevents.Tier, size int, keys ...kvevents.Key) kvevents.Event {
	return kvevents.Event{Tier: tier, Group: e.group, Blocks: keys, BlockSize: size}
}

func (e *engine) apply(events ...kvevents.Event) {
	e.t.Helper()
	e.Apply(&kvevents.Batch{Events: events})
	if err := e.x.check(e.Holder); err != nil && len(*e.x.tables.Load()) == 1 && e.seen.Load() == 0 {
		e.t.Fatal(err)
	}
}

// credit is what the engine is credited for a prompt.
func (e *engine) credit(ids []uint32) int32 {
	dst := make([]int32, e.slot+1)
	for _, size := range e.x.BlockSizes(nil) {
		e.x.Match(size, chainOf(testChains.Root("", ""), ids, size), dst)
	}
	return dst[e.slot]
}

func (e *engine) want(credit int32, ids []uint32) {
	e.t.Helper()
	if got := e.credit(ids); got != credit {
		e.t.Errorf("credit %d, not %d", got, credit)
	}
}

var cleared = kvevents.Event{Kind: kvevents.Cleared, Group: -1}

func newTestIndex() *Index { return New(Options{Chains: testChains}) }

func TestCreditEndsWhereABlockIsMissing(t *testing.T) {
	e := openEngine(t, newTestIndex(), 0, 16)
	e.apply(e.store(kvevents.GPU, 1, 0, 10))
	e.want(10, textOf(1, 165))
	e.want(4, textOf(1, 79))
	e.apply(e.remove(kvevents.GPU, 1, 6, 7))
	e.want(6, textOf(1, 160))
	e.apply(e.store(kvevents.GPU, 1, 6, 7))
	e.want(10, textOf(1, 160))
}

func TestTheFastestTierOfABlockCounts(t *testing.T) {
	e := openEngine(t, newTestIndex(), 0, 16)
	e.apply(e.store(kvevents.GPU, 1, 0, 8))
	e.apply(e.keyed(kvevents.CPU, 0, keysOf(1, 0, 8)...), e.keyed(kvevents.Disk, 0, keysOf(1, 0, 8)...))
	e.want(8, textOf(1, 128))
	e.apply(e.remove(kvevents.GPU, 1, 4, 8))
	e.want(4+3, textOf(1, 128))
	e.apply(e.remove(kvevents.CPU, 1, 6, 8))
	e.want(4+2, textOf(1, 128)) // 4 + 2*0.75 + 2*0.25
	e.apply(e.remove(kvevents.GPU, 1, 0, 4), e.remove(kvevents.CPU, 1, 0, 6))
	e.want(2, textOf(1, 128))
	e.apply(e.remove(kvevents.Disk, 1, 0, 1))
	e.want(0, textOf(1, 128))
}

func TestCopiesAreCountedUnlessTheLastRemovalIsTold(t *testing.T) {
	for _, last := range []bool{false, true} {
		e := openEngine(t, newTestIndex(), 0, 16)
		e.SetRules(Rules{LastRemoval: last})
		e.apply(e.store(kvevents.GPU, 1, 0, 3), e.store(kvevents.GPU, 1, 0, 3), e.remove(kvevents.GPU, 1, 1, 2))
		if last {
			e.want(1, textOf(1, 48))
			continue
		}
		e.want(3, textOf(1, 48))
		e.apply(e.remove(kvevents.GPU, 1, 1, 2))
		e.want(1, textOf(1, 48))
		e.apply(e.remove(kvevents.GPU, 1, 1, 2)) // one too many
		e.apply(e.store(kvevents.GPU, 1, 1, 2))
		e.want(3, textOf(1, 48))
	}
}

func TestAClearEmptiesTheGPUAlone(t *testing.T) {
	e := openEngine(t, newTestIndex(), 0, 16)
	e.apply(e.store(kvevents.GPU, 1, 0, 8), e.keyed(kvevents.CPU, 0, keysOf(1, 0, 4)...))
	e.apply(cleared)
	e.want(3, textOf(1, 128))
	if st := e.Stats(); st.Blocks != [3]int{0, 4, 0} || st.Remembered != 4 || st.Cleared != 1 {
		t.Errorf("%+v", st)
	}
	// Its blocks are still known by their keys, and the others can go on.
	e.apply(e.keyed(kvevents.CPU, 0, keysOf(1, 4, 8)...))
	e.want(6, textOf(1, 128))
	e.apply(e.store(kvevents.GPU, 1, 8, 9))
	e.want(7, textOf(1, 144))
	e.SetRules(Rules{ClearsAll: true})
	e.apply(cleared)
	e.want(0, textOf(1, 144))
	e.apply(e.store(kvevents.GPU, 1, 0, 2))
	e.want(2, textOf(1, 144))
}

func TestOnlyTheFullAttentionGroupCounts(t *testing.T) {
	x := newTestIndex()
	e := openEngine(t, x, 0, 16)
	other := func(ev kvevents.Event, group int, kind kvevents.Attention) kvevents.Event {
		ev.Group, ev.Attention = group, kind
		return ev
	}
	// Of unknown kind, the first group seen counts.
	e.apply(other(e.store(kvevents.GPU, 1, 0, 4), 2, kvevents.AttentionUnknown))
	e.want(4, textOf(1, 64))
	e.apply(other(e.store(kvevents.GPU, 2, 0, 4), 3, kvevents.AttentionUnknown))
	e.want(0, textOf(2, 64))
	// Until one is told to be of full attention: what was held before is nothing.
	e.apply(other(e.store(kvevents.GPU, 3, 0, 4), 1, kvevents.FullAttention))
	e.want(0, textOf(1, 64))
	e.want(4, textOf(3, 64))
	for group := range 6 {
		kind := kvevents.OtherAttention
		switch group {
		case 1:
			continue
		case 4:
			kind = kvevents.FullAttention // a second one
		}
		e.apply(other(e.store(kvevents.GPU, 4, 0, 4), group, kind), other(e.remove(kvevents.GPU, 3, 0, 4), group, kind),
			other(e.remove(kvevents.GPU, 3, 0, 4), group, kvevents.AttentionUnknown))
	}
	e.want(0, textOf(4, 64))
	e.want(4, textOf(3, 64))
	e.apply(other(e.remove(kvevents.GPU, 3, 2, 4), -1, kvevents.AttentionUnknown))
	e.want(2, textOf(3, 64))
}

func TestAGroupThatTurnsOutToBeOfAnotherKindIsDropped(t *testing.T) {
	e := openEngine(t, newTestIndex(), 0, 16)
	a, b := e.store(kvevents.GPU, 1, 0, 4), e.store(kvevents.GPU, 1, 4, 8)
	a.Attention, b.Attention = kvevents.AttentionUnknown, kvevents.OtherAttention
	e.apply(a)
	e.want(4, textOf(1, 64))
	e.apply(b)
	e.want(0, textOf(1, 64))
	if st := e.Stats(); st.Restarts != 1 || st.Blocks[0] != 0 {
		t.Errorf("%+v", st)
	}
}

func TestAdapterAndSaltPartBlocks(t *testing.T) {
	e := openEngine(t, newTestIndex(), 0, 16)
	a, b, c := e.store(kvevents.GPU, 1, 0, 2), e.store(kvevents.GPU, 2, 0, 2), e.store(kvevents.GPU, 3, 0, 2)
	a.LoRA = []byte("adapter")
	b.Extra = []kvevents.Extra{{Salt: []byte("salt")}, {}}
	c.LoRA, c.Extra = a.LoRA, b.Extra
	e.apply(a, b, c)
	for _, lora := range []string{"", "adapter"} {
		for _, salt := range []string{"", "salt"} {
			for prompt, want := range []int{1: 0, 2: 0, 3: 0} {
				if prompt == 0 {
					continue
				}
				if prompt == 1 && lora != "" && salt == "" || prompt == 2 && lora == "" && salt != "" || prompt == 3 && lora != "" && salt != "" {
					want = 2
				}
				dst := make([]int32, 1)
				e.x.Match(16, chainOf(testChains.Root(lora, salt), textOf(prompt, 32), 16), dst)
				if int(dst[0]) != want {
					t.Errorf("prompt %d with %q, %q: %d", prompt, lora, salt, dst[0])
				}
			}
		}
	}
}

func TestBlocksOfOtherThanTextMatchNoText(t *testing.T) {
	for _, page := range []int{1, 16} {
		e := openEngine(t, newTestIndex(), 0, page)
		media := e.store(kvevents.GPU, 1, 0, 64/page)
		media.Extra = make([]kvevents.Extra, len(media.Blocks))
		media.Extra[32/page].Other = 5
		e.apply(media)
		e.want(2, textOf(1, 64))
		e.apply(e.store(kvevents.GPU, 1, 64/page, 80/page))
		e.want(2, textOf(1, 80))
	}
}

func TestSmallPagesAreIndexedSixteenTokensAtATime(t *testing.T) {
	e := openEngine(t, newTestIndex(), 0, 1)
	for i := range 40 { // one event for each page, as SGLang has it
		e.apply(e.store(kvevents.GPU, 1, i, i+1))
		e.want(int32(i+1)/16, textOf(1, 40))
	}
	if st := e.Stats(); st.BlockSize != 1 || st.IndexBlock != 16 || st.Blocks[0] != 40 {
		t.Errorf("%+v", st)
	}
	// Another prompt that parts from it within an index block.
	b := e.store(kvevents.GPU, 2, 20, 48)
	b.Parent = key(1, 19)
	e.apply(b)
	e.want(3, slices.Concat(textOf(1, 20), textOf(2, 48)[20:]))
	for i := 39; i >= 31; i-- {
		e.apply(e.remove(kvevents.GPU, 1, i, i+1))
	}
	e.want(1, textOf(1, 40))
	e.want(3, slices.Concat(textOf(1, 20), textOf(2, 48)[20:]))
}

func TestAnotherBlockSizeStartsOver(t *testing.T) {
	x := newTestIndex()
	e := openEngine(t, x, 0, 16)
	e.apply(e.store(kvevents.GPU, 1, 0, 40))
	// A part of a block now and then is no other size.
	e.page = 8
	e.apply(e.store(kvevents.GPU, 2, 0, 1))
	e.want(40, textOf(1, 640))
	if st := e.Stats(); st.BlockSize != 16 || st.Malformed != 1 {
		t.Errorf("%+v", st)
	}
	e.page = 32
	e.apply(e.store(kvevents.GPU, 3, 0, 4))
	e.want(40, textOf(1, 640))
	e.apply(e.store(kvevents.GPU, 4, 0, 4))
	e.want(0, textOf(1, 640))
	e.want(4, textOf(4, 640))
	if st := e.Stats(); st.BlockSize != 32 || st.Restarts != 1 || st.Blocks[0] != 4 {
		t.Errorf("%+v", st)
	}
	if got := x.BlockSizes(nil); !slices.Equal(got, []int{32}) {
		t.Errorf("sizes %v", got)
	}
}

func TestHoldersOfSeveralBlockSizesAreMatchedEachByItsOwn(t *testing.T) {
	x := newTestIndex()
	a, b, c := openEngine(t, x, 0, 16), openEngine(t, x, 1, 64), openEngine(t, x, 2, 4)
	for _, e := range []*engine{a, b, c} {
		e.Apply(&kvevents.Batch{Events: []kvevents.Event{e.store(kvevents.GPU, 1, 0, 256/e.page)}})
	}
	if err := x.check(a.Holder, b.Holder, c.Holder); err != nil {
		t.Fatal(err)
	}
	sizes := x.BlockSizes(nil)
	slices.Sort(sizes)
	if !slices.Equal(sizes, []int{16, 64}) {
		t.Fatalf("sizes %v", sizes)
	}
	dst := []int32{3, 5, 100, 7}
	x.Match(64, chainOf(testChains.Root("", ""), textOf(1, 256), 64), dst)
	if want := []int32{3, 5, 100, 7}; !slices.Equal(dst, want) {
		t.Errorf("%v", dst)
	}
	x.Match(16, chainOf(testChains.Root("", ""), textOf(1, 256), 16), dst)
	if want := []int32{16, 5, 100, 7}; !slices.Equal(dst, want) {
		t.Errorf("%v", dst)
	}
	x.Match(16, chainOf(testChains.Root("", ""), textOf(1, 256), 16), dst[:1])
	x.Match(16, nil, dst)
	x.Match(17, make([]uint64, 3), dst)
}

func TestNothingOfAForgottenCacheIsSeen(t *testing.T) {
	x := newTestIndex()
	a, b := openEngine(t, x, 0, 16), openEngine(t, x, 1, 16)
	for _, e := range []*engine{a, b} {
		e.Apply(&kvevents.Batch{Events: []kvevents.Event{e.store(kvevents.GPU, 1, 0, 100), e.store(kvevents.GPU, 2, 3, 5)}})
	}
	a.Forget()
	a.want(0, textOf(1, 1600))
	b.want(100, textOf(1, 1600))
	if st := a.Stats(); st.Blocks[0] != 0 || st.Parked != 0 || st.BlockSize != 0 {
		t.Errorf("%+v", st)
	}
	a.Apply(&kvevents.Batch{Events: []kvevents.Event{a.store(kvevents.GPU, 1, 0, 7)}})
	a.want(7, textOf(1, 1600))
	a.Close()
	a.Close()
	a.Forget()
	a.Apply(&kvevents.Batch{Events: []kvevents.Event{a.store(kvevents.GPU, 1, 0, 7)}})
	a.want(0, textOf(1, 1600))
	again := openEngine(t, x, 0, 16)
	again.want(0, textOf(1, 1600))
	b.Close()
	if sz := x.Size(); sz.Blocks != 0 || sz.Sets != 0 {
		t.Errorf("%+v", sz)
	}
}

func TestBlocksBeyondTheBoundAreDropped(t *testing.T) {
	x := New(Options{Chains: testChains, MaxBlocks: 50})
	e := openEngine(t, x, 0, 16)
	e.apply(e.store(kvevents.GPU, 1, 0, 40), e.store(kvevents.GPU, 2, 0, 40))
	if st := e.Stats(); st.Blocks[0] != 50 || st.Dropped != 30 || !st.Incomplete {
		t.Errorf("%+v", st)
	}
	e.want(10, textOf(2, 640))
	// What is only remembered makes room.
	e.apply(e.keyed(kvevents.CPU, 0, key(1, 0)), e.remove(kvevents.GPU, 1, 10, 40), e.store(kvevents.GPU, 3, 0, 25))
	e.want(25, textOf(3, 640))
	if st := e.Stats(); st.Dropped != 30 || st.Blocks[0] != 45 || st.Remembered != 5 {
		t.Errorf("%+v", st)
	}
	e.apply(cleared)
	if e.Stats().Incomplete {
		t.Error("incomplete after a clear")
	}
}

func TestAStoreWithoutItsTokensIsCountedAndChangesNothing(t *testing.T) {
	e := openEngine(t, newTestIndex(), 0, 16)
	e.apply(e.store(kvevents.GPU, 1, 0, 2))
	short := e.store(kvevents.GPU, 2, 0, 2)
	short.Tokens = short.Tokens[:20]
	large := e.store(kvevents.GPU, 2, 0, 1)
	large.BlockSize, large.Tokens = maxPage+1, make([]uint32, maxPage+1)
	e.apply(short, large, kvevents.Event{BlockSize: 16}, kvevents.Event{Kind: kvevents.Removed}, kvevents.Event{Kind: 9})
	if st := e.Stats(); st.Malformed != 3 || st.Blocks[0] != 2 {
		t.Errorf("%+v", st)
	}
}
