// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"crypto/rand"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
)

// Bounds of what recordings may take.
const (
	maxRecordings  = 4        // of a pool at one time
	maxRecordBytes = 64 << 20 // of requests that a recording keeps until their line is written
	// maxRecordTokens is the longest prompt or output that a trace may have.
	maxRecordTokens = 1 << 24
	// minRecordBlock is how many tokens a hash of a recording stands for, at least.
	minRecordBlock = 64
)

// recordings are those of a pool that are under way. Where there is none, a
// request pays one atomic load.
type recordings struct {
	mu     sync.Mutex // guards changes of active
	active atomic.Pointer[[]*recording]
}

// begin has a recording take part; it is refused where there are too many.
func (rs *recordings) begin(rec *recording) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	var next []*recording
	if now := rs.active.Load(); now != nil {
		next = append(next, *now...)
	}
	if len(next) == maxRecordings {
		return false
	}
	next = append(next, rec)
	rs.active.Store(&next)
	return true
}

// leave takes a recording out.
func (rs *recordings) leave(rec *recording) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	now := rs.active.Load()
	if now == nil {
		return
	}
	next := slices.DeleteFunc(slices.Clone(*now), func(other *recording) bool { return other == rec })
	if len(next) == 0 {
		rs.active.Store(nil)
		return
	}
	rs.active.Store(&next)
}

// stop ends all recordings: what they say of blocks holds for one configuration.
func (rs *recordings) stop() {
	if now := rs.active.Load(); now != nil {
		for _, rec := range *now {
			rec.stopOnce.Do(func() { close(rec.stopped) })
		}
	}
}

// recording is a trace in the making. Requests come in and end on their own
// goroutines; the one that serves the recording takes them out, in the order in
// which they came, once each has ended.
type recording struct {
	pool     *pool
	key      [32]byte // of its hashes, known to nobody else and kept nowhere
	size     int      // tokens that a hash stands for
	every    int      // of the pool's blocks that make one of it
	began    time.Duration
	wake     chan struct{} // something may be ready to be taken
	stopped  chan struct{}
	stopOnce sync.Once

	mu      sync.Mutex // guards what follows
	waiting []waiting  // in the order of arrival
	bytes   int        // that they take
	full    bool       // takes no more requests
	counts  [len(recordResults)]int64
}

// waiting is a request between its arrival and its line.
type waiting struct {
	at time.Duration // on the ledger's clock
	*recorded
}

// recordResult is what became of a request in a recording.
type recordResult int

const (
	resultRecorded   recordResult = iota
	resultFailed                  // no answer was given, or none that was a success
	resultUnread                  // its prompt was not read
	resultUnfinished              // it ran on when the recording was over, or had to be let go of
	resultDropped                 // there was no room: lines are not read as fast as they are made
)

var recordResults = [...]string{
	resultRecorded:   "recorded",
	resultFailed:     "failed",
	resultUnread:     "unread",
	resultUnfinished: "unfinished",
	resultDropped:    "dropped",
}

func newRecording(pl *pool, blockSize int) *recording {
	every := max(1, (minRecordBlock+blockSize-1)/blockSize)
	rec := &recording{
		pool:    pl,
		size:    every * blockSize,
		every:   every,
		began:   pl.ledger.Now(),
		wake:    make(chan struct{}, 1),
		stopped: make(chan struct{}),
	}
	_, _ = rand.Read(rec.key[:]) // never fails
	return rec
}

// recorded is what recordings keep of a request: no text, and no more than is
// needed for its lines. What is not atomic does not change. Its methods do nothing
// on nil, which is a request that nobody records.
type recorded struct {
	recordings []*recording
	chains     [][]uint64 // by prompt, of the leading ones; none for embeddings
	counted    []int      // tokens by prompt
	namespace  uint64
	tenant     uint64
	choices    int
	maxTokens  int
	whole      bool
	bytes      int
	outputs    []atomic.Int32 // tokens by sequence
	result     atomic.Int32
}

// Values of recorded.result.
const (
	recordRunning = iota
	recordServed
	recordFailed
)

// arrived notes a request whose prompt was read, or could not be.
func (rs *recordings) arrived(rt *routing) *recorded {
	active := rs.active.Load()
	if active == nil || !rt.observed {
		return nil
	}
	q := newRecorded(rt)
	for _, rec := range *active {
		if rec.add(q) {
			q.recordings = append(q.recordings, rec)
		}
	}
	if q == nil || len(q.recordings) == 0 {
		return nil
	}
	return q
}

