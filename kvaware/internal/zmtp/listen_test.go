// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// listener is one at a port of its own, with the reasons of the peers it refused.
func listener(t testing.TB, opt Options) (*Listener, <-chan error) {
	t.Helper()
	refused := make(chan error, 100)
	opt.Refused = func(err error) { refused <- err }
	l, err := Listen(loopback, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, refused
}

func accept(t testing.TB, l *Listener) *Socket {
	t.Helper()
	s, err := l.Accept(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// The replay of vLLM and SGLang: asked with an empty frame and a sequence number,
// a ROUTER answers with many messages.
func TestARouterAnswersADealerWithManyMessages(t *testing.T) {
	l, _ := listener(t, Options{Type: ROUTER})
	asking := dial(t, l.Endpoint(), Options{Type: DEALER})
	answering := accept(t, l)
	if err := asking.Send(nil, binary.BigEndian.AppendUint64(nil, 7)); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, answering); !slices.Equal(got, []string{"", "\x00\x00\x00\x00\x00\x00\x00\x07"}) {
		t.Fatalf("asked with %q", got)
	}
	go func() {
		for seq := range uint64(1000) {
			answering.Send(nil, binary.BigEndian.AppendUint64(nil, seq), make([]byte, seq))
		}
	}()
	for seq := range uint64(1000) {
		got := receive(t, asking)
		if len(got) != 3 || got[0] != "" || binary.BigEndian.Uint64([]byte(got[1])) != seq || len(got[2]) != int(seq) {
			t.Fatalf("answer %d is %q", seq, got)
		}
	}
}

func TestPublishersConnectToAListeningSubscriber(t *testing.T) {
	l, _ := listener(t, Options{Type: SUB, Topics: []string{"kv@"}, MaxPeers: 2})
	for _, name := range []string{"kv@a", "kv@b"} {
		p := NewPublisher(Options{})
		defer p.Close()
		if err := p.Connect(patient(t), l.Endpoint()); err != nil {
			t.Fatal(err)
		}
		s := accept(t, l)
		if err := p.WaitSubscribers(patient(t), 1); err != nil {
			t.Fatal(err)
		}
		p.Publish([]byte("else"), []byte("1"))
		p.Publish([]byte(name), []byte("2"))
		if got := receive(t, s); !slices.Equal(got, []string{name, "2"}) {
			t.Errorf("received %q", got)
		}
	}
}

func TestMorePeersThanMayBeAreTurnedAway(t *testing.T) {
	l, refused := listener(t, Options{Type: ROUTER, MaxPeers: 2})
	opt := quick(DEALER)
	dial(t, l.Endpoint(), opt)
	dial(t, l.Endpoint(), opt)
	first := accept(t, l)
	accept(t, l)
	if _, err := Dial(patient(t), l.Endpoint(), opt); err == nil {
		t.Error("a third peer was let in")
	}
	if err := <-refused; ReasonOf(err) != TooMany {
		t.Errorf("it was refused with %v", err)
	}
	first.Close()
	dial(t, l.Endpoint(), opt)
	accept(t, l)
}

func TestABadPeerOfAListenerIsRefusedWithAReason(t *testing.T) {
	l, refused := listener(t, quick(ROUTER))
	for _, c := range []struct {
		name string
		says []byte
		want Reason
	}{
		{"nothing", nil, Timeout},
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), NotZMTP},
		{"another type", hello(1, "SUB"), BadPeerType},
		{"PLAIN", plainGreeting(false), BadMechanism},
	} {
		conn, err := net.Dial("tcp", l.Endpoint().Address)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write(c.says)
		if err := <-refused; ReasonOf(err) != c.want {
			t.Errorf("%s: %v (%s), want %s", c.name, err, ReasonOf(err), c.want)
		}
		conn.Close()
	}
	s := dial(t, l.Endpoint(), Options{Type: DEALER})
	s.Send([]byte("good"))
	if got := receive(t, accept(t, l)); got[0] != "good" {
		t.Errorf("after that: %q", got)
	}
}

