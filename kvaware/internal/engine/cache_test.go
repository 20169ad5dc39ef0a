// SPDX-License-Identifier: Apache-2.0

package engine

import "testing"

// serve runs one request alone and returns how much of it was cached.
func serve(t *testing.T, e *Engine, s *Sequence) int {
	t.Helper()
	now := e.clock
	submit(t, e, now, s)
	drain(e, now)
	if s.Generated() != s.Output {
		t.Fatalf("generated %d of %d", s.Generated(), s.Output)
	}
	return s.Cached
}

func TestAHitIsWholeBlocksAndNeverTheLastToken(t *testing.T) {
	for _, c := range []struct{ tokens, want int }{
		{3, 0}, {4, 0}, {5, 4}, {8, 4}, {9, 8}, {39, 36}, {40, 36}, {41, 40},
	} {
		e := newEngine(t, small(nil), nil)
		if got := serve(t, e, prompt(1, c.tokens, 1, 4)); got != 0 {
			t.Errorf("%d tokens: %d cached in an empty cache", c.tokens, got)
		}
		if got := serve(t, e, prompt(1, c.tokens, 1, 4)); got != c.want {
			t.Errorf("%d tokens: %d cached, want %d", c.tokens, got, c.want)
		}
		st := e.Stats()
		if st.QueriedTokens != uint64(2*c.tokens) || st.HitTokens != uint64(c.want) || st.ComputedTokens != uint64(2*c.tokens-c.want) {
			t.Errorf("%d tokens: counted %+v", c.tokens, st)
		}
	}
}

func TestAHitEndsWhereTheChainsPart(t *testing.T) {
	e := newEngine(t, small(nil), nil)
	serve(t, e, prompt(1, 40, 1, 4))
	s := prompt(1, 40, 1, 4)
	copy(s.Blocks[3:], chain(2, 7))
	if got := serve(t, e, s); got != 12 {
		t.Errorf("%d cached, want 12", got)
	}
}

func TestARequestThatMustNotReuseComputesEverything(t *testing.T) {
	e := newEngine(t, small(nil), nil)
	serve(t, e, prompt(1, 41, 1, 4))
	s := prompt(1, 41, 1, 4)
	s.NoReuse = true
	if got := serve(t, e, s); got != 0 {
		t.Errorf("%d cached", got)
	}
}

func TestThePrefillOfOneServesAnotherOfTheSameStep(t *testing.T) {
	e := newEngine(t, small(nil), nil)
	a, b := prompt(1, 41, 1, 4), prompt(1, 41, 1, 4)
	submit(t, e, 0, a, b)
	drain(e, 0)
	if b.Cached != 40 || b.First != a.First {
		t.Errorf("%d cached, first tokens at %v and %v", b.Cached, a.First, b.First)
	}
}

func TestTheNextTurnFindsTheOutputOfTheLast(t *testing.T) {
	e := newEngine(t, small(nil), nil)
	all := chain(1, 20)
	turn := &Sequence{Prompt: 10, Output: 12, Blocks: all[:2], OutputBlocks: all[2:5]}
	serve(t, e, turn)
	// 10 + 12 tokens, of which the KV of the last was never needed: 21, 5 blocks.
	if got := e.Cached(all); got != 5 {
		t.Errorf("%d blocks cached, want 5", got)
	}
	if got := serve(t, e, &Sequence{Prompt: 30, Output: 1, Blocks: all[:7]}); got != 20 {
		t.Errorf("%d tokens cached, want 20", got)
	}
	plain := &Sequence{Prompt: 10, Output: 12, Blocks: chain(2, 2)}
	serve(t, e, plain)
	if got := e.Cached(chain(2, 5)); got != 2 {
		t.Errorf("%d blocks of unknown output can be found, want the prompt's 2", got)
	}
}

func TestIdleBlocksAreEvictedTailFirstAndOldestRequestFirst(t *testing.T) {
	e := newEngine(t, small(func(p *Params) { p.Blocks = 12 }), nil)
	serve(t, e, prompt(1, 16, 1, 4)) // 4 blocks
	serve(t, e, prompt(2, 16, 1, 4)) // 4 more, 4 never used
	serve(t, e, prompt(3, 17, 1, 4)) // takes those 4, and the tail of the oldest
	for text, want := range map[int]int{1: 3, 2: 4, 3: 4} {
		if got := e.Cached(chain(text, 4)); got != want {
			t.Errorf("%d blocks of text %d cached, want %d", got, text, want)
		}
	}
	// The fifth block of the last one held one token: it is taken after the rest
	// of the oldest, since it came to the free list later.
	serve(t, e, prompt(4, 14, 1, 4))
	for text, want := range map[int]int{1: 0, 2: 3, 3: 4, 4: 3} {
		if got := e.Cached(chain(text, 4)); got != want {
			t.Errorf("then %d blocks of text %d cached, want %d", got, text, want)
		}
	}
}

func TestAUsedPrefixBecomesRecent(t *testing.T) {
	e := newEngine(t, small(func(p *Params) { p.Blocks = 12 }), nil)
	serve(t, e, prompt(1, 17, 1, 4))
	serve(t, e, prompt(2, 17, 1, 4))
	serve(t, e, prompt(1, 17, 1, 4)) // again
	serve(t, e, prompt(3, 17, 1, 4))
	if a, b := e.Cached(chain(1, 4)), e.Cached(chain(2, 4)); a != 4 || b >= 4 {
		t.Errorf("of the recent %d blocks are left, of the older %d", a, b)
	}
}

