// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// readBuffer holds what a read of the connection brings.
	readBuffer = 32 << 10
	// keepOut is the largest buffer for writing that is kept for the next time.
	keepOut = 64 << 10
	// maxPingContext is what a PING may ask to have sent back (RFC 37).
	maxPingContext = 16
)

// Message is a received message. Its memory is used again by the next Receive
// into it, and grows to the largest message that came.
type Message struct {
	// Frames are valid until the next Receive into this message.
	Frames [][]byte

	bytes []byte
	ends  []int
}

// Socket is one connection after its handshake. Receive is for one goroutine at a
// time; Send and Close may be called from any, at any time.
type Socket struct {
	conn net.Conn
	opt  Options

	// Of the goroutine in Receive.
	in       []byte // what has been read and not yet used is in[r:w]
	r, w     int
	ready    bool          // the handshake is done
	begun    bool          // a frame of the message was begun
	deadline time.Time     // for Receive; zero: none
	heard    time.Time     // when bytes came last
	pinged   time.Time     // when a PING was sent after that; zero: none
	patience time.Duration // the peer asked to be given up after so long a silence; 0: did not
	minor    byte          // of the ZMTP version both speak

	sending sync.Mutex // guards out and writing to conn
	out     []byte

	closed  atomic.Bool
	detach  func() bool // lets go of the context that the socket was made with
	release func()      // lets go of the listener's place; nil: none
}

func newSocket(conn net.Conn, opt Options) *Socket {
	return &Socket{conn: conn, opt: opt, in: make([]byte, readBuffer)}
}

// Close ends the socket and unblocks its Receive and Send. It may be called more
// than once.
func (s *Socket) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	if s.detach != nil {
		s.detach()
	}
	err := s.conn.Close()
	if s.release != nil {
		s.release()
	}
	return err
}

// SetReceiveDeadline has Receive fail with [Timeout] after t; the zero time is no
// deadline. The socket goes on if no message had begun, else it is closed. It is
// for the goroutine that calls Receive.
func (s *Socket) SetReceiveDeadline(t time.Time) { s.deadline = t }

// Receive waits for a message and reads it into m. After any error but a
// [Timeout] between messages the socket is closed.
func (s *Socket) Receive(m *Message) error {
	m.Frames, m.bytes, m.ends = m.Frames[:0], m.bytes[:0], m.ends[:0]
	s.begun = false
	if s.closed.Load() {
		return fault(Closed, "receiving: the socket is closed")
	}
	for {
		more, err := s.frame(m)
		if err != nil {
			if ReasonOf(err) != Timeout || s.r != s.w || s.begun {
				s.Close()
			}
			return err
		}
		if more {
			continue
		}
		start := 0
		for _, end := range m.ends {
			m.Frames = append(m.Frames, m.bytes[start:end:end])
			start = end
		}
		return nil
	}
}

// frame reads a frame. more tells that the message is not whole.
func (s *Socket) frame(m *Message) (more bool, err error) {
	flags, size, n, err := header(s.in[s.r:s.w])
	for n == 0 && err == nil {
		if err = s.fill("waiting for a message"); err == nil {
			flags, size, n, err = header(s.in[s.r:s.w])
		}
	}
	switch {
	case err != nil:
		return false, err
	case flags&flagCommand != 0:
		body, err := s.commandFrame(size, n)
		if err != nil {
			return false, err
		}
		return s.obey(m, body)
	case len(m.ends) == s.opt.MaxFrames:
		return false, fault(TooMany, "a message of more frames than are taken")
	case size > uint64(s.opt.MaxFrame), size > uint64(s.opt.MaxMessage-len(m.bytes)):
		return false, fault(TooLarge, "a message larger than is taken")
	}
	s.r += n
	s.begun = true
	// The memory grows as bytes come, not as they are announced.
	for left := int(size); left > 0; {
		if s.r == s.w {
			if err := s.fill("within a message"); err != nil {
				return false, err
			}
		}
		take := min(left, s.w-s.r)
		m.bytes = append(m.bytes, s.in[s.r:s.r+take]...)
		s.r += take
		left -= take
	}
	m.ends = append(m.ends, len(m.bytes))
	return flags&flagMore != 0, nil
}

// commandFrame reads a command's frame, the header of which is at s.r. What it
// returns is valid until the next read.
func (s *Socket) commandFrame(size uint64, headerSize int) ([]byte, error) {
	if size > maxCommand {
		return nil, fault(TooLarge, "a command larger than is taken")
	}
	whole := headerSize + int(size)
	if err := s.need(whole, "within a command"); err != nil {
		return nil, err
	}
	body := s.in[s.r+headerSize : s.r+whole]
	s.r += whole
	return body, nil
}