// A peer that is within its handshake, or was not yet accepted, does not hold
// Close up.
func TestCloseOfAListenerWaitsForNoPeer(t *testing.T) {
	l, _ := listener(t, Options{Type: ROUTER, HandshakeTimeout: time.Hour})
	conn, err := net.Dial("tcp", l.Endpoint().Address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	dial(t, l.Endpoint(), Options{Type: DEALER})
	accepted := make(chan error)
	empty, _ := listener(t, Options{Type: SUB})
	go func() {
		_, err := empty.Accept(patient(t))
		accepted <- err
	}()
	empty.Close()
	if err := <-accepted; ReasonOf(err) != Closed {
		t.Error(err)
	}
	l.Close()
	if _, err := Dial(patient(t), l.Endpoint(), quick(DEALER)); err == nil {
		t.Error("the listener still listens")
	}
}

func TestPlainShowsAndDemandsCredentials(t *testing.T) {
	l, refused := listener(t, Options{Type: ROUTER, Username: "router", Password: "secret"})
	good := dial(t, l.Endpoint(), Options{Type: DEALER, Username: "router", Password: "secret"})
	accept(t, l).Send([]byte("welcome"))
	if got := receive(t, good); got[0] != "welcome" {
		t.Errorf("received %q", got)
	}
	for _, c := range []struct {
		opt  Options
		want Reason
		ours Reason
	}{
		{Options{Type: DEALER, Username: "router", Password: "secre"}, Refused, Refused},
		{Options{Type: DEALER, Username: "", Password: "secret"}, Refused, Refused},
		{Options{Type: SUB, Username: "router", Password: "secret"}, Refused, BadPeerType},
		{Options{Type: DEALER}, BadMechanism, BadMechanism},
	} {
		if _, err := Dial(patient(t), l.Endpoint(), c.opt); ReasonOf(err) != c.want {
			t.Errorf("with %q: %v (%s), want %s", c.opt.Password, err, ReasonOf(err), c.want)
		}
		if err := <-refused; ReasonOf(err) != c.ours {
			t.Errorf("the listener says %v (%s), want %s", err, ReasonOf(err), c.ours)
		}
	}
}

func TestUnixSocketsAreSpokenOver(t *testing.T) {
	dir, err := os.MkdirTemp("", "zmtp")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	at := Endpoint{"unix", filepath.Join(dir, "kv")}
	// A file that a killed publisher left behind.
	stale, err := net.Listen("unix", at.Address)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close()

	p := NewPublisher(Options{})
	defer p.Close()
	if _, err := p.Bind(at); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(at, Options{Type: SUB}); ReasonOf(err) != BadEndpoint {
		t.Errorf("a second listener at a live path: %v", err)
	}
	s := dial(t, at, Options{Type: SUB})
	p.WaitSubscribers(patient(t), 1)
	p.Publish([]byte("over"), []byte("unix"))
	if got := receive(t, s); !slices.Equal(got, []string{"over", "unix"}) {
		t.Errorf("received %q", got)
	}
}

// Sockets come and go while messages are sent and the listener is closed.
func TestAListenerSurvivesPeersThatComeAndGo(t *testing.T) {
	l, _ := listener(t, Options{Type: ROUTER, MaxPeers: 4})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			s, err := l.Accept(patient(t))
			if err != nil {
				return
			}
			running.Go(func() {
				defer s.Close()
				var m Message
				for s.Receive(&m) == nil {
					s.Send(m.Frames...)
				}
			})
		}
	})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for range 50 {
				s, err := Dial(patient(t), l.Endpoint(), Options{Type: DEALER})
				if err != nil {
					continue // there were four
				}
				s.Send([]byte("echo"))
				s.Receive(new(Message))
				s.Close()
			}
		})
	}
	clients.Wait()
	l.Close()
	running.Wait()
}
