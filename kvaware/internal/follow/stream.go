// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"
)

// Conn is a ZeroMQ connection that carries whole messages. Close ends the other
// methods with an error; it may be called from another goroutine, and twice.
type Conn interface {
	// Receive gives the frames of the next message. They live until the next call.
	Receive() ([][]byte, error)
	Send(frames ...[]byte) error
	Close() error
}

// The bounds of what waits in a stream. The bytes may be exceeded by one message,
// whose size is the connection's to bound.
const (
	maxQueuedMessages = 1 << 16
	maxQueuedBytes    = 32 << 20
	// keptBytes is the largest memory that is kept while nothing comes.
	keptBytes = 1 << 20
)

// endMarker is the sequence number that ends a replay.
const endMarker = ^uint64(0)

// message is one message of a publisher or of a replay.
type message struct {
	seq     uint64
	payload []byte // lives until the stream's next message
	whole   bool   // false: its frames are not those of a message; nothing else is set
}

// wellFormed reports whether it is a message of a publisher's.
func (m message) wellFormed() bool { return m.whole && m.seq != endMarker }

// mostMalformed is how many messages in a row may have other frames than those of a
// publisher or a replay. Who sends more is none, and is not listened to at the speed
// at which it sends.
const mostMalformed = 1000

var errMalformed = errors.New("what is sent has other frames than KV events do: is it the endpoint of something else?")

// malformed counts messages in a row that are none.
type malformed int

// after reports whether they are too many after one more message.
func (n *malformed) after(m message) bool {
	if *n++; m.wellFormed() {
		*n = 0
	}
	return *n > mostMalformed
}

// errQuiet: nothing came in the time given.
var errQuiet = errors.New("nothing was sent in time")

// stream is what a connection sends, read ahead into a bounded queue. One
// goroutine puts in, another takes out.
type stream struct {
	conn Conn // nil where several streams are fed from one connection

	mu     sync.Mutex // guards filled, err and closed
	filled queued
	err    error // why there is no more after filled
	closed bool

	some chan struct{}   // holds one when filled or err may have something
	room chan struct{}   // holds one when filled may have room
	quit chan struct{}   // closed by close
	done chan struct{}   // closed when the pump has ended
	stop <-chan struct{} // that nothing more is put in; nil where conn says so

	taken queued // what next gives from, the taker's own
	at    int    // in taken
}

// queued are messages with their payloads one after the other.
type queued struct {
	messages []queuedMessage
	data     []byte
}

type queuedMessage struct {
	seq   uint64
	end   int // of its payload in data
	whole bool
}

func (q *queued) reset() { q.messages, q.data = q.messages[:0], q.data[:0] }

// rest lets go of memory that a flood took. Q is empty.
func (q *queued) rest() {
	if cap(q.data) > keptBytes {
		*q = queued{}
	}
}

func newStream(conn Conn) *stream {
	return &stream{
		conn: conn,
		some: make(chan struct{}, 1),
		room: make(chan struct{}, 1),
		quit: make(chan struct{}),
		done: make(chan struct{}),
	}
}

// read starts to read a connection. Topic is the prefix that the first frame of a
// message must have.
func read(conn Conn, topic []byte) *stream {
	s := newStream(conn)
	go s.pump(topic)
	return s
}

// pump reads until the connection ends.
func (s *stream) pump(topic []byte) {
	defer close(s.done)
	for {
		frames, err := s.conn.Receive()
		if err != nil {
			s.end(err)
			return
		}
		if len(frames) > 0 && !bytes.HasPrefix(frames[0], topic) {
			continue // a publisher that does not filter
		}
		if !s.put(frames) {
			return
		}
	}
}

// put appends a message, waiting for room. It reports whether the stream is open.
func (s *stream) put(frames [][]byte) bool {
	m, payload := parse(frames)
	for {
		s.mu.Lock()
		if s.closed || s.err != nil {
			s.mu.Unlock()
			return false
		}
		if n := len(s.filled.messages); n == 0 || n < maxQueuedMessages && len(s.filled.data)+len(payload) <= maxQueuedBytes {
			s.filled.data = append(s.filled.data, payload...)
			m.end = len(s.filled.data)
			s.filled.messages = append(s.filled.messages, m)
			s.mu.Unlock()
			if n == 0 {
				signal(s.some)
			}
			return true
		}
		s.mu.Unlock()
		select {
		case <-s.room:
		case <-s.quit:
		case <-s.stop:
			return false
		}
	}
}

// parse reads the frames of a message: of a publisher topic, sequence number and
// payload; of a replay the same with an empty frame for the topic, or before it.
func parse(frames [][]byte) (queuedMessage, []byte) {
	n := len(frames)
	if n != 3 && (n != 4 || len(frames[0]) != 0) || len(frames[n-2]) != 8 {
		return queuedMessage{}, nil
	}
	return queuedMessage{seq: binary.BigEndian.Uint64(frames[n-2]), whole: true}, frames[n-1]
}

// end says why no more messages come.
func (s *stream) end(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.mu.Unlock()
	signal(s.some)
	signal(s.room)
}

// next gives the next message. The error is the connection's, ctx's, or errQuiet
// when expired fires before there is one.
func (s *stream) next(ctx context.Context, expired <-chan time.Time) (message, error) {
	for s.at == len(s.taken.messages) {
		if err := s.swap(); err != nil {
			return message{}, err
		}
		if len(s.taken.messages) > 0 {
			break
		}
		select {
		case <-s.some:
		case <-expired:
			return message{}, errQuiet
		case <-ctx.Done():
			return message{}, ctx.Err()
		}
	}
	m, start := s.taken.messages[s.at], 0
	if s.at > 0 {
		start = s.taken.messages[s.at-1].end
	}
	s.at++
	return message{seq: m.seq, payload: s.taken.data[start:m.end:m.end], whole: m.whole}, nil
}

// swap takes all that is there and gives the memory of what was taken before. The
// error tells why there is nothing and will be nothing.
func (s *stream) swap() error {
	s.taken.reset()
	s.at = 0
	s.mu.Lock()
	s.filled, s.taken = s.taken, s.filled
	if len(s.taken.messages) == 0 {
		s.filled.rest()
		s.taken.rest()
	}
	err := s.err
	s.mu.Unlock()
	signal(s.room)
	if len(s.taken.messages) > 0 {
		return nil
	}
	return err
}

// close ends the connection and waits until nothing reads it.
func (s *stream) close() {
	s.mu.Lock()
	already := s.closed
	s.closed = true
	s.mu.Unlock()
	if already {
		return
	}
	close(s.quit)
	if s.conn != nil {
		_ = s.conn.Close()
		<-s.done
	}
}

// signal leaves a sign in a channel with room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
