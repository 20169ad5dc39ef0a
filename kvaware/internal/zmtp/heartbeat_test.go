// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"bytes"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// pipe is a socket after its handshake, and the peer's end of its connection.
func pipe(t *testing.T, minor byte, opt Options) (*Socket, net.Conn) {
	ours, theirs := net.Pipe()
	s := newSocket(ours, opt.withDefaults())
	s.minor, s.ready, s.heard = minor, true, time.Now()
	t.Cleanup(func() {
		s.Close()
		theirs.Close()
	})
	return s, theirs
}

var heartbeats = Options{Type: SUB, HeartbeatInterval: 3 * time.Second, HeartbeatTimeout: 2 * time.Second}

func TestASilentPeerIsPingedAndThenGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := pipe(t, 1, heartbeats)
		began := time.Now()
		pinged := make(chan time.Duration, 1)
		go func() {
			// A PING that tells to wait 4 × (3 s + 2 s), in tenths of seconds.
			want := appendCommand(nil, "PING", []byte{0, 200})
			got := make([]byte, len(want))
			io.ReadFull(peer, got)
			if !bytes.Equal(got, want) {
				t.Errorf("the peer got %q, want %q", got, want)
			}
			pinged <- time.Since(began)
		}()
		err := s.Receive(new(Message))
		if ReasonOf(err) != Silent || time.Since(began) != 5*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if at := <-pinged; at != 3*time.Second {
			t.Errorf("pinged after %v", at)
		}
	})
}

func TestAPeerThatAnswersHeartbeatsIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := pipe(t, 1, heartbeats)
		go func() {
			got := make([]byte, len(appendCommand(nil, "PING", []byte{0, 0})))
			for range 100 {
				io.ReadFull(peer, got)
				time.Sleep(heartbeats.HeartbeatTimeout - 1)
				peer.Write(appendCommand(nil, "PONG", nil))
			}
			peer.Write(appendFrame(nil, []byte("alive"), false))
		}()
		if got := first(s); got != "alive" {
			t.Errorf("received %q", got)
		}
	})
}

func first(s *Socket) string {
	var m Message
	if err := s.Receive(&m); err != nil {
		return err.Error()
	}
	return string(m.Frames[0])
}

// libzmq before 4.3.3 speaks 3.0, as do libraries that give a PING to the
// application.
func TestAPeerOfZMTP30IsNotPinged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := pipe(t, 0, heartbeats)
		go func() {
			time.Sleep(time.Hour)
			peer.Write(appendFrame(nil, []byte("late"), false)) // blocks if a PING waits to be read
		}()
		if got := first(s); got != "late" {
			t.Errorf("received %q", got)
		}
	})
}

func TestAPeerThatAsksToBeGivenUpIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := pipe(t, 0, heartbeats)
		go func() {
			peer.Write(appendCommand(nil, "PING", []byte{0, 15, 'x'}))
			io.Copy(io.Discard, peer)
		}()
		began := time.Now()
		err := s.Receive(new(Message))
		if ReasonOf(err) != Silent || time.Since(began) != 1500*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

func TestADeadlineBetweenMessagesLeavesTheSocketWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := pipe(t, 1, Options{Type: SUB, HeartbeatInterval: -1})
		s.SetReceiveDeadline(time.Now().Add(time.Second))
		var m Message
		if err := s.Receive(&m); ReasonOf(err) != Timeout {
			t.Fatal(err)
		}
		go peer.Write(appendFrame(nil, []byte("after"), false))
		s.SetReceiveDeadline(time.Now().Add(time.Second))
		if err := s.Receive(&m); err != nil || string(m.Frames[0]) != "after" {
			t.Fatalf("%q, %v", m.Frames, err)
		}
		for _, begun := range [][]byte{{flagMore}, {0, 3}, {flagMore, 0}, {flagCommand, 200}} {
			s, peer := pipe(t, 1, Options{Type: SUB, HeartbeatInterval: -1})
			s.SetReceiveDeadline(time.Now().Add(time.Second))
			go peer.Write(begun)
			if err := s.Receive(&m); ReasonOf(err) != Timeout {
				t.Errorf("after %v: %v", begun, err)
			}
			if err := s.Receive(&m); ReasonOf(err) != Closed {
				t.Errorf("after %v and a deadline: %v", begun, err)
			}
		}
	})
}
