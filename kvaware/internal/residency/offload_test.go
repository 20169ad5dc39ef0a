// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"slices"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

func TestABlockWaitsForItsParent(t *testing.T) {
	e := openEngine(t, newTestIndex(), 0, 16)
	e.apply(e.store(kvevents.GPU, 9, 0, 1))
	e.apply(e.store(kvevents.GPU, 1, 4, 6), e.store(kvevents.GPU, 1, 2, 4), e.remove(kvevents.GPU, 1, 3, 4))
	if st := e.Stats(); st.Parked != 4 || st.Blocks[0] != 1 {
		t.Errorf("%+v", st)
	}
	e.want(0, textOf(1, 96)) // not rooted at the prompt's start
	e.want(0, textOf(1, 96)[32:])
	e.apply(e.store(kvevents.GPU, 1, 0, 2))
	e.want(3, textOf(1, 96)) // block 3 was removed while it waited
	if st := e.Stats(); st.Parked != 0 || st.Blocks[0] != 6 {
		t.Errorf("%+v", st)
	}
	e.apply(e.store(kvevents.GPU, 1, 3, 4))
	e.want(6, textOf(1, 96))
}

func TestTheOldestOfTooManyWaitingBlocksAreDropped(t *testing.T) {
	e := openEngine(t, newTestIndex(), 0, 16)
	e.apply(e.store(kvevents.GPU, 9, 0, 1))
	const prompts = maxParkedBlocks/4 + 5
	for prompt := range prompts {
		e.Apply(&kvevents.Batch{Events: []kvevents.Event{e.store(kvevents.GPU, 10+prompt, 1, 5)}})
	}
	st := e.Stats()
	if st.Parked > maxParkedBlocks || int(st.Orphaned)+st.Parked != 4*prompts {
		t.Errorf("%+v", st)
	}
	e.apply(e.store(kvevents.GPU, 10, 0, 1), e.store(kvevents.GPU, 10+prompts-1, 0, 1))
	e.want(1, textOf(10, 80))
	e.want(5, textOf(10+prompts-1, 80))
	huge := e.store(kvevents.GPU, 8, 1, maxParkedBlocks+2)
	e.apply(huge)
	if now := e.Stats(); now.Orphaned != st.Orphaned+maxParkedBlocks+1 {
		t.Errorf("%+v", now)
	}
}

func TestAnOffloadedBlockCoversThoseBeforeIt(t *testing.T) {
	e := openEngine(t, newTestIndex(), 0, 16)
	e.apply(e.store(kvevents.GPU, 1, 0, 10))
	chunk := 4 * e.page
	e.apply(e.keyed(kvevents.CPU, chunk, key(1, 3), key(1, 7)))
	e.apply(e.remove(kvevents.GPU, 1, 0, 10))
	e.want(6, textOf(1, 160)) // 8 blocks at 0.75
	if st := e.Stats(); st.Blocks[kvevents.CPU] != 2 {
		t.Errorf("%+v", st)
	}
	// Two prompts that part within a chunk have each its own.
	e.apply(e.store(kvevents.GPU, 1, 0, 3))
	b := e.store(kvevents.GPU, 2, 3, 4)
	b.Parent = key(1, 2)
	e.apply(b, e.keyed(kvevents.CPU, chunk, key(2, 3)), e.remove(kvevents.GPU, 1, 0, 3), e.remove(kvevents.GPU, 2, 3, 4))
	e.apply(e.remove(kvevents.CPU, 1, 3, 4))
	both := slices.Concat(textOf(1, 48), textOf(2, 64)[48:])
	e.want(3, both)
	e.want(2, textOf(1, 160)) // floor(3*0.75)
	e.apply(e.remove(kvevents.CPU, 2, 3, 4))
	e.want(0, both)
}

func TestKeysOutliveEvictionWhereAnEngineOffloads(t *testing.T) {
	e := openEngine(t, newTestIndex(), 0, 16)
	e.apply(e.store(kvevents.GPU, 1, 0, 4), e.remove(kvevents.GPU, 1, 0, 4))
	if st := e.Stats(); st.Remembered != 0 || st.Bytes > 10000 {
		t.Errorf("%+v", st)
	}
	e.apply(e.keyed(kvevents.CPU, 0, keysOf(1, 0, 4)...))
	e.want(0, textOf(1, 64))
	if st := e.Stats(); st.Unresolved != 4 {
		t.Errorf("%+v", st)
	}
	e.apply(e.store(kvevents.GPU, 2, 0, 4), e.remove(kvevents.GPU, 2, 0, 4))
	e.apply(e.keyed(kvevents.CPU, 0, keysOf(2, 0, 4)...))
	e.want(3, textOf(2, 64))
}

func TestTheOldestRememberedKeysAreForgottenFirst(t *testing.T) {
	x := newTestIndex()
	x.remember = 4
	e := openEngine(t, x, 0, 16)
	e.apply(e.store(kvevents.GPU, 9, 0, 1), e.keyed(kvevents.CPU, 0, key(9, 0)))
	for prompt := range 5 {
		e.apply(e.store(kvevents.GPU, prompt, 0, 1), e.remove(kvevents.GPU, prompt, 0, 1))
	}
	e.apply(e.keyed(kvevents.CPU, 0, key(1, 0))) // comes back
	e.apply(e.store(kvevents.GPU, 5, 0, 1), e.remove(kvevents.GPU, 5, 0, 1))
	for prompt, want := range []bool{false, true, true, true, true, true} {
		if got := e.life.keys.find(e.mixed(key(prompt, 0))) != nil; got != want {
			t.Errorf("prompt %d: %v", prompt, got)
		}
	}
}

func TestOffloadedBlocksAreOnlyTrustedByTheirKeys(t *testing.T) {
	// vLLM tells the tokens of offloaded blocks, but not their salt.
	e := openEngine(t, newTestIndex(), 0, 16)
	salted := e.store(kvevents.GPU, 1, 0, 2)
	salted.Extra = []kvevents.Extra{{Salt: []byte("salt")}, {}}
	e.apply(salted, e.store(kvevents.CPU, 1, 0, 2), e.store(kvevents.CPU, 2, 0, 2))
	e.want(0, textOf(1, 32))
	e.want(0, textOf(2, 32))
	e.apply(e.remove(kvevents.GPU, 1, 0, 2))
	dst := make([]int32, 1)
	e.x.Match(16, chainOf(testChains.Root("", "salt"), textOf(1, 32), 16), dst)
	if dst[0] != 1 {
		t.Errorf("credit %v for the salted prompt", dst)
	}
	// SGLang, whose events name no group, tells all.
	e.group = -1
	e.apply(e.store(kvevents.CPU, 3, 0, 4))
	e.want(3, textOf(3, 64))
}
