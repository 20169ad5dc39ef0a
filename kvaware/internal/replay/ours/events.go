// SPDX-License-Identifier: Apache-2.0

package ours

import (
	"sort"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/route"
)

// eventDelay is that of the peers' events.
const eventDelay = 2 * time.Millisecond

// listening is a policy that follows the engines' KV events. A trace has no token
// ids, from which Caddy makes its hashes of what engines store, so held stands in for
// package residency.
type listening struct {
	*policy
	held held
}

func newListening(s replay.Setting) *listening {
	l := &listening{policy: newPolicy(s, true)}
	l.reports = &l.held
	return l
}

// Joined implements replay.Member.
func (l *listening) Joined(now time.Duration, id int, c replay.Capacity) {
	l.policy.Joined(now, id, c)
	l.router.Index.SetReported(l.replicas[id].Slot, true)
}

// EventDelay implements replay.Listener.
func (l *listening) EventDelay() time.Duration { return eventDelay }

// Stored implements replay.Listener.
func (l *listening) Stored(_ time.Duration, id int, block uint64) { l.blocks(id)[block] = struct{}{} }

// Removed implements replay.Listener.
func (l *listening) Removed(_ time.Duration, id int, block uint64) { delete(l.blocks(id), block) }

// Cleared implements replay.Listener.
func (l *listening) Cleared(_ time.Duration, id int) { clear(l.blocks(id)) }

// blocks are those of a replica that has joined: none is heard of before.
func (l *listening) blocks(id int) map[uint64]struct{} {
	slot := int(l.replicas[id].Slot)
	for len(l.held) <= slot {
		l.held = append(l.held, make(map[uint64]struct{}))
	}
	return l.held[slot]
}

// held are the blocks that engines say they hold, by slot of the index.
type held []map[uint64]struct{}

// Match implements route.Reports. An engine of the replay that holds a block holds
// those before it.
func (h held) Match(_ int, chain []uint64, dst []int32) {
	for slot := range min(len(h), len(dst)) {
		blocks := sort.Search(len(chain), func(i int) bool {
			_, ok := h[slot][chain[i]]
			return !ok
		})
		dst[slot] = max(dst[slot], int32(blocks))
	}
}

// Interface guards
var (
	_ replay.Listener = (*listening)(nil)
	_ replay.Member   = (*listening)(nil)
	_ route.Reports   = (*held)(nil)
)
