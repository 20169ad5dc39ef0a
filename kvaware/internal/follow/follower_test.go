// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

func TestAFollowerThatComesLateKnowsWhatWasPublishedBefore(t *testing.T) {
	bubble(t, func(b *bench) {
		b.publish(stored(1, 2, 3))
		b.publish(removed(2))
		b.follow()
		b.want(true)
		b.publish(stored(4))
		b.want(true)
		b.wantForgot()
		if s := b.f.Status(); s.Last != 2 || !s.Any || s.Batches != 3 || s.Events != [3]uint64{2, 1, 0} || s.Replays != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestAnEngineThatHasPublishedNothingIsKnownToHoldNothing(t *testing.T) {
	bubble(t, func(b *bench) {
		b.follow()
		b.want(true)
		b.publish(stored(1))
		b.want(true)
	})
}

func TestWithoutReplayAFollowerIsCompleteOnlyFromTheFirstMessage(t *testing.T) {
	bubble(t, func(b *bench) {
		b.follow(noReplay)
		b.want(false) // nothing is known yet
		b.publish(stored(1))
		b.want(true)
	})
	bubble(t, func(b *bench) {
		b.publish(stored(1))
		b.follow(noReplay)
		b.publish(stored(2))
		b.want(false)
		if len(b.sink.held) != 1 {
			t.Errorf("what is live is not applied: %v", b.sink.held)
		}
	})
}

func TestAGapIsFilledByReplay(t *testing.T) {
	bubble(t, func(b *bench) {
		b.follow()
		b.publish(stored(1))
		b.settle()
		b.withhold = true
		b.publish(stored(2))
		b.publish(removed(1))
		b.withhold = false
		b.publish(stored(3))
		b.want(true)
		b.wantForgot()
		if s := b.f.Status(); s.Gaps != 1 || s.Missed != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestAReplayWhoseEndIsDroppedIsAskedForUntilNothingIsMissing(t *testing.T) {
	for _, wide := range []bool{false, true} {
		bubble(t, func(b *bench) {
			b.wide, b.topic = wide, "kv"
			for i := range kvevents.Key(100) {
				b.publish(stored(i))
			}
			b.answers = 30
			b.follow()
			b.pass(5 * time.Second)
			b.want(true)
			b.wantForgot()
			if b.replays < 4 {
				t.Errorf("%d answers of 30 messages gave 100", b.replays)
			}
		})
	}
}

func TestAnAnswerWithAHoleIsAskedForAgain(t *testing.T) {
	bubble(t, func(b *bench) {
		for i := range kvevents.Key(10) {
			b.publish(stored(i))
		}
		all := b.kept
		b.kept = append(all[:4:4], all[7:]...)
		b.follow(func(o *Options) {
			o.Replay = func(ctx context.Context) (Conn, error) {
				if b.replays == 1 {
					b.kept = all
				}
				return b.dialReplay(ctx)
			}
		})
		b.want(true)
		b.wantForgot()
	})
}

func TestWhatAReplayCannotGiveIsForgottenUntilTheEngineHasStoredItsFill(t *testing.T) {
	bubble(t, func(b *bench) {
		b.follow()
		b.sink.room = 3
		b.publish(stored(1))
		b.want(true)
		b.keeps, b.withhold = 1, true
		b.publish(removed(1))
		b.publish(stored(2))
		b.withhold = false
		b.publish(stored(3))
		b.want(false)
		b.wantForgot(Lost)
		if len(b.sink.held) != 1 || b.sink.held[3] != 1 {
			t.Errorf("after the loss it holds %v", b.sink.held)
		}
		if s := b.f.Status(); !s.Partial || s.Missed != 1 || s.Resets[Lost] != 1 {
			t.Errorf("%+v", s)
		}
		b.publish(stored(4))
		b.want(false)
		b.publish(removed(2), stored(5))
		b.want(true)
	})
}

func TestAClearedCacheEndsBeingPartial(t *testing.T) {
	bubble(t, func(b *bench) {
		b.publish(stored(1))
		b.follow(noReplay)
		b.publish(stored(2))
		b.want(false)
		b.publish(cleared(), stored(7))
		b.want(true)
	})
}

func TestATruncatedReplayMakesPartial(t *testing.T) {
	bubble(t, func(b *bench) {
		b.keeps = 2
		for i := range kvevents.Key(5) {
			b.publish(stored(i))
		}
		b.follow()
		b.want(false)
		b.wantForgot()
		if len(b.sink.held) != 2 {
			t.Errorf("holds %v", b.sink.held)
		}
	})
}

func TestARepeatedMessageIsIgnored(t *testing.T) {
	bubble(t, func(b *bench) {
		b.follow()
		for i := range kvevents.Key(5) {
			b.publish(stored(i))
		}
		b.settle()
		for _, m := range b.kept[1:4] {
			b.deliver(nil, number(m[0].(uint64)), m[1].([]byte))
		}
		b.want(true)
		b.publish(stored(9))
		b.want(true)
		b.wantForgot()
		if s := b.f.Status(); s.Repeated != 3 {
			t.Errorf("%+v", s)
		}
	})
}

func TestMessagesThatAreNoneAreCountedAndSkipped(t *testing.T) {
	bubble(t, func(b *bench) {
		b.follow()
		b.publish(stored(1))
		b.settle()
		for _, frames := range [][][]byte{
			{}, {nil}, {nil, nil}, {nil, number(1)}, {nil, []byte("short"), nil}, {nil, number(endMarker), nil},
			{[]byte("x"), nil, number(1), nil}, {nil, nil, nil, number(1), nil},
		} {
			b.deliver(frames...)
		}
		b.publish(stored(2))
		b.want(true)
		if s := b.f.Status(); s.Malformed != 8 {
			t.Errorf("%d of 8 are counted", s.Malformed)
		}
		// What cannot be decoded is a loss that no replay makes good.
		b.mu.Lock()
		b.send([]byte{0xc1})
		b.mu.Unlock()
		b.publish(stored(3))
		b.want(false)
		b.wantForgot()
		if s := b.f.Status(); s.Undecodable != 1 || !s.Partial || s.LastError == "" || s.Gaps != 0 {
			t.Errorf("%+v", s)
		}
		if b.sink.held[3] != 1 {
			t.Error("what came after is not applied")
		}
	})
}

func TestMessagesOfOtherTopicsAreLeftOut(t *testing.T) {
	bubble(t, func(b *bench) {
		b.topic = "kv@a"
		b.follow(func(o *Options) { o.Source = Dial("kv@", b.dial) })
		b.publish(stored(1))
		b.deliver([]byte("else"), number(0), []byte("no batch"))
		b.want(true)
		if s := b.f.Status(); s.Malformed+s.Undecodable+s.Repeated != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestBatchesOfAnotherRankAreSkipped(t *testing.T) {
	bubble(t, func(b *bench) {
		b.follow(func(o *Options) { o.Rank = 1 })
		batch := func(seq uint64, rank int, key kvevents.Key) {
			b.deliver(nil, number(seq), kvevents.AppendBatch(nil, &kvevents.Batch{Rank: rank, Events: []kvevents.Event{stored(key)}}, kvevents.ArrayEvents))
		}
		batch(0, 1, 10)
		batch(0, 0, 20)
		batch(1, 0, 21)
		batch(1, 1, 11)
		batch(2, -1, 12)
		b.settle()
		b.wantForgot()
		if s := b.f.Status(); s.OtherRank != 2 || s.Batches != 3 || b.sink.held[20] != 0 || b.sink.held[12] != 1 {
			t.Errorf("%+v, %v", s, b.sink.held)
		}
	})
}

func TestInvalidatingForgetsUntilEventsRestoreIt(t *testing.T) {
	bubble(t, func(b *bench) {
		b.follow()
		b.sink.room = 2
		b.publish(stored(1))
		b.want(true)
		b.f.Invalidate(Reset)
		b.want(false)
		b.wantForgot(Reset)
		if len(b.sink.held) != 0 {
			t.Errorf("holds %v", b.sink.held)
		}
		b.f.Invalidate(Asked) // there is nothing left
		b.wantForgot(Reset)
		b.publish(stored(2))
		b.want(false)
		b.publish(removed(1), stored(3))
		b.want(true)
	})
}

func TestWhatAReplayTellsAfterAnInvalidationWasBeforeIt(t *testing.T) {
	bubble(t, func(b *bench) {
		b.publish(stored(1))
		b.publish(stored(2))
		answer := newPipe(10)
		b.follow(func(o *Options) {
			o.Replay = func(context.Context) (Conn, error) { return answer, nil }
		})
		answer.offer(nil, number(0), b.kept[0][1].([]byte))
		b.settle()
		b.f.Invalidate(Reset)
		answer.offer(nil, number(1), b.kept[1][1].([]byte))
		answer.offer(nil, number(endMarker), nil)
		b.settle()
		b.publish(stored(3))
		b.want(false)
		b.wantForgot(Reset)
		if len(b.sink.held) != 1 || b.sink.held[3] != 1 {
			t.Errorf("holds %v", b.sink.held)
		}
	})
}

func TestAReplayEndpointThatAnswersNothingIsAskedAgainAndThenMakesComplete(t *testing.T) {
	bubble(t, func(b *bench) {
		b.deaf = true
		b.publish(stored(1))
		b.follow()
		b.pass(firstAnswer)
		b.publish(stored(2))
		b.want(false)
		if s := b.f.Status(); s.ReplaysFailed != 1 || s.LastError == "" {
			t.Errorf("%+v", s)
		}
		for range 1000 { // not one replay for each message
			b.publish(stored(3))
			b.publish(removed(3))
		}
		b.settle()
		if b.replays > 3 {
			t.Errorf("%d replays were asked for", b.replays)
		}
		b.deaf = false
		b.pass(time.Minute)
		b.publish(stored(4))
		b.want(true)
	})
}

func TestAPublisherThatAcceptsAndLeavesIsNotDialledWithoutPause(t *testing.T) {
	bubble(t, func(b *bench) {
		b.follow(func(o *Options) {
			o.Source = Dial("", func(context.Context) (Conn, error) {
				b.dials++
				p := newPipe(0)
				_ = p.Close()
				return p, nil
			})
		})
		b.pass(time.Minute)
		if b.dials < 5 || b.dials > 20 {
			t.Errorf("%d connections in a minute", b.dials)
		}
	})
}

func TestAFloodIsReadNoFasterThanItIsTakenIn(t *testing.T) {
	bubble(t, func(b *bench) {
		b.sink.wait = make(chan struct{})
		flood := newPipe(0)
		b.follow(noReplay, func(o *Options) {
			o.Source = Dial("", func(context.Context) (Conn, error) { return flood, nil })
		})
		payload := kvevents.AppendBatch(nil, &kvevents.Batch{Rank: -1, Events: []kvevents.Event{stored(make([]kvevents.Key, 10_000)...)}}, kvevents.ArrayEvents)
		sent := 0
		for seq := uint64(0); ; seq++ {
			b.settle()
			if !flood.offer(nil, number(seq), payload) {
				break
			}
			sent += len(payload)
		}
		if sent < maxQueuedBytes/2 || sent > maxQueuedBytes+4*len(payload) {
			t.Errorf("%d bytes were read ahead, the bound is %d", sent, maxQueuedBytes)
		}
		close(b.sink.wait)
		b.settle()
		if s := b.f.Status(); s.Batches == 0 || s.Gaps != 0 || int(s.Batches)*len(payload) != sent {
			t.Errorf("%d bytes were sent, %+v", sent, s)
		}
		_ = flood.Close()
	})
}

func TestNoticesTellWhatHappened(t *testing.T) {
	bubble(t, func(b *bench) {
		b.follow()
		b.publish(stored(1))
		b.settle()
		b.keeps, b.withhold = 1, true
		b.publish(stored(2))
		b.publish(stored(3))
		b.withhold = false
		b.publish(stored(4))
		b.settle()
		b.restart()
		b.pass(time.Second)
		var got []string
		for _, n := range b.told {
			switch n.Kind {
			case Gap, Missed:
				got = append(got, fmt.Sprint(n.Kind, " ", n.First, "-", n.Last))
			case Forgot:
				got = append(got, fmt.Sprint(n.Kind, " ", n.Why))
			default:
				got = append(got, fmt.Sprint(n.Kind))
			}
		}
		want := "connected, gap 1-2, missed 1-2, forgot lost, partial, disconnected, connected, forgot restarted, complete"
		if s := strings.Join(got, ", "); s != want {
			t.Errorf("told %s,\nwant %s", s, want)
		}
	})
}
