// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// engineStream is the events of an engine whose cache is full: each stored block has
// another evicted, the oldest. It repeats after twice the cache.
type engineStream struct {
	batches []kvevents.Batch
	blocks  int // stored in all batches
}

// newEngineStream makes conversations of eight events of so many blocks each, eight
// conversations at a time. Removals come with one key each, as vLLM's, or in one event
// for each store.
func newEngineStream(seed uint64, capacity, perEvent int, single bool) *engineStream {
	const page, perBatch, turns, open = 16, 32, 8, 8
	r := rand.New(rand.NewPCG(seed, 1))
	s := &engineStream{}
	total := 2 * capacity
	keys := make([]kvevents.Key, 0, total)
	type conversation struct {
		parent kvevents.Key
		turns  int
	}
	var conversations [open]conversation
	for len(keys) < total {
		var b kvevents.Batch
		for range perBatch {
			c := &conversations[r.IntN(open)]
			e := kvevents.Event{Group: 0, Attention: kvevents.FullAttention, BlockSize: page}
			for range perEvent {
				e.Blocks = append(e.Blocks, r.Uint64())
			}
			for range perEvent * page {
				e.Tokens = append(e.Tokens, r.Uint32N(128000))
			}
			if c.turns == 0 {
				c.turns = turns
			} else {
				e.HasParent, e.Parent = true, c.parent
			}
			c.turns--
			c.parent = e.Blocks[perEvent-1]
			b.Events = append(b.Events, e)
			keys = append(keys, e.Blocks...)
		}
		s.batches = append(s.batches, b)
	}
	s.blocks = len(keys)
	// A block is removed when as many as half of all were stored after it.
	i := s.blocks / 2
	for n := range s.batches {
		b := &s.batches[n]
		stores := b.Events
		b.Events = nil
		for _, e := range stores {
			removed := kvevents.Event{Kind: kvevents.Removed, Group: 0}
			for range perEvent {
				removed.Blocks = append(removed.Blocks, keys[i%s.blocks])
				i++
				if single {
					b.Events = append(b.Events, removed)
					removed.Blocks = nil
				}
			}
			if !single {
				b.Events = append(b.Events, removed)
			}
			b.Events = append(b.Events, e)
		}
	}
	return s
}

// fill brings a holder to where the stream repeats.
func (s *engineStream) fill(h *Holder) {
	for i := range s.batches {
		h.Apply(&s.batches[i])
	}
}

func BenchmarkApply(b *testing.B) {
	for _, capacity := range []int{64 << 10, 1 << 20} {
		for _, single := range []bool{false, true} {
			b.Run(fmt.Sprintf("capacity=%d/single=%v", capacity, single), func(b *testing.B) {
				s := newEngineStream(1, capacity, 8, single)
				x := New(Options{Chains: testChains})
				h := x.Open(0)
				s.fill(h)
				runtime.GC()
				b.ReportAllocs()
				b.ResetTimer()
				blocks := 0
				for n := 0; blocks < b.N; n++ {
					h.Apply(&s.batches[n%len(s.batches)])
					blocks += 32 * 8
				}
				b.ReportMetric(float64(blocks)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
			})
		}
	}
}

// BenchmarkDecodeAndApply is Apply with all that comes before it.
func BenchmarkDecodeAndApply(b *testing.B) {
	for _, capacity := range []int{64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("capacity=%d", capacity), func(b *testing.B) {
			s := newEngineStream(1, capacity, 8, false)
			x := New(Options{Chains: testChains})
			h := x.Open(0)
			s.fill(h)
			var payloads [][]byte
			for i := range s.batches {
				payloads = append(payloads, kvevents.AppendBatch(nil, &s.batches[i], 0))
			}
			s.batches = nil
			runtime.GC()
			var d kvevents.Decoder
			var batch kvevents.Batch
			b.ReportAllocs()
			b.ResetTimer()
			blocks := 0
			for n := 0; blocks < b.N; n++ {
				if err := d.Decode(payloads[n%len(payloads)], &batch); err != nil {
					b.Fatal(err)
				}
				h.Apply(&batch)
				blocks += 32 * 8
			}
			b.ReportMetric(float64(blocks)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
		})
	}
}

// matchIndex is an index of so many holders of a prompt, in which they have been
// storing in turn, and part of the way all have it, then fewer and fewer.
func matchIndex(holders, blocks int) (*Index, []uint64) {
	x := New(Options{Chains: testChains})
	e := &engine{page: 16}
	for slot := range holders {
		h := x.Open(slot)
		whole := e.store(kvevents.GPU, 1, 0, blocks-slot*blocks/(2*holders))
		h.Apply(&kvevents.Batch{Events: []kvevents.Event{whole}})
	}
	return x, chainOf(testChains.Root("", ""), textOf(1, 16*blocks), 16)
}

func BenchmarkMatch(b *testing.B) {
	for _, holders := range []int{1, 16, 64} {
		for _, blocks := range []int{64, 512, 8192} {
			b.Run(fmt.Sprintf("holders=%d/blocks=%d", holders, blocks), func(b *testing.B) {
				x, chain := matchIndex(holders, blocks)
				dst := make([]int32, holders)
				b.ReportAllocs()
				for b.Loop() {
					clear(dst)
					x.Match(16, chain, dst)
				}
			})
		}
	}
}

// BenchmarkMatchWhileEventsPourIn has one engine's events applied as fast as they can be,
// on another core. Compare with BenchmarkMatch on a machine with cores to spare.
func BenchmarkMatchWhileEventsPourIn(b *testing.B) {
	for _, blocks := range []int{512, 8192} {
		b.Run(fmt.Sprintf("holders=64/blocks=%d", blocks), func(b *testing.B) {
			x, chain := matchIndex(64, blocks)
			s := newEngineStream(1, 64<<10, 8, false)
			h := x.Open(64)
			s.fill(h)
			var done atomic.Bool
			var wg sync.WaitGroup
			applied := 0
			wg.Go(func() {
				for n := 0; !done.Load(); n++ {
					h.Apply(&s.batches[n%len(s.batches)])
					applied += 32 * 8
				}
			})
			dst := make([]int32, 64)
			for b.Loop() {
				clear(dst)
				x.Match(16, chain, dst)
			}
			b.ReportMetric(float64(applied)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
			done.Store(true)
			wg.Wait()
		})
	}
}

// BenchmarkMemory's bytes are those of the heap, for blocks that all holders have.
func BenchmarkMemory(b *testing.B) {
	const blocks = 200_000
	for _, holders := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("holders=%d", holders), func(b *testing.B) {
			heap := func() uint64 {
				runtime.GC()
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return m.HeapAlloc
			}
			e := &engine{page: 16}
			batch := kvevents.Batch{Events: make([]kvevents.Event, 1)}
			for b.Loop() {
				before := heap()
				x := New(Options{Chains: testChains})
				open := make([]*Holder, holders)
				for slot := range open {
					open[slot] = x.Open(slot)
					for prompt := range blocks / 100 {
						batch.Events[0] = e.store(kvevents.GPU, prompt, 0, 100)
						open[slot].Apply(&batch)
					}
				}
				batch.Events[0] = kvevents.Event{}
				bytes := heap() - before
				b.ReportMetric(float64(bytes)/blocks/float64(holders), "B/block/holder")
				own := 0
				for _, h := range open {
					own += h.Stats().Bytes
				}
				b.ReportMetric(float64(own)/blocks/float64(holders), "own-B/block/holder")
				b.ReportMetric(float64(x.Size().Bytes)/blocks, "shared-B/block")
			}
		})
	}
}
