// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// base counts the requests in flight at each replica, which every proxy can do.
// It stands in for a policy's methods that have nothing else to do.
type base struct {
	rand    *rand.Rand
	block   int   // tokens
	running []int // requests routed and not ended, by replica
}

func newBase(s replay.Setting) base {
	return base{rand: s.Rand, block: max(s.BlockSize, 1)}
}

// fleet makes room for the replicas in up.
func (b *base) fleet(up []int) {
	b.running = grown(b.running, up[len(up)-1])
}

func (b *base) sent(replica int) { b.running[replica]++ }

func (b *base) Started(time.Duration, *replay.Request, int) {}

func (b *base) Progress(time.Duration, *replay.Request, int, int) {}

func (b *base) Ended(_ time.Duration, _ *replay.Request, replica int, _ replay.Outcome, _ replay.Usage) {
	if replica < len(b.running) && b.running[replica] > 0 {
		b.running[replica]--
	}
}

// least returns the replica of least cost, equal ones at random.
func (b *base) least(up []int, cost func(replica int) float64) int {
	best, least, ties := up[0], math.Inf(1), 0
	for _, i := range up {
		switch c := cost(i); {
		case c < least:
			best, least, ties = i, c, 1
		case c == least:
			if ties++; b.rand.IntN(ties) == 0 {
				best = i
			}
		}
	}
	return best
}

// fewest returns the replica with the fewest requests, equal ones at random.
func (b *base) fewest(up []int) int {
	return b.least(up, func(i int) float64 { return float64(b.running[i]) })
}

// mean returns the requests in flight per replica in service.
func (b *base) mean(up []int) float64 {
	n := 0
	for _, i := range up {
		n += b.running[i]
	}
	return float64(n) / float64(len(up))
}

func inService(up []int, replica int) bool {
	_, found := slices.BinarySearch(up, replica)
	return found
}

// grown returns s with room for index i.
func grown[T any](s []T, i int) []T {
	if n := i + 1 - len(s); n > 0 {
		s = append(s, make([]T, n)...)
	}
	return s
}

// tickets hands out what a policy remembers of a request, and reuses it.
type tickets[T any] struct{ free []*T }

func (t *tickets[T]) issue(r *replay.Request) *T {
	var p *T
	if n := len(t.free); n > 0 {
		p, t.free = t.free[n-1], t.free[:n-1]
		*p = *new(T)
	} else {
		p = new(T)
	}
	r.State = p
	return p
}

// of returns the ticket of a request in flight, else nil.
func (t *tickets[T]) of(r *replay.Request) *T {
	p, _ := r.State.(*T)
	return p
}

// redeem takes the ticket back. It is valid until the next one is issued.
func (t *tickets[T]) redeem(r *replay.Request) *T {
	p := t.of(r)
	if p != nil {
		r.State = nil
		t.free = append(t.free, p)
	}
	return p
}

// queue is a base that also counts the prompt tokens in flight: those that a
// policy sees in a request, until its first token.
type queue struct {
	base
	tickets tickets[int] // tokens
	queued  []int        // tokens, by replica
}

func newQueue(s replay.Setting) queue { return queue{base: newBase(s)} }

// fleet makes room for the replicas in up.
func (q *queue) fleet(up []int) {
	q.base.fleet(up)
	q.queued = grown(q.queued, up[len(up)-1])
}

func (q *queue) enqueue(r *replay.Request, replica, tokens int) {
	q.sent(replica)
	*q.tickets.issue(r) = tokens
	q.queued[replica] += tokens
}

func (q *queue) Started(_ time.Duration, r *replay.Request, replica int) {
	if t := q.tickets.of(r); t != nil {
		q.queued[replica] -= *t
		*t = 0
	}
}

func (q *queue) Ended(now time.Duration, r *replay.Request, replica int, o replay.Outcome, u replay.Usage) {
	q.Started(now, r, replica)
	if q.tickets.redeem(r) != nil {
		q.base.Ended(now, r, replica, o, u)
	}
}