// obey does what a command says. Those that are not known are skipped.
// Subscriptions are given to a publisher as ZMTP 3.0 has them, as a message.
func (s *Socket) obey(m *Message, command []byte) (more bool, err error) {
	name, body, err := parseCommand(command)
	if err != nil {
		return false, err
	}
	switch string(name) {
	case "PING":
		if len(body) < 2 || len(body) > 2+maxPingContext {
			return false, fault(Malformed, "a PING of a wrong size")
		}
		s.patience = time.Duration(binary.BigEndian.Uint16(body)) * (time.Second / 10)
		return true, s.sendCommand("PONG", body[2:])
	case "ERROR":
		return false, refusal(body)
	case "SUBSCRIBE", "CANCEL":
		if s.opt.Type != PUB || len(m.ends) > 0 {
			return true, nil
		}
		m.bytes = append(m.bytes, 0)
		if string(name) == "SUBSCRIBE" {
			m.bytes[0] = 1
		}
		m.bytes = append(m.bytes, body...)
		m.ends = append(m.ends, len(m.bytes))
		return false, nil
	}
	return true, nil
}

// need waits until n bytes are there, which the buffer must have room for.
func (s *Socket) need(n int, doing string) error {
	for s.w-s.r < n {
		if err := s.fill(doing); err != nil {
			return err
		}
	}
	return nil
}

// fill waits for more bytes. The buffer has room for some: no one waits for more
// than a command.
func (s *Socket) fill(doing string) error {
	if s.r > 0 {
		s.w = copy(s.in, s.in[s.r:s.w])
		s.r = 0
	}
	for {
		until, reason := s.until()
		if err := s.conn.SetReadDeadline(until); err != nil {
			return s.broken(doing, err)
		}
		n, err := s.conn.Read(s.in[s.w:])
		if n > 0 {
			s.w += n
			s.heard, s.pinged = time.Now(), time.Time{}
			return nil
		}
		switch broken := s.broken(doing, err); {
		case broken.Reason != Timeout:
			return broken
		case reason == Timeout:
			return broken
		case reason == Silent:
			return fault(Silent, "the peer is silent: it answers no heartbeat")
		}
		s.pinged = time.Now()
		if err := s.ping(); err != nil {
			return err
		}
	}
}

// until returns when to stop waiting for bytes, and what that means: Timeout,
// Silent, or "" for a PING.
func (s *Socket) until() (time.Time, Reason) {
	until, reason := s.deadline, Timeout
	earlier := func(t time.Time, r Reason) {
		if until.IsZero() || t.Before(until) {
			until, reason = t, r
		}
	}
	if !s.ready {
		return until, reason
	}
	if s.opt.HeartbeatInterval > 0 && s.minor > 0 {
		if s.pinged.IsZero() {
			earlier(s.heard.Add(s.opt.HeartbeatInterval), "")
		} else {
			earlier(s.pinged.Add(s.opt.HeartbeatTimeout), Silent)
		}
	}
	if s.patience > 0 {
		earlier(s.heard.Add(s.patience), Silent)
	}
	return until, reason
}

// ping asks for a sign of life, and tells the peer to give this side up if it is
// not heard for several times as long.
func (s *Socket) ping() error {
	patience := 4 * (s.opt.HeartbeatInterval + s.opt.HeartbeatTimeout) / (time.Second / 10)
	var body [2]byte
	binary.BigEndian.PutUint16(body[:], uint16(min(patience, 0xFFFF)))
	return s.sendCommand("PING", body[:])
}

// Send sends a message of one frame or more. After an error the socket is closed.
func (s *Socket) Send(frames ...[]byte) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.out = appendMessage(s.out[:0], frames)
	return s.flush()
}

func (s *Socket) sendCommand(name string, body []byte) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.out = appendCommand(s.out[:0], name, body)
	return s.flush()
}

// write sends bytes as they are.
func (s *Socket) write(b []byte) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.out = append(s.out[:0], b...)
	return s.flush()
}

// flush writes out, under the mutex sending. What was not written whole leaves
// the connection of no use.
func (s *Socket) flush() error {
	var until time.Time
	if s.opt.SendTimeout > 0 {
		until = time.Now().Add(s.opt.SendTimeout)
	}
	err := s.conn.SetWriteDeadline(until)
	if err == nil {
		_, err = s.conn.Write(s.out)
	}
	if cap(s.out) > keepOut {
		s.out = nil
	}
	if err != nil {
		broken := s.broken("sending", err)
		s.Close()
		return broken
	}
	return nil
}

func (s *Socket) broken(doing string, err error) *Error {
	if s.closed.Load() {
		return fault(Closed, doing+": the socket is closed")
	}
	return broken(doing, err)
}
