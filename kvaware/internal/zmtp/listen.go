// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// acceptor takes connections, makes sockets of them and has each served on a
// goroutine of its own.
type acceptor struct {
	opt   Options
	serve func(*Socket)

	mu        sync.Mutex // guards what follows, up to wg
	closed    bool
	listeners []net.Listener
	conns     map[net.Conn]struct{} // from accepting until serve returns
	places    int                   // taken by connections, until their sockets are closed

	wg   sync.WaitGroup // of every goroutine
	done chan struct{}
}

func newAcceptor(opt Options, serve func(*Socket)) *acceptor {
	return &acceptor{opt: opt, serve: serve, conns: map[net.Conn]struct{}{}, done: make(chan struct{})}
}

// bind listens at an endpoint and returns it with the port that was found.
func (a *acceptor) bind(at Endpoint) (Endpoint, error) {
	ln, err := listen(at, a.opt)
	if err != nil {
		return Endpoint{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		ln.Close()
		return Endpoint{}, fault(Closed, "listening: closed")
	}
	a.listeners = append(a.listeners, ln)
	a.wg.Go(func() { a.accept(ln) })
	return Endpoint{at.Network, ln.Addr().String()}, nil
}

func listen(at Endpoint, opt Options) (net.Listener, error) {
	if err := check(opt); err != nil {
		return nil, err
	}
	config := net.ListenConfig{KeepAliveConfig: keepAlive(opt)}
	ln, err := config.Listen(context.Background(), at.Network, at.Address)
	if err != nil && at.Network == "unix" && errors.Is(err, syscall.EADDRINUSE) && abandoned(at.Address) {
		os.Remove(at.Address)
		ln, err = config.Listen(context.Background(), at.Network, at.Address)
	}
	if err != nil {
		return nil, &Error{Reason: BadEndpoint, Detail: "listening at " + at.String(), Err: err}
	}
	return ln, nil
}

// abandoned tells whether the socket file's owner is gone.
func abandoned(path string) bool {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

func (a *acceptor) accept(ln net.Listener) {
	const longest = time.Second
	pause := 5 * time.Millisecond
	for {
		conn, err := ln.Accept()
		if err == nil {
			pause = 5 * time.Millisecond
			a.take(conn)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		// Out of descriptors, or the peer left at once: listening goes on.
		select {
		case <-a.done:
			return
		case <-time.After(pause):
			pause = min(2*pause, longest)
		}
	}
}

func (a *acceptor) take(conn net.Conn) {
	s := newSocket(conn, a.opt)
	err := a.admit(s, func() {
		if err := s.handshake(server); err != nil {
			s.Close()
			a.refused(err)
			return
		}
		a.serve(s)
	})
	if err != nil {
		a.refused(err)
	}
}

// admit gives a connection a place, until its socket is closed, and runs its life
// on a goroutine; or it closes the socket.
func (a *acceptor) admit(s *Socket, life func()) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.closed:
		s.Close()
		return fault(Closed, "accepting: closed")
	case a.places == a.opt.MaxPeers:
		s.Close()
		return fault(TooMany, "accepting: there are as many peers as may be")
	}
	a.places++
	a.conns[s.conn] = struct{}{}
	s.release = func() {
		a.mu.Lock()
		a.places--
		a.mu.Unlock()
	}
	a.wg.Go(func() {
		life()
		a.mu.Lock()
		delete(a.conns, s.conn)
		a.mu.Unlock()
	})
	return nil
}

func (a *acceptor) refused(err error) {
	if a.opt.Refused != nil && ReasonOf(err) != Closed {
		a.opt.Refused(err)
	}
}

// close ends listening and every connection that is being served, and waits for
// the goroutines.
func (a *acceptor) close() {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.done)
		for _, ln := range a.listeners {
			ln.Close()
		}
		for conn := range a.conns {
			conn.Close()
		}
	}
	a.mu.Unlock()
	a.wg.Wait()
}

// Listener gives the sockets of peers that connect.
type Listener struct {
	acceptor *acceptor
	at       Endpoint
	sockets  chan *Socket
}

// Listen waits at an endpoint for peers of a SUB or ROUTER socket.
func Listen(at Endpoint, opt Options) (*Listener, error) {
	l := &Listener{sockets: make(chan *Socket)}
	l.acceptor = newAcceptor(opt.withDefaults(), func(s *Socket) {
		select {
		case l.sockets <- s:
		case <-l.acceptor.done:
			s.Close()
		}
	})
	bound, err := l.acceptor.bind(at)
	if err != nil {
		return nil, err
	}
	l.at = bound
	return l, nil
}

// Endpoint is where the listener listens, with the port that was found.
func (l *Listener) Endpoint() Endpoint { return l.at }

// Accept waits for the next peer that completes a handshake. Its socket belongs
// to the caller, and takes one of MaxPeers places until it is closed.
func (l *Listener) Accept(ctx context.Context) (*Socket, error) {
	select {
	case s := <-l.sockets:
		return s, nil
	case <-l.acceptor.done:
		return nil, fault(Closed, "accepting: the listener is closed")
	case <-ctx.Done():
		return nil, &Error{Reason: Closed, Detail: "accepting", Err: ctx.Err()}
	}
}

// Close ends listening and handshakes, and waits for the listener's goroutines.
// Sockets that were accepted live on.
func (l *Listener) Close() error {
	l.acceptor.close()
	return nil
}
