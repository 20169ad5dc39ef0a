// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/output"
)

// reference is the ledger without a model, as its documentation reads: nothing
// is kept but what happened, and every sum is worked out anew.
type reference struct{ requests []*request }

type request struct {
	up      int
	d       Demand
	started []bool // by sequence
	ended   []bool
	counts  []int64
	gone    bool
}

func (r *reference) charge(up int, d Demand) *request {
	n := max(1, len(d.Prompts)) * max(1, d.Choices)
	q := &request{up: up, d: d, started: make([]bool, n), ended: make([]bool, n), counts: make([]int64, n)}
	r.requests = append(r.requests, q)
	return q
}

// sums returns P, D and R of an upstream.
func (r *reference) sums(up int) (p, d, running int64) {
	for _, q := range r.requests {
		if q.gone || q.up != up {
			continue
		}
		choices := max(1, q.d.Choices)
		// part is what is left of n tokens when a sequence has generated g.
		part := func(n, g int64) int64 {
			e := int64(q.d.Expected)
			switch {
			case q.d.Pooling || e == 0:
				return 0
			case e < 0:
				return n
			}
			return n * max(0, e-g) / e
		}
		for k := range len(q.started) / choices {
			open, begun, most := false, false, int64(0)
			var n, uncached int64
			if len(q.d.Prompts) > 0 {
				n = int64(q.d.Prompts[k].Tokens)
				uncached = max(0, n-int64(q.d.Prompts[k].Cached))
			}
			for i := k * choices; i < (k+1)*choices; i++ {
				begun = begun || q.started[i]
				if !q.ended[i] {
					open = true
					running++
					most = max(most, part(n, q.counts[i]))
					d += part(q.counts[i], q.counts[i])
				}
			}
			if open && begun {
				d += most
			} else if open {
				p += uncached
			}
		}
	}
	return p, d, running
}

// drive runs a sequence of operations read from data on a ledger and on the
// reference, and compares them after each one. Once moveClock has been drawn the
// model may be at work, and what must hold then is checked instead.
func drive(t *testing.T, data []byte) {
	const (
		choose = iota
		started
		finished
		release
		moveClock
		operations = 16 // every further one is a count: most of what happens is tokens
	)
	l, c, ups := pool(3)
	var ref reference
	var tickets []*Ticket
	modelled := false
	next := func() int {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int(b)
	}
	for len(data) > 0 && len(tickets) < 200 {
		switch op := next() % operations; {
		case op == choose || len(tickets) == 0:
			d := Demand{Choices: next() % 5, Expected: next()%40 - 1, Stream: next()%2 == 0, Pooling: next()%8 == 0}
			for range next() % 4 {
				n := next()
				d.Prompts = append(d.Prompts, Prompt{Tokens: n * 7, Cached: next() * 8, Prefill: time.Duration(n) * time.Millisecond})
			}
			up, tk := next()%len(ups), new(Ticket)
			l.Choose(tk, &d, ups, func([]candidate) int { return up })
			tickets = append(tickets, tk)
			ref.charge(up, d)
		case op == moveClock:
			modelled = true
			c.at += time.Duration(next()) * 50 * time.Millisecond
		default:
			k := next() % len(tickets)
			tk, q := tickets[k], ref.requests[k]
			seq := next() % len(q.started)
			switch op {
			default:
				n := next() % 50
				tk.Generated(seq, n, c.at)
				q.started[seq] = q.started[seq] || !q.ended[seq]
				q.counts[seq] = int64(n)
			case started:
				tk.Started(seq, c.at)
				q.started[seq] = q.started[seq] || !q.ended[seq]
			case finished:
				tk.Finished(seq)
				q.ended[seq] = true
			case release:
				if tk.Release(Outcome(next()%6), c.at) == q.gone {
					t.Fatalf("ticket %d: released twice or not at all", k)
				}
				q.gone = true
			}
		}
		for i, u := range ups {
			s := l.Snapshot(u)
			p, d, r := ref.sums(i)
			if s.Running != r {
				t.Fatalf("upstream %d runs %d, want %d", i, s.Running, r)
			}
			if !modelled && (s.PrefillTokens != p || s.DecodeTokens != d) {
				t.Fatalf("upstream %d holds P, D = %d, %d, want %d, %d", i, s.PrefillTokens, s.DecodeTokens, p, d)
			}
			checkBooks(t, u)
		}
	}
	for _, tk := range tickets {
		tk.Release(Canceled, c.at)
	}
	expectZero(t, l, ups)
}

