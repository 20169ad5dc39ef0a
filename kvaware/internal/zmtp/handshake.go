// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"time"
)

// side is who this side is within a handshake.
type side bool

const (
	client side = false // connected, and shows its credentials
	server side = true  // was connected to, and judges them
)

// handshake makes a socket of a connection that was just opened, within
// HandshakeTimeout.
func (s *Socket) handshake(as side) error {
	s.deadline = time.Now().Add(s.opt.HandshakeTimeout)
	if err := s.shake(as); err != nil {
		if ReasonOf(err) == Timeout {
			err = fault(Timeout, "the peer does not complete the handshake within "+s.opt.HandshakeTimeout.String()+": does it speak ZMTP?")
		}
		return err
	}
	s.deadline, s.heard, s.ready = time.Time{}, time.Now(), true
	if s.opt.Type == SUB {
		return s.subscribe()
	}
	return nil
}

func (s *Socket) shake(as side) error {
	mechanism := mechanismNull
	if s.opt.plain() {
		mechanism = mechanismPlain
	}
	if err := s.greet(mechanism, as); err != nil {
		return err
	}
	var err error
	switch {
	case mechanism == mechanismNull:
		err = s.null()
	case as == client:
		err = s.plainClient()
	default:
		err = s.plainServer()
	}
	return err
}

// greet exchanges greetings and settles on a version. libzmq ends a connection as
// soon as it sees another mechanism than its own, and would then not have told
// which it has: so this side tells its mechanism only when the peer has begun, or
// is slow to.
func (s *Socket) greet(mechanism string, as side) error {
	const slow = 250 * time.Millisecond
	own := appendGreeting(nil, greeting{minor: 1, mechanism: mechanism, asServer: mechanism != mechanismNull && as == server})
	if err := s.write(own[:mechanismStart]); err != nil {
		return err
	}
	whole := s.deadline
	if early := time.Now().Add(slow); early.Before(whole) {
		s.deadline = early
	}
	err := s.greeted(signatureSize + 1)
	s.deadline = whole
	if err != nil && ReasonOf(err) != Timeout {
		return err
	}
	if err := s.write(own[mechanismStart:]); err != nil {
		return err
	}
	if err := s.greeted(greetingSize); err != nil {
		return err
	}
	peer, err := parseGreeting(s.in[s.r : s.r+greetingSize])
	if err != nil {
		return err
	}
	s.r += greetingSize
	s.minor = min(peer.minor, 1)
	if peer.mechanism == mechanism {
		return nil
	}
	switch {
	case peer.mechanism == mechanismPlain && as == client:
		return fault(BadMechanism, "the peer demands PLAIN: give it a username and a password")
	case mechanism == mechanismPlain:
		return fault(BadMechanism, fmt.Sprintf("the peer has the mechanism %q, this side PLAIN: either both have a username and a password or none", peer.mechanism))
	}
	return fault(BadMechanism, fmt.Sprintf("the peer has the mechanism %q: only NULL and PLAIN are supported", peer.mechanism))
}

