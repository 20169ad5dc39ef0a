// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/engine"
)

// replica is an engine of the fleet under way. It is the engine's sink: what it is
// told waits in fired until the engine has returned.
type replica struct {
	run    *run
	id     int
	params engine.Params // with the speed at the start
	engine *engine.Engine
	up     bool

	next   time.Duration // when its step ends, while at >= 0
	at     int           // in run.steps, -1 if no step is under way
	begins bool          // requests came at the present time

	head, tail  *request // sent there and not ended
	outstanding int
	// marks holds the streamed requests there at the step, modulo the ring's
	// length, at which their next tokens are due to be reported.
	marks [][]mark
	steps int

	polled engine.Stats // when last polled
	gone   engine.Stats // of the engines before restarts
	series []Point
}

type mark struct {
	r     *request
	visit uint32 // r's, when the mark was made
}

// firing is something that an engine told.
type firing struct {
	r        *request
	finished bool // else started
}

func (p *replica) Admitted(*engine.Sequence, time.Duration)  {}
func (p *replica) Preempted(*engine.Sequence, time.Duration) {}
func (p *replica) Started(s *engine.Sequence, _ time.Duration) {
	p.run.fired = append(p.run.fired, firing{r: s.Owner.(*request)})
}
func (p *replica) Finished(s *engine.Sequence, _ time.Duration) {
	p.run.fired = append(p.run.fired, firing{r: s.Owner.(*request), finished: true})
}

// The replica is its engine's BlockSink as well, if the policy listens.
func (p *replica) Stored(hash uint64, _ *engine.Sequence, _ int) {
	p.run.tell(kvEvent{kind: kvStored, replica: p.id, hash: hash})
}
func (p *replica) Removed(hash uint64) {
	p.run.tell(kvEvent{kind: kvRemoved, replica: p.id, hash: hash})
}
func (p *replica) Cleared() { p.run.tell(kvEvent{kind: kvCleared, replica: p.id}) }

// start makes an engine with an empty cache.
func (p *replica) start() error {
	params := p.params
	if p.engine != nil {
		params.Speed = p.engine.Params().Speed
		p.retire()
	}
	e, err := engine.New(params, p)
	if err != nil {
		return err
	}
	p.engine, p.polled = e, engine.Stats{}
	if p.run.listener != nil {
		e.WatchBlocks(p)
	}
	return nil
}

// retire adds an engine's counters to those of the ones before it.
func (p *replica) retire() {
	st := p.engine.Stats()
	p.gone.Preemptions += st.Preemptions
	p.gone.Steps += st.Steps
	p.gone.ComputedTokens += st.ComputedTokens
}

func (p *replica) capacity() Capacity {
	return Capacity{CacheTokens: p.engine.Capacity(), MaxSeqs: p.params.MaxSeqs, MaxBatched: p.params.MaxBatchedTokens}
}

func (p *replica) push(r *request) {
	r.prev, r.next = p.tail, nil
	if p.tail != nil {
		p.tail.next = r
	} else {
		p.head = r
	}
	p.tail = r
	p.outstanding++
}

func (p *replica) remove(r *request) {
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		p.head = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		p.tail = r.prev
	}
	r.prev, r.next = nil, nil
	p.outstanding--
	r.visit++ // its marks are void
}

// markNext has the request's tokens reported when it has reached the next multiple
// of the interval.
func (p *replica) markNext(r *request, generated int) {
	every := len(p.marks)
	r.due = (generated/every + 1) * every
	slot := (p.steps + r.due - generated) % every
	p.marks[slot] = append(p.marks[slot], mark{r, r.visit})
}

// report tells the policy of tokens that are due at the step that has ended. A
// decoding request generates one in each step, so it is visited when it has reached
// its mark, or later if it was preempted meanwhile.
func (p *replica) report(now time.Duration) {
	every := len(p.marks)
	slot := p.steps % every
	due := p.marks[slot]
	keep := due[:0]
	for _, m := range due {
		if m.r.visit != m.visit {
			continue
		}
		generated := m.r.seq.Generated()
		if generated >= m.r.due {
			p.run.tellKV()
			p.run.routers[m.r.router].Progress(now, &m.r.Request, p.id, generated)
			m.r.due = (generated/every + 1) * every
		}
		if to := (p.steps + m.r.due - generated) % every; to != slot {
			p.marks[to] = append(p.marks[to], m)
		} else {
			keep = append(keep, m)
		}
	}
	clear(due[len(keep):])
	p.marks[slot] = keep
}

// stepHeap orders the replicas with a step under way by its end, equal ones by
// number.
type stepHeap []*replica

func (h stepHeap) before(i, j int) bool {
	return h[i].next < h[j].next || h[i].next == h[j].next && h[i].id < h[j].id
}

func (h stepHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// set puts a replica where its next belongs.
func (h *stepHeap) set(p *replica) {
	if p.at < 0 {
		p.at = len(*h)
		*h = append(*h, p)
		h.up(p.at)
		return
	}
	if !h.down(p.at) {
		h.up(p.at)
	}
}

func (h *stepHeap) drop(p *replica) {
	if p.at < 0 {
		return
	}
	at, last := p.at, len(*h)-1
	h.swap(at, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	p.at = -1
	if at < last && !h.down(at) {
		h.up(at)
	}
}

func (h stepHeap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.before(i, parent) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h stepHeap) down(i int) bool {
	from := i
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h.before(child, least) {
				least = child
			}
		}
		if least == i {
			return i != from
		}
		h.swap(i, least)
		i = least
	}
}
