// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

// announcer is an engine's publisher of KV events, with its replay endpoint.
type announcer struct {
	t      testing.TB
	pub    *zmtp.Publisher
	router *zmtp.Listener
	at     zmtp.Endpoint
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu   sync.Mutex // guards kept
	kept [][]byte
}

// report starts a announcer at ports of 127.0.0.1; 0 takes any.
func report(t testing.TB, port, replayPort int) *announcer {
	t.Helper()
	r := &announcer{t: t, pub: zmtp.NewPublisher(zmtp.Options{})}
	var err error
	if r.at, err = r.pub.Bind(local(port)); err != nil {
		t.Fatal(err)
	}
	if r.router, err = zmtp.Listen(local(replayPort), zmtp.Options{Type: zmtp.ROUTER}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.wg.Go(func() { r.serve(ctx) })
	t.Cleanup(r.kill)
	return r
}

func local(port int) zmtp.Endpoint {
	return zmtp.Endpoint{Network: "tcp", Address: fmt.Sprint("127.0.0.1:", port)}
}

func portOf(at zmtp.Endpoint) string {
	_, port, _ := net.SplitHostPort(at.Address)
	return port
}

// options are those of a policy that follows it.
func (r *announcer) options() string {
	return fmt.Sprintf("kv_events {\nport %s\nreplay_port %s\n}", portOf(r.at), portOf(r.router.Endpoint()))
}

func (r *announcer) serve(ctx context.Context) {
	for {
		s, err := r.router.Accept(ctx)
		if err != nil {
			return
		}
		r.wg.Go(func() {
			stop := context.AfterFunc(ctx, func() { s.Close() })
			defer stop()
			defer s.Close()
			var m zmtp.Message
			for s.Receive(&m) == nil {
				r.mu.Lock()
				kept := r.kept
				r.mu.Unlock()
				for seq := binary.BigEndian.Uint64(m.Frames[1]); seq < uint64(len(kept)); seq++ {
					_ = s.Send(nil, binary.BigEndian.AppendUint64(nil, seq), kept[seq])
				}
				_ = s.Send(nil, binary.BigEndian.AppendUint64(nil, ^uint64(0)), nil)
			}
		})
	}
}

// publish publishes a batch.
func (r *announcer) publish(events ...kvevents.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	payload := kvevents.AppendBatch(nil, &kvevents.Batch{Time: float64(time.Now().UnixNano()) / 1e9, Rank: -1, Events: events}, 0)
	r.pub.Publish(nil, binary.BigEndian.AppendUint64(nil, uint64(len(r.kept))), payload)
	r.kept = append(r.kept, payload)
}

func (r *announcer) kill() {
	r.cancel()
	_ = r.pub.Close()
	_ = r.router.Close()
	r.wg.Wait()
}

// storedBlocks is an event of n blocks of a prompt of its own.
func storedBlocks(prompt uint64, n int) kvevents.Event {
	e := kvevents.Event{Kind: kvevents.Stored, Group: -1, BlockSize: 16}
	for i := range n {
		e.Blocks = append(e.Blocks, prompt<<32|uint64(i))
		for j := range 16 {
			e.Tokens = append(e.Tokens, uint32(prompt)*1000+uint32(16*i+j))
		}
	}
	return e
}

// followedStates asks the admin API.
func followedStates(t testing.TB, c *proxytest.Caddy) (states []eventsState) {
	t.Helper()
	status, _, body := c.Admin("GET", "/kv_aware/events", "")
	if status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if err := json.Unmarshal([]byte(body), &states); err != nil {
		t.Fatal(err)
	}
	return states
}

// wantFollowed waits until the only upstream that is followed holds so many blocks,
// and all is known of it.
func wantFollowed(t testing.TB, c *proxytest.Caddy, blocks int) (state eventsState) {
	t.Helper()
	eventually(t, fmt.Sprint("the upstream is known to hold ", blocks, " blocks"), func() bool {
		states := followedStates(t, c)
		if len(states) != 1 {
			return false
		}
		state = states[0]
		return state.Complete && state.GPUBlocks == blocks
	})
	return state
}
