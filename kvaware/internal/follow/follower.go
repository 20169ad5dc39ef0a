// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// Sink is what is kept of what an engine holds. Its methods are called by one
// goroutine at a time, under the Follower's lock: they must not call the Follower.
type Sink interface {
	// Apply takes in what has happened. The batch lives until Apply returns.
	Apply(b *kvevents.Batch)
	// Forget drops everything.
	Forget(why Reason)
	// Trust is told when it changes whether what is kept is all that the engine
	// holds; at first it is not.
	Trust(complete bool)
	// Room is how many blocks the engine has room for, 0 if unknown.
	Room() int
}

// Reason is why a Sink forgets.
type Reason uint8

const (
	// Restarted: the publisher has started over.
	Restarted Reason = iota
	// Refused: nothing listens where the engine published.
	Refused
	// Lost: messages were missed that no replay gives.
	Lost
	// Replayed: a replay tells everything anew.
	Replayed
	// Reset: the engine was seen to be told to drop its cache, or to start.
	Reset
	// Asked: somebody asked for it.
	Asked

	// Reasons is how many there are.
	Reasons = 6
)

var reasonNames = [Reasons]string{"restarted", "refused", "lost", "replayed", "reset", "asked"}

func (r Reason) String() string { return reasonNames[r] }

// Source gives connections to one publisher, one after the other.
type Source interface {
	// connect waits for one, which may end with ctx.
	connect(ctx context.Context) (*stream, error)
}

// Dial gives a Source that dials. That takes bounded time, and the connection may
// end with the context. It has subscribed to topic, or to everything; what does not
// begin with topic is left out either way.
func Dial(topic string, dial func(context.Context) (Conn, error)) Source {
	return dialled{[]byte(topic), dial}
}

type dialled struct {
	topic []byte
	dial  func(context.Context) (Conn, error)
}

func (d dialled) connect(ctx context.Context) (*stream, error) {
	conn, err := d.dial(ctx)
	if err != nil {
		return nil, err
	}
	return read(conn, d.topic), nil
}

// Options say what is followed.
type Options struct {
	Source Source
	// Replay dials the replay endpoint as a DEALER, in bounded time; the connection
	// may end with the context. Nil without such an endpoint.
	Replay func(context.Context) (Conn, error)
	Sink   Sink
	// Rank is the data-parallel rank whose batches count, others are skipped; -1
	// takes all.
	Rank int
	// Notify is told what an operator wants to know, one thing at a time; it must
	// not block and not call the Follower. May be nil.
	Notify func(Notice)
	// Jitter gives numbers in [0, 1) that spread reconnects; nil: at random.
	Jitter func() float64
	// Now is the wall clock that batches are compared with; nil: time.Now.
	Now func() time.Time
}

// Notice is something that has happened to a Follower.
type Notice struct {
	Kind        NoticeKind
	Err         error  // of Disconnected, ReplayFailed and Undecodable
	First, Last uint64 // the sequence numbers that Gap and Missed are about
	Why         Reason // of Forgot
}

// NoticeKind tells Notices apart.
type NoticeKind uint8

const (
	Connected    NoticeKind = iota
	Disconnected            // or not connected
	Gap                     // messages are missing
	Missed                  // they are lost
	ReplayFailed            // nobody answers there
	Forgot
	Partial
	Complete
	Undecodable
)

var noticeNames = [...]string{"connected", "disconnected", "gap", "missed", "replay failed", "forgot", "partial", "complete", "undecodable"}

func (k NoticeKind) String() string { return noticeNames[k] }

// How long things take at most.
const (
	firstPause = 100 * time.Millisecond
	mostPause  = 10 * time.Second // between two connections
	// steady is how long a connection lasts, if no message comes over it, before
	// the next pause is a short one.
	steady = time.Second
	// A publisher that sends nothing is asked for its last message after the first
	// of these, once, for it may have sent before it knew of the subscription; then
	// after the second.
	firstQuiet, quiet = 2 * time.Second, 30 * time.Second
)

// Follower follows a publisher.
type Follower struct {
	opt Options

	// mu guards the sink and everything below. It is held while a batch is
	// applied, never while something is waited for.
	mu     sync.Mutex
	known  bool   // next is known
	next   uint64 // the sequence number that comes next
	recent recent // what the last messages were
	held   bool   // the sink was given something since it forgot
	// partial, and how many blocks were stored since it began.
	partial   bool
	stored    int
	connected bool
	// verified: this connection's publisher is known to be the one that next is
	// about.
	verified bool
	behind   bool // messages are being asked for that are known to be missing
	trusted  bool // what the sink was told
	// invalidations counts calls of Invalidate.
	invalidations int
	status        Status

	// The goroutine's own, but for replay.owed.
	live, old decoding
	replay    replaying
}

