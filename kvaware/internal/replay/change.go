// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"slices"
	"time"
)

// changeFleet has the events happen whose share of the requests has arrived.
func (r *run) changeFleet() {
	for len(r.events) > 0 && float64(r.arrived) >= r.events[0].After*float64(r.Trace.Requests) {
		e := r.events[0]
		r.events = r.events[1:]
		switch e.Kind {
		case Update:
			r.update()
			continue
		case Join:
			r.join(r.replicas[e.Replica])
		case Leave:
			r.leave(r.replicas[e.Replica])
		case Restart:
			p := r.replicas[e.Replica]
			if p.up {
				r.leave(p)
				r.rejoins = append(r.rejoins, rejoin{r.now + e.Down, p})
			}
		case Slow:
			p := r.replicas[e.Replica]
			p.engine.SetSpeed(p.params.Speed / e.Factor)
		}
	}
}

// update has all replicas load new weights.
func (r *run) update() {
	for _, p := range r.replicas {
		p.engine.ResetPrefixCache()
	}
}

func (r *run) rejoin() {
	r.rejoins = slices.DeleteFunc(r.rejoins, func(j rejoin) bool {
		if j.at > r.now {
			return false
		}
		r.join(j.replica)
		return true
	})
}

// join takes a replica into service. What waited for one is routed.
func (r *run) join(p *replica) {
	if p.up {
		return
	}
	p.up = true
	at, _ := slices.BinarySearch(r.up, p.id)
	r.up = slices.Insert(r.up, at, p.id)
	if r.member != nil {
		r.tellKV()
		r.member.Joined(r.now, p.id, p.capacity())
	}
	held := r.held
	r.held = nil
	for _, q := range held {
		r.route(q)
	}
}

// leave takes a replica out of service, with what it holds. Its requests fail and
// are routed anew, in the order in which they came to it.
func (r *run) leave(p *replica) {
	if !p.up {
		return
	}
	p.up = false
	at, _ := slices.BinarySearch(r.up, p.id)
	r.up = slices.Delete(r.up, at, at+1)
	r.tellKV()
	if r.member != nil {
		r.member.Left(r.now, p.id)
	}
	var failed []*request
	for p.head != nil {
		q := p.head
		p.remove(q)
		failed = append(failed, q)
		usage := Usage{Output: q.seq.Generated(), Cached: q.seq.Cached}
		p.engine.Cancel(r.now, &q.seq)
		r.routers[q.router].Ended(r.now, &q.Request, p.id, Failed, usage)
		r.watch.failed++
	}
	r.steps.drop(p)
	if r.listener != nil {
		p.Cleared()
	}
	if err := p.start(); err != nil {
		panic(err) // it was made of the same before
	}
	for _, q := range failed {
		r.route(q)
	}
}

// kvEvent is one of an engine's KV events.
type kvEvent struct {
	at      time.Duration // when the policy hears of it
	hash    uint64
	replica int
	kind    uint8
}

const (
	kvStored uint8 = iota
	kvRemoved
	kvCleared
)

// kvQueue holds the events on their way, in their order. Since all take as long,
// that is the order in which they arrive.
type kvQueue struct {
	events []kvEvent
	from   int
}

func (r *run) tell(e kvEvent) {
	e.at = r.now + r.listener.EventDelay()
	r.kv.events = append(r.kv.events, e)
}

// tellKV hands the policy the events that have arrived by now. It goes before every
// other call, so that nobody sees that they were not handed over one by one.
func (r *run) tellKV() {
	if r.listener == nil {
		return
	}
	q := &r.kv
	for q.from < len(q.events) && q.events[q.from].at <= r.now {
		switch e := &q.events[q.from]; e.kind {
		case kvStored:
			r.listener.Stored(e.at, e.replica, e.hash)
		case kvRemoved:
			r.listener.Removed(e.at, e.replica, e.hash)
		default:
			r.listener.Cleared(e.at, e.replica)
		}
		q.from++
	}
	if q.from > 1024 && q.from*2 > len(q.events) {
		q.events = q.events[:copy(q.events, q.events[q.from:])]
		q.from = 0
	}
}
