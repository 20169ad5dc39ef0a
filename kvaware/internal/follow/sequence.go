// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"hash/maphash"
	"regexp"
	"strings"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// decoding is a decoder and what it decodes into.
type decoding struct {
	decoder kvevents.Decoder
	batch   kvevents.Batch
	failed  error // why the batch is none
}

var payloadSeed = maphash.MakeSeed()

// recentMessages is how many messages back a publisher that repeats one is told
// from one that has started over.
const recentMessages = 256

// recent are hashes of the last messages, by sequence number.
type recent struct {
	hashes [recentMessages]uint64
	first  uint64 // the oldest that is there
	next   uint64 // one past the newest
}

// add enters the message with the number next; any other number starts over.
func (r *recent) add(seq uint64, payload []byte) {
	if seq != r.next {
		r.first = seq
	}
	r.next = seq + 1
	if r.next-r.first > recentMessages {
		r.first = r.next - recentMessages
	}
	r.hashes[seq%recentMessages] = maphash.Bytes(payloadSeed, payload)
}

// same reports whether a message is the one that had its number, and whether that
// can be told.
func (r *recent) same(seq uint64, payload []byte) (same, known bool) {
	if seq < r.first || seq >= r.next {
		return false, false
	}
	return r.hashes[seq%recentMessages] == maphash.Bytes(payloadSeed, payload), true
}

// take takes in a live message.
func (f *Follower) take(ctx context.Context, c *connection, m message) {
	if !f.welcome(m, &f.live) {
		return
	}
	f.place(ctx, c, m)
	if c.any = true; m.seq > c.last {
		c.last = m.seq
	}
	f.takePlaced(m)
	if f.owed() {
		f.ask(ctx, c)
		f.caughtUp()
	}
}

// takePlaced takes in the message that f.live holds.
func (f *Follower) takePlaced(m message) {
	var notes notes
	defer f.tell(&notes)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behind = false
	switch {
	case m.seq < f.next:
		f.status.Repeated++
		f.verified = true
		f.judge()
	case m.seq > f.next:
		f.miss(m.seq, &notes)
		fallthrough
	default:
		f.verified = true
		f.apply(m, &f.live, &notes)
		f.status.seen(f.opt.Now(), f.live.batch.Time)
	}
}

// place finds out where a live message belongs, and asks for what is missing
// before it. Afterwards f.next is at most one past it, or what is missing is lost.
func (f *Follower) place(ctx context.Context, c *connection, m message) {
	f.mu.Lock()
	known, next := f.known, f.next
	started := known && m.seq < next && f.startedOver(c, m)
	f.mu.Unlock()
	switch {
	case started:
		f.startOver()
		f.ask(ctx, c)
	case known && m.seq > next:
		f.mu.Lock()
		f.status.Gaps++
		f.behind = true
		f.judge()
		f.mu.Unlock()
		f.opt.Notify(Notice{Kind: Gap, First: next, Last: m.seq - 1})
		f.ask(ctx, c)
	}
	var notes notes
	defer f.tell(&notes)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.known {
		f.adopt(m.seq, &notes)
	}
}

// startedOver reports whether a live message with a number already seen is of a
// publisher that has started over. f.mu is held.
func (f *Follower) startedOver(c *connection, m message) bool {
	same, known := f.recent.same(m.seq, m.payload)
	if known {
		return !same
	}
	// Too old to tell. What waited during a replay is behind what that gave, but
	// ahead of what was live before.
	return !c.replayed || c.any && m.seq <= c.last
}

// startOver forgets a publisher that has started over.
func (f *Follower) startOver() {
	var notes notes
	defer f.tell(&notes)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetPublisher(&notes)
}

// forgetPublisher is startOver with f.mu held.
func (f *Follower) forgetPublisher(notes *notes) {
	f.known, f.verified = false, false
	f.forget(Restarted, notes)
	f.settle(notes)
}

// miss gives up what comes before a number. f.mu is held.
func (f *Follower) miss(seq uint64, notes *notes) {
	f.status.Missed++
	notes.add(Notice{Kind: Missed, First: f.next, Last: seq - 1})
	f.forget(Lost, notes)
	f.becomePartial(notes)
	f.next = seq
}

// adopt takes up a publisher of which nothing is known at the number it is at.
// f.mu is held.
func (f *Follower) adopt(seq uint64, notes *notes) {
	f.known, f.next = true, seq
	f.recent = recent{first: seq, next: seq}
	if seq == 0 {
		f.settle(notes)
	} else {
		f.becomePartial(notes)
	}
}

// welcome decodes a message, and reports whether it counts in the sequence. One
// that cannot be decoded does, for its events are lost.
func (f *Follower) welcome(m message, d *decoding) bool {
	if !m.wellFormed() {
		f.mu.Lock()
		f.status.Malformed++
		f.mu.Unlock()
		return false
	}
	if err := d.decoder.Decode(m.payload, &d.batch); err != nil {
		d.failed = err
		return true
	}
	d.failed = nil
	if f.opt.Rank >= 0 && d.batch.Rank >= 0 && d.batch.Rank != f.opt.Rank {
		f.mu.Lock()
		f.status.OtherRank++
		f.mu.Unlock()
		return false
	}
	return true
}

// pass counts the message that comes next as seen. f.mu is held.
func (f *Follower) pass(m message) {
	f.next = m.seq + 1
	f.recent.add(m.seq, m.payload)
}

// apply gives the message that comes next to the sink. f.mu is held.
func (f *Follower) apply(m message, d *decoding, notes *notes) {
	f.pass(m)
	if d.failed != nil {
		f.status.Undecodable++
		f.status.LastError = plain(d.failed)
		notes.add(Notice{Kind: Undecodable, Err: d.failed})
		f.becomePartial(notes)
		return
	}
	b := &d.batch
	f.status.Batches++
	f.status.Skipped += uint64(max(b.Skipped, 0))
	f.opt.Sink.Apply(b)
	for i := range b.Events {
		e := &b.Events[i]
		f.status.Events[e.Kind]++
		switch {
		case e.Kind == kvevents.Cleared:
			f.settle(notes)
		case e.Kind == kvevents.Stored:
			f.held = true
			if f.partial && e.Tier == kvevents.GPU && e.Attention != kvevents.OtherAttention {
				f.stored += len(e.Blocks)
			}
		}
	}
	if f.partial && f.stored > 0 {
		if room := f.opt.Sink.Room(); room > 0 && f.stored >= room {
			f.settle(notes)
		}
	}
	f.judge()
}

// credentials are what an address in an error may carry.
var credentials = regexp.MustCompile(`//[^/@\s]*@`)

// plain gives an error's text without credentials, cut to a length that logs and
// answers can show.
func plain(err error) string {
	const most = 300
	text := credentials.ReplaceAllString(err.Error(), "//")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
