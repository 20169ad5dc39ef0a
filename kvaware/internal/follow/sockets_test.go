// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"encoding/binary"
	"maps"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

// process is an engine's publisher on real sockets.
type process struct {
	pub    *zmtp.Publisher
	router *zmtp.Listener
	wg     sync.WaitGroup
	cancel context.CancelFunc

	mu    sync.Mutex // guards what follows
	kept  [][]byte
	truth map[kvevents.Key]int
}

// start starts a process at two endpoints and gives them with their ports.
func start(t *testing.T, events, replay zmtp.Endpoint) (*process, zmtp.Endpoint, zmtp.Endpoint) {
	t.Helper()
	p := &process{pub: zmtp.NewPublisher(zmtp.Options{}), truth: make(map[kvevents.Key]int)}
	var err error
	if p.router, err = zmtp.Listen(replay, zmtp.Options{Type: zmtp.ROUTER}); err != nil {
		t.Fatal(err)
	}
	if events, err = p.pub.Bind(events); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.wg.Go(func() { p.serve(ctx) })
	return p, events, p.router.Endpoint()
}

func (p *process) serve(ctx context.Context) {
	for {
		s, err := p.router.Accept(ctx)
		if err != nil {
			return
		}
		p.wg.Go(func() {
			stop := context.AfterFunc(ctx, func() { s.Close() })
			defer stop()
			defer s.Close()
			var m zmtp.Message
			for s.Receive(&m) == nil {
				from := binary.BigEndian.Uint64(m.Frames[1])
				p.mu.Lock()
				kept := p.kept
				p.mu.Unlock()
				for seq := from; seq < uint64(len(kept)); seq++ {
					if s.Send(nil, number(seq), kept[seq]) != nil {
						return
					}
				}
				if s.Send(nil, number(endMarker), nil) != nil {
					return
				}
			}
		})
	}
}

func (p *process) publish(events ...kvevents.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	count(p.truth, events)
	payload := kvevents.AppendBatch(nil, &kvevents.Batch{Time: float64(time.Now().UnixNano()) / 1e9, Rank: -1, Events: events}, 0)
	p.pub.Publish(nil, number(uint64(len(p.kept))), payload)
	p.kept = append(p.kept, payload)
}

func (p *process) kill() {
	p.cancel()
	p.pub.Close()
	p.router.Close()
	p.wg.Wait()
}

// watched is a ledger that tells of its changes.
type watched struct {
	ledger
	changed chan struct{} // holds one
}

func (w *watched) Apply(b *kvevents.Batch) { w.ledger.Apply(b); signal(w.changed) }
func (w *watched) Forget(why Reason)       { w.ledger.Forget(why); signal(w.changed) }
func (w *watched) Trust(complete bool)     { w.ledger.Trust(complete); signal(w.changed) }

// wait waits until all that is in a process is known, and nothing else.
func (w *watched) wait(t *testing.T, p *process) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		w.mu.Lock()
		p.mu.Lock()
		done := w.complete && maps.Equal(w.held, p.truth)
		p.mu.Unlock()
		w.mu.Unlock()
		if done {
			return
		}
		select {
		case <-w.changed:
		case <-deadline:
			t.Fatalf("the sink does not come to hold what the engine does: %v, %v", w.held, p.truth)
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no list of descriptors")
	}
	return len(entries)
}

func memoryInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestAHundredKilledAndRestartedPublishersLeaveNothingBehind(t *testing.T) {
	there := goleak.IgnoreCurrent()
	before := descriptors(t)
	var warm uint64 // memory in use after the first of them
	any, err := zmtp.ParseEndpoint("tcp://127.0.0.1:*")
	if err != nil {
		t.Fatal(err)
	}
	p, events, replay := start(t, any, any)
	sink := &watched{ledger: ledger{held: make(map[kvevents.Key]int)}, changed: make(chan struct{}, 1)}
	f := New(Options{
		Source: Subscribe(events, "", zmtp.Options{}), Replay: Requests(replay, zmtp.Options{}),
		Sink: sink, Rank: -1, Jitter: func() float64 { return 0 },
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	defer cancel()
	for i := range 100 {
		for j := range 20 {
			p.publish(stored(kvevents.Key(100*i+j)), stored(kvevents.Key(j)))
			if j%3 == 0 {
				p.publish(removed(kvevents.Key(100*i + j)))
			}
		}
		sink.wait(t, p)
		if err := p.pub.WaitSubscribers(ctx, 1); err != nil {
			t.Fatal(err)
		}
		p.publish(stored(8)) // live
		sink.wait(t, p)
		p.kill()
		p, _, _ = start(t, events, replay)
		if i%2 == 0 {
			p.publish(stored(7))
		}
		if i == 20 {
			warm = memoryInUse()
		}
	}
	sink.wait(t, p)
	// A follower's queues may hold some more or less: a tenth of a MiB for each
	// publisher would be a leak.
	if now := memoryInUse(); now > warm+8<<20 {
		t.Errorf("%d bytes are in use after a hundred publishers, %d after twenty", now, warm)
	}
	s := f.Status()
	if n := s.Resets[Restarted] + s.Resets[Refused]; n < 90 || s.Resets[Lost] != 0 || s.Undecodable+s.Malformed != 0 {
		t.Errorf("%+v", s)
	}
	cancel()
	<-done
	p.kill()
	goleak.VerifyNone(t, there)
	if n := descriptors(t); n > before {
		t.Errorf("%d descriptors were open before, %d are after", before, n)
	}
}

func TestALiveBatchTellsHowFarBehindItIs(t *testing.T) {
	any, err := zmtp.ParseEndpoint("tcp://127.0.0.1:*")
	if err != nil {
		t.Fatal(err)
	}
	p, events, replay := start(t, any, any)
	defer p.kill()
	sink := &watched{ledger: ledger{held: make(map[kvevents.Key]int)}, changed: make(chan struct{}, 1)}
	f := New(Options{Source: Subscribe(events, "", zmtp.Options{}), Replay: Requests(replay, zmtp.Options{}), Sink: sink, Rank: -1})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	defer func() { cancel(); <-done }()
	waiting, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	if err := p.pub.WaitSubscribers(waiting, 1); err != nil {
		t.Fatal(err)
	}
	p.publish(stored(1))
	sink.wait(t, p)
	p.publish(stored(2))
	sink.wait(t, p)
	if s := f.Status(); s.LastEvent.IsZero() || s.Lag < 0 || s.Lag > 10*time.Second {
		t.Errorf("%+v", s)
	}
}
