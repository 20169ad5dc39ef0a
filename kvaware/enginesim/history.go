// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

// history keeps the last batches for those who missed them.
type history struct {
	limit int

	mu   sync.Mutex  // guards last
	last []published // in the order of their numbers, up to twice limit of them
}

// published is a batch as it went out.
type published struct {
	seq     uint64
	payload []byte
}

func (h *history) add(seq uint64, payload []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.last) >= 2*h.limit {
		n := copy(h.last, h.last[len(h.last)-h.limit:])
		clear(h.last[n:])
		h.last = h.last[:n]
	}
	h.last = append(h.last, published{seq, payload})
}

// from returns the batches kept from a number on.
func (h *history) from(seq uint64) []published {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := h.last[max(0, len(h.last)-h.limit):]
	i, _ := slices.BinarySearchFunc(last, seq, func(m published, seq uint64) int {
		switch {
		case m.seq < seq:
			return -1
		case m.seq > seq:
			return 1
		}
		return 0
	})
	return slices.Clone(last[i:])
}

// serve answers replays until ctx is done, as vLLM does
// (vllm/distributed/kv_events.py): asked with an empty frame and the first number
// wanted, it sends an empty frame, number and batch for each, and at the end the
// number -1 with nothing.
func (h *history) serve(ctx context.Context, l *zmtp.Listener) {
	var peers sync.WaitGroup
	defer peers.Wait()
	defer l.Close()
	for {
		s, err := l.Accept(ctx)
		if err != nil {
			return
		}
		peers.Go(func() {
			defer s.Close()
			defer context.AfterFunc(ctx, func() { s.Close() })()
			h.answer(s)
		})
	}
}

func (h *history) answer(s *zmtp.Socket) {
	end := binary.BigEndian.AppendUint64(nil, 1<<64-1)
	var asked zmtp.Message
	for s.Receive(&asked) == nil {
		if len(asked.Frames) != 2 || len(asked.Frames[1]) != 8 {
			continue
		}
		number := make([]byte, 8)
		for _, m := range h.from(binary.BigEndian.Uint64(asked.Frames[1])) {
			binary.BigEndian.PutUint64(number, m.seq)
			if s.Send(nil, number, m.payload) != nil {
				return
			}
		}
		if s.Send(nil, end, nil) != nil {
			return
		}
	}
}
