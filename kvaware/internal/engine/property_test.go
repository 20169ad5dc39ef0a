// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// workload is a random one: conversations that grow, repeated prompts, requests
// without reuse, cancellations, under parameters that make memory short.
func workload(t testing.TB, seed uint64, check func(*Engine)) []string {
	t.Helper()
	return workloadOf(t, seed, false, check)
}

func workloadOf(t testing.TB, seed uint64, thorough bool, check func(*Engine)) []string {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	p := Params{
		Pace: Pace{Step: 1e-3, Token: 1e-5, Context: 1e-7, Pair: 1e-9}, Speed: 1,
		BlockSize: 1 + rng.IntN(8), Blocks: 20 + rng.IntN(100), MaxSeqs: 1 + rng.IntN(12),
	}
	p.MaxBatchedTokens = p.MaxSeqs + rng.IntN(60)
	j := &journal{names: map[*Sequence]string{}}
	e := newEngine(t, p, j)
	e.thorough = thorough
	told := &mirror{}
	e.WatchBlocks(told)

	var live []*Sequence
	now := time.Duration(0)
	for i := range 150 {
		now += time.Duration(rng.IntN(8)) * time.Millisecond
		e.Advance(now)
		check(e)
		for range rng.IntN(3) {
			s := &Sequence{Prompt: 1 + rng.IntN(e.Capacity()*2/3), Output: 1 + rng.IntN(e.Capacity()/3), NoReuse: rng.IntN(8) == 0}
			text := rng.IntN(5)
			whole := s.Prompt / p.BlockSize
			all := chain(text, (s.Prompt+s.Output)/p.BlockSize)
			s.Blocks = all[:whole]
			if rng.IntN(2) == 0 {
				s.OutputBlocks = all[whole:]
			}
			j.names[s] = fmt.Sprintf("%d.%d", i, len(live))
			submit(t, e, now, s)
			live = append(live, s)
		}
		if len(live) > 0 && rng.IntN(4) == 0 {
			e.Cancel(now, live[rng.IntN(len(live))])
		}
		if rng.IntN(50) == 0 {
			e.ResetPrefixCache()
		}
		told.check(t, e)
		check(e)
	}
	for steps := 0; ; steps++ {
		next, busy := e.Advance(now)
		check(e)
		if !busy {
			break
		}
		if now = next; steps > 1_000_000 {
			t.Fatal("never idle")
		}
	}
	for _, s := range live {
		if s.state == stateFinished && s.Generated() != s.Output {
			t.Fatalf("finished with %d of %d tokens", s.Generated(), s.Output)
		}
		if s.state != stateFinished && s.state != stateCancelled {
			t.Fatalf("left in state %d", s.state)
		}
	}
	if st := e.Stats(); st.UsedBlocks != 0 || e.decodes.context != 0 || e.decodes.n != 0 {
		t.Fatalf("idle, and yet %+v, context %d of %d decodes", st, e.decodes.context, e.decodes.n)
	}
	return j.lines
}

// mirror holds what a BlockSink was told.
type mirror struct {
	hashes map[uint64]bool
	wrong  int // told of what it was told before
}

func (m *mirror) Stored(hash uint64, by *Sequence, i int) {
	if m.hashes[hash] || by.Block(i) != hash {
		m.wrong++
	}
	if m.hashes == nil {
		m.hashes = make(map[uint64]bool)
	}
	m.hashes[hash] = true
}

func (m *mirror) Removed(hash uint64) {
	if !m.hashes[hash] {
		m.wrong++
	}
	delete(m.hashes, hash)
}

func (m *mirror) Cleared() { clear(m.hashes) }

func (m *mirror) check(t testing.TB, e *Engine) {
	t.Helper()
	if m.wrong > 0 || len(m.hashes) != e.pool.table.n {
		t.Fatalf("told of %d blocks, %d times wrongly; %d can be found", len(m.hashes), m.wrong, e.pool.table.n)
	}
	for _, entry := range e.pool.table.slots {
		if entry.id != 0 && !m.hashes[entry.hash] {
			t.Fatalf("block %x can be found and nobody was told", entry.hash)
		}
	}
}

