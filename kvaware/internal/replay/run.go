// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"fmt"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/engine"
)

// run is a replay under way. It is a discrete-event simulation: the clock jumps to
// the next end of a step, arrival, poll or change of the fleet. What happens at one
// time happens in that order, ends of steps first and by the replica's number.
type run struct {
	Config
	limit    limit
	routers  []Policy // one for each router
	member   Member
	poller   Poller
	listener Listener
	streams  bool // they are Streamers

	now      time.Duration
	replicas []*replica
	up       []int // in service, ascending
	fits     []int // scratch of route
	steps    stepHeap
	arrivals arrivals
	fired    []firing
	begins   []*replica
	held     []*request // arrived while no replica was in service
	spare    []*request

	events  []Event
	rejoins []rejoin
	arrived int
	pollAt  time.Duration
	idle    bool // the fleet was when it was last polled
	kv      kvQueue
	watch   watch

	least, most int // capacities of the smallest and the largest replica
}

type rejoin struct {
	at      time.Duration
	replica *replica
}

// Run replays a trace. Equal configurations give equal results.
func Run(ctx context.Context, c Config) (*Result, error) {
	return simulate(ctx, c, limit{})
}

// simulate is Run that ends with errOverloaded when it is certain that the means of
// the measured requests will exceed the limit.
func simulate(ctx context.Context, c Config, most limit) (*Result, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	src, err := c.Trace.Open(c.Seed)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	r := &run{Config: c, limit: most, events: inOrder(c.Events), pollAt: never}
	r.arrivals = arrivals{src: src, scale: 1, clients: c.Clients, closed: c.Clients > 0}
	if c.Rate > 0 {
		r.arrivals.scale = c.Trace.Rate / c.Rate
	}
	r.arrivals.lead = c.Trace.Life
	r.watch.begin(r)
	if err := r.employ(); err != nil {
		return nil, err
	}
	if err := r.assemble(); err != nil {
		return nil, err
	}
	for _, p := range r.routers {
		if s, ok := p.(Seer); ok {
			s.See(sight{r})
		}
	}
	if err := r.loop(ctx); err != nil {
		return nil, err
	}
	return r.watch.result(r), nil
}

// assemble starts the fleet. A replica whose first event is to join is not yet in
// service.
func (r *run) assemble() error {
	absent := make(map[int]bool)
	for i := len(r.events) - 1; i >= 0; i-- {
		if e := r.events[i]; e.Kind == Join || e.Kind == Leave || e.Kind == Restart {
			absent[e.Replica] = e.Kind == Join
		}
	}
	for i, spec := range r.Fleet.Replicas {
		p := &replica{run: r, id: i, at: -1, params: spec.params(r.BlockSize), marks: make([][]mark, r.ProgressEvery)}
		if err := p.start(); err != nil {
			return fmt.Errorf("replica %d (%s): %w", i, spec.Machine.Name, err)
		}
		r.replicas = append(r.replicas, p)
		if i == 0 || p.engine.Capacity() < r.least {
			r.least = p.engine.Capacity()
		}
		r.most = max(r.most, p.engine.Capacity())
		if !absent[i] {
			r.join(p)
		}
	}
	return nil
}

func (r *run) loop(ctx context.Context) error {
	for events := 0; ; events++ {
		if events&0xffff == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		arrival, err := r.arrivals.next(r.now)
		if err != nil {
			return err
		}
		at := arrival
		if len(r.steps) > 0 {
			at = min(at, r.steps[0].next)
		}
		for _, j := range r.rejoins {
			at = min(at, j.at)
		}
		if at == never {
			break
		}
		if len(r.steps) > 0 || !r.idle { // what is idle is polled once
			at = min(at, r.pollAt)
		}
		at = min(at, r.watch.sampleAt)
		r.now = at
		for len(r.steps) > 0 && r.steps[0].next <= at {
			r.step(r.steps[0])
		}
		if at >= r.watch.sampleAt {
			r.watch.sample(r)
		}
		if len(r.rejoins) > 0 {
			r.rejoin()
		}
		if at > r.pollAt { // it was idle
			if late := at % r.poller.PollEvery(); late > 0 {
				r.pollAt = at - late + r.poller.PollEvery()
			} else {
				r.pollAt = at
			}
		}
		if at == r.pollAt {
			r.poll()
		}
		if arrival <= at {
			r.arrive(r.arrivals.take(at))
		}
		if len(r.begins) > 0 {
			r.begin()
		}
		if r.watch.overloaded {
			return errOverloaded
		}
	}
	for _, q := range r.held { // no replica ever came
		r.watch.rejected++
		r.drop(q)
	}
	return nil
}

// step ends a replica's step and begins the next one.
func (r *run) step(p *replica) {
	r.advance(p)
	p.steps++
	for _, f := range r.fired {
		if f.finished {
			r.finished(p, f.r)
		} else {
			r.started(p, f.r)
		}
	}
	clear(r.fired)
	r.fired = r.fired[:0]
	p.report(r.now)
}

