// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is what happens to a replica.
type Kind uint8

// The kinds of events.
const (
	Leave   Kind = iota // connections are refused, its requests fail
	Join                // it comes back, or comes for the first time, with an empty cache
	Restart             // leaves and joins after Down
	Slow                // its steps last Factor times as long as they did at the start
	Update              // all replicas load new weights: caches are cleared
)

var kindNames = []string{"leave", "join", "restart", "slow", "update"}

func (k Kind) String() string { return kindNames[k] }

// Event happens to a replica during a run.
type Event struct {
	Kind    Kind
	Replica int
	// After is the share of the trace's requests that have arrived when it happens,
	// so that it meets runs of any load at the same point.
	After  float64
	Down   time.Duration // of a Restart
	Factor float64       // of Slow
}

// restartTime is what loading a model takes where the event does not say.
const restartTime = time.Minute

const maxDown = 1000 * time.Hour

// ParseEvents reads events as kind:replica@share, with a factor behind slow and a
// time behind restart: "slow:2@0.3=3,restart:0@0.5=60s,leave:1@0.2,join:1@0.6,
// update@0.5".
func ParseEvents(text string) ([]Event, error) {
	if text == "" {
		return nil, nil
	}
	var events []Event
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		wrong := func(what string) error {
			return fmt.Errorf("event %q: %s; an event is like slow:2@0.3=3, restart:0@0.5=60s, leave:1@0.2, join:1@0.6 or update@0.5", part, what)
		}
		head, share, ok := strings.Cut(part, "@")
		if !ok {
			return nil, wrong("no share of the run")
		}
		name, replica, named := strings.Cut(head, ":")
		e := Event{Kind: Kind(len(kindNames)), Down: restartTime, Factor: 1}
		for k, n := range kindNames {
			if n == name {
				e.Kind = Kind(k)
			}
		}
		if int(e.Kind) == len(kindNames) {
			return nil, wrong("no such kind")
		}
		if named == (e.Kind == Update) {
			return nil, wrong("it is of one replica, but for update, which is of all")
		}
		var err error
		if named {
			if e.Replica, err = strconv.Atoi(replica); err != nil || e.Replica < 0 {
				return nil, wrong("not a replica's number")
			}
		}
		share, value, given := strings.Cut(share, "=")
		if e.After, err = strconv.ParseFloat(share, 64); err != nil || !(e.After >= 0 && e.After <= 1) {
			return nil, wrong("the share must be from 0 to 1")
		}
		switch {
		case e.Kind == Slow:
			if e.Factor, err = strconv.ParseFloat(value, 64); err != nil || !sane(e.Factor) {
				return nil, wrong(fmt.Sprintf("the factor must be from %g to %g", 1/mostSpeed, mostSpeed))
			}
		case e.Kind == Restart && given:
			if e.Down, err = time.ParseDuration(value); err != nil || e.Down < 0 || e.Down > maxDown {
				return nil, wrong(fmt.Sprintf("the time must be from 0 to %v", maxDown))
			}
		case given:
			return nil, wrong("it has no value")
		}
		events = append(events, e)
	}
	return events, nil
}

// inOrder returns the events by their share of the run.
func inOrder(events []Event) []Event {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b Event) int {
		switch {
		case a.After < b.After:
			return -1
		case a.After > b.After:
			return 1
		}
		return 0
	})
	return events
}

// validate tells whether the events are of replicas that the fleet has.
func (c *Config) validateEvents() error {
	for _, e := range c.Events {
		if e.Kind != Update && (e.Replica < 0 || e.Replica >= len(c.Fleet.Replicas)) {
			return fmt.Errorf("%v of replica %d: the fleet has %d, numbered from 0", e.Kind, e.Replica, len(c.Fleet.Replicas))
		}
		if e.Kind == Slow && !sane(e.Factor) || e.Down < 0 || e.Down > maxDown {
			return fmt.Errorf("%v of replica %d: factor %g, down for %v: out of bounds", e.Kind, e.Replica, e.Factor, e.Down)
		}
	}
	return nil
}
