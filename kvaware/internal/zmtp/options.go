// SPDX-License-Identifier: Apache-2.0

// Package zmtp speaks the part of ZeroMQ's transport protocol that following an
// engine's KV events needs: SUB and DEALER sockets that connect, SUB sockets that
// are connected to, and the PUB and ROUTER sides for a simulated engine. It
// follows ZMTP 3.0 and 3.1 (RFC 23 and 37, https://rfc.zeromq.org) with the
// mechanisms NULL and PLAIN (RFC 24), over TCP and Unix sockets.
//
// A [Socket] is one connection: whoever owns it connects again. It has no
// goroutine of its own, so heartbeats are sent and answered within Receive, and
// an owner that stays away from Receive for longer than the peer's patience is
// dropped by the peer.
package zmtp

import "time"

// SocketType is what a socket is to its peer, by ZeroMQ's names.
type SocketType string

// The socket types that this package plays.
const (
	SUB    SocketType = "SUB"
	DEALER SocketType = "DEALER"
	PUB    SocketType = "PUB"
	ROUTER SocketType = "ROUTER"
)

// accepts tells whether sockets of the two types can talk.
func (t SocketType) accepts(peer string) bool {
	switch t {
	case SUB:
		return peer == "PUB" || peer == "XPUB"
	case PUB:
		return peer == "SUB" || peer == "XSUB"
	case DEALER:
		return peer == "ROUTER" || peer == "REP" || peer == "DEALER"
	case ROUTER:
		return peer == "DEALER" || peer == "REQ" || peer == "ROUTER"
	}
	return false
}

// Options are a socket's, or those of all sockets of a listener or publisher. The
// zero value of each field stands for its default.
type Options struct {
	Type SocketType

	// Topics are the prefixes that a SUB socket subscribes to. None: all messages.
	Topics []string

	// Username and Password, if one is not empty, are shown by the mechanism PLAIN
	// to a peer that was connected to, and demanded from one that connects. They
	// cross the network readably. At most 255 bytes each.
	Username, Password string

	// HandshakeTimeout bounds connecting and, once more, all of the handshake.
	// Default: 5 s.
	HandshakeTimeout time.Duration
	// SendTimeout is how long a peer may leave what is sent to it unread. Default:
	// 5 s. Less than 0: for ever.
	SendTimeout time.Duration
	// HeartbeatInterval is how long a peer may be silent before it is sent a PING.
	// A peer of ZMTP 3.0 is sent none, as it may take one for a message: of its
	// death only TCP's keep-alive tells. Default: 5 s. Less than 0: no PING.
	HeartbeatInterval time.Duration
	// HeartbeatTimeout is how long a peer may be silent after that. Default: 5 s.
	HeartbeatTimeout time.Duration

	// MaxFrame and MaxMessage bound in bytes what is received. Default: 16 MiB.
	MaxFrame, MaxMessage int
	// MaxFrames bounds the frames of a received message. Default: 16.
	MaxFrames int

	// MaxPeers bounds a listener's connections, those within a handshake among
	// them; more are closed at once. Default: 1024.
	MaxPeers int
	// HighWaterMark bounds the messages that wait for one subscriber of a
	// publisher; more are dropped. Default: 100,000, as vLLM's hwm.
	HighWaterMark int
	// Refused, if not nil, is told why a connection to a listener came to nothing.
	// Calls overlap.
	Refused func(error)
}

func (o Options) withDefaults() Options {
	for _, field := range []*time.Duration{&o.HandshakeTimeout, &o.SendTimeout, &o.HeartbeatInterval, &o.HeartbeatTimeout} {
		if *field == 0 {
			*field = 5 * time.Second
		}
	}
	for _, d := range []struct {
		field *int
		value int
	}{
		{&o.MaxFrame, 16 << 20},
		{&o.MaxMessage, 16 << 20},
		{&o.MaxFrames, 16},
		{&o.MaxPeers, 1024},
		{&o.HighWaterMark, 100_000},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	return o
}

func (o *Options) plain() bool { return o.Username != "" || o.Password != "" }
