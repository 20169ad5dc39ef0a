// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

// arrivals is a Sink that tells when batches come, and keeps nothing.
type arrivals struct {
	trusted chan struct{} // holds one
	came    chan time.Time
	left    int // of the batches that nobody asks the time of
	done    chan struct{}
}

func (a *arrivals) Apply(*kvevents.Batch) {
	if a.came != nil {
		a.came <- time.Now()
		return
	}
	if a.left--; a.left == 0 {
		close(a.done)
	}
}
func (a *arrivals) Forget(Reason) {}
func (a *arrivals) Trust(bool)    { signal(a.trusted) }
func (a *arrivals) Room() int     { return 0 }

// followed has a sink follow a publisher over a socket.
func followed(b *testing.B, sink *arrivals) *zmtp.Publisher {
	b.Helper()
	pub := zmtp.NewPublisher(zmtp.Options{HighWaterMark: 1 << 30})
	at, err := pub.Bind(zmtp.Endpoint{Network: "tcp", Address: "127.0.0.1:0"})
	if err != nil {
		b.Fatal(err)
	}
	sink.trusted = make(chan struct{}, 1)
	f := New(Options{Source: Subscribe(at, "", zmtp.Options{}), Sink: sink, Rank: -1})
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-done; _ = pub.Close() })
	if err := pub.WaitSubscribers(ctx, 1); err != nil {
		b.Fatal(err)
	}
	return pub
}

// prefill is a batch as of a prompt of so many blocks of 16 tokens.
func prefill(blocks int) []byte {
	e := kvevents.Event{Kind: kvevents.Stored, Group: -1, BlockSize: 16}
	for i := range blocks {
		e.Blocks = append(e.Blocks, kvevents.Key(i)*0x9e3779b97f4a7c15)
		for j := range 16 {
			e.Tokens = append(e.Tokens, uint32(16*i+j)%150_000)
		}
	}
	return kvevents.AppendBatch(nil, &kvevents.Batch{Time: 1, Rank: 0, Events: []kvevents.Event{e}}, 0)
}

// BenchmarkFollow is the way of batches from a publisher's socket to the sink, which
// costs nothing: publisher, transport, sequence and decoder, on as many processors
// as there are.
func BenchmarkFollow(b *testing.B) {
	const blocks = 64
	sink := &arrivals{left: b.N, done: make(chan struct{})}
	pub := followed(b, sink)
	payload := prefill(blocks)
	b.ReportAllocs()
	b.SetBytes(int64(len(payload)))
	b.ResetTimer()
	for seq := range uint64(b.N) {
		pub.Publish(nil, number(seq), payload)
	}
	<-sink.done
	b.ReportMetric(float64(b.N)*blocks/b.Elapsed().Seconds(), "blocks/s")
}

// BenchmarkPublishToSink is how long after Publish a batch reaches the sink, one at a
// time.
func BenchmarkPublishToSink(b *testing.B) {
	sink := &arrivals{came: make(chan time.Time)}
	pub := followed(b, sink)
	payload := prefill(16)
	took := make([]time.Duration, 0, b.N)
	b.ReportAllocs()
	b.ResetTimer()
	for seq := range uint64(b.N) {
		sent := time.Now()
		pub.Publish(nil, number(seq), payload)
		took = append(took, (<-sink.came).Sub(sent))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}