// invariants compares what the engine keeps by increments with what it would be
// if counted anew.
func invariants(t *testing.T) func(*Engine) {
	return func(e *Engine) {
		t.Helper()
		refs := make(map[int32]int32)
		decodes, context := 0, int64(0)
		budget := 0
		for s := e.running.head; s != nil; s = s.next {
			for _, id := range s.blocks {
				refs[id]++
			}
			if s.decoding {
				decodes++
				context += int64(s.Prompt + s.Generated())
				if !slices.Contains(e.decodes.slots[e.decodes.slotOf(s)], s) {
					t.Fatal("a decode is not in its slot")
				}
			}
			if have, need := len(s.blocks)*e.params.BlockSize, s.held(); have < need || have >= need+2*e.params.BlockSize {
				t.Fatalf("%d tokens in room for %d", need, have)
			}
			if s.next == nil && e.prefilling != nil && e.prefilling != s {
				t.Fatal("the prefilling request is not the youngest")
			}
			budget++
		}
		if budget > e.params.MaxSeqs {
			t.Fatalf("%d run", budget)
		}
		if decodes != e.decodes.n || context != e.decodes.context || decodes != len(e.decodes.ends) {
			t.Fatalf("%d decodes of %d tokens, counted %d of %d", decodes, context, e.decodes.n, e.decodes.context)
		}
		free := 0
		for id := e.pool.blocks[e.pool.sentinel()].next; id != e.pool.sentinel(); id = e.pool.blocks[id].next {
			free++
			if e.pool.blocks[id].ref != 0 || refs[id] != 0 {
				t.Fatal("a block in use is in the free list")
			}
		}
		for id, n := range refs {
			if e.pool.blocks[id].ref != n {
				t.Fatalf("block %d is held %d times, counted %d", id, n, e.pool.blocks[id].ref)
			}
		}
		if free != e.pool.free || free+len(refs) != e.params.Blocks {
			t.Fatalf("%d free and %d in use of %d, counted %d free", free, len(refs), e.params.Blocks, e.pool.free)
		}
		for _, entry := range e.pool.table.slots {
			if entry.id == 0 {
				continue
			}
			hash, id := entry.hash, entry.id-1
			if b := e.pool.blocks[id]; !b.hashed || b.hash != hash {
				t.Fatal("the table names a block that holds something else")
			}
			before := id * 7 % int32(e.params.Blocks) // of any kind: a guess must not mislead
			if got, ok := e.pool.find(hash, before); !ok || got != id {
				t.Fatalf("behind block %d %d is found, without a guess %d", before, got, id)
			}
		}
	}
}

func TestWhateverComesTheBooksAreRightAndEverybodyIsServed(t *testing.T) {
	for seed := range uint64(24) {
		workload(t, seed, invariants(t))
	}
}

func TestEqualCallsGiveEqualResults(t *testing.T) {
	for seed := range uint64(10) {
		a := workload(t, seed, func(*Engine) {})
		b := workload(t, seed, func(*Engine) {})
		wantLines(t, a, b...)
	}
}

func TestNotLookingAtPromptsThatCannotFitChangesNothing(t *testing.T) {
	for seed := range uint64(80) {
		a := workloadOf(t, seed, false, func(*Engine) {})
		b := workloadOf(t, seed, true, func(*Engine) {})
		wantLines(t, a, b...)
	}
}

// A virtual clock jumps from step to step, a real one comes late: the model's
// times must not depend on it.
func TestHowOftenAndHowLateItIsAdvancedChangesNothing(t *testing.T) {
	run := func(late func() time.Duration) []time.Duration {
		e := newEngine(t, small(func(p *Params) { p.Blocks, p.Pace.Token = 30, 0.01 }), nil)
		var seqs []*Sequence
		for i := range 30 {
			seqs = append(seqs, prompt(i%4, 5+7*i%40, 1+i%20, 4))
		}
		now := time.Duration(0)
		for i, s := range seqs {
			arrival := time.Duration(i) * 1700 * time.Millisecond
			for late != nil && now < arrival {
				e.Advance(now)
				now = min(arrival, now+late())
			}
			now = arrival
			submit(t, e, now, s)
			if late == nil {
				e.Advance(now)
			}
		}
		for {
			next, busy := e.Advance(now)
			if !busy {
				break
			}
			now = next
			if late != nil {
				now += late()
			}
		}
		var times []time.Duration
		for _, s := range seqs {
			times = append(times, s.Admitted, s.First, s.Finished)
		}
		return times
	}
	rng := rand.New(rand.NewPCG(1, 2))
	exact := run(nil)
	for range 10 {
		if late := run(func() time.Duration { return time.Duration(1 + rng.IntN(3_000_000_000)) }); !slices.Equal(exact, late) {
			t.Fatalf("exact %v\nlate %v", exact, late)
		}
	}
}
