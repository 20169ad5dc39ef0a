// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"fmt"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/follow"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

// allListening holds the sockets that engines connect to, by endpoint, so that a
// reload keeps them and what is connected.
var allListening = caddy.NewUsagePool()

// listening is one such socket.
type listening struct {
	at     zmtp.Endpoint
	socket *zmtp.Listener
	topics *follow.Listener
	cancel context.CancelFunc
	done   chan struct{}
}

func acquireListening(at zmtp.Endpoint) (*listening, error) {
	val, _, err := allListening.LoadOrNew(at, func() (caddy.Destructor, error) {
		socket, err := zmtp.Listen(at, zmtp.Options{Type: zmtp.SUB})
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		l := &listening{at: at, socket: socket, topics: follow.NewListener(follow.Accept(socket)), cancel: cancel, done: make(chan struct{})}
		go func() {
			defer close(l.done)
			_ = l.topics.Run(ctx) // ends with ctx
		}()
		return l, nil
	})
	if err != nil {
		return nil, err
	}
	return val.(*listening), nil
}

func (l *listening) release() { _, _ = allListening.Delete(l.at) }

// Destruct implements caddy.Destructor.
func (l *listening) Destruct() error {
	l.cancel()
	<-l.done
	return l.socket.Close()
}
