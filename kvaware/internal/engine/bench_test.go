// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkStep is one step of an engine in which 256 requests of about 8k tokens
// of context decode.
func BenchmarkStep(b *testing.B) {
	for name, sink := range map[string]Sink{"lifecycle": nil, "tokens": &journal{mute: true}} {
		b.Run(name, func(b *testing.B) {
			p := Default()
			p.Blocks = 1 << 20
			e := newEngine(b, p, sink)
			const output = 4000
			seqs := make([]*Sequence, 256)
			now := time.Duration(0)
			b.ReportAllocs()
			for i := 0; i < b.N; {
				b.StopTimer()
				for k := range seqs {
					seqs[k] = prompt(k, 8000+k, output, p.BlockSize)
				}
				if j, ok := sink.(*journal); ok {
					j.lines = j.lines[:0]
				}
				submit(b, e, now, seqs...)
				for e.decodes.n < len(seqs) {
					now, _ = e.Advance(now)
				}
				b.StartTimer()
				for n := 0; n < output-400 && i < b.N; n++ {
					now, _ = e.Advance(now)
					i++
				}
				b.StopTimer()
				for _, s := range seqs {
					e.Cancel(now, s)
				}
				now = drain(e, now)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "steps/s")
		})
	}
}

// BenchmarkRequests is a closed loop of 256 requests at once: conversations of
// growing prompts about as long as in the Mooncake trace (12k tokens in, 340 out).
func BenchmarkRequests(b *testing.B) {
	for _, blockSize := range []int{16, 64, 512} {
		b.Run(fmt.Sprintf("block%d", blockSize), func(b *testing.B) {
			p := Default()
			p.BlockSize = blockSize
			p.Blocks = 4 << 20 / blockSize
			e := newEngine(b, p, nil)
			const conversations = 256
			chains := make([][]uint64, conversations)
			for c := range chains {
				chains[c] = chain(c+1, 24_000/blockSize)
			}
			seqs := make([]Sequence, 256)
			turns := make([]int, conversations)
			next := 0
			again := func(s *Sequence, now time.Duration) {
				c := next * 7919 % conversations
				next++
				turns[c] = (turns[c] + 1) % 10
				tokens := 2000 + 2000*turns[c]
				s.Prompt, s.Output = tokens, 40+next%600
				s.Blocks = chains[c][:tokens/blockSize]
				submit(b, e, now, s)
			}
			b.ReportAllocs()
			now := time.Duration(0)
			for i := range seqs {
				again(&seqs[i], 0)
			}
			for done := 0; done < b.N; {
				now, _ = e.Advance(now)
				if uint64(done) == e.stats.Finished {
					continue
				}
				for i := range seqs {
					if seqs[i].state == stateFinished {
						done++
						again(&seqs[i], now)
					}
				}
			}
			st := e.Stats()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
			b.ReportMetric(float64(st.HitTokens)/float64(st.QueriedTokens), "hit-rate")
			b.ReportMetric(float64(st.Steps)/b.Elapsed().Seconds(), "steps/s")
		})
	}
}
