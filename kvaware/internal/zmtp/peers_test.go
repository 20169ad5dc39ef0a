// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// endless keeps a connection until the other side is gone.
func endless(conn net.Conn) { io.Copy(io.Discard, conn) }

// says sends and then keeps silent.
func says(parts ...[]byte) func(net.Conn) {
	return func(conn net.Conn) {
		for _, part := range parts {
			conn.Write(part)
		}
		endless(conn)
	}
}

// saysAndEnds sends no more after that.
func saysAndEnds(b []byte) func(net.Conn) {
	return func(conn net.Conn) {
		conn.Write(b)
		conn.(*net.TCPConn).CloseWrite()
		endless(conn)
	}
}

func plainGreeting(asServer bool) []byte {
	return appendGreeting(nil, greeting{minor: 1, mechanism: mechanismPlain, asServer: asServer})
}

func longHeader(flags byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | flagLong}, size)
}

// badPeers are scripts of listening peers with which no handshake comes about.
var badPeers = []struct {
	name   string
	script func(net.Conn)
	want   Reason
}{
	{"never speaks", endless, Timeout},
	{"closes at once", func(net.Conn) {}, PeerClosed},
	{"an HTTP server", says([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")), NotZMTP},
	{"no signature", says(make([]byte, greetingSize)), NotZMTP},
	{"half a signature", says([]byte{0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0}), NotZMTP},
	{"ZMTP 2", says([]byte{0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 1}), OldVersion},
	{"half a greeting, then silence", says(hello(1, "PUB")[:40]), Timeout},
	{"half a greeting, then the end", saysAndEnds(hello(1, "PUB")[:40]), BadMechanism},
	{"a signature, then the end, as libzmq's", saysAndEnds(hello(1, "PUB")[:signatureSize]), BadMechanism},
	{"half a signature, then the end", saysAndEnds(hello(1, "PUB")[:signatureSize-1]), PeerClosed},
	{"CURVE", says(appendGreeting(nil, greeting{minor: 1, mechanism: "CURVE"})), BadMechanism},
	{"PLAIN", says(plainGreeting(true)), BadMechanism},
	{"a mechanism that is no name", says(appendGreeting(nil, greeting{minor: 1, mechanism: "\x1b[31m"})), Malformed},
	{"no READY", says(hello(1, "PUB")[:greetingSize]), Timeout},
	{"half a READY", says(hello(1, "PUB")[:greetingSize+10]), Timeout},
	{"another socket type", says(hello(1, "ROUTER")), BadPeerType},
	{"no socket type", says(appendCommand(hello(1, "")[:greetingSize], "READY", nil)), BadPeerType},
	{"ERROR", says(appendCommand(hello(1, "")[:greetingSize], "ERROR", []byte("\x03\x1b!!"))), Refused},
	{"a broken ERROR", says(appendCommand(hello(1, "")[:greetingSize], "ERROR", []byte("\xFFno"))), Malformed},
	{"another command", says(appendCommand(hello(1, "")[:greetingSize], "WELCOME", nil)), Malformed},
	{"a message instead of READY", says(hello(1, "")[:greetingSize], appendFrame(nil, []byte("early"), false)), Malformed},
	{"a command without a name", says(hello(1, "")[:greetingSize], []byte{flagCommand, 0}), Malformed},
	{"a name longer than its command", says(hello(1, "")[:greetingSize], []byte{flagCommand, 2, 9, 'R'}), Malformed},
	{"broken metadata", says(appendCommand(hello(1, "")[:greetingSize], "READY", []byte("\x0bSocket-Type\xff\xff\xff\xffPUB"))), Malformed},
	{"a huge command", says(hello(1, "")[:greetingSize], longHeader(flagCommand, 1<<63)), TooLarge},
	{"reserved flags", says(hello(1, "")[:greetingSize], []byte{0xF0, 0}), Malformed},
	{"a command to be continued", says(hello(1, "")[:greetingSize], []byte{flagCommand | flagMore, 0}), Malformed},
}

func TestABadPeerIsABoundedTryWithAReason(t *testing.T) {
	for _, peer := range badPeers {
		t.Run(peer.name, func(t *testing.T) {
			to := scripted(t, peer.script)
			s, err := Dial(patient(t), to, quick(SUB))
			if ReasonOf(err) != peer.want {
				t.Errorf("socket %v, error %v (%s), want %s", s, err, ReasonOf(err), peer.want)
			}
			if err != nil && strings.ContainsRune(err.Error(), 0x1b) {
				t.Errorf("the error carries control characters of the peer's: %q", err)
			}
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		to := Endpoint{"tcp", ln.Addr().String()}
		ln.Close()
		if _, err := Dial(patient(t), to, quick(SUB)); ReasonOf(err) != Unreachable {
			t.Error(err)
		}
	})
}

// After the handshake, what breaks the protocol ends the socket with a reason.
func TestABadMessageEndsTheSocketWithAReason(t *testing.T) {
	small := func() Options {
		return Options{Type: SUB, MaxFrame: 1000, MaxMessage: 1500, MaxFrames: 3}
	}
	kilo := make([]byte, 1000)
	for _, c := range []struct {
		name   string
		script func(net.Conn)
		want   Reason
	}{
		{"the end", saysAndEnds(hello(1, "PUB")), PeerClosed},
		{"the end within a header", saysAndEnds(append(hello(1, "PUB"), flagLong, 0, 0)), PeerClosed},
		{"the end within a frame", saysAndEnds(append(hello(1, "PUB"), 0, 9, 1)), PeerClosed},
		{"the end between frames", saysAndEnds(append(hello(1, "PUB"), flagMore, 1, 1)), PeerClosed},
		{"a frame too large", says(hello(1, "PUB"), longHeader(0, 1001)), TooLarge},
		{"a frame of no sane size", says(hello(1, "PUB"), longHeader(0, 1<<64-1)), TooLarge},
		{"a message too large", says(hello(1, "PUB"), appendFrame(nil, kilo, true), longHeader(0, 501)), TooLarge},
		{"too many frames", says(hello(1, "PUB"), []byte{1, 0, 1, 0, 1, 0, 0, 0}), TooMany},
		{"reserved flags", says(hello(1, "PUB"), []byte{8, 0}), Malformed},
		{"a huge command", says(hello(1, "PUB"), longHeader(flagCommand, maxCommand+1)), TooLarge},
		{"a short PING", says(appendCommand(hello(1, "PUB"), "PING", []byte{0})), Malformed},
		{"a long PING", says(appendCommand(hello(1, "PUB"), "PING", make([]byte, 19))), Malformed},
		{"an ERROR", says(appendCommand(hello(1, "PUB"), "ERROR", []byte("\x03bad"))), Refused},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := dial(t, scripted(t, c.script), small())
			var m Message
			if err := s.Receive(&m); ReasonOf(err) != c.want {
				t.Errorf("%v (%s), want %s", err, ReasonOf(err), c.want)
			}
			if err := s.Receive(&m); ReasonOf(err) != Closed {
				t.Errorf("after that: %v", err)
			}
		})
	}
}

// Whatever pieces the bytes come in, and with commands between the frames, as
// libzmq sends its heartbeats.
func TestSlowBytesMakeTheSameMessages(t *testing.T) {
	for _, minor := range []byte{0, 1} {
		stream := hello(minor, "PUB")
		stream = appendFrame(stream, []byte("topic"), true)
		stream = appendCommand(stream, "PING", []byte{0, 0, 'c', 't', 'x'})
		stream = appendCommand(stream, "NEWS", []byte("of a later version"))
		stream = appendFrame(stream, []byte(strings.Repeat("x", 300)), true)
		stream = appendFrame(stream, nil, false)
		answered := make(chan []byte, 1)
		to := scripted(t, func(conn net.Conn) {
			for i := range stream {
				conn.Write(stream[i : i+1])
			}
			want := wantedFromSub(minor)
			got := make([]byte, len(want))
			io.ReadFull(conn, got)
			answered <- got
		})
		s := dial(t, to, Options{Type: SUB, Topics: []string{"to", ""}})
		if got := receive(t, s); len(got) != 3 || got[0] != "topic" || len(got[1]) != 300 || got[2] != "" {
			t.Errorf("received %q", got)
		}
		if got := <-answered; string(got) != string(wantedFromSub(minor)) {
			t.Errorf("the peer got %q, want %q", got, wantedFromSub(minor))
		}
	}
}

// wantedFromSub is what a SUB socket sends in TestSlowBytesMakeTheSameMessages.
func wantedFromSub(minor byte) []byte {
	want := appendGreeting(nil, greeting{minor: 1, mechanism: mechanismNull})
	want = appendCommand(want, "READY", appendProperty(nil, "Socket-Type", "SUB"))
	if minor == 0 {
		want = appendFrame(want, []byte("\x01to"), false)
		want = appendFrame(want, []byte("\x01"), false)
	} else {
		want = appendCommand(want, "SUBSCRIBE", []byte("to"))
		want = appendCommand(want, "SUBSCRIBE", nil)
	}
	return appendCommand(want, "PONG", []byte("ctx"))
}

// Symptom: a library leaked a descriptor for every failed handshake.
func TestHundredsOfFailingPeersLeakNoDescriptor(t *testing.T) {
	var ends []Endpoint
	for _, peer := range badPeers {
		ends = append(ends, scripted(t, peer.script))
	}
	opt := Options{Type: SUB, HandshakeTimeout: 50 * time.Millisecond}
	tryAll := func(times int) {
		var running sync.WaitGroup
		for _, to := range ends {
			running.Go(func() {
				for range times {
					if s, err := Dial(patient(t), to, opt); err == nil {
						s.Close()
					}
				}
			})
		}
		running.Wait()
	}
	tryAll(1)
	before := descriptors(t)
	tryAll(20)
	// The scripts' sides may take a moment to notice; each holds one at most.
	if after := descriptors(t); after > before+2*len(ends) {
		t.Errorf("%d descriptors after %d tries, %d before", after, 20*len(ends), before)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("descriptors are counted in Linux's /proc")
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestTheContextEndsEveryWait(t *testing.T) {
	t.Run("connecting", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := Dial(ctx, scripted(t, endless), Options{Type: SUB}); ReasonOf(err) != Closed {
			t.Error(err)
		}
	})
	t.Run("the handshake", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		to := scripted(t, func(conn net.Conn) {
			io.ReadFull(conn, make([]byte, greetingSize))
			cancel()
			endless(conn)
		})
		if _, err := Dial(ctx, to, Options{Type: SUB, HandshakeTimeout: time.Hour}); ReasonOf(err) != Closed {
			t.Error(err)
		}
	})
	t.Run("receiving", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		_, to := publisher(t, Options{})
		s, err := Dial(ctx, to, Options{Type: SUB})
		if err != nil {
			t.Fatal(err)
		}
		received := make(chan error)
		go func() { received <- s.Receive(new(Message)) }()
		cancel()
		if err := <-received; ReasonOf(err) != Closed {
			t.Error(err)
		}
	})
	t.Run("receiving, by Close", func(t *testing.T) {
		_, to := publisher(t, Options{})
		s := dial(t, to, Options{Type: SUB})
		received := make(chan error)
		go func() { received <- s.Receive(new(Message)) }()
		s.Close()
		if err := <-received; ReasonOf(err) != Closed {
			t.Error(err)
		}
	})
	t.Run("sending", func(t *testing.T) {
		to := scripted(t, func(conn net.Conn) {
			conn.Write(hello(1, "ROUTER"))
			<-t.Context().Done()
		})
		s := dial(t, to, Options{Type: DEALER, SendTimeout: -1})
		sent := make(chan error)
		go func() {
			var err error
			for err == nil {
				err = s.Send(make([]byte, 1<<20))
			}
			sent <- err
		}()
		s.Close()
		if err := <-sent; ReasonOf(err) != Closed {
			t.Error(err)
		}
	})
}

func TestAPeerThatDoesNotReadIsGivenUp(t *testing.T) {
	to := scripted(t, func(conn net.Conn) {
		conn.Write(hello(1, "ROUTER"))
		<-t.Context().Done()
	})
	s := dial(t, to, Options{Type: DEALER, SendTimeout: 50 * time.Millisecond})
	var err error
	for err == nil {
		err = s.Send(make([]byte, 1<<20))
	}
	if ReasonOf(err) != Timeout {
		t.Error(err)
	}
}
