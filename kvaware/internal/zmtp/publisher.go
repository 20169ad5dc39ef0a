// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
)

const (
	// maxTopics bounds a subscriber's subscriptions.
	maxTopics = 1024
	// writeAhead is about how many bytes are taken from a subscriber's queue at
	// once. What was taken counts no more towards its bound.
	writeAhead = 64 << 10
)

// Publisher is a PUB socket: it sends each message to all subscribers whose topics
// it begins with, and waits for none. Its methods may be called from any
// goroutine.
type Publisher struct {
	acceptor *acceptor
	dropped  atomic.Uint64

	mu          sync.Mutex // guards what follows; taken before a subscriber's
	subscribers map[*subscriber]struct{}
	changed     chan struct{} // closed, and made anew, when a subscription comes or goes
}

// subscriber is a peer of a publisher.
type subscriber struct {
	socket *Socket
	limit  int
	wake   chan struct{} // has room for one

	mu     sync.Mutex // guards what follows
	topics map[string]int
	queue  [][]byte // what waits is queue[head:]: messages as they go over the wire, shared between subscribers
	head   int
}

// NewPublisher makes a publisher without peers.
func NewPublisher(opt Options) *Publisher {
	opt.Type = PUB
	opt.SendTimeout = -1 // a subscriber that stops reading loses messages, not the connection
	opt.MaxFrame, opt.MaxMessage = 1+maxTopic, 1+maxTopic
	p := &Publisher{subscribers: map[*subscriber]struct{}{}, changed: make(chan struct{})}
	p.acceptor = newAcceptor(opt.withDefaults(), p.serve)
	return p
}

// Bind has the publisher listen at one endpoint more, and returns it with the port
// that was found.
func (p *Publisher) Bind(at Endpoint) (Endpoint, error) { return p.acceptor.bind(at) }

// Connect gives the publisher a peer that listens. If that one leaves it is not
// connected to again.
func (p *Publisher) Connect(ctx context.Context, to Endpoint) error {
	if err := to.dialable(); err != nil {
		return err
	}
	opt := p.acceptor.opt
	dialer := net.Dialer{Timeout: opt.HandshakeTimeout, KeepAliveConfig: keepAlive(opt)}
	conn, err := dialer.DialContext(ctx, to.Network, to.Address)
	if err != nil {
		return &Error{Reason: Unreachable, Detail: "connecting to " + to.String(), Err: err}
	}
	s := newSocket(conn, opt)
	ended := context.AfterFunc(ctx, func() { conn.Close() })
	result := make(chan error, 1)
	err = p.acceptor.admit(s, func() {
		err := s.handshake(client)
		ended()
		result <- err
		if err != nil {
			s.Close()
			return
		}
		p.serve(s)
	})
	if err != nil {
		ended()
		return err
	}
	return <-result
}

// serve is a subscriber's life after the handshake: it reads what the peer
// subscribes to, while another goroutine writes.
func (p *Publisher) serve(s *Socket) {
	sub := &subscriber{
		socket: s,
		limit:  p.acceptor.opt.HighWaterMark,
		wake:   make(chan struct{}, 1),
		topics: map[string]int{},
	}
	p.mu.Lock()
	p.subscribers[sub] = struct{}{}
	p.mu.Unlock()
	gone := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { sub.write(gone) })

	err := p.read(sub)
	p.mu.Lock()
	delete(p.subscribers, sub)
	p.announce()
	p.mu.Unlock()
	s.Close()
	close(gone)
	writer.Wait()
	if reason := ReasonOf(err); reason != PeerClosed {
		p.acceptor.refused(err)
	}
}

// read follows a peer's subscriptions until it leaves.
func (p *Publisher) read(sub *subscriber) error {
	var m Message
	for {
		if err := sub.socket.Receive(&m); err != nil {
			return err
		}
		first := m.Frames[0]
		if len(m.Frames) != 1 || len(first) == 0 || first[0] > 1 {
			continue // libzmq's XPUB gives such messages to the application
		}
		if err := sub.subscribe(first[0] == 1, first[1:]); err != nil {
			return err
		}
		p.mu.Lock()
		p.announce()
		p.mu.Unlock()
	}
}

