// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// conversations fills an index of so many upstreams with multi-turn chats:
// one of 50 system prompts of 64 blocks, then ten turns of 8 to 39 blocks
// (128 to 639 tokens at 16 a block), each turn answered in 8 blocks by every
// upstream. It stops
// once so many different blocks are in, and returns the last turns' prompts.
func conversations(x *Index, blocks, upstreams int) (prompts [][]uint64) {
	for h := range upstreams {
		if h >= x.Slots() {
			x.Add(maxCapacity)
		}
	}
	for i := 0; x.Size().Blocks < blocks; i++ {
		stretches := [][2]int{{i % 50, 64}}
		for turn := range 10 {
			stretches = append(stretches, [2]int{1000 + i*10 + turn, 8 + int(mix64(uint64(i*10+turn))%32)})
			chain := prompt(stretches...)
			for h := range Holder(upstreams) {
				serve(x, h, chain, 8)
			}
			if turn == 9 && len(prompts) < 1000 {
				prompts = append(prompts, chain)
			}
		}
	}
	return prompts
}

// longPrompt is a prompt of 128k tokens: 8192 blocks.
func longPrompt() []uint64 { return prompt([2]int{-1, 2048}, [2]int{-2, 6144}) }

// sizes are blocks in the index.
var sizes = []int{100_000, 1_000_000, 10_000_000}

// bothWays runs a lookup alone and on all cores.
func bothWays(b *testing.B, x *Index, prompts [][]uint64) {
	b.Run("one", func(b *testing.B) {
		dst := make([]int32, x.Slots())
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			x.Match(0, prompts[i%len(prompts)], dst)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			dst := make([]int32, x.Slots())
			for i := 0; pb.Next(); i++ {
				x.Match(0, prompts[i%len(prompts)], dst)
			}
		})
	})
}

// One prompt of 8192 blocks, a quarter of it held by all upstreams, in an index
// filled with conversations of one upstream.
func BenchmarkMatchLongPrompt(b *testing.B) {
	for _, size := range sizes {
		x := unclocked()
		conversations(x, size, 1)
		long := longPrompt()
		serve(x, 0, long, 0)
		for _, upstreams := range []int{16, 64, 256, 1000} {
			for h := range upstreams {
				if h >= x.Slots() {
					x.Add(maxCapacity)
				}
				serve(x, Holder(h), long[:2048], 0)
			}
			b.Run(fmt.Sprintf("blocks=%d/upstreams=%d", size, upstreams), func(b *testing.B) {
				bothWays(b, x, [][]uint64{long})
			})
		}
	}
}

// 8192 blocks, of which each upstream holds another length.
func BenchmarkMatchManyLengths(b *testing.B) {
	for _, upstreams := range []int{64, 256, 1000} {
		for _, order := range []string{"rising", "falling"} {
			x := unclocked()
			long := longPrompt()
			for i := range upstreams {
				x.Add(maxCapacity)
				n := i + 1
				if order == "falling" {
					n = upstreams - i
				}
				serve(x, Holder(i), long[:n*len(long)/upstreams], 0)
			}
			b.Run(fmt.Sprintf("upstreams=%d/%s", upstreams, order), func(b *testing.B) {
				bothWays(b, x, [][]uint64{long})
			})
		}
	}
}

// 200 turns of 41 blocks, all held by all.
func BenchmarkMatchLongConversation(b *testing.B) {
	for _, upstreams := range []int{16, 64, 256} {
		x := unclocked()
		long := longPrompt()
		for h := range upstreams {
			x.Add(maxCapacity)
			for n := 41; n <= len(long); n += 41 {
				serve(x, Holder(h), long[:n], 0)
			}
		}
		b.Run(fmt.Sprintf("upstreams=%d", upstreams), func(b *testing.B) {
			bothWays(b, x, [][]uint64{long})
		})
	}
}

// Different prompts of conversations, so that little is in the processor's
// caches.
func BenchmarkMatchConversations(b *testing.B) {
	for _, size := range sizes {
		x := unclocked()
		prompts := conversations(x, size, 1)
		b.Run(fmt.Sprintf("blocks=%d", size), func(b *testing.B) { bothWays(b, x, prompts) })
	}
}

