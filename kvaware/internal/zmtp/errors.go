// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"errors"
	"io"
	"net"
	"os"
)

// Reason is why a socket could not be made or came to its end. Its text is one of
// a few short words, fit for a metric's label.
type Reason string

// The reasons.
const (
	BadEndpoint  Reason = "endpoint"    // the endpoint cannot be used as written
	Unreachable  Reason = "unreachable" // nobody listens there, or no way leads there
	Timeout      Reason = "timeout"     // a deadline passed
	Silent       Reason = "silent"      // the peer answered no heartbeat
	Closed       Reason = "closed"      // closed on this side
	PeerClosed   Reason = "peer_closed" // closed or reset by the peer
	NotZMTP      Reason = "not_zmtp"    // the peer speaks something else
	OldVersion   Reason = "version"     // the peer speaks ZMTP older than 3.0
	BadMechanism Reason = "mechanism"   // the peer wants another security mechanism
	Refused      Reason = "refused"     // the peer, or this side, refused what was shown to it
	BadPeerType  Reason = "socket_type" // the peer's socket type does not fit
	Malformed    Reason = "malformed"   // a frame or command breaks the protocol
	TooLarge     Reason = "too_large"   // a frame or message is above its bound
	TooMany      Reason = "too_many"    // too many frames, subscriptions or peers
	Unknown      Reason = "other"       // not an error of this package
)

// Error is any error of this package.
type Error struct {
	Reason Reason
	Detail string // what happened and, where there is one, the remedy
	Err    error  // the cause, if any
}

func (e *Error) Error() string {
	text := "zmtp: " + e.Detail
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// ReasonOf returns the reason of an error of this package, wrapped or not.
func ReasonOf(err error) Reason {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return Unknown
}

func fault(reason Reason, detail string) *Error { return &Error{Reason: reason, Detail: detail} }

// broken is the error for one of a connection.
func broken(doing string, err error) *Error {
	switch {
	case errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe):
		return &Error{Reason: Closed, Detail: doing + ": the socket is closed"}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &Error{Reason: Timeout, Detail: doing, Err: err}
	case errors.Is(err, io.EOF):
		return &Error{Reason: PeerClosed, Detail: doing + ": the peer closed the connection"}
	}
	return &Error{Reason: PeerClosed, Detail: doing, Err: err}
}
