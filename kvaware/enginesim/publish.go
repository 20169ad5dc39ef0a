// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

// maxQueued bounds the batches that wait to be published. More are lost, and their
// numbers with them, so that subscribers see that there is a gap.
const maxQueued = 100_000

// publisher gives an engine's events to subscribers. It outlives reloads with its
// engine; its sockets are open while a running config has the engine.
type publisher struct {
	settings eventSettings

	mu    sync.Mutex // guards what follows; nothing is awaited under it
	seq   uint64     // of the next batch
	queue []numbered
	wake  chan struct{} // has room for one

	kept history

	// Guarded by opening.
	users  int
	pub    *zmtp.Publisher
	cancel context.CancelFunc // nil: the sockets are closed
	wg     sync.WaitGroup     // of the goroutines with the sockets
}

// numbered is a batch with its number.
type numbered struct {
	seq   uint64
	batch kvevents.Batch
}

func newPublisher(s eventSettings) *publisher {
	return &publisher{settings: s, wake: make(chan struct{}, 1), kept: history{limit: s.steps}}
}

// publish has events published as a batch. It does not wait.
func (p *publisher) publish(events []kvevents.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) < maxQueued {
		now := float64(time.Now().UnixMicro()) / 1e6
		p.queue = append(p.queue, numbered{p.seq, kvevents.Batch{Time: now, Rank: 0, Events: events}})
	}
	p.seq++
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// next takes what is queued.
func (p *publisher) next() []numbered {
	p.mu.Lock()
	defer p.mu.Unlock()
	queue := p.queue
	p.queue = nil
	return queue
}

// opening guards opened, and whether publishers are open.
var opening sync.Mutex

// opened are the publishers that configs use, in the order in which they began to.
// Of those that clash the last has the endpoint: on a reload that changes an engine,
// the new one takes it from the old, and gives it back if the config comes to
// nothing.
var opened []*publisher

// open has the publisher's sockets opened for one user more.
func (p *publisher) open() error {
	opening.Lock()
	defer opening.Unlock()
	if p.users++; p.users > 1 {
		return nil
	}
	var rivals []*publisher
	for _, other := range opened {
		if other.cancel != nil && other.settings.clashes(p.settings) {
			other.stop()
			rivals = append(rivals, other)
		}
	}
	if err := p.start(); err != nil {
		p.users--
		for _, other := range rivals {
			other.start() //nolint:errcheck // it had the endpoint, and there is nobody to tell
		}
		return err
	}
	opened = append(opened, p)
	return nil
}

// close takes a user away, and with the last the sockets.
func (p *publisher) close() {
	opening.Lock()
	defer opening.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	if p.cancel != nil {
		p.stop()
	}
	opened = slices.DeleteFunc(opened, func(other *publisher) bool { return other == p })
	for i, other := range slices.Backward(opened) {
		free := !slices.ContainsFunc(opened[i+1:], func(later *publisher) bool { return later.settings.clashes(other.settings) })
		if other.cancel == nil && free {
			other.start() //nolint:errcheck // as above
		}
	}
}

// start opens the sockets and runs them, under opening.
func (p *publisher) start() error {
	pub := zmtp.NewPublisher(zmtp.Options{HighWaterMark: p.settings.hwm})
	if _, err := pub.Bind(p.settings.endpoint); err != nil {
		pub.Close()
		return fmt.Errorf("publishing KV events: %w", err)
	}
	var replays *zmtp.Listener
	if p.settings.replay != (zmtp.Endpoint{}) {
		var err error
		if replays, err = zmtp.Listen(p.settings.replay, zmtp.Options{Type: zmtp.ROUTER, MaxPeers: 64}); err != nil {
			pub.Close()
			return fmt.Errorf("replaying KV events: %w", err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.pub, p.cancel = pub, cancel
	p.wg.Go(func() {
		defer pub.Close()
		p.run(ctx, pub)
	})
	if replays != nil {
		p.wg.Go(func() { p.kept.serve(ctx, replays) })
	}
	return nil
}

// stop closes the sockets, under opening.
func (p *publisher) stop() {
	p.cancel()
	p.wg.Wait()
	p.pub, p.cancel = nil, nil
}

// run encodes and publishes what comes.
func (p *publisher) run(ctx context.Context, pub *zmtp.Publisher) {
	topic := []byte(p.settings.topic)
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		for _, n := range p.next() {
			payload := kvevents.AppendBatch(nil, &n.batch, p.settings.shape)
			p.kept.add(n.seq, payload)
			pub.Publish(topic, binary.BigEndian.AppendUint64(nil, n.seq), payload)
		}
	}
}
