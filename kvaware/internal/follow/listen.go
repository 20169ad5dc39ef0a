// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// Listener takes messages from engines that connect instead of being connected to,
// and sorts them by topic. Several topics may come over one connection.
type Listener struct {
	accept  func(context.Context) (Conn, error)
	unknown atomic.Uint64

	mu     sync.Mutex // guards topics
	topics map[string]*topic
}

// NewListener returns a Listener for the connections that accept gives.
func NewListener(accept func(context.Context) (Conn, error)) *Listener {
	return &Listener{accept: accept, topics: make(map[string]*topic)}
}

// Unknown is how many messages came with a topic that nobody follows.
func (l *Listener) Unknown() uint64 { return l.unknown.Load() }

// Topic gives the Source of the messages with exactly that topic. Where several
// connections have it, the one that came last counts. There is one Source of each
// topic; forget ends it.
func (l *Listener) Topic(name string) (source Source, forget func()) {
	t := &topic{some: make(chan struct{}, 1)}
	l.mu.Lock()
	l.topics[name] = t
	l.mu.Unlock()
	return t, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.topics[name] == t {
			delete(l.topics, name)
		}
	}
}

// Run takes connections until ctx ends or accept fails, which it gives back, and
// waits until none is read any more.
func (l *Listener) Run(ctx context.Context) error {
	var readers sync.WaitGroup
	defer readers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		conn, err := l.accept(ctx)
		if err != nil {
			return err
		}
		readers.Go(func() {
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			defer conn.Close()
			l.read(ctx, conn)
		})
	}
}

// read sorts what one connection sends, until it ends.
func (l *Listener) read(ctx context.Context, conn Conn) {
	streams := make(map[string]fed)
	defer func() {
		for _, s := range streams {
			s.end(errDisconnected)
		}
	}()
	for {
		frames, err := conn.Receive()
		if err != nil {
			for _, s := range streams {
				s.end(err)
			}
			return
		}
		if len(frames) == 0 {
			continue
		}
		s, found := streams[string(frames[0])]
		if found && s.put(frames) {
			continue
		}
		if found && s.replaced() {
			continue
		}
		l.mu.Lock()
		t := l.topics[string(frames[0])]
		l.mu.Unlock()
		if t == nil {
			delete(streams, string(frames[0]))
			l.unknown.Add(1)
			continue
		}
		s = fed{newStream(nil)}
		s.stop = ctx.Done()
		streams[string(frames[0])] = s
		t.offer(s.stream)
		s.put(frames)
	}
}

var (
	errDisconnected = errors.New("the engine's connection has ended")
	errReplaced     = errors.New("another connection has the same topic")
)

// fed is a stream that a Listener feeds.
type fed struct{ *stream }

func (s fed) replaced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Is(s.err, errReplaced)
}

// topic is the Source of one topic.
type topic struct {
	mu   sync.Mutex // guards last
	last *stream    // the newest; nil once it was given
	used *stream    // the one that was given
	some chan struct{}
}

// offer makes a stream the one that counts.
func (t *topic) offer(s *stream) {
	t.mu.Lock()
	for _, older := range []*stream{t.last, t.used} {
		if older != nil {
			older.end(errReplaced)
		}
	}
	t.last, t.used = s, nil
	t.mu.Unlock()
	signal(t.some)
}

func (t *topic) connect(ctx context.Context) (*stream, error) {
	for {
		t.mu.Lock()
		s := t.last
		if s != nil {
			t.last, t.used = nil, s
		}
		t.mu.Unlock()
		if s != nil {
			return s, nil
		}
		select {
		case <-t.some:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
