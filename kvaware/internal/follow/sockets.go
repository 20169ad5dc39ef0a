// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

// socket makes a Conn of a ZeroMQ socket.
type socket struct {
	*zmtp.Socket
	message zmtp.Message
}

func (s *socket) Receive() ([][]byte, error) {
	err := s.Socket.Receive(&s.message)
	return s.message.Frames, err
}

// Subscribe gives the Source that dials an endpoint and subscribes to a topic.
func Subscribe(to zmtp.Endpoint, topic string, opt zmtp.Options) Source {
	opt.Type = zmtp.SUB
	opt.Topics = nil
	if topic != "" {
		opt.Topics = []string{topic}
	}
	return Dial(topic, dialler(to, opt))
}

// Requests gives what Options.Replay wants for an endpoint.
func Requests(to zmtp.Endpoint, opt zmtp.Options) func(context.Context) (Conn, error) {
	opt.Type = zmtp.DEALER
	return dialler(to, opt)
}

func dialler(to zmtp.Endpoint, opt zmtp.Options) func(context.Context) (Conn, error) {
	return func(ctx context.Context) (Conn, error) {
		s, err := zmtp.Dial(ctx, to, opt)
		if err != nil {
			return nil, err
		}
		return &socket{Socket: s}, nil
	}
}

// Accept gives what NewListener wants for a listening SUB socket.
func Accept(l *zmtp.Listener) func(context.Context) (Conn, error) {
	return func(ctx context.Context) (Conn, error) {
		s, err := l.Accept(ctx)
		if err != nil {
			return nil, err
		}
		return &socket{Socket: s}, nil
	}
}