// New returns a Follower.
func New(opt Options) *Follower {
	if opt.Jitter == nil {
		opt.Jitter = rand.Float64
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Notify == nil {
		opt.Notify = func(Notice) {}
	}
	f := &Follower{opt: opt}
	f.status.Since = opt.Now()
	return f
}

// Run follows until ctx ends. It is called once.
func (f *Follower) Run(ctx context.Context) {
	for pause := time.Duration(0); ; {
		s, err := f.opt.Source.connect(ctx)
		if ctx.Err() != nil {
			if err == nil {
				s.close()
			}
			return
		}
		if err == nil {
			f.connects()
			began, c := time.Now(), &connection{unchecked: true}
			err = f.follow(ctx, c, s)
			s.close()
			if c.any || time.Since(began) >= steady {
				pause = 0
			}
		}
		if ctx.Err() != nil {
			f.disconnects(nil)
			return
		}
		f.disconnects(err)
		pause = min(max(2*pause, firstPause), mostPause)
		if !sleep(ctx, f.spread(pause)) {
			return
		}
	}
}

// spread gives between half and all of a pause.
func (f *Follower) spread(d time.Duration) time.Duration {
	return d/2 + time.Duration(f.opt.Jitter()*float64(d/2))
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// follow takes in what one connection sends, until it ends.
func (f *Follower) follow(ctx context.Context, c *connection, s *stream) error {
	f.check(ctx, c)
	wait := firstQuiet
	idle := time.NewTimer(wait)
	defer idle.Stop()
	for {
		m, err := s.next(ctx, idle.C)
		switch {
		case errors.Is(err, errQuiet):
			if c.unchecked || f.owed() {
				c.unchecked = false
				f.check(ctx, c)
			}
			wait = quiet
			idle.Reset(wait)
			continue
		case err != nil:
			return err
		}
		if c.malformed.after(m) {
			return errMalformed
		}
		f.take(ctx, c, m)
		if !c.unchecked {
			c.unchecked = true
			idle.Reset(wait)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// connection is what belongs to one connection to a publisher.
type connection struct {
	last     uint64 // the live sequence number seen last
	any      bool   // last is set
	replayed bool   // a replay has told what came before what is live
	// unchecked: messages may have come, or not come, since the last one was asked
	// for again. At first the publisher may not know of the subscription yet.
	unchecked bool
	malformed malformed
}

func (f *Follower) connects() {
	f.mu.Lock()
	f.connected, f.verified = true, false
	f.status.Connects++
	f.status.Since = f.opt.Now()
	f.mu.Unlock()
	f.opt.Notify(Notice{Kind: Connected})
}

// disconnects takes note that there is no connection, and why.
func (f *Follower) disconnects(err error) {
	if err != nil {
		f.opt.Notify(Notice{Kind: Disconnected, Err: errors.New(plain(err))})
	}
	var notes notes
	defer f.tell(&notes)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.connected {
		f.status.Since = f.opt.Now()
	}
	f.connected, f.verified = false, false
	f.judge()
	if err == nil {
		return
	}
	f.status.LastError = plain(err)
	if gone(err) {
		f.known = false
		f.forget(Refused, &notes)
		f.settle(&notes)
	}
}

// gone reports whether nothing listens where an engine published.
func gone(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
}

// Invalidate withdraws the credit of what the engine was told to hold, until
// events restore it. It is safe from any goroutine but the Sink's and Notify's.
func (f *Follower) Invalidate(why Reason) {
	var notes notes
	defer f.tell(&notes)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.invalidations++
	f.replay.owed = false // it would tell of what is dropped
	if f.held {
		f.forget(why, &notes)
		f.becomePartial(&notes)
	}
}

// forget empties the sink. f.mu is held.
func (f *Follower) forget(why Reason, notes *notes) {
	if !f.held {
		return
	}
	f.held = false
	f.status.Resets[why]++
	f.opt.Sink.Forget(why)
	notes.add(Notice{Kind: Forgot, Why: why})
}

// becomePartial notes that the engine may hold what the sink was not told. f.mu is
// held.
func (f *Follower) becomePartial(notes *notes) {
	f.stored = 0
	if !f.partial {
		f.partial = true
		notes.add(Notice{Kind: Partial})
	}
	f.judge()
}

// settle ends being partial. f.mu is held.
func (f *Follower) settle(notes *notes) {
	if f.partial {
		f.partial = false
		notes.add(Notice{Kind: Complete})
	}
	f.judge()
}

// judge tells the sink when it changes whether it can be trusted. f.mu is held.
func (f *Follower) judge() {
	if now := f.connected && f.verified && f.known && !f.partial && !f.behind; now != f.trusted {
		f.trusted = now
		f.opt.Sink.Trust(now)
	}
}

// notes are notices gathered under the lock, to be told without it.
type notes struct {
	list [6]Notice
	n    int
}

func (l *notes) add(n Notice) {
	if l.n < len(l.list) {
		l.list[l.n] = n
		l.n++
	}
}

func (f *Follower) tell(l *notes) {
	for _, n := range l.list[:l.n] {
		f.opt.Notify(n)
	}
	l.n = 0
}
