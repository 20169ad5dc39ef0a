// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"context"
	"net"
	"time"
)

// Dial connects a SUB or DEALER socket, which lives until it is closed or ctx is
// done, whichever comes first. It takes at most twice HandshakeTimeout.
func Dial(ctx context.Context, to Endpoint, opt Options) (*Socket, error) {
	opt = opt.withDefaults()
	if err := check(opt); err != nil {
		return nil, err
	}
	if err := to.dialable(); err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: opt.HandshakeTimeout, KeepAliveConfig: keepAlive(opt)}
	conn, err := dialer.DialContext(ctx, to.Network, to.Address)
	if err != nil {
		reason := Unreachable
		switch netErr, ok := err.(net.Error); {
		case ctx.Err() != nil:
			reason = Closed
		case ok && netErr.Timeout():
			reason = Timeout
		}
		return nil, &Error{Reason: reason, Detail: "connecting to " + to.String(), Err: err}
	}
	s := newSocket(conn, opt)
	s.attach(ctx)
	if err := s.handshake(client); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// attach has the socket closed when ctx is done. It must be called before the
// socket is given away.
func (s *Socket) attach(ctx context.Context) {
	// detach is called by Close, which the function below may call at once.
	attached := make(chan struct{})
	s.detach = context.AfterFunc(ctx, func() {
		<-attached
		s.Close()
	})
	close(attached)
}

// check returns an error for options that no peer could be served with.
func check(opt Options) error {
	if len(opt.Username) > 255 || len(opt.Password) > 255 {
		return fault(Refused, "a username and a password have at most 255 bytes each")
	}
	for _, topic := range opt.Topics {
		if len(topic) > maxTopic {
			return fault(TooLarge, "a topic is longer than 1024 bytes")
		}
	}
	return nil
}

// maxTopic bounds a subscription's prefix.
const maxTopic = 1024

// keepAlive has the system notice a dead peer that is sent no PING.
func keepAlive(opt Options) net.KeepAliveConfig {
	if opt.HeartbeatInterval < 0 {
		return net.KeepAliveConfig{Enable: true}
	}
	interval := max(opt.HeartbeatInterval, time.Second)
	return net.KeepAliveConfig{Enable: true, Idle: interval, Interval: interval, Count: 3}
}
