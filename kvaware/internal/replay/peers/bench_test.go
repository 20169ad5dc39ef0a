// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// BenchmarkRequest is what one request costs a policy over 32 replicas: its
// route, its first token, eight reports of progress, its end, and the events of
// the blocks it adds to engines that evict nothing. Prompts are of 64 conversations that grow by a twentieth of
// the longest prompt each turn, with 128 requests in flight.
func BenchmarkRequest(b *testing.B) {
	const replicas, conversations, flights = 32, 64, 128
	for _, longest := range []int{200, 3000} {
		for _, s := range All() {
			b.Run(fmt.Sprintf("%s/blocks=%d", s.Name, longest), func(b *testing.B) {
				p := s.New(replay.Setting{BlockSize: testBlock, Rand: seeded(1)})
				if p, ok := p.(replay.Seer); ok {
					p.See(&fleet{})
				}
				up := make([]int, replicas)
				for i := range up {
					up[i] = i
					if p, ok := p.(replay.Member); ok {
						p.Joined(0, i, replay.Capacity{CacheTokens: 400_000, MaxSeqs: 256, MaxBatched: 8192})
					}
				}
				listener, _ := p.(replay.Listener)
				rand := seeded(2)
				// The prompts are made beforehand: each conversation's turns are
				// the beginnings of its longest prompt.
				var long [conversations][]uint64
				var turn [conversations]int
				var stored [conversations][replicas]int
				for c := range long {
					long[c] = chain(chain(nil, 1, longest/20), uint64(c)+2, longest-longest/20)
				}
				ring := make([]flight, flights)
				requests := make([]replay.Request, flights)
				now := time.Duration(0)
				b.ReportAllocs()
				for n := 0; b.Loop(); n++ {
					now += 50 * time.Millisecond
					f, r := &ring[n%flights], &requests[n%flights]
					if n >= flights {
						p.Ended(now, f.r, f.replica, replay.Completed, replay.Usage{Output: 400})
					}
					c := rand.IntN(conversations)
					turn[c] = turn[c]%20 + 1
					blocks := long[c][:longest*turn[c]/20]
					*r = replay.Request{ID: n, Arrived: now, Session: uint64(c) + 1, Prompt: len(blocks) * testBlock, Blocks: blocks, MaxTokens: 500, Stream: true}
					i := p.Route(now, r, up)
					*f = flight{r: r, replica: i}
					if listener != nil {
						for _, h := range blocks[min(stored[c][i], len(blocks)):] {
							listener.Stored(now, i, h)
						}
						stored[c][i] = max(stored[c][i], len(blocks))
					}
					p.Started(now, r, i)
					for k := range 8 {
						p.Progress(now, r, i, 50*k)
					}
				}
			})
		}
	}
}