func TestBlocksInUseAreNeverEvicted(t *testing.T) {
	e := newEngine(t, small(func(p *Params) { p.Blocks = 12 }), nil)
	long := prompt(1, 17, 30, 4)
	submit(t, e, 0, long)
	e.Advance(0)
	now := seconds(1)
	for text := 2; text < 6; text++ {
		s := prompt(text, 9, 1, 4)
		submit(t, e, now, s)
		e.Advance(now)
		now += seconds(2)
		e.Advance(now)
		if s.Generated() != 1 {
			t.Fatalf("text %d was not served", text)
		}
		if got := e.Cached(chain(1, 4)); got != 4 {
			t.Fatalf("%d blocks of the running request cached, want 4", got)
		}
	}
}

func TestACopyServesWhenTheFirstIsEvicted(t *testing.T) {
	p := newPool(3)
	a, b, c := p.take(), p.take(), p.take()
	for _, id := range []int32{a, b, c} {
		p.name(id, 7, none)
	}
	if id, _ := p.table.get(7); id != a {
		t.Fatalf("the table names block %d, want the oldest, %d", id, a)
	}
	p.release([]int32{b})
	p.take() // evicts b, one in the middle
	p.release([]int32{a})
	p.take()
	if id, _ := p.table.get(7); id != c {
		t.Errorf("the table names block %d, want %d", id, c)
	}
	p.release([]int32{c})
	p.take()
	if _, ok := p.table.get(7); ok || p.free != 0 {
		t.Errorf("still found, %d free", p.free)
	}
}

func TestAResetForgetsAndDisturbsNobody(t *testing.T) {
	e := newEngine(t, small(nil), nil)
	serve(t, e, prompt(1, 17, 1, 4))
	running := prompt(2, 17, 12, 4)
	now := e.clock
	submit(t, e, now, running)
	e.Advance(now + seconds(3))
	e.ResetPrefixCache()
	if a, b := e.Cached(chain(1, 4)), e.Cached(chain(2, 4)); a != 0 || b != 0 {
		t.Errorf("%d and %d blocks cached after a reset", a, b)
	}
	drain(e, now+seconds(3))
	if running.Generated() != 12 {
		t.Errorf("the running request has %d tokens", running.Generated())
	}
	if got := serve(t, e, prompt(1, 17, 1, 4)); got != 0 {
		t.Errorf("%d tokens cached after a reset", got)
	}
	if got := serve(t, e, prompt(1, 17, 1, 4)); got != 16 {
		t.Errorf("%d tokens cached after the reset's successor", got)
	}
}

func TestTheYoungestIsPreemptedWhenKVRunsOut(t *testing.T) {
	old, young := prompt(1, 16, 12, 4), prompt(2, 16, 12, 4)
	j := &journal{names: map[*Sequence]string{old: "old", young: "young"}, mute: true}
	e := newEngine(t, small(func(p *Params) { p.Blocks = 10 }), j)
	submit(t, e, 0, old, young)
	drain(e, 0)
	// Each has 4 blocks and takes a fifth with its second token, in the second
	// step; the sixth token's KV needs a sixth, of which there is none.
	wantLines(t, j.lines,
		"0s old admitted", "0s young admitted", "1s old started", "1s young started",
		"5s young preempted", "12s old finished", "12s young admitted", "19s young finished")
	if young.Preemptions != 1 || young.Generated() != 12 || e.Stats().Preemptions != 1 {
		t.Errorf("%d preemptions, %d tokens, %+v", young.Preemptions, young.Generated(), e.Stats())
	}
	if young.Cached != 0 || young.Admitted != 0 || young.First != seconds(1) {
		t.Errorf("the report changed: %d cached, admitted %v, first token %v", young.Cached, young.Admitted, young.First)
	}
}

func TestAPreemptedRequestFindsWhatIsLeftOfItsOwn(t *testing.T) {
	e := newEngine(t, small(func(p *Params) { p.Blocks = 10 }), nil)
	old, young := prompt(1, 16, 6, 4), prompt(2, 16, 12, 4)
	submit(t, e, 0, old, young)
	drain(e, 0)
	// It had 5 blocks when it gave way, its 4 output tokens' KV among them. The old
	// one took one of them, the last.
	if got, want := e.Stats().ComputedTokens, uint64(16+16+(16+5)-16); got != want {
		t.Errorf("%d tokens computed, want %d", got, want)
	}
	if young.Preemptions != 1 || young.Generated() != 12 {
		t.Errorf("%d preemptions, %d tokens", young.Preemptions, young.Generated())
	}
}

func TestAPreemptedRequestGoesBeforeThoseThatWait(t *testing.T) {
	old, young, queued := prompt(1, 16, 12, 4), prompt(2, 16, 12, 4), prompt(3, 2, 1, 4)
	e := newEngine(t, small(func(p *Params) { p.Blocks, p.MaxSeqs = 10, 2 }), nil)
	submit(t, e, 0, old, young, queued)
	drain(e, 0)
	if young.Preemptions != 1 || queued.Admitted < old.Finished {
		t.Errorf("%d preemptions; the queued one was admitted at %v, before the preempted one, for which room was at %v",
			young.Preemptions, queued.Admitted, old.Finished)
	}
}
