// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

// Listener takes messages from engines that connect instead of being connected to,
// and sorts them by topic. Several topics may come over one connection.
type Listener struct {
	accept func(context.Context) (Conn, error)

	mu      sync.Mutex          // guards topics
	topics  map[string][]*topic // the last of each counts
	changed atomic.Uint64       // counts changes of topics
}

// NewListener returns a Listener for the connections that accept gives.
func NewListener(accept func(context.Context) (Conn, error)) *Listener {
	return &Listener{accept: accept, topics: make(map[string][]*topic)}
}

// Topic gives a Source of the messages with exactly that topic, until it is
// forgotten. Of several Sources of one topic the newest gets them, and of several
// connections with it the one that came last counts.
func (l *Listener) Topic(name string) (source Source, forget func()) {
	t := &topic{some: make(chan struct{}, 1)}
	l.mu.Lock()
	l.topics[name] = append(l.topics[name], t)
	l.changed.Add(1)
	l.mu.Unlock()
	return t, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.topics[name] = slices.DeleteFunc(l.topics[name], func(other *topic) bool { return other == t })
		if len(l.topics[name]) == 0 {
			delete(l.topics, name)
		}
		l.changed.Add(1)
	}
}

// follows gives who gets the messages of a topic now; nil if nobody does.
func (l *Listener) follows(name string) *topic {
	l.mu.Lock()
	defer l.mu.Unlock()
	if all := l.topics[name]; len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
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
	streams := make(map[string]*fed)
	changed := l.changed.Load()
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
		if now := l.changed.Load(); now != changed {
			changed = now
			for name, s := range streams {
				if l.follows(name) != s.topic {
					s.end(errReplaced)
					delete(streams, name)
				}
			}
		}
		s := streams[string(frames[0])]
		if s != nil && (s.put(frames) || s.replaced()) {
			continue
		}
		t := l.follows(string(frames[0]))
		if t == nil {
			continue // nobody follows it
		}
		s = &fed{newStream(nil), t}
		s.stop = ctx.Done()
		streams[string(frames[0])] = s
		t.offer(s.stream)
		s.put(frames)
	}
}

var (
	errDisconnected = errors.New("the engine's connection has ended")
	errReplaced     = errors.New("others get the messages of this topic now")
)

// fed is a stream that a Listener feeds, for who follows its topic.
type fed struct {
	*stream
	topic *topic
}

func (s *fed) replaced() bool {
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
