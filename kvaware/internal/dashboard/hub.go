// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

// Source is what a dashboard shows.
type Source interface {
	// Snapshot gives the JSON of GET /kv_aware/snapshot, with the history if asked
	// for. An error is shown, so it must hold nothing that is to be kept back.
	Snapshot(ctx context.Context, history bool) ([]byte, error)
	// Ask answers a question about the body of a request: "explain" or "tokenize",
	// as the endpoints of these names do.
	Ask(question string, q Question) (status int, answer []byte)
}

const (
	interval = time.Second
	// patience is how long a source may take for a snapshot.
	patience = 5 * time.Second
	// maxStreams bounds the streams of a hub.
	maxStreams = 64
)

// Hub makes one stream of snapshots for all that look at a source. It samples once
// a second while there is somebody, and runs nothing otherwise.
type Hub struct {
	source Source

	mu      sync.Mutex // guards what follows
	streams map[*stream]struct{}
	cancel  context.CancelFunc // ends the sampling; nil while nothing samples
	wake    chan struct{}      // of capacity 1: somebody came
	// whole is the last event with a history, and since when it is.
	whole []byte
	since time.Time
}

// NewHub makes a hub without streams.
func NewHub(source Source) *Hub {
	return &Hub{source: source, streams: make(map[*stream]struct{}), wake: make(chan struct{}, 1)}
}

// stream is one client's. A client that is slow misses events.
type stream struct {
	events chan []byte // of capacity 1
	begun  bool        // it was given a history; guarded by Hub.mu
}

var errFull = errors.New("too many look at the dashboard already")

// join adds a stream.
func (h *Hub) join() (*stream, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.streams) >= maxStreams {
		return nil, errFull
	}
	s := &stream{events: make(chan []byte, 1)}
	h.streams[s] = struct{}{}
	if time.Since(h.since) < interval && h.whole != nil {
		s.begun = true
		s.events <- h.whole
		return s, nil
	}
	if h.cancel == nil {
		ctx, cancel := context.WithCancel(context.Background())
		h.cancel = cancel
		go h.sample(ctx)
	}
	select {
	case h.wake <- struct{}{}:
	default: // it is awake
	}
	return s, nil
}

// leave takes a stream out. The last one ends the sampling.
func (h *Hub) leave(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, s)
	if len(h.streams) == 0 && h.cancel != nil {
		h.cancel()
		h.cancel = nil
		h.whole = nil
	}
}

// sample takes snapshots until ctx ends.
func (h *Hub) sample(ctx context.Context) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		woken := false
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
			woken = true
		case <-tick.C:
		}
		h.mu.Lock()
		fresh := false // somebody needs a history
		for s := range h.streams {
			fresh = fresh || !s.begun
		}
		h.mu.Unlock()
		if woken && !fresh {
			continue // who came was given one with others
		}
		event, err := h.event(ctx, fresh)
		if ctx.Err() != nil {
			return
		}
		h.share(event, fresh, err == nil)
	}
}

// event gives what is sent next: a snapshot, or what is wrong.
func (h *Hub) event(ctx context.Context, history bool) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	data, err := h.source.Snapshot(ctx, history)
	if err == nil {
		return encodeEvent("snapshot", data), nil
	}
	told, marshalErr := json.Marshal(struct {
		Error string `json:"error"`
	}{err.Error()})
	if marshalErr != nil {
		return nil, marshalErr
	}
	return encodeEvent("trouble", told), err
}

// encodeEvent frames JSON, whose line ends are only between values.
func encodeEvent(name string, data []byte) []byte {
	data = bytes.ReplaceAll(bytes.TrimSpace(data), []byte("\n"), []byte(" "))
	event := make([]byte, 0, len(data)+len(name)+len("event: \ndata: \n\n"))
	event = append(event, "event: "...)
	event = append(event, name...)
	event = append(event, "\ndata: "...)
	event = append(event, data...)
	return append(event, "\n\n"...)
}

// share hands an event to all streams.
func (h *Hub) share(event []byte, whole, good bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if whole && good {
		h.whole, h.since = event, time.Now()
	}
	for s := range h.streams {
		if good && !whole && !s.begun {
			continue // it came meanwhile; the next one is whole
		}
		select {
		case s.events <- event:
			s.begun = s.begun || good
		default: // it has not taken the one before
		}
	}
}