func (r *run) advance(p *replica) {
	next, stepping := p.engine.Advance(r.now)
	if stepping {
		p.next = next
		r.steps.set(p)
	} else {
		r.steps.drop(p)
	}
}

// begin has idle replicas begin a step with what came at this time.
func (r *run) begin() {
	for _, p := range r.begins {
		p.begins = false
		if p.at < 0 {
			r.advance(p)
		}
	}
	clear(r.begins)
	r.begins = r.begins[:0]
}

func (r *run) started(p *replica, q *request) {
	q.first = r.now
	if q.Stream || r.streams {
		r.tellKV()
		r.routers[q.router].Started(r.now, &q.Request, p.id)
		p.markNext(q, 1)
	}
}

func (r *run) finished(p *replica, q *request) {
	p.remove(q)
	r.tellKV()
	r.routers[q.router].Ended(r.now, &q.Request, p.id, Completed, Usage{Output: q.seq.Output, Cached: q.seq.Cached})
	r.watch.completed(r, p, q)
	s := q.session
	s.tokens += q.seq.Output
	s.busy += r.now - q.Arrived
	if r.arrivals.ended(r.now, s) {
		r.watch.sessionEnded(s)
	}
	r.drop(q)
}

// drop keeps a request's memory for another.
func (r *run) drop(q *request) {
	q.State, q.session, q.turn = nil, nil, nil
	r.spare = append(r.spare, q)
}

// arrive has a session's next request come.
func (r *run) arrive(s *session) {
	if s.turn == 0 && s.Update {
		r.update()
	}
	r.changeFleet()
	r.arrived++
	var q *request
	if n := len(r.spare); n > 0 {
		q = r.spare[n-1]
		r.spare = r.spare[:n-1]
	} else {
		q = new(request)
	}
	t := &s.Turns[s.turn]
	q.session, q.turn = s, t
	q.measured = r.arrived > r.watch.warmUp
	if s.turn == 0 {
		s.counts = q.measured
	}
	q.router = r.routerOf(s)
	blocks, output := t.Hash(r.BlockSize, q.Blocks[:0], q.output[:0])
	q.output = output
	q.Request = Request{
		ID: s.base + s.turn, Arrived: r.now, Session: s.ID, Tenant: s.Tenant,
		Prompt: t.Prompt, Blocks: blocks, MaxTokens: t.MaxTokens, Stream: !t.Whole,
		truth: q,
	}
	if r.Hints {
		q.MaxTokens = t.Output
	}
	if r.arrived == r.Trace.Requests {
		r.arrivals.stop()
	}
	r.watch.arrived(r)
	if t.Prompt+t.Output > r.most {
		r.watch.rejected++
		if r.arrivals.ended(r.now, s) {
			r.watch.sessionEnded(s)
		}
		r.drop(q)
		return
	}
	r.route(q)
}

// route sends a request to the replica that the policy picks, of those in service
// whose context it fits, as a deployment's routes would have it.
func (r *run) route(q *request) {
	up, need := r.up, q.turn.Prompt+q.turn.Output
	if need > r.least {
		r.fits = r.fits[:0]
		for _, i := range r.up {
			if need <= r.replicas[i].engine.Capacity() {
				r.fits = append(r.fits, i)
			}
		}
		up = r.fits
	}
	if len(up) == 0 {
		r.held = append(r.held, q)
		return
	}
	r.tellKV()
	pick := r.routers[q.router].Route(r.now, &q.Request, up)
	if pick < 0 || pick >= len(r.replicas) || !r.replicas[pick].up || need > r.replicas[pick].engine.Capacity() {
		panic(fmt.Sprintf("policy %s picked replica %d of %v", r.Policy.Name, pick, up))
	}
	p := r.replicas[pick]
	q.replica = pick
	q.seq.Prompt, q.seq.Output = q.turn.Prompt, q.turn.Output
	q.seq.Blocks, q.seq.OutputBlocks, q.seq.Owner = q.Blocks, q.output, q
	if err := p.engine.Submit(r.now, &q.seq); err != nil {
		panic(err) // it fits, and the trace's lengths are positive
	}
	p.push(q)
	if !p.begins {
		p.begins = true
		r.begins = append(r.begins, p)
	}
}

// metrics are a replica's gauges. Of the tokens the caller subtracts what it knows.
func (p *replica) metrics() (Metrics, engine.Stats) {
	st := p.engine.Stats()
	return Metrics{
		Running: st.Running, Waiting: st.Waiting,
		KVUsage:          float64(st.UsedBlocks) / float64(st.Blocks),
		PromptTokens:     int(st.PromptTokens - p.polled.PromptTokens),
		GenerationTokens: int(st.GenerationTokens - p.polled.GenerationTokens),
	}, st
}

func (r *run) poll() {
	r.tellKV()
	for _, p := range r.replicas {
		if p.up {
			m, st := p.metrics()
			p.polled = st
			r.poller.Polled(r.now, p.id, m)
		}
	}
	r.pollAt = r.now + r.poller.PollEvery()
	r.idle = len(r.steps) == 0
}
