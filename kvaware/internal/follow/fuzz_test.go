// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// FuzzMessages has a publisher and its replay send anything.
func FuzzMessages(f *testing.F) {
	batch := kvevents.AppendBatch(nil, &kvevents.Batch{Rank: 1, Events: []kvevents.Event{stored(1, 2), removed(1), cleared()}}, 0)
	f.Add([]byte{3, 0, 8, 0}, batch)
	f.Add([]byte{4, 0, 0, 8, 1, 3, 0, 8, 0, 3, 0, 7, 2, 0, 1, 1, 255}, batch)
	f.Fuzz(func(t *testing.T, script, payload []byte) {
		sink := &ledger{held: make(map[kvevents.Key]int)}
		fo := New(Options{Sink: sink, Rank: len(payload)%4 - 1, Replay: func(context.Context) (Conn, error) {
			p := newPipe(100)
			fill(p, script, payload)
			_ = p.Close()
			return p, nil
		}})
		p := newPipe(100)
		fill(p, script, payload)
		_ = p.Close()
		s := read(p, nil)
		defer s.close()
		_ = fo.follow(t.Context(), &connection{}, s)
		if got := fo.Status(); got.Batches+got.Malformed+got.Undecodable+got.Repeated+got.OtherRank == 0 && len(script) > 0 && len(script) < 100 {
			t.Errorf("%d bytes of messages leave no trace", len(script))
		}
	})
}

// fill offers messages: a count of frames, their lengths, and one byte that a
// sequence number ends with.
func fill(p *pipe, script, payload []byte) {
	for len(script) > 0 {
		n := min(int(script[0]%6), len(script)-1)
		lengths := script[1 : 1+n]
		script = script[1+n:]
		frames := make([][]byte, 0, n)
		for i, l := range lengths {
			frame := make([]byte, l%9)
			if len(frame) == 8 && len(script) > 0 {
				copy(frame, number(uint64(int8(script[0]))))
			}
			if i == n-1 {
				frame = payload
			}
			frames = append(frames, frame)
		}
		p.offer(frames...)
	}
}
