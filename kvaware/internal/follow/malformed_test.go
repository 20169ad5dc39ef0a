// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"strings"
	"testing"
	"time"
)

// gusher is a Conn that sends the same message as fast as it is read.
type gusher struct {
	*pipe
	frames [][]byte
	left   int // then it is silent
}

func (g *gusher) Receive() ([][]byte, error) {
	if g.left--; g.left < 0 {
		return g.pipe.Receive()
	}
	return g.frames, nil
}

func TestWhatIsNoPublisherIsNotListenedToAtItsSpeed(t *testing.T) {
	const much = 1 << 20
	for name, frames := range map[string][][]byte{
		"too few frames":       {nil},
		"too many frames":      {nil, nil, nil, number(1), nil},
		"no sequence number":   {nil, []byte("1"), nil},
		"the end of a replay":  {nil, number(endMarker), nil},
		"messages of nothing":  {},
		"a frame before topic": {[]byte("x"), nil, number(1), nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				dials := 0
				b.follow(noReplay, func(o *Options) {
					o.Source = Dial("", func(context.Context) (Conn, error) {
						dials++
						return &gusher{newPipe(0), frames, much}, nil
					})
				})
				b.pass(time.Minute)
				s := b.f.Status()
				if dials < 5 || dials > 20 || s.Malformed > uint64(dials*(mostMalformed+1)) || s.Malformed < mostMalformed {
					t.Errorf("%d messages of %d connections were looked at in a minute", s.Malformed, dials)
				}
				if !strings.Contains(s.LastError, "other frames") || s.Complete {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

func TestAReplayThatIsNoneIsGivenUp(t *testing.T) {
	bubble(t, func(b *bench) {
		replays := 0
		b.follow(func(o *Options) {
			o.Replay = func(context.Context) (Conn, error) {
				replays++
				return &gusher{newPipe(0), [][]byte{nil}, 1 << 20}, nil
			}
		})
		b.publish(stored(1))
		b.settle()
		s := b.f.Status()
		if replays != 1 || s.ReplaysFailed != 1 || s.Malformed > mostMalformed || !strings.Contains(s.LastError, "other frames") {
			t.Errorf("%d replays: %+v", replays, s)
		}
		b.want(true) // it was followed from its first message
	})
}

func TestMalformedMessagesBetweenOthersEndNoConnection(t *testing.T) {
	bubble(t, func(b *bench) {
		b.follow()
		for range 3 {
			for range mostMalformed {
				b.deliver(nil)
			}
			b.publish(stored(1))
			b.settle()
		}
		b.want(true)
		if s := b.f.Status(); s.Connects != 1 || s.Malformed != 3*mostMalformed {
			t.Errorf("%+v", s)
		}
	})
}
