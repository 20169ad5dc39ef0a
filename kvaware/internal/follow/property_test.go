// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// Whatever happens to messages, connections and processes, what is called complete
// is what the engine holds; and once nothing goes wrong any more and the engine can
// replay all, it is complete.
func TestWhatIsCalledCompleteIsWhatTheEngineHolds(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(b *bench) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				replay := rnd.IntN(4) > 0
				if rnd.IntN(2) == 0 {
					b.keeps = 1 + rnd.IntN(20)
				}
				b.wide = rnd.IntN(2) == 0
				mischief(b, rnd)
				if replay {
					b.follow()
				} else {
					b.follow(noReplay)
				}
				for range 60 {
					mischief(b, rnd)
					b.settle()
					if s := b.f.Status(); s.Complete && s.Any && s.Last+1 == b.seq {
						b.want(true)
					}
				}
				b.withhold, b.down, b.deaf, b.answers = false, false, false, 0
				b.pass(mostRetry + time.Minute)
				b.publish(stored(1))
				b.pass(time.Minute)
				b.publish(stored(2))
				b.pass(time.Minute)
				if b.sink.complete || replay && b.keeps == 0 {
					b.want(true)
				}
			})
		})
	}
}

// mischief does one thing or another to an engine.
func mischief(b *bench, rnd *rand.Rand) {
	key := func() kvevents.Key { return kvevents.Key(rnd.IntN(50)) }
	switch rnd.IntN(14) {
	default:
		for range rnd.IntN(10) {
			b.publish(stored(key(), key()))
			if len(b.truth) > 20 {
				for k := range b.truth {
					b.publish(removed(k))
					break
				}
			}
		}
	case 0:
		b.withhold = !b.withhold
	case 1:
		b.down = !b.down
		b.cut()
	case 2:
		b.restart()
	case 3:
		b.cut()
	case 4:
		b.answers = []int{0, 3, 10}[rnd.IntN(3)]
	case 5:
		b.deaf = !b.deaf
	case 6:
		b.pass(time.Duration(rnd.IntN(int(time.Minute))))
	case 7, 8, 9:
		b.pass(time.Duration(rnd.IntN(int(2 * time.Second))))
	case 10:
		b.publish(cleared())
	}
}
