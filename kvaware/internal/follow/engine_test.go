// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// pipe is a Conn whose other side a test is.
type pipe struct {
	in     chan [][]byte
	closed chan struct{}
	once   sync.Once
	asked  func(frames [][]byte) // of Send
}

func newPipe(room int) *pipe {
	return &pipe{in: make(chan [][]byte, room), closed: make(chan struct{})}
}

var errClosed = errors.New("closed")

func (p *pipe) Receive() ([][]byte, error) {
	select {
	case m := <-p.in:
		return m, nil
	default:
	}
	select {
	case m := <-p.in:
		return m, nil
	case <-p.closed:
		return nil, errClosed
	}
}

func (p *pipe) Send(frames ...[]byte) error {
	if p.asked != nil {
		p.asked(frames)
	}
	return nil
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// offer sends unless the pipe is full, as PUB and ROUTER sockets do.
func (p *pipe) offer(frames ...[]byte) bool {
	select {
	case p.in <- frames:
		return true
	default:
		return false
	}
}

// publisher is an engine's publisher. A test may change its fields while nothing
// runs.
type publisher struct {
	mu       sync.Mutex
	seq      uint64
	kept     [][2]any // sequence number and payload
	keeps    int      // messages, 0: all
	subs     []*pipe
	made     float64
	truth    map[kvevents.Key]int
	down     bool // refuses connections
	deaf     bool // the replay endpoint answers nothing
	answers  int  // the most messages of an answer, 0: all; the end marker is one
	withhold bool // messages are published to nobody, but kept
	dials    int
	replays  int
	topic    string
	wide     bool // answers have the topic's frame
}

func newPublisher() *publisher { return &publisher{truth: make(map[kvevents.Key]int)} }

func (e *publisher) dial(context.Context) (Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dials++
	if e.down {
		return nil, fmt.Errorf("dialling tcp://user:secret@engine:5557: %w", syscall.ECONNREFUSED)
	}
	p := newPipe(1 << 16)
	e.subs = append(e.subs, p)
	return p, nil
}

func (e *publisher) dialReplay(context.Context) (Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.replays++
	if e.down {
		return nil, fmt.Errorf("dialling: %w", syscall.ECONNREFUSED)
	}
	p := newPipe(1 << 16)
	p.asked = func(frames [][]byte) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.deaf || len(frames) != 2 || len(frames[0]) != 0 {
			return
		}
		from, n := binary.BigEndian.Uint64(frames[1]), 0
		send := func(seq uint64, payload []byte) {
			if n++; e.answers > 0 && n > e.answers {
				return
			}
			if e.wide {
				p.offer(nil, []byte(e.topic), number(seq), payload)
			} else {
				p.offer(nil, number(seq), payload)
			}
		}
		for _, m := range e.kept {
			if m[0].(uint64) >= from {
				send(m[0].(uint64), m[1].([]byte))
			}
		}
		send(endMarker, nil)
	}
	return p, nil
}

func number(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// publish makes a batch of the events and sends it.
func (e *publisher) publish(events ...kvevents.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	count(e.truth, events)
	e.made++ // no two payloads are equal
	e.send(kvevents.AppendBatch(nil, &kvevents.Batch{Time: e.made, Rank: -1, Events: events}, kvevents.ArrayEvents))
}

// send sends a payload. e.mu is held.
func (e *publisher) send(payload []byte) {
	seq := e.seq
	e.seq++
	e.kept = append(e.kept, [2]any{seq, payload})
	if e.keeps > 0 && len(e.kept) > e.keeps {
		e.kept = e.kept[len(e.kept)-e.keeps:]
	}
	if !e.withhold {
		e.deliver([]byte(e.topic), number(seq), payload)
	}
}

func (e *publisher) deliver(frames ...[]byte) {
	for _, p := range e.subs {
		p.offer(frames...)
	}
}

// cut closes all connections.
func (e *publisher) cut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.subs {
		_ = p.Close()
	}
	e.subs = nil
}

// restart is another process in place of this one.
func (e *publisher) restart() {
	e.cut()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seq, e.kept = 0, nil
	clear(e.truth)
}

