// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// playback is a connection that gives bytes in pieces and takes all.
type playback struct {
	net.Conn // nil
	left     []byte
	piece    int
	wrote    int
}

func (p *playback) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.piece)], p.left)
	p.left = p.left[n:]
	return n, nil
}

func (p *playback) Write(b []byte) (int, error)      { p.wrote += len(b); return len(b), nil }
func (p *playback) Close() error                     { return nil }
func (p *playback) SetReadDeadline(time.Time) error  { return nil }
func (p *playback) SetWriteDeadline(time.Time) error { return nil }

// session is all that a socket makes of what a peer says.
func session(stream []byte, piece int, as side, opt Options) (messages [][]string, err error) {
	conn := &playback{left: stream, piece: piece}
	s := newSocket(conn, opt.withDefaults())
	if err := s.handshake(as); err != nil {
		return nil, err
	}
	var m Message
	for {
		if err := s.Receive(&m); err != nil {
			return messages, err
		}
		messages = append(messages, texts(m))
	}
}

// Whatever a peer says ends in a typed error, takes no more memory than was
// allowed, and does not depend on the pieces it comes in.
func FuzzSession(f *testing.F) {
	message := appendMessage(nil, [][]byte{[]byte("topic"), make([]byte, 8), bytes.Repeat([]byte("x"), 300)})
	ping := appendCommand(nil, "PING", []byte("\x00\x01context"))
	for minor := range byte(2) {
		f.Add(bytes.Join([][]byte{hello(minor, "PUB"), message, ping, message}, nil), byte(0))
		f.Add(bytes.Join([][]byte{hello(minor, "SUB"), ping, appendCommand(nil, "SUBSCRIBE", []byte("a")), {0, 2, 1, 'b'}, appendCommand(nil, "CANCEL", []byte("a"))}, nil), byte(1))
		f.Add(bytes.Join([][]byte{hello(minor, "DEALER"), {flagMore, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7}}, nil), byte(2))
	}
	plain := appendCommand(plainGreeting(true), "WELCOME", nil)
	f.Add(append(appendCommand(plain, "READY", appendProperty(nil, "Socket-Type", "XPUB")), message...), byte(3))
	plain = appendCommand(plainGreeting(false), "HELLO", []byte("\x01u\x01p"))
	f.Add(append(appendCommand(plain, "INITIATE", appendProperty(nil, "socket-type", "PUB")), message...), byte(4))
	f.Add(appendCommand(hello(1, "PUB"), "ERROR", []byte("\x03bad")), byte(0))
	f.Add(append(hello(1, "PUB"), longHeader(flagMore, 1<<62)...), byte(0))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), byte(0))

	f.Fuzz(func(t *testing.T, stream []byte, kind byte) {
		opt := Options{Type: SUB, MaxFrame: 4000, MaxMessage: 6000, MaxFrames: 5}
		as := client
		switch kind % 5 {
		case 1:
			opt.Type, as = PUB, server
		case 2:
			opt.Type, as = ROUTER, server
		case 3:
			opt.Username, opt.Password = "u", "p"
		case 4:
			opt.Username, opt.Password, as = "u", "p", server
		}
		whole, err := session(stream, len(stream)+1, as, opt)
		if _, ok := errors.AsType[*Error](err); !ok || err.Error() == "" {
			t.Fatalf("%v is no error of this package", err)
		}
		for _, frames := range whole {
			size := 0
			for _, frame := range frames {
				size += len(frame)
			}
			if size > max(opt.MaxMessage, maxCommand) || len(frames) == 0 || len(frames) > opt.MaxFrames {
				t.Fatalf("a message of %d frames and %d bytes", len(frames), size)
			}
		}
		pieces, again := session(stream, 1, as, opt)
		if len(pieces) != len(whole) {
			t.Fatalf("%d messages (%v), %d byte by byte (%v)", len(whole), err, len(pieces), again)
		}
		for i := range whole {
			for j := range whole[i] {
				if whole[i][j] != pieces[i][j] {
					t.Fatalf("message %d differs byte by byte", i)
				}
			}
		}
	})
}

// A frame's header says what was written into it.
func FuzzHeader(f *testing.F) {
	f.Add([]byte{0, 5}, uint(5))
	f.Add(longHeader(flagMore, 1<<40), uint(300))
	f.Add([]byte{}, uint(255))
	f.Fuzz(func(t *testing.T, b []byte, size uint) {
		flags, _, n, err := header(b)
		if n > len(b) || err == nil && n > 0 && flags&^7 != 0 {
			t.Fatalf("flags %x in %d bytes of %d", flags, n, len(b))
		}
		made := appendHeader(nil, flagCommand, int(size>>1))
		flags, got, n, err := header(made)
		if err != nil || n != len(made) || got != uint64(size>>1) || flags&flagCommand == 0 {
			t.Fatalf("%d is written % x and read as %d (%v)", size>>1, made, got, err)
		}
	})
}