// newRecorded gives what is kept of a request; nil if its prompt was not read.
func newRecorded(rt *routing) *recorded {
	asked := &rt.request
	d := &asked.Demand
	if d.Estimated || len(asked.Counted) == 0 {
		return nil
	}
	q := &recorded{
		counted:   slices.Clone(asked.Counted),
		namespace: asked.Namespace,
		tenant:    rt.tenant,
		choices:   max(1, d.Choices),
		whole:     !d.Stream,
		bytes:     256,
	}
	for _, n := range q.counted {
		if n > maxRecordTokens {
			return nil
		}
	}
	if d.Expected > 0 && d.Expected <= maxRecordTokens {
		q.maxTokens = d.Expected
	}
	if asked.Keeps {
		q.chains = slices.Clone(asked.Chains) // the request lets go of its own list
		for _, chain := range q.chains {
			q.bytes += 32 + 8*len(chain)
		}
	}
	q.outputs = make([]atomic.Int32, min(len(q.counted)*q.choices, ledger.MaxSequences))
	q.bytes += 8*len(q.counted) + 4*len(q.outputs)
	return q
}

// generated notes how many tokens a sequence has so far.
func (q *recorded) generated(seq, total int) {
	if q != nil && seq < len(q.outputs) {
		q.outputs[seq].Store(int32(min(total, maxRecordTokens)))
	}
}

// attempted notes the end of an attempt. A client that leaves in the middle of an
// answer has had the engine make so much of it.
func (q *recorded) attempted(outcome ledger.Outcome, answered bool) {
	if q == nil || !answered {
		return
	}
	switch outcome {
	case ledger.Completed:
		q.settle(recordServed)
	case ledger.Canceled:
		for i := range q.outputs {
			if q.outputs[i].Load() > 0 {
				q.settle(recordServed)
				return
			}
		}
	}
}

// ended notes that there is no further attempt.
func (q *recorded) ended() {
	if q != nil {
		q.settle(recordFailed)
	}
}

// settle decides once what becomes of the request.
func (q *recorded) settle(result int32) {
	if !q.result.CompareAndSwap(recordRunning, result) {
		return
	}
	for _, rec := range q.recordings {
		rec.stir()
	}
}

// stir has the recording look again at what waits.
func (rec *recording) stir() {
	select {
	case rec.wake <- struct{}{}:
	default:
	}
}

// add takes in a request that has arrived; nil is one whose prompt was not read.
// Where there is no room, the oldest that still run are let go of, so that one
// that never ends does not hold up all others.
func (rec *recording) add(q *recorded) bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	switch {
	case rec.full:
		return false
	case q == nil:
		rec.count(resultUnread)
		return false
	}
	for rec.bytes+q.bytes > maxRecordBytes {
		if len(rec.waiting) == 0 || rec.waiting[0].result.Load() != recordRunning {
			rec.count(resultDropped)
			return false
		}
		rec.pop()
		rec.count(resultUnfinished)
		rec.stir()
	}
	rec.bytes += q.bytes
	rec.waiting = append(rec.waiting, waiting{rec.pool.ledger.Now(), q})
	return true
}

// close lets no further request in.
func (rec *recording) close() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.full = true
}

// take gives the oldest request if it has ended well. With skip, those that still
// run are passed over. Left is how many then wait.
func (rec *recording) take(skip bool) (w waiting, ok bool, left int) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	for len(rec.waiting) > 0 && !ok {
		switch rec.waiting[0].result.Load() {
		case recordServed:
			w, ok = rec.pop(), true
			rec.count(resultRecorded)
		case recordFailed:
			rec.pop()
			rec.count(resultFailed)
		default:
			if !skip {
				return w, false, len(rec.waiting)
			}
			rec.pop()
			rec.count(resultUnfinished)
		}
	}
	return w, ok, len(rec.waiting)
}

// pop takes the oldest out. rec.mu is held.
func (rec *recording) pop() waiting {
	w := rec.waiting[0]
	rec.waiting[0] = waiting{}
	rec.waiting = rec.waiting[1:]
	rec.bytes -= w.bytes
	return w
}

// count notes what became of a request. rec.mu is held.
func (rec *recording) count(r recordResult) {
	rec.counts[r]++
	rec.pool.metrics.recorded.WithLabelValues(rec.pool.name, recordResults[r]).Inc()
}
