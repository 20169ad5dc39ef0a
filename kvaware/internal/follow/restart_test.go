// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

func TestAnEngineThatHasStartedOverIsForgotten(t *testing.T) {
	for _, again := range []int{0, 1, 3, 5, 9} { // messages of the new one before it is followed
		for _, replay := range []bool{true, false} {
			t.Run(fmt.Sprint(again, replay), func(t *testing.T) {
				bubble(t, func(b *bench) {
					if replay {
						b.follow()
					} else {
						b.follow(noReplay)
					}
					for i := range kvevents.Key(5) {
						b.publish(stored(i))
					}
					b.want(true)
					b.restart()
					for i := range again {
						b.publish(stored(kvevents.Key(100 + i)))
					}
					b.pass(time.Second)
					if replay {
						b.want(true)
						b.wantForgot(Restarted)
					}
					b.publish(stored(1000))
					b.settle()
					if replay || again == 0 {
						b.want(true)
						b.wantForgot(Restarted)
					} else if again != 5 { // where the number fits nobody can tell
						b.want(false)
						if b.sink.held[2] != 0 {
							t.Errorf("holds %v", b.sink.held)
						}
					}
				})
			})
		}
	}
}

func TestAnEngineThatStartsOverBehindTheSameConnectionIsForgotten(t *testing.T) {
	bubble(t, func(b *bench) {
		b.follow()
		for i := range kvevents.Key(5) {
			b.publish(stored(i))
		}
		b.want(true)
		b.seq, b.kept = 0, nil
		clear(b.truth)
		b.publish(stored(7))
		b.want(true)
		b.wantForgot(Restarted)
	})
}

func TestWhatWasLostBeforeASilenceIsFoundOut(t *testing.T) {
	bubble(t, func(b *bench) {
		b.follow()
		b.publish(stored(1))
		b.publish(stored(2))
		b.pass(firstQuiet + time.Second)
		b.publish(stored(3))
		b.withhold = true
		b.publish(stored(4)) // lost, and nothing follows
		b.settle()
		if b.sink.held[4] != 0 {
			t.Fatal("what is withheld has come")
		}
		b.pass(quiet + time.Second)
		b.want(true)
		asked := b.replays
		b.pass(time.Hour)
		if b.replays != asked {
			t.Errorf("%d replays were asked for while nothing was published", b.replays-asked)
		}
	})
}

func TestAnEngineThatStartsOverInSilenceIsFoundOut(t *testing.T) {
	bubble(t, func(b *bench) {
		b.follow()
		for i := range kvevents.Key(5) {
			b.publish(stored(i))
		}
		b.settle()
		b.seq, b.kept, b.withhold = 0, nil, true
		clear(b.truth)
		for i := range kvevents.Key(9) {
			b.publish(stored(100 + i))
		}
		b.pass(quiet + time.Second)
		b.want(true)
		b.wantForgot(Restarted)
	})
}

func TestARefusedConnectionForgetsAndTheNextOneStartsAnew(t *testing.T) {
	bubble(t, func(b *bench) {
		b.follow()
		b.publish(stored(1, 2))
		b.want(true)
		b.down = true
		b.restart()
		b.pass(time.Second)
		b.wantForgot(Refused)
		if len(b.sink.held) != 0 || b.sink.complete {
			t.Errorf("a gone engine holds %v", b.sink.held)
		}
		if s := b.f.Status(); s.Connected || !strings.Contains(s.LastError, "refused") || strings.Contains(s.LastError, "secret") {
			t.Errorf("%+v", s)
		}
		b.pass(time.Minute)
		b.wantForgot(Refused)
		dials := b.dials
		b.pass(time.Minute)
		if n := b.dials - dials; n < 3 || n > 10 {
			t.Errorf("%d tries in a minute", n)
		}
		b.down = false
		b.publish(stored(3))
		b.pass(mostPause)
		b.want(true)
	})
}

func TestALostConnectionToTheSameEngineForgetsNothing(t *testing.T) {
	for _, replay := range []bool{true, false} {
		bubble(t, func(b *bench) {
			if replay {
				b.follow()
			} else {
				b.follow(noReplay)
			}
			b.publish(stored(1))
			b.want(true)
			b.cut()
			b.settle()
			b.want(false) // while it is away
			if replay {
				b.publish(stored(2))
			}
			b.pass(time.Second)
			b.want(replay) // without, nobody has told yet
			b.publish(stored(3))
			b.want(true)
			b.wantForgot()
		})
	}
}
