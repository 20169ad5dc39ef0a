// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"testing"
	"time"
)

// Choose, charge and release, with 32 streams on each upstream and a clock that
// lets the model run as often as it would at 1000 requests per second.
func BenchmarkChoose(b *testing.B) {
	for _, n := range []int{3, 64, 1000} {
		b.Run(fmt.Sprintf("upstreams=%d", n), func(b *testing.B) {
			l, c, ups := pool(n)
			for _, u := range ups {
				for range 32 {
					place(l, u, one(2000, 500, 256, true)).Generated(0, 1, c.at)
				}
			}
			d := one(8000, 0, 256, true)
			decide := least(8000, nil)
			var tk Ticket
			b.ReportAllocs()
			for b.Loop() {
				c.at += time.Millisecond
				l.Choose(&tk, &d, ups, decide)
				tk.Release(Completed, c.at)
			}
		})
	}
}

func BenchmarkChooseParallel(b *testing.B) {
	l := New(Options{})
	ups := make([]*Upstream, 64)
	for i := range ups {
		ups[i] = l.NewUpstream()
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		d := one(8000, 0, 256, true)
		decide := least(8000, nil)
		var tk Ticket
		for pb.Next() {
			l.Choose(&tk, &d, ups, decide)
			tk.Release(Completed, l.Now())
		}
	})
}

func BenchmarkGenerated(b *testing.B) {
	for _, choices := range []int{1, 8, 128} {
		b.Run(fmt.Sprintf("choices=%d", choices), func(b *testing.B) {
			l, c, ups := pool(1)
			d := one(2000, 0, 1<<30, true)
			d.Choices = choices
			tk := place(l, ups[0], d)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				tk.Generated(n%choices, n/choices, c.at)
				n++
			}
		})
	}
}

// Many streams of one upstream, each on a goroutine of its own.
func BenchmarkGeneratedParallel(b *testing.B) {
	l, _, ups := pool(1)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		tk := place(l, ups[0], one(2000, 0, -1, true))
		for n := 1; pb.Next(); n++ {
			tk.Generated(0, n, time.Hour)
		}
		tk.Release(Completed, time.Hour)
	})
}

// The cost of the model, per ticket looked at: every one of them changes.
func BenchmarkAdvance(b *testing.B) {
	l, c, ups := pool(1)
	u := ups[0]
	for range advanceBudget {
		place(l, u, one(2000, 0, 1<<30, false))
	}
	c.at += time.Minute
	b.ReportAllocs()
	for b.Loop() {
		c.at += advanceEvery
		u.advance(c.at, advanceBudget)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/advanceBudget, "ns/ticket")
}