func count(held map[kvevents.Key]int, events []kvevents.Event) {
	for _, e := range events {
		switch e.Kind {
		case kvevents.Stored:
			for _, k := range e.Blocks {
				held[k]++
			}
		case kvevents.Removed:
			for _, k := range e.Blocks {
				if held[k]--; held[k] <= 0 {
					delete(held, k)
				}
			}
		case kvevents.Cleared:
			clear(held)
		}
	}
}

// ledger is a Sink that counts blocks.
type ledger struct {
	mu       sync.Mutex
	held     map[kvevents.Key]int
	complete bool
	forgot   []Reason
	room     int
	applied  int
	wait     chan struct{} // of Apply; nil: does not
}

func (l *ledger) Apply(b *kvevents.Batch) {
	if l.wait != nil {
		<-l.wait
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.applied++
	count(l.held, b.Events)
}

func (l *ledger) Forget(why Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.held)
	l.forgot = append(l.forgot, why)
}

func (l *ledger) Trust(complete bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.complete = complete
}

func (l *ledger) Room() int { return l.room }

func stored(keys ...kvevents.Key) kvevents.Event {
	return kvevents.Event{Kind: kvevents.Stored, Group: -1, Blocks: keys, BlockSize: 1, Tokens: make([]uint32, len(keys))}
}

func removed(keys ...kvevents.Key) kvevents.Event {
	return kvevents.Event{Kind: kvevents.Removed, Group: -1, Blocks: keys}
}

func cleared() kvevents.Event { return kvevents.Event{Kind: kvevents.Cleared, Group: -1} }

// bench is a publisher that is followed, in a bubble.
type bench struct {
	*publisher
	t      *testing.T
	sink   *ledger
	f      *Follower
	cancel context.CancelFunc
	done   chan struct{}
	told   []Notice
}

// bubble runs a test on virtual time, with a publisher nobody follows yet.
func bubble(t *testing.T, test func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{publisher: newPublisher(), t: t, sink: &ledger{held: make(map[kvevents.Key]int)}}
		test(b)
		if b.cancel != nil {
			b.cancel()
			<-b.done
		}
		b.publisher.cut()
	})
}

// follow begins to follow; change may change the options.
func (b *bench) follow(change ...func(*Options)) {
	b.t.Helper()
	opt := Options{
		Source: Dial("", b.dial), Replay: b.dialReplay, Sink: b.sink, Rank: -1,
		Jitter: func() float64 { return 1 },
		Notify: func(n Notice) { b.told = append(b.told, n) },
	}
	for _, c := range change {
		c(&opt)
	}
	b.f = New(opt)
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel, b.done = cancel, make(chan struct{})
	go func() { defer close(b.done); b.f.Run(ctx) }()
	b.settle()
}

func noReplay(o *Options) { o.Replay = nil }

// settle waits until nothing moves, without time passing.
func (b *bench) settle() { synctest.Wait() }

// pass lets time pass. What the test has read or changed before, it does before
// what others do then: time alone would not tell the race detector.
func (b *bench) pass(d time.Duration) {
	for _, mu := range []*sync.Mutex{&b.publisher.mu, &b.sink.mu} {
		mu.Lock()
		mu.Unlock() //nolint:staticcheck // empty on purpose
	}
	time.Sleep(d) // virtual
	synctest.Wait()
}

// want checks that what is known is what the engine holds, and complete or
// not.
func (b *bench) want(complete bool) {
	b.t.Helper()
	b.settle()
	if got := b.f.Status(); b.sink.complete != complete || got.Complete != complete {
		b.t.Errorf("complete: sink %v, status %v, want %v (%+v)", b.sink.complete, got.Complete, complete, got)
	}
	if complete && !maps.Equal(b.sink.held, b.truth) {
		b.t.Errorf("the sink holds %v, the engine %v", b.sink.held, b.truth)
	}
}

func (b *bench) wantForgot(why ...Reason) {
	b.t.Helper()
	if !slices.Equal(b.sink.forgot, why) {
		b.t.Errorf("the sink forgot because of %v, want %v", b.sink.forgot, why)
	}
}
