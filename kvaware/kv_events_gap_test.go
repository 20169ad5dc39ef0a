// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestWhatWasLostForGoodIsShownUntilTheEngineStartsOver(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	r := report(t, 0, 0)
	r.publish(storedBlocks(1, 5))
	c := proxytest.Start(t, "", site(engine.Addr(), r.options(), ""))
	wantFollowed(t, c, 5)
	metric := func(name, value string) bool {
		_, _, text := c.Admin("GET", "/metrics", "")
		return strings.Contains(text, fmt.Sprintf("caddy_kv_aware_kv_events_%s{pool=\"\",upstream=%q} %s\n", name, engine.Addr(), value))
	}
	if !metric("complete", "1") || !metric("gaps_total", "0") {
		t.Error("something is missing before anything was lost")
	}
	// The replay has no message of these numbers.
	payload := kvevents.AppendBatch(nil, &kvevents.Batch{Rank: -1, Events: []kvevents.Event{storedBlocks(2, 7)}}, 0)
	r.pub.Publish(nil, binary.BigEndian.AppendUint64(nil, 9), payload)
	eventually(t, "the loss is shown", func() bool {
		s := followedStates(t, c)[0]
		return s.Partial && !s.Complete && s.Gaps == 1 && s.Missed == 1
	})
	for name, value := range map[string]string{"complete": "0", "gaps_total": "1", "missed_total": "1"} {
		if !metric(name, value) {
			t.Errorf("%s is not %s", name, value)
		}
	}
}
