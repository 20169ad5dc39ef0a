// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/follow"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

var (
	eventsConnectedDesc = describe("kv_events_connected", "Whether the upstream's KV events are followed: 1 with a connection, 0 without.", "upstream")
	eventsCompleteDesc  = describe("kv_events_complete", "Whether what the upstream reported is all that it holds: 1 if so, 0 if it is known in part or not at all.", "upstream")
	eventsDesc          = describe("kv_events_total", "KV events taken in, by kind: stored, removed, cleared, or skipped since they are unknown or make no sense.", "upstream", "kind")
	eventsBlocksDesc    = describe("kv_events_blocks", "KV blocks that the upstream reports to hold, in its own size, by tier: gpu, cpu or disk; or parked, since what comes before them was never told.", "upstream", "tier")
	eventsLagDesc       = describe("kv_events_lag_seconds", "How old the last live batch was when it was taken in, by the engine's clock and this one.", "upstream")
	eventsGapsDesc      = describe("kv_events_gaps_total", "Jumps of the sequence: messages that were missing.", "upstream")
	eventsMissedDesc    = describe("kv_events_missed_total", "Gaps that no replay filled.", "upstream")
	eventsReplaysDesc   = describe("kv_events_replays_total", "Replays asked for, by result: answered or failed.", "upstream", "result")
	eventsUndecodedDesc = describe("kv_events_undecodable_total", "Messages whose payload could not be decoded, or whose frames are not those of a message.", "upstream")
	eventsResetsDesc    = describe("kv_events_resets_total", "Times that what the upstream reported was forgotten, by reason.", "upstream", "reason")
)

// eventsDescs are the metrics of KV events.
var eventsDescs = []*prometheus.Desc{
	eventsConnectedDesc, eventsCompleteDesc, eventsDesc, eventsBlocksDesc, eventsLagDesc,
	eventsGapsDesc, eventsMissedDesc, eventsReplaysDesc, eventsUndecodedDesc, eventsResetsDesc,
}

// collectEvents collects what the followers of a pool know.
func collectEvents(ch chan<- prometheus.Metric, pl *pool) {
	for _, u := range pl.followedNow() {
		s, on := &u.status, map[bool]float64{true: 1}
		gauge(ch, eventsConnectedDesc, on[s.Connected], pl.name, u.address)
		gauge(ch, eventsCompleteDesc, on[s.Complete], pl.name, u.address)
		for kind, name := range [...]string{kvevents.Stored: "stored", kvevents.Removed: "removed", kvevents.Cleared: "cleared"} {
			counter(ch, eventsDesc, float64(s.Events[kind]), pl.name, u.address, name)
		}
		counter(ch, eventsDesc, float64(s.Skipped), pl.name, u.address, "skipped")
		for tier, name := range [...]string{kvevents.GPU: "gpu", kvevents.CPU: "cpu", kvevents.Disk: "disk"} {
			gauge(ch, eventsBlocksDesc, float64(u.held.Blocks[tier]), pl.name, u.address, name)
		}
		gauge(ch, eventsBlocksDesc, float64(u.held.Parked), pl.name, u.address, "parked")
		gauge(ch, eventsLagDesc, s.Lag.Seconds(), pl.name, u.address)
		counter(ch, eventsGapsDesc, float64(s.Gaps), pl.name, u.address)
		counter(ch, eventsMissedDesc, float64(s.Missed), pl.name, u.address)
		counter(ch, eventsReplaysDesc, float64(s.Replays), pl.name, u.address, "answered")
		counter(ch, eventsReplaysDesc, float64(s.ReplaysFailed), pl.name, u.address, "failed")
		counter(ch, eventsUndecodedDesc, float64(s.Undecodable+s.Malformed), pl.name, u.address)
		for reason, n := range s.Resets {
			counter(ch, eventsResetsDesc, float64(n), pl.name, u.address, follow.Reason(reason).String())
		}
	}
}
