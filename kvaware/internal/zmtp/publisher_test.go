// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestSubscribersGetWhatTheySubscribedTo(t *testing.T) {
	p, at := publisher(t, Options{})
	all := dial(t, at, Options{Type: SUB})
	some := dial(t, at, Options{Type: SUB, Topics: []string{"kv@1", "kv@2"}})
	if err := p.WaitSubscribers(patient(t), 2); err != nil {
		t.Fatal(err)
	}
	// The second topic of some may come after its first.
	p.Publish([]byte("kv@1/x"), []byte("a"))
	if got := receive(t, some); got[0] != "kv@1/x" {
		t.Errorf("received %q", got)
	}
	for _, topic := range []string{"", "kv", "kv@3", "kv@1"} {
		p.Publish([]byte(topic), nil, []byte("b"))
	}
	if got := receive(t, some); !slices.Equal(got, []string{"kv@1", "", "b"}) {
		t.Errorf("received %q", got)
	}
	for _, topic := range []string{"kv@1/x", "", "kv", "kv@3", "kv@1"} {
		if got := receive(t, all); got[0] != topic {
			t.Errorf("received %q, want topic %q", got, topic)
		}
	}
}

// Subscriptions count, come as messages or as commands, and are bounded.
func TestSubscriptionsCountAndAreBounded(t *testing.T) {
	sub := &subscriber{topics: map[string]int{}}
	for _, step := range []struct {
		more bool
		want bool
	}{{true, true}, {true, true}, {false, true}, {false, false}, {false, false}, {true, true}} {
		if err := sub.subscribe(step.more, []byte("a")); err != nil {
			t.Fatal(err)
		}
		if got := sub.wants([]byte("abc")); got != step.want {
			t.Fatalf("wanted: %v, want %v", got, step.want)
		}
	}
	for i := range maxTopics - 1 {
		if err := sub.subscribe(true, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := sub.subscribe(true, []byte("one more")); ReasonOf(err) != TooMany {
		t.Errorf("one topic more: %v", err)
	}
	if err := sub.subscribe(true, make([]byte, maxTopic+1)); ReasonOf(err) != TooLarge {
		t.Errorf("a long topic: %v", err)
	}
}

// What a subscriber that does not read misses, others get; and the publisher does
// not wait.
func TestASlowSubscriberLosesMessagesAndHoldsNoOneUp(t *testing.T) {
	const mark, messages, size = 100, 2000, 100_000
	p, at := publisher(t, Options{HighWaterMark: mark})
	conn, err := net.Dial("tcp", at.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write(appendCommand(hello(1, "SUB"), "SUBSCRIBE", nil))
	if err := p.WaitSubscribers(patient(t), 1); err != nil {
		t.Fatal(err)
	}
	quick := dial(t, at, Options{Type: SUB})
	if err := p.WaitSubscribers(patient(t), 2); err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, size)
	for seq := range uint64(messages) {
		binary.BigEndian.PutUint64(payload, seq)
		p.Publish(nil, payload)
		if got := receive(t, quick); binary.BigEndian.Uint64([]byte(got[1])) != seq {
			t.Fatal("the quick subscriber misses a message")
		}
	}
	if dropped := p.Dropped(); dropped == 0 || dropped > messages-mark {
		t.Errorf("%d of %d messages dropped", dropped, messages)
	}
	// It reads again: first what waited, then what is new.
	var got []byte
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		buf := make([]byte, 1<<20)
		for !strings.Contains(string(got), "the last") {
			n, err := conn.Read(buf)
			if err != nil {
				t.Error(err)
				return
			}
			got = append(got[max(0, len(got)-100):], buf[:n]...)
		}
	}()
	for {
		p.Publish(nil, []byte("the last"))
		select {
		case <-drained:
			return
		default:
			if p.Dropped() > 1<<20 {
				t.Fatal("nothing comes")
			}
		}
	}
}

func TestMessagesOfManyPublishersArriveWholeAndInOrder(t *testing.T) {
	p, at := publisher(t, Options{HighWaterMark: 1 << 20})
	const publishers, messages, readers = 4, 2000, 3
	var sockets []*Socket
	for range readers {
		sockets = append(sockets, dial(t, at, Options{Type: SUB}))
	}
	if err := p.WaitSubscribers(patient(t), readers); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	for i := range publishers {
		running.Go(func() {
			for n := range messages {
				p.Publish(fmt.Append(nil, i), fmt.Append(nil, n), make([]byte, n%700))
			}
		})
	}
	for _, s := range sockets {
		running.Go(func() {
			var next [publishers]int
			var m Message
			for range publishers * messages {
				if err := s.Receive(&m); err != nil {
					t.Error(err)
					return
				}
				var from, n int
				fmt.Sscan(string(m.Frames[0]), &from)
				fmt.Sscan(string(m.Frames[1]), &n)
				if n != next[from] || len(m.Frames[2]) != n%700 {
					t.Errorf("message %d of %d, want %d", n, from, next[from])
					return
				}
				next[from]++
			}
		})
	}
	running.Wait()
	if p.Dropped() != 0 {
		t.Errorf("%d dropped", p.Dropped())
	}
}

func TestAPublisherAnswersHeartbeatsAndClosesUnderLoad(t *testing.T) {
	p, at := publisher(t, Options{})
	conn, err := net.Dial("tcp", at.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	want := appendGreeting(nil, greeting{minor: 1, mechanism: mechanismNull})
	want = appendCommand(want, "READY", appendProperty(nil, "Socket-Type", "PUB"))
	want = appendCommand(want, "PONG", []byte("ping!"))
	conn.Write(appendCommand(hello(1, "SUB"), "PING", []byte("\x00\x00ping!")))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != string(want) {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}

	stuck, err := net.Dial("tcp", at.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Close()
	stuck.Write(append(hello(0, "SUB"), 0, 1, 1))
	if err := p.WaitSubscribers(patient(t), 1); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		p.Publish(make([]byte, 100_000))
	}
	p.Close()
	p.Publish([]byte("too late"))
	if err := p.WaitSubscribers(context.Background(), 1); ReasonOf(err) != Closed {
		t.Error(err)
	}
	if _, err := p.Bind(loopback); ReasonOf(err) != Closed {
		t.Error(err)
	}
}
