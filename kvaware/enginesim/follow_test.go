// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/follow"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

// believed is a follow.Sink of what is held.
type believed struct {
	mu      sync.Mutex // guards what follows
	held    map[uint64]bool
	changed chan struct{} // closed and made anew with each change
}

func (b *believed) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *believed) Apply(batch *kvevents.Batch) {
	b.change(func() {
		for i := range batch.Events {
			e := &batch.Events[i]
			for _, hash := range e.Blocks {
				if e.Kind == kvevents.Stored {
					b.held[hash] = true
				} else {
					delete(b.held, hash)
				}
			}
			if e.Kind == kvevents.Cleared {
				clear(b.held)
			}
		}
	})
}

func (b *believed) Forget(follow.Reason) { b.change(func() { clear(b.held) }) }
func (b *believed) Trust(bool)           {}
func (b *believed) Room() int            { return 0 }

// The whole way from engine to follower, with connections that break in between.
func TestAFollowerEndsWithTheTruthThoughConnectionsBreak(t *testing.T) {
	p := publish(t, Handler{Model: "demo", Speed: 1e4, KVTokens: 2500, MaxModelLen: 2000, Output: 20}, KVEvents{Topic: "kv@a"})
	sink := &believed{held: map[uint64]bool{}, changed: make(chan struct{})}
	f := follow.New(follow.Options{
		Source: follow.Subscribe(p.key.events.endpoint, "kv@a", zmtp.Options{}),
		Replay: follow.Requests(p.key.events.replay, zmtp.Options{}),
		Sink:   sink, Rank: 0,
		Jitter: func() float64 { return 0 },
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.Run(ctx) })
	defer running.Wait()
	defer cancel()

	for round := range uint64(3) {
		p.traffic(t, round)
		p.replica.publisher.close()
		p.traffic(t, 100+round)
		if err := p.replica.publisher.open(); err != nil {
			t.Fatal(err)
		}
	}
	p.traffic(t, 200)
	p.published()
	want := p.holdings()
	timeout := time.After(20 * time.Second)
	for {
		sink.mu.Lock()
		equal, n, changed := maps.Equal(sink.held, want), len(sink.held), sink.changed
		sink.mu.Unlock()
		if equal {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("%d blocks are believed to be held, %d are; %+v", n, len(want), f.Status())
		}
	}
}
