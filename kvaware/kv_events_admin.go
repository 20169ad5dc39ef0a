// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/follow"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/residency"
)

// followedView is how far one upstream is followed, and what it reported to hold.
type followedView struct {
	address, endpoint string
	status            follow.Status
	held              residency.Stats
}

// followedNow gives the upstreams of a pool that are followed, by address.
func (pl *pool) followedNow() []followedView {
	f := pl.followed.current.Load()
	if f == nil {
		return nil
	}
	var views []followedView
	for _, fo := range f.all() {
		if !fo.up.removed.Load() {
			views = append(views, followedView{fo.up.address, fo.endpoint, fo.follower.Status(), fo.holder.Stats()})
		}
	}
	slices.SortFunc(views, func(a, b followedView) int { return strings.Compare(a.address, b.address) })
	return views
}

// eventsState is an element of the answer to GET /kv_aware/events.
type eventsState struct {
	Address  string `json:"address"`
	Pool     string `json:"pool"`
	Endpoint string `json:"endpoint"`

	// Whether there is a connection, and since when that is so.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`
	// Whether what was reported is all that the upstream holds, and if not,
	// whether it may hold what was never told (partial), connected or not.
	Complete bool `json:"complete"`
	Partial  bool `json:"partial"`

	LastSequence *uint64    `json:"last_sequence"` // null before the first
	LastEvent    *time.Time `json:"last_event"`    // null before the first live one
	LagSeconds   float64    `json:"lag_seconds"`

	// Blocks in the engine's own size, in tokens, 0 if not known yet.
	BlockSize  int `json:"block_size"`
	GPUBlocks  int `json:"gpu_blocks"`
	CPUBlocks  int `json:"cpu_blocks"`
	DiskBlocks int `json:"disk_blocks"`
	Parked     int `json:"parked_blocks"` // whose parents were not told

	Stored  uint64 `json:"stored_total"`
	Removed uint64 `json:"removed_total"`
	Cleared uint64 `json:"cleared_total"`
	Batches uint64 `json:"batches_total"`
	Skipped uint64 `json:"skipped_total"`

	Connects      uint64            `json:"connects_total"`
	Gaps          uint64            `json:"gaps_total"`
	Missed        uint64            `json:"missed_total"`
	Replays       uint64            `json:"replays_total"`
	ReplaysFailed uint64            `json:"replays_failed_total"`
	Repeated      uint64            `json:"repeated_total"`
	OtherRank     uint64            `json:"other_rank_total"`
	Malformed     uint64            `json:"malformed_total"`
	Undecodable   uint64            `json:"undecodable_total"`
	Resets        map[string]uint64 `json:"resets_total"`
	LastError     string            `json:"last_error"`
}

// showEvents answers GET /kv_aware/events[?pool=].
func showEvents(_ http.ResponseWriter, r *http.Request) (any, error) {
	pools, err := poolsAsked(r.URL.Query())
	if err != nil {
		return nil, err
	}
	states := []eventsState{}
	for _, v := range pools {
		for _, u := range v.pool.followedNow() {
			states = append(states, u.describe(v.pool.name))
		}
	}
	return states, nil
}

func (v *followedView) describe(pool string) eventsState {
	s := &v.status
	state := eventsState{
		Address:  v.address,
		Pool:     pool,
		Endpoint: v.endpoint,

		Connected:  s.Connected,
		Since:      s.Since,
		Complete:   s.Complete,
		Partial:    s.Partial,
		LagSeconds: s.Lag.Seconds(),

		BlockSize:  v.held.BlockSize,
		GPUBlocks:  v.held.Blocks[kvevents.GPU],
		CPUBlocks:  v.held.Blocks[kvevents.CPU],
		DiskBlocks: v.held.Blocks[kvevents.Disk],
		Parked:     v.held.Parked,

		Stored:  s.Events[kvevents.Stored],
		Removed: s.Events[kvevents.Removed],
		Cleared: s.Events[kvevents.Cleared],
		Batches: s.Batches,
		Skipped: s.Skipped,

		Connects:      s.Connects,
		Gaps:          s.Gaps,
		Missed:        s.Missed,
		Replays:       s.Replays,
		ReplaysFailed: s.ReplaysFailed,
		Repeated:      s.Repeated,
		OtherRank:     s.OtherRank,
		Malformed:     s.Malformed,
		Undecodable:   s.Undecodable,
		Resets:        make(map[string]uint64, follow.Reasons),
		LastError:     s.LastError,
	}
	if s.Any {
		state.LastSequence = &s.Last
	}
	if !s.LastEvent.IsZero() {
		state.LastEvent = &s.LastEvent
	}
	for reason, n := range s.Resets {
		state.Resets[follow.Reason(reason).String()] = n
	}
	return state
}

// EventsBrief is what a snapshot says of an upstream's events.
type EventsBrief struct {
	State string `json:"state"` // live, partial, or not connected
	// Blocks, in the engine's own size, that it reports to hold: in its GPU's memory,
	// and elsewhere.
	GPUBlocks     int     `json:"gpu_blocks"`
	OffloadBlocks int     `json:"offload_blocks"`
	Gaps          uint64  `json:"gaps_total"`
	LagSeconds    float64 `json:"lag_seconds"` // of the last live batch; see GET /kv_aware/events
}

// followedBriefly gives what a snapshot says of events, by address.
func (pl *pool) followedBriefly() map[string]*EventsBrief {
	briefs := make(map[string]*EventsBrief)
	for _, v := range pl.followedNow() {
		b := &EventsBrief{
			State:         "live",
			GPUBlocks:     v.held.Blocks[kvevents.GPU],
			OffloadBlocks: v.held.Blocks[kvevents.CPU] + v.held.Blocks[kvevents.Disk],
			Gaps:          v.status.Gaps,
			LagSeconds:    v.status.Lag.Seconds(),
		}
		switch {
		case !v.status.Connected:
			b.State = "not connected"
		case !v.status.Complete:
			b.State = "partial"
		}
		briefs[v.address] = b
	}
	return briefs
}