// announce wakes who waits for subscribers, under p.mu.
func (p *Publisher) announce() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (sub *subscriber) subscribe(more bool, topic []byte) error {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	n, known := sub.topics[string(topic)]
	switch {
	case len(topic) > maxTopic:
		return fault(TooLarge, "a subscription longer than is taken")
	case !known && len(sub.topics) == maxTopics && more:
		return fault(TooMany, "more subscriptions than are taken")
	case more:
		sub.topics[string(topic)] = n + 1
	case n > 1:
		sub.topics[string(topic)] = n - 1
	default:
		delete(sub.topics, string(topic))
	}
	return nil
}

// wants tells whether a topic of the subscriber's is a prefix of a message, under
// sub.mu.
func (sub *subscriber) wants(first []byte) bool {
	for topic := range sub.topics {
		if bytes.HasPrefix(first, []byte(topic)) {
			return true
		}
	}
	return false
}

// Publish sends a message of one frame or more, of which the first is the topic. It
// keeps none of the frames and never waits: for a subscriber whose queue is full
// the message is dropped.
func (p *Publisher) Publish(frames ...[]byte) {
	if len(frames) == 0 {
		return
	}
	var wire []byte
	p.mu.Lock()
	defer p.mu.Unlock()
	for sub := range p.subscribers {
		sub.mu.Lock()
		wanted := sub.wants(frames[0])
		if wanted && len(sub.queue)-sub.head >= sub.limit {
			wanted = false
			p.dropped.Add(1)
		}
		if wanted {
			if wire == nil {
				wire = appendMessage(nil, frames)
			}
			sub.put(wire)
		}
		sub.mu.Unlock()
		if wanted {
			select {
			case sub.wake <- struct{}{}:
			default:
			}
		}
	}
}

// Dropped is how many messages were dropped, each counted once for each subscriber
// that did not get it.
func (p *Publisher) Dropped() uint64 { return p.dropped.Load() }

// WaitSubscribers waits until at least n peers have a subscription.
func (p *Publisher) WaitSubscribers(ctx context.Context, n int) error {
	for {
		p.mu.Lock()
		subscribed, changed := 0, p.changed
		for sub := range p.subscribers {
			sub.mu.Lock()
			if len(sub.topics) > 0 {
				subscribed++
			}
			sub.mu.Unlock()
		}
		p.mu.Unlock()
		if subscribed >= n {
			return nil
		}
		select {
		case <-changed:
		case <-p.acceptor.done:
			return fault(Closed, "waiting for subscribers: the publisher is closed")
		case <-ctx.Done():
			return &Error{Reason: Closed, Detail: "waiting for subscribers", Err: ctx.Err()}
		}
	}
}

// Close ends all connections, with what waits for them, and waits for the
// publisher's goroutines.
func (p *Publisher) Close() error {
	p.acceptor.close()
	return nil
}

// write sends what is queued until the subscriber is gone.
func (sub *subscriber) write(gone <-chan struct{}) {
	var batch [][]byte
	for {
		select {
		case <-gone:
			return
		case <-sub.wake:
		}
		for {
			batch = sub.next(batch[:0])
			if len(batch) == 0 {
				break
			}
			if err := sub.socket.sendWire(batch); err != nil {
				return // the reader finds the socket closed
			}
		}
	}
}

// put adds to the queue, under sub.mu.
func (sub *subscriber) put(wire []byte) {
	if sub.head > 0 && len(sub.queue) == cap(sub.queue) {
		n := copy(sub.queue, sub.queue[sub.head:])
		clear(sub.queue[n:])
		sub.queue, sub.head = sub.queue[:n], 0
	}
	sub.queue = append(sub.queue, wire)
}

// next takes about writeAhead bytes of messages from the queue.
func (sub *subscriber) next(batch [][]byte) [][]byte {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	for size := 0; sub.head < len(sub.queue) && size < writeAhead; sub.head++ {
		batch = append(batch, sub.queue[sub.head])
		size += len(sub.queue[sub.head])
		sub.queue[sub.head] = nil
	}
	if sub.head == len(sub.queue) {
		sub.queue, sub.head = sub.queue[:0], 0
	}
	return batch
}

// sendWire sends messages as they go over the wire.
func (s *Socket) sendWire(messages [][]byte) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.out = s.out[:0]
	for _, wire := range messages {
		s.out = append(s.out, wire...)
	}
	return s.flush()
}
