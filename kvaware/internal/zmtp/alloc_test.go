// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"net"
	"testing"
)

// eventsPeer sends the same three frames again and again, 300 bytes in all.
func eventsPeer(conn net.Conn) {
	conn.Write(hello(1, "PUB"))
	var burst []byte
	for range 200 {
		burst = appendMessage(burst, [][]byte{nil, make([]byte, 8), make([]byte, 292)})
	}
	for {
		if _, err := conn.Write(burst); err != nil {
			return
		}
	}
}

func TestReceivingAllocatesNothing(t *testing.T) {
	s := dial(t, scripted(t, eventsPeer), Options{Type: SUB})
	var m Message
	allocs := testing.AllocsPerRun(10_000, func() {
		if err := s.Receive(&m); err != nil || len(m.Frames) != 3 || len(m.Frames[2]) != 292 {
			t.Fatal(err, m.Frames)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations a message", allocs)
	}
}

func BenchmarkReceive(b *testing.B) {
	s := dial(b, scripted(b, eventsPeer), Options{Type: SUB})
	var m Message
	b.ReportAllocs()
	b.SetBytes(300)
	for b.Loop() {
		if err := s.Receive(&m); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	s.Close()
}

func BenchmarkPublishAndReceive(b *testing.B) {
	p, at := publisher(b, Options{HighWaterMark: 1 << 30})
	s := dial(b, at, Options{Type: SUB})
	if err := p.WaitSubscribers(patient(b), 1); err != nil {
		b.Fatal(err)
	}
	var m Message
	frames := [][]byte{nil, make([]byte, 8), make([]byte, 292)}
	b.ReportAllocs()
	b.SetBytes(300)
	const burst = 1000
	n := 0
	for b.Loop() {
		if n%burst == 0 {
			for range burst {
				p.Publish(frames...)
			}
		}
		n++
		if err := s.Receive(&m); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}