// checkBooks checks that an upstream's sums are what its tickets remember, and
// that these are what their prompts and sequences remember. Nothing else may be
// using the upstream.
func checkBooks(t *testing.T, u *Upstream) {
	t.Helper()
	add := func(to *sums, s sums) {
		to.prefill += s.prefill
		to.decode += s.decode
		to.running += s.running
		to.modelledPrefill += s.modelledPrefill
		to.modelledDecode += s.modelledDecode
		to.queue += s.queue
		to.waiting += s.waiting
		to.contexts += s.contexts
	}
	var all sums
	if first := u.oldest; first != nil {
		for tk := first; ; {
			var parts sums
			for i := range tk.prompts {
				add(&parts, tk.prompts[i].holds)
			}
			for i := range tk.sequences {
				add(&parts, tk.sequences[i].holds)
			}
			if parts != tk.holds {
				t.Fatalf("a ticket holds %+v, its parts %+v", tk.holds, parts)
			}
			if h := tk.holds; h.prefill < 0 || h.decode < 0 || h.running < 0 || h.modelledPrefill < 0 ||
				h.modelledDecode < 0 || h.modelledDecode > h.decode || h.queue < 0 || h.contexts < 0 {
				t.Fatalf("a ticket holds %+v", h)
			}
			add(&all, tk.holds)
			if tk = tk.next; tk == first {
				break
			}
		}
	}
	var stages [output.Bins]int32
	if first := u.oldest; first != nil {
		for tk := first; ; {
			for i := range tk.sequences {
				if s := &tk.sequences[i]; s.stage > 0 {
					stages[s.stage-1]++
				}
			}
			if tk = tk.next; tk == first {
				break
			}
		}
	}
	for i, want := range stages {
		if got := u.stages[i].Load(); got != want {
			t.Fatalf("the upstream counts %d sequences at stage %d, its tickets %d", got, i, want)
		}
	}
	got := sums{u.prefill.Load(), u.decode.Load(), u.running.Load(), u.modelledPrefill.Load(), u.modelledDecode.Load(), u.queue.Load(), u.contexts.Load(), u.waiting.Load()}
	if got != all {
		t.Fatalf("the upstream's sums are %+v, its tickets hold %+v", got, all)
	}
}

func TestTheLedgerAgreesWithANaiveReference(t *testing.T) {
	rnd := rand.New(rand.NewPCG(11, 12))
	for range 300 {
		data := make([]byte, rnd.IntN(600))
		still := rnd.IntN(3) > 0
		for i := range data {
			data[i] = byte(rnd.Uint32())
			if still && data[i]%16 == 4 {
				data[i]++ // never moves the clock
			}
		}
		drive(t, data)
	}
}

func FuzzLedger(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 1, 11, 0, 1, 1, 50, 10, 0, 1, 0, 0, 7, 0, 0, 5, 2, 0, 0, 3, 0, 0, 0})
	f.Add([]byte{0, 3, 30, 0, 1, 2, 50, 10, 60, 0, 1, 7, 0, 1, 9, 7, 0, 4, 3, 2, 0, 1, 4, 40, 7, 0, 0, 2, 3, 0, 0, 3})
	f.Add([]byte{0, 2, 0, 1, 1, 3, 9, 9, 9, 9, 9, 9, 2, 4, 255, 4, 255, 7, 0, 1, 1, 3, 0, 0, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		drive(t, data[:min(len(data), 2000)])
	})
}
