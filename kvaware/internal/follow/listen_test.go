// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// listening is a Listener in a bubble, to which a test connects.
type listening struct {
	*Listener
	conns chan Conn
}

func listen(ctx context.Context, done chan<- struct{}) *listening {
	l := &listening{conns: make(chan Conn)}
	l.Listener = NewListener(func(ctx context.Context) (Conn, error) {
		select {
		case c := <-l.conns:
			return c, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	go func() { defer close(done); _ = l.Run(ctx) }()
	return l
}

// connect has an engine's messages come over a connection of its own.
func (l *listening) connect(e *publisher) *pipe {
	p := newPipe(1 << 16)
	e.mu.Lock()
	e.subs = append(e.subs, p)
	e.mu.Unlock()
	l.conns <- p
	return p
}

func TestEnginesThatConnectAreToldApartByTopic(t *testing.T) {
	bubble(t, func(b *bench) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		l := listen(ctx, done)
		other := newPublisher()
		b.topic, other.topic = "kv@a", "kv@ab"
		source, forget := l.Topic("kv@a")
		b.follow(func(o *Options) { o.Source = source })
		l.connect(b.publisher)
		l.connect(other)
		other.publish(stored(100))
		b.publish(stored(1))
		b.want(true)

		// It comes again, and starts over.
		b.restart()
		l.connect(b.publisher)
		b.publish(stored(2))
		b.pass(time.Second)
		b.want(true)
		b.wantForgot(Restarted)

		forget()
		cancel()
		<-done
		if b.settle(); b.f.Status().Connected {
			t.Error("connected to nobody")
		}
	})
}

func TestOfTwoConnectionsWithOneTopicTheLaterCounts(t *testing.T) {
	bubble(t, func(b *bench) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		l := listen(ctx, done)
		source, _ := l.Topic("")
		b.follow(noReplay, func(o *Options) { o.Source = source })
		old := l.connect(b.publisher)
		b.publish(stored(1))
		b.settle()
		b.subs = nil // the old one hangs
		l.connect(b.publisher)
		b.publish(stored(2))
		b.pass(time.Second)
		b.want(true)
		old.offer(nil, number(0), []byte("too late"))
		b.settle()
		b.want(true)
		b.wantForgot()
		cancel()
		<-done
	})
}

func TestAListenerEndsWhileNobodyTakesWhatComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		l := listen(ctx, done)
		l.Topic("")
		p := newPipe(0)
		l.conns <- p
		synctest.Wait()
		for p.offer(nil, number(0), make([]byte, maxQueuedBytes/3)) {
			synctest.Wait()
		}
		cancel()
		<-done
	})
}

func TestAFollowerOfATopicThatIsFollowedAnewGetsTheConnectionThatIsThere(t *testing.T) {
	bubble(t, func(b *bench) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		l := listen(ctx, done)
		source, forget := l.Topic("")
		b.follow(noReplay, func(o *Options) { o.Source = source })
		l.connect(b.publisher)
		b.publish(stored(1))
		b.want(true)
		b.cancel()
		<-b.done
		forget()
		source, _ = l.Topic("")
		b.sink = &ledger{held: make(map[kvevents.Key]int)}
		b.follow(func(o *Options) { o.Source = source })
		b.publish(stored(2))
		b.want(true)
		cancel()
		<-done
	})
}

func TestWhoFollowsATopicLastGetsItAndWhoDidBeforeGetsItBack(t *testing.T) {
	bubble(t, func(b *bench) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		l := listen(ctx, done)
		source, _ := l.Topic("")
		b.follow(func(o *Options) { o.Source = source })
		l.connect(b.publisher)
		b.publish(stored(1))
		b.want(true)
		_, forget := l.Topic("") // a configuration that fails
		b.publish(stored(2))
		b.pass(time.Second)
		if s := b.f.Status(); s.Connected || s.Last != 0 {
			t.Errorf("%+v", s)
		}
		forget()
		b.publish(stored(3))
		b.pass(time.Second)
		b.want(true)
		b.wantForgot()
		cancel()
		<-done
	})
}
