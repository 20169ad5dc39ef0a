// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A session that is over before the run begins is skipped; those that go on are in
// memory, and a rate can ask for any number of them.
func TestARateThatNoMachineCouldHoldIsRefused(t *testing.T) {
	defer func(most int) { maxUnderWay = most }(maxUnderWay)
	maxUnderWay = 1 << 14
	for _, c := range []struct {
		spec string
		rate float64
		want error
	}{
		{"chat", 1e300, ErrTooMany},
		{"uniform", 1e300, ErrTooMany},
		{"chat", 1e-300, ErrTooSlow},
		{"chat", 1e-9, ErrTooSlow},
		{"chat:think=16777216", 10, ErrTooMany},
	} {
		_, err := Run(context.Background(), Config{Trace: workload(t, c.spec, 200), Fleet: fleet(t, "2"), Policy: roundRobin(), Rate: c.rate})
		if !errors.Is(err, c.want) {
			t.Errorf("%s at %g requests a second: %v, want %v", c.spec, c.rate, err, c.want)
		}
	}
}

func TestTheSlowestAndTheFastestFleetKeepTheClock(t *testing.T) {
	for _, text := range []string{"2xl4@0.001", "2xh100@1000"} {
		c := Config{Trace: workload(t, "chat", 100), Fleet: fleet(t, text), Policy: roundRobin(), Rate: 1, WarmUp: -1,
			Events: []Event{{Kind: Slow, After: 0.5, Factor: 1000}, {Kind: Restart, Replica: 1, After: 0.6, Down: maxDown}}}
		r := simulated(t, c)
		if r.Requests != 100 || !(r.TTFT.Mean > 0) || !(r.E2E.Max >= r.TTFT.Mean) || !(r.Seconds > 0) {
			t.Errorf("%s: %d requests, TTFT %v, in %v s", text, r.Requests, r.TTFT.Mean, r.Seconds)
		}
	}
	for _, e := range []Event{{Kind: Slow, Factor: 1e300}, {Kind: Slow}, {Kind: Restart, Down: maxDown + time.Hour}, {Kind: Restart, Down: -1}} {
		c := Config{Trace: workload(t, "uniform", 10), Fleet: fleet(t, "2"), Policy: roundRobin(), Rate: 1, Events: []Event{e}}
		if _, err := Run(context.Background(), c); err == nil {
			t.Errorf("%+v is accepted", e)
		}
	}
}
