// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// Status is how far a Follower is. Counts are since it was made.
type Status struct {
	Connected bool
	Since     time.Time // when that last changed
	Connects  uint64
	Complete  bool // connected, and what the sink knows is all that the engine holds
	Partial   bool // the engine may hold what the sink was not told

	// Last is the sequence number that was last taken in; Any tells whether there
	// is one.
	Last uint64
	Any  bool
	// LastEvent is when a live batch last came, zero if none did. Lag is what had
	// passed then since the engine made it, by two clocks: it is negative where
	// the engine's is ahead.
	LastEvent time.Time
	Lag       time.Duration

	Gaps          uint64 // jumps of the sequence
	Missed        uint64 // what replays could not give, in runs of numbers
	Replays       uint64 // that were answered
	ReplaysFailed uint64 // that nobody answered

	Batches uint64                       // applied
	Events  [kvevents.Cleared + 1]uint64 // by kind, of batches that were applied
	Skipped uint64                       // events that are unknown or make no sense

	Repeated    uint64 // messages that were seen already
	Malformed   uint64 // messages with other frames than they should have
	Undecodable uint64 // messages whose payload is no batch
	OtherRank   uint64 // batches of another rank

	Resets    [Reasons]uint64 // times that the sink forgot
	LastError string
}

// seen takes note of a live batch.
func (s *Status) seen(now time.Time, made float64) {
	s.LastEvent = now
	if made > 0 {
		s.Lag = time.Duration((float64(now.UnixNano())/1e9 - made) * 1e9)
	}
}

// Status tells how far the Follower is. It is safe from any goroutine but the
// Sink's and Notify's.
func (f *Follower) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.status
	s.Connected, s.Complete, s.Partial = f.connected, f.trusted, f.partial
	if f.known && f.next > 0 {
		s.Last, s.Any = f.next-1, f.status.Batches > 0
	}
	return s
}