// greeted waits for so much of the peer's greeting.
func (s *Socket) greeted(n int) error {
	for s.w-s.r < n {
		if err := s.fill("waiting for the greeting"); err != nil {
			if ReasonOf(err) == PeerClosed && s.w-s.r >= signatureSize {
				return fault(BadMechanism, "the peer ends the connection over the greeting, as libzmq does where mechanisms differ: does it demand a username and a password, or none, or CURVE?")
			}
			return err
		}
		if err := checkGreeting(s.in[s.r:s.w]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Socket) null() error {
	if err := s.sendCommand("READY", s.metadata()); err != nil {
		return err
	}
	body, err := s.expect("READY")
	if err != nil {
		return err
	}
	return s.judge(body)
}

func (s *Socket) plainClient() error {
	hello := make([]byte, 0, 2+len(s.opt.Username)+len(s.opt.Password))
	hello = append(append(hello, byte(len(s.opt.Username))), s.opt.Username...)
	hello = append(append(hello, byte(len(s.opt.Password))), s.opt.Password...)
	if err := s.sendCommand("HELLO", hello); err != nil {
		return err
	}
	if _, err := s.expect("WELCOME"); err != nil {
		return err
	}
	if err := s.sendCommand("INITIATE", s.metadata()); err != nil {
		return err
	}
	body, err := s.expect("READY")
	if err != nil {
		return err
	}
	return s.judge(body)
}

func (s *Socket) plainServer() error {
	hello, err := s.expect("HELLO")
	if err != nil {
		return err
	}
	username, rest, ok := shortString(hello)
	if !ok {
		return fault(Malformed, "a HELLO of a wrong size")
	}
	password, rest, ok := shortString(rest)
	if !ok || len(rest) > 0 {
		return fault(Malformed, "a HELLO of a wrong size")
	}
	if !same(username, s.opt.Username) || !same(password, s.opt.Password) {
		return s.refuse(Refused, "the peer's username or password is wrong")
	}
	if err := s.sendCommand("WELCOME", nil); err != nil {
		return err
	}
	body, err := s.expect("INITIATE")
	if err != nil {
		return err
	}
	if err := s.judge(body); err != nil {
		return err
	}
	return s.sendCommand("READY", s.metadata())
}

// same compares in a time that tells nothing of where the two differ.
func same(given []byte, wanted string) bool {
	a, b := sha256.Sum256(given), sha256.Sum256([]byte(wanted))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// shortString splits off a string behind a byte with its size.
func shortString(b []byte) (s, rest []byte, ok bool) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return nil, nil, false
	}
	return b[1 : 1+b[0]], b[1+b[0]:], true
}

func (s *Socket) metadata() []byte {
	b := appendProperty(nil, "Socket-Type", string(s.opt.Type))
	if s.opt.Type == DEALER {
		b = appendProperty(b, "Identity", "") // the peer makes one up
	}
	return b
}

// judge reads the peer's metadata.
func (s *Socket) judge(metadata []byte) error {
	peer, err := socketTypeOf(metadata)
	if err != nil {
		return err
	}
	if !s.opt.Type.accepts(peer) {
		return s.refuse(BadPeerType, fmt.Sprintf("the peer is a %q socket, which does not go with %s: are the ports of events and replay mixed up?", readable([]byte(peer)), s.opt.Type))
	}
	return nil
}

// refuse tells the peer that the handshake failed.
func (s *Socket) refuse(reason Reason, detail string) error {
	s.sendCommand("ERROR", append([]byte{byte(len(reason))}, reason...)) //nolint:errcheck // the connection ends anyway
	return fault(reason, detail)
}

// refusal is the error for a peer's ERROR command.
func refusal(body []byte) error {
	reason, _, ok := shortString(body)
	if !ok {
		return fault(Malformed, "an ERROR of a wrong size")
	}
	return fault(Refused, fmt.Sprintf("the peer refuses the connection: %q", readable(reason)))
}

// expect waits for a command of that name. What it returns is valid until the
// next read.
func (s *Socket) expect(name string) ([]byte, error) {
	flags, size, n, err := header(s.in[s.r:s.w])
	for n == 0 && err == nil {
		if err = s.fill("waiting for " + name); err == nil {
			flags, size, n, err = header(s.in[s.r:s.w])
		}
	}
	if err != nil {
		return nil, err
	}
	if flags&flagCommand == 0 {
		return nil, fault(Malformed, "a message within the handshake")
	}
	command, err := s.commandFrame(size, n)
	if err != nil {
		return nil, err
	}
	got, body, err := parseCommand(command)
	switch {
	case err != nil:
		return nil, err
	case string(got) == "ERROR":
		return nil, refusal(body)
	case string(got) != name:
		return nil, fault(Malformed, fmt.Sprintf("the command %q where %s was due", readable(got), name))
	}
	return body, nil
}

// subscribe asks for the topics: by command from ZMTP 3.1 on, by message before.
func (s *Socket) subscribe() error {
	topics := s.opt.Topics
	if len(topics) == 0 {
		topics = []string{""}
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	s.out = s.out[:0]
	for _, topic := range topics {
		if s.minor > 0 {
			s.out = appendCommand(s.out, "SUBSCRIBE", []byte(topic))
		} else {
			s.out = appendFrame(s.out, append([]byte{1}, topic...), false)
		}
	}
	return s.flush()
}
