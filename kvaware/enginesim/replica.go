// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/engine"
)

// replicas are the living engines, shared by handlers and kept over reloads.
var replicas = caddy.NewUsagePool()

// poolKey tells engines apart: one that has other parameters is another one.
type poolKey struct {
	name   string
	params engine.Params
	events eventSettings
	model  string // that prompts with events have no adapter for; empty without
}

// replica runs a modelled engine on the real clock.
type replica struct {
	started time.Time // of the engine; its time 0
	sleep   atomic.Int32

	mu       sync.Mutex // guards all below, and the sequences of every job in the engine
	engine   *engine.Engine
	recorder recorder // while the engine publishes
	stepping bool     // the goroutine is there
	finished [2]uint64

	publisher *publisher // nil: it does not publish

	// emptied wakes the goroutine when the last request was cancelled, so that it
	// does not sit out the step under way.
	emptied chan struct{}
}

// Reasons for which a sequence ends, as indexes of replica.finished.
const (
	finishStop = iota
	finishLength
)

var finishReasons = [...]string{finishStop: "stop", finishLength: "length"}

func newReplica(key poolKey) (*replica, error) {
	r := &replica{started: time.Now(), emptied: make(chan struct{}, 1)}
	r.sleep.Store(awake)
	var err error
	if r.engine, err = engine.New(key.params, (*sink)(r)); err != nil {
		return nil, err
	}
	if key.events.publishes() {
		r.publisher = newPublisher(key.events)
		r.recorder = recorder{blockSize: key.params.BlockSize, model: key.model}
		r.engine.WatchBlocks(&r.recorder)
	}
	return r, nil
}

// leave ends a call of the engine: it has published what that call changed, and
// unlocks.
func (r *replica) leave() {
	if events := r.recorder.take(); len(events) > 0 {
		r.publisher.publish(events)
	}
	r.mu.Unlock()
}

// Destruct has nothing to stop: requests that are still in flight need the
// goroutine, and it ends with the last of them. The publisher's sockets were closed
// when the last config with the engine stopped.
func (r *replica) Destruct() error { return nil }

func (r *replica) now() time.Duration { return time.Since(r.started) }

// submit queues the sequences of a job, all or none.
func (r *replica) submit(j *job) error {
	r.mu.Lock()
	defer r.leave()
	now := r.now()
	for i := range j.choices {
		if err := r.engine.Submit(now, &j.choices[i].seq); err != nil {
			for k := range i {
				r.engine.Cancel(now, &j.choices[k].seq)
			}
			return err
		}
	}
	if !r.stepping {
		r.stepping = true
		go r.step()
	}
	return nil
}

// cancel takes what is left of a job out of the engine.
func (r *replica) cancel(j *job) {
	r.mu.Lock()
	defer r.leave()
	now := r.now()
	for i := range j.choices {
		r.engine.Cancel(now, &j.choices[i].seq)
	}
	if !r.engine.Busy() {
		select {
		case r.emptied <- struct{}{}:
		default:
		}
	}
}

// observe copies how far the job's sequences are.
func (r *replica) observe(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range j.choices {
		c := &j.choices[i]
		c.generated, c.cached = c.seq.Generated(), c.seq.Cached
	}
}

func (r *replica) resetPrefixCache() {
	r.mu.Lock()
	defer r.leave()
	r.engine.ResetPrefixCache()
}

func (r *replica) stats() (engine.Stats, [2]uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.engine.Stats(), r.finished
}

// step advances the engine at the end of each step, as long as it has requests.
func (r *replica) step() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-r.emptied:
		}
		r.mu.Lock()
		next, _ := r.engine.Advance(r.now())
		if !r.engine.Busy() {
			r.stepping = false
			r.leave()
			return
		}
		r.leave()
		timer.Reset(next - r.now())
	}
}

// sink passes the engine's news on to jobs. Its methods run under replica.mu.
type sink replica

func (s *sink) Admitted(*engine.Sequence, time.Duration)  {}
func (s *sink) Preempted(*engine.Sequence, time.Duration) {}
func (s *sink) Started(*engine.Sequence, time.Duration)   {}

func (s *sink) Generated(seq *engine.Sequence, _ time.Duration) {
	select {
	case seq.Owner.(*choice).job.news <- struct{}{}:
	default: // it has yet to look at earlier ones
	}
}

func (s *sink) Finished(seq *engine.Sequence, _ time.Duration) {
	s.finished[seq.Owner.(*choice).finish]++
}
