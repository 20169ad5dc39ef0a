// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"container/heap"
	"errors"
	"io"
	"math"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/engine"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/trace"
)

// request is one under way.
type request struct {
	Request
	seq     engine.Sequence
	turn    *trace.Turn
	session *session
	output  []uint64

	measured   bool
	router     int // to which it came
	replica    int
	first      time.Duration // first token
	due        int           // tokens at which the policy is told next
	visit      uint32        // counts the replicas it was at, also of those whose memory it has
	prev, next *request
}

// session is one under way.
type session struct {
	*trace.Session
	base   int           // ID of its first request
	turn   int           // under way or next
	at     time.Duration // start on the run's clock
	counts bool          // its first turn is measured
	tokens int           // generated for it
	busy   time.Duration
}

// arrivals gives the requests of a run in the order in which they come.
type arrivals struct {
	src     trace.Source
	scale   float64       // of the trace's clock to the run's
	lead    time.Duration // on the run's clock, from the trace's start to the run's
	ahead   *session
	done    bool // the source is
	stopped bool
	started int // requests of sessions that were read
	early   int // requests to come of sessions that began before the run
	turns   turnHeap
	serial  int
	clients int // sessions that may yet start, of a closed loop
	closed  bool
}

// nextTurn is a session whose next turn comes at a time.
type nextTurn struct {
	at     time.Duration
	serial int
	s      *session
}

type turnHeap []nextTurn

func (h turnHeap) Len() int { return len(h) }
func (h turnHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].serial < h[j].serial
}
func (h turnHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *turnHeap) Push(x any)   { *h = append(*h, x.(nextTurn)) }
func (h *turnHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = nextTurn{}
	*h = old[:len(old)-1]
	return x
}

const never = time.Duration(math.MaxInt64)

// Errors of a run whose rate does not suit its trace.
var (
	ErrTooMany = errors.New("too many sessions would go on at once; give a lower rate, or a trace of shorter think times")
	ErrTooSlow = errors.New("the requests would come over more than a hundred years; give a higher rate")
)

// maxUnderWay bounds the requests that are yet to come of sessions under way when a
// run begins, which are in memory. Tests lower it.
var maxUnderWay = 2 << 20

const longest = 100 * 365 * 24 * time.Hour // of a run

// read has the next session at hand, if there is one. Of a session that began before
// the run come the turns that a usual pace leaves over for the run. So the run finds
// sessions of all ages from its beginning, if with cold caches.
func (a *arrivals) read() error {
	for a.ahead == nil && !a.done {
		next, err := a.src.Next()
		if err == io.EOF {
			a.done = true
			return nil
		}
		if err != nil {
			return err
		}
		s := &session{Session: next, base: a.started}
		a.started += len(next.Turns)
		if a.closed {
			a.ahead = s
			return nil
		}
		at := float64(next.Start) * a.scale
		if at > float64(longest) {
			return ErrTooSlow
		}
		s.at = time.Duration(at) - a.lead
		if s.at >= 0 {
			a.ahead = s
			return nil
		}
		// Also of sessions that are over, so that reading them ends.
		if a.started > 4*maxUnderWay {
			return ErrTooMany
		}
		for at := s.at; s.turn < len(s.Turns); s.turn++ {
			t := &s.Turns[s.turn]
			if at+t.Think >= 0 {
				a.push(at+t.Think, s)
				if a.early += len(s.Turns) - s.turn; a.early > maxUnderWay {
					return ErrTooMany
				}
				break
			}
			at += t.Usual()
		}
	}
	return nil
}

func (a *arrivals) push(at time.Duration, s *session) {
	a.serial++
	heap.Push(&a.turns, nextTurn{at, a.serial, s})
}

// stop has no more requests come.
func (a *arrivals) stop() { a.done, a.stopped, a.ahead, a.turns = true, true, nil, nil }

// next is when the next request comes.
func (a *arrivals) next(now time.Duration) (time.Duration, error) {
	if err := a.read(); err != nil {
		return 0, err
	}
	at := never
	if a.ahead != nil {
		if !a.closed {
			at = max(a.ahead.at, now)
		} else if a.clients > 0 {
			at = now
		}
	}
	if len(a.turns) > 0 {
		at = min(at, max(a.turns[0].at, now))
	}
	return at, nil
}

// take returns the session whose next request comes at the time that next gave.
func (a *arrivals) take(now time.Duration) *session {
	if len(a.turns) > 0 && a.turns[0].at <= now {
		return heap.Pop(&a.turns).(nextTurn).s
	}
	s := a.ahead
	a.ahead = nil
	a.clients--
	return s
}

// ended has a session go on after an answer. It tells whether that was the last.
func (a *arrivals) ended(now time.Duration, s *session) (last bool) {
	s.turn++
	if s.turn == len(s.Turns) {
		a.clients++
		return true
	}
	if !a.stopped {
		a.push(now+s.Turns[s.turn].Think, s)
	}
	return false
}
