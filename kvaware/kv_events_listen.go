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

// listeningKey is what such a socket is shared by.
type listeningKey struct {
	at                 zmtp.Endpoint
	username, password string
}

// listening is one such socket.
type listening struct {
	key    listeningKey
	socket *zmtp.Listener
	topics *follow.Listener
	cancel context.CancelFunc
	done   chan struct{}
}

func acquireListening(conf *eventsConfig) (*listening, error) {
	key := listeningKey{conf.listen, conf.username, conf.password}
	val, _, err := allListening.LoadOrNew(key, func() (caddy.Destructor, error) {
		opt := conf.sockets()
		opt.Type = zmtp.SUB
		socket, err := zmtp.Listen(key.at, opt)
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		l := &listening{key: key, socket: socket, topics: follow.NewListener(follow.Accept(socket)), cancel: cancel, done: make(chan struct{})}
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

func (l *listening) release() { _, _ = allListening.Delete(l.key) }

// Destruct implements caddy.Destructor.
func (l *listening) Destruct() error {
	l.cancel()
	<-l.done
	return l.socket.Close()
}
