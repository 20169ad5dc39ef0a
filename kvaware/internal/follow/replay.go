// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// The bounds of a replay.
const (
	replayTime = 30 * time.Second // for all its answers
	mostRounds = 64               // answers that bring something and have no end
	// firstAnswer is how long an engine may take to begin: it looks at the replay
	// socket between two batches.
	firstAnswer = 5 * time.Second
	// nextAnswer is the quiet period that ends an answer.
	nextAnswer = 500 * time.Millisecond
	// Nobody is asked again while nobody answers, from the first to the second.
	firstRetry, mostRetry = time.Second, 5 * time.Minute
)

// replaying is what is remembered of the replay endpoint.
type replaying struct {
	pause     time.Duration // the last one after nobody answered
	notBefore time.Time
	// owed: nobody gave an answer that would have told what was missing. Guarded
	// by Follower.mu.
	owed bool
}

// wanted is what a replay is for.
type wanted uint8

const (
	// next: what comes next, after the last message, which shows whether the
	// publisher is still the same.
	next wanted = iota
	// anew: everything, in place of what is known.
	anew
)

// outcome is how an answer ended.
type outcome uint8

const (
	ended      outcome = iota // with the end marker, or it brings nothing more
	cut                       // before the end marker, having brought something
	other                     // the publisher is another one: everything is wanted
	unanswered                // nobody is there, or nobody says anything
)

// check asks for the last message again.
func (f *Follower) check(ctx context.Context, c *connection) {
	f.ask(ctx, c)
	f.caughtUp()
}

// owed reports whether everything is to be asked for, as soon as that may be, since
// nobody answered before.
func (f *Follower) owed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.replay.owed && f.partial
}

// ask has a replay answered as far as it is to be had.
func (f *Follower) ask(ctx context.Context, c *connection) {
	if f.opt.Replay == nil || time.Now().Before(f.replay.notBefore) {
		return
	}
	f.mu.Lock()
	asked := f.invalidations
	want := next
	if !f.known || f.next == 0 || f.partial && f.replay.owed {
		want = anew
	}
	f.behind = f.behind || want == anew || !f.verified
	f.judge()
	f.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	all := want == anew
	for range mostRounds {
		got, err := f.round(limited, c, want, asked)
		switch got {
		case cut:
			want = next
			continue
		case other:
			want, all = anew, true
			continue
		case unanswered:
			if ctx.Err() == nil {
				f.postpone(err)
			}
			return
		}
		break
	}
	f.replay.pause = 0
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Replays++
	f.verified = true
	f.replay.owed = f.replay.owed && !all
}

// caughtUp takes note that no more is asked for, with what has come of it.
func (f *Follower) caughtUp() {
	f.mu.Lock()
	f.behind = false
	f.judge()
	f.mu.Unlock()
}

// postpone takes note that nobody answers.
func (f *Follower) postpone(err error) {
	f.replay.pause = min(max(2*f.replay.pause, firstRetry), mostRetry)
	f.replay.notBefore = time.Now().Add(f.spread(f.replay.pause))
	f.mu.Lock()
	f.replay.owed = true
	f.status.ReplaysFailed++
	f.status.LastError = plain(err)
	f.mu.Unlock()
	f.opt.Notify(Notice{Kind: ReplayFailed, Err: errors.New(plain(err))})
}

// round asks once, over a connection of its own, so that nothing of an earlier
// answer comes in between. Asked is how often the sink was invalidated before.
func (f *Follower) round(ctx context.Context, c *connection, want wanted, asked int) (outcome, error) {
	conn, err := f.opt.Replay(ctx)
	if err != nil {
		return unanswered, fmt.Errorf("replay: %w", err)
	}
	s := read(conn, nil)
	defer s.close()
	if err := conn.Send(nil, f.request(want)); err != nil {
		return unanswered, fmt.Errorf("replay: %w", err)
	}
	a := answer{f: f, c: c, want: want, asked: asked}
	silence := time.NewTimer(firstAnswer)
	defer silence.Stop()
	for {
		m, err := s.next(ctx, silence.C)
		switch {
		case err != nil && !a.begun:
			return unanswered, fmt.Errorf("replay: %w", err)
		case err != nil && a.brought:
			return cut, nil
		case err != nil:
			return ended, nil
		}
		if a.malformed.after(m) {
			return unanswered, fmt.Errorf("replay: %w", errMalformed)
		}
		silence.Reset(nextAnswer)
		if got, over := a.take(m); over {
			return got, nil
		}
	}
}

// request gives the sequence number to ask from.
func (f *Follower) request(want wanted) []byte {
	var from uint64
	f.mu.Lock()
	if want == next && f.next > 0 {
		from = f.next - 1
	}
	f.mu.Unlock()
	return binary.BigEndian.AppendUint64(nil, from)
}

// answer is one answer being taken in.
type answer struct {
	f       *Follower
	c       *connection
	want    wanted
	asked   int
	begun   bool // a message has come
	brought bool // one that came next

	malformed malformed
}

// take takes in a message of an answer, and tells how the answer ended if it is
// over.
func (a *answer) take(m message) (got outcome, over bool) {
	f := a.f
	if m.whole && m.seq == endMarker {
		return a.end(), true
	}
	if !f.welcome(m, &f.old) {
		a.begun = true
		return ended, false
	}
	var notes notes
	f.mu.Lock()
	defer f.tell(&notes)
	defer f.mu.Unlock()
	first := !a.begun
	a.begun, a.c.replayed = true, true
	if first {
		if got, over := a.first(m, &notes); over {
			return got, true
		}
	}
	switch {
	case m.seq > f.next:
		// Dropped at the socket's bound, and what follows is of no use before it.
		if a.brought {
			return cut, true
		}
		return ended, true
	case m.seq == f.next:
		a.brought = true
		if a.asked != f.invalidations {
			// What was stored before the cache was dropped counts no more.
			f.pass(m)
		} else {
			f.apply(m, &f.old, &notes)
		}
	}
	return ended, false
}

// first takes in what the first message of an answer tells. f.mu is held.
func (a *answer) first(m message, notes *notes) (got outcome, over bool) {
	f := a.f
	switch {
	case a.want == anew:
		f.forget(Replayed, notes)
		f.adopt(m.seq, notes)
	case a.want == next && m.seq == f.next-1:
		if same, known := f.recent.same(m.seq, m.payload); known && !same {
			f.forgetPublisher(notes)
			return other, true
		}
	case a.want == next && !a.c.any:
		f.forgetPublisher(notes)
		return other, true
	case m.seq > f.next:
		f.miss(m.seq, notes)
	}
	return ended, false
}

// end takes in the end marker.
func (a *answer) end() outcome {
	f := a.f
	var notes notes
	f.mu.Lock()
	defer f.tell(&notes)
	defer f.mu.Unlock()
	a.c.replayed = true
	switch {
	case a.begun || a.c.any: // who has published and gives nothing keeps nothing
	case a.want == next:
		f.forgetPublisher(&notes)
		return other
	case a.want == anew:
		f.forgetPublisher(&notes)
		f.adopt(0, &notes) // it has published nothing yet
	}
	return ended
}
