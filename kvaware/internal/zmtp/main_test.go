// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = Endpoint{"tcp", "127.0.0.1:0"}

// patient is a context for what must not take long.
func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// publisher is one at a port of its own.
func publisher(t testing.TB, opt Options) (*Publisher, Endpoint) {
	t.Helper()
	p := NewPublisher(opt)
	t.Cleanup(func() { p.Close() })
	at, err := p.Bind(loopback)
	if err != nil {
		t.Fatal(err)
	}
	return p, at
}

// dial connects, or ends the test.
func dial(t testing.TB, to Endpoint, opt Options) *Socket {
	t.Helper()
	s, err := Dial(context.Background(), to, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// receive returns a message's frames as text.
func receive(t testing.TB, s *Socket) []string {
	t.Helper()
	var m Message
	s.SetReceiveDeadline(time.Now().Add(20 * time.Second))
	if err := s.Receive(&m); err != nil {
		t.Fatal(err)
	}
	return texts(m)
}

func texts(m Message) []string {
	var frames []string
	for _, frame := range m.Frames {
		frames = append(frames, string(frame))
	}
	return frames
}

// scripted listens and plays a script to each peer, on a goroutine that has ended
// with the test.
func scripted(t testing.TB, script func(net.Conn)) Endpoint {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				script(conn)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		running.Wait()
	})
	return Endpoint{"tcp", ln.Addr().String()}
}

// hello is what a peer sends until its handshake is done, with NULL.
func hello(minor byte, socketType string) []byte {
	b := appendGreeting(nil, greeting{minor: minor, mechanism: mechanismNull})
	return appendCommand(b, "READY", appendProperty(nil, "Socket-Type", socketType))
}

// quick are options for peers that fail by keeping silent.
func quick(t SocketType) Options {
	return Options{Type: t, HandshakeTimeout: 200 * time.Millisecond}
}
