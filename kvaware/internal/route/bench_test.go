// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
)

// BenchmarkPlace is a request's placement and release. Each prompt shares its
// first half with others; caches are full or have room, and each upstream runs 16
// streams.
func BenchmarkPlace(b *testing.B) {
	for name, o := range both {
		for _, tokens := range []int{1_000, 128_000} {
			for _, upstreams := range []int{3, 64, 1000} {
				for _, full := range []bool{false, true} {
					b.Run(fmt.Sprintf("%s/tokens=%dk/upstreams=%d/full=%v", name, tokens/1000, upstreams, full), func(b *testing.B) {
						bed := newBed(upstreams, 25_000)
						chain := prompt(1, tokens/16)
						c := bed.choice()
						for i := range upstreams {
							for k := range 16 {
								p := new(Placement)
								bed.Place(c, asking(prompt(i*1000+k, 40)), o, i, p)
								p.Generated(0, 1, bed.at)
							}
							for k := range 400 {
								if !full {
									break
								}
								p := new(Placement)
								bed.Place(c, asking(prompt(-i*1000-k, 64)), o, i, p)
								p.Release(ledger.Completed, true)
							}
						}
						q := asking(chain)
						b.ReportAllocs()
						b.ResetTimer()
						for i := range b.N {
							for j := len(chain) / 2; j < len(chain); j++ {
								chain[j] = uint64(i)<<32 | uint64(j)
							}
							p := new(Placement)
							bed.at += time.Millisecond
							if bed.Place(c, q, o, -1, p) < 0 {
								b.Fatal("nothing chosen")
							}
							p.Release(ledger.Completed, true)
						}
					})
				}
			}
		}
	}
}