// A request's whole life in an index that is full: each new prompt evicts as
// much as it adds.
func BenchmarkRequestUnderPressure(b *testing.B) {
	for _, size := range sizes {
		for _, upstreams := range []int{16, 64, 256} {
			x := unclocked()
			for range upstreams {
				x.Add(size / upstreams)
			}
			turn := func(i int) {
				h := Holder(i % upstreams)
				p := x.Pin(h, 0, prompt([2]int{i % 50, 64}, [2]int{1000 + i, 64}))
				x.Confirm(&p)
				x.Grow(&p, 8)
				x.Grow(&p, 16)
				x.Done(&p)
			}
			filled := 2 * size / 80
			for i := range filled {
				turn(i)
			}
			b.Run(fmt.Sprintf("blocks=%d/upstreams=%d", size, upstreams), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					turn(filled)
					filled++
				}
			})
			var next atomic.Int64
			next.Store(int64(filled))
			b.Run(fmt.Sprintf("blocks=%d/upstreams=%d/parallel", size, upstreams), func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						turn(int(next.Add(1)))
					}
				})
			})
		}
	}
}

// The same prompt again: nothing enters, nothing is evicted.
func BenchmarkRequestWithEverythingCached(b *testing.B) {
	x := unclocked()
	x.Add(maxCapacity)
	long := longPrompt()
	serve(x, 0, long, 0)
	b.ReportAllocs()
	for b.Loop() {
		serve(x, 0, long, 0)
	}
}

func BenchmarkInsert(b *testing.B) {
	for _, blocks := range []int{1, 64, 8192} {
		b.Run(fmt.Sprintf("prompt=%d", blocks), func(b *testing.B) {
			x := unclocked()
			x.Add(maxCapacity)
			chain := make([]uint64, blocks)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i*blocks%(4<<20) == 0 { // stay small
					b.StopTimer()
					x = unclocked()
					x.Add(maxCapacity)
					b.StartTimer()
				}
				for j := range chain {
					chain[j] = mix64(uint64(i*blocks + j))
				}
				p := x.Pin(0, 0, chain)
				x.Done(&p)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*blocks), "ns/block")
		})
	}
}

// Forget of an upstream with a million blocks, and the slowest changes while its
// spans are freed (the 99th of a hundred: the very slowest are the scheduler's).
// The time per operation includes filling the index.
func BenchmarkForget(b *testing.B) {
	var forget time.Duration
	var changes []time.Duration
	for b.Loop() {
		x := unclocked()
		conversations(x, 1_000_000, 1)
		other := x.Add(1000)
		runtime.GC()
		start := time.Now()
		x.Forget(0)
		forget = max(forget, time.Since(start))
		for x.Size().Doomed > 0 {
			start := time.Now()
			p := x.Pin(other, 0, nil)
			changes = append(changes, time.Since(start))
			x.Done(&p)
		}
	}
	b.ReportMetric(float64(forget.Microseconds()), "µs-forget")
	b.ReportMetric(p99(changes), "µs-p99-change")
}

// A capacity that falls from a million blocks to none. The time per operation
// includes filling the index.
func BenchmarkSetCapacity(b *testing.B) {
	var all time.Duration
	var chunks []time.Duration
	for b.Loop() {
		x := unclocked()
		conversations(x, 1_000_000, 1)
		runtime.GC()
		c := x.want(0, 0)
		begin := time.Now()
		for more := true; more; {
			start := time.Now()
			more = x.shrink(c)
			chunks = append(chunks, time.Since(start))
		}
		all = max(all, time.Since(begin))
	}
	b.ReportMetric(float64(all.Microseconds()), "µs-all")
	b.ReportMetric(p99(chunks), "µs-p99-chunk")
}

// p99 is in microseconds.
func p99(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)*99/100].Nanoseconds()) / 1e3
}

// Memory per block: of one held once, and of one more holder. The worst case is
// prompts of one block each.
func BenchmarkMemory(b *testing.B) {
	heap := func() int {
		runtime.GC()
		var ms runtime.MemStats
		runtime.ReadMemStats(&ms)
		return int(ms.HeapAlloc)
	}
	single := func(x *Index, blocks, upstreams int) {
		for h := range upstreams {
			x.Add(maxCapacity)
			for i := range blocks {
				serve(x, Holder(h), prompt([2]int{i, 1}), 0)
			}
		}
	}
	fills := map[string]func(x *Index, blocks, upstreams int){
		"conversations": func(x *Index, blocks, upstreams int) { conversations(x, blocks, upstreams) },
		"single":        single,
	}
	for name, fill := range fills {
		b.Run(name, func(b *testing.B) {
			const holders = 16
			for b.Loop() {
				start := heap()
				one := unclocked()
				fill(one, 200_000, 1)
				once := heap() - start
				b.ReportMetric(float64(once)/float64(one.Size().Blocks), "B/block")
				b.ReportMetric(float64(one.Size().Bytes)/float64(once), "estimate/real")
				runtime.KeepAlive(one)
				start = heap()
				many := unclocked()
				fill(many, 200_000, holders)
				all := heap() - start
				b.ReportMetric(float64(all-once)/float64(many.Size().Blocks*(holders-1)), "B/block/further-holder")
				runtime.KeepAlive(many)
			}
		})
	}
}
