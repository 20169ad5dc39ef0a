// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"fmt"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

// KVEvents has the engine publish what its KV cache holds, over ZeroMQ, as vLLM
// does with --kv-events-config. What can be read there are the token ids of all
// prompts and answers, by whoever can connect.
type KVEvents struct {
	// Where subscribers connect to: `tcp://<host>:<port>`, with `*` for all
	// addresses, or `ipc://<path>`. Default: `tcp://127.0.0.1:5557`.
	Endpoint string `json:"endpoint,omitempty"`

	// Where those connect to who ask for batches that they missed. Default: none.
	ReplayEndpoint string `json:"replay_endpoint,omitempty"`

	// What each message begins with, for subscribers to choose by. Default: empty.
	Topic string `json:"topic,omitempty"`

	// How batches and events are written: `mixed`, maps in an array, as vLLM since
	// 0.25 and SGLang since 0.5.20 do; `arrays`, as those before did; or `maps`, both
	// as maps, as later vLLM does. Default: `mixed`.
	Shape string `json:"shape,omitempty"`

	// How many of the last batches can be asked for. Default: 10000.
	BufferSteps int `json:"buffer_steps,omitempty"`

	// How many batches wait for a subscriber that is slow; more are lost to it.
	// Default: 100000.
	HWM int `json:"hwm,omitempty"`
}

const (
	defaultEndpoint    = "tcp://127.0.0.1:5557"
	defaultShape       = "mixed"
	defaultBufferSteps = 10_000
	defaultHWM         = 100_000
	maxTopic           = 256
)

var shapes = map[string]kvevents.Shape{
	defaultShape: 0,
	"arrays":     kvevents.ArrayEvents,
	"maps":       kvevents.MapBatch,
}

// eventSettings are KVEvents as read. The zero value stands for none.
type eventSettings struct {
	endpoint, replay zmtp.Endpoint // replay is zero if there is none
	topic            string
	shape            kvevents.Shape
	steps, hwm       int
}

func (s eventSettings) publishes() bool { return s != eventSettings{} }

// settings fills in defaults and checks.
func (k *KVEvents) settings() (s eventSettings, err error) {
	if k == nil {
		return s, nil
	}
	if k.Endpoint == "" {
		k.Endpoint = defaultEndpoint
	}
	if k.Shape == "" {
		k.Shape = defaultShape
	}
	s = eventSettings{topic: k.Topic, steps: defaultBufferSteps, hwm: defaultHWM}
	or(&s.steps, k.BufferSteps)
	or(&s.hwm, k.HWM)
	if s.endpoint, err = zmtp.ParseEndpoint(k.Endpoint); err != nil {
		return s, fmt.Errorf("endpoint: %w", err)
	}
	if k.ReplayEndpoint != "" {
		if s.replay, err = zmtp.ParseEndpoint(k.ReplayEndpoint); err != nil {
			return s, fmt.Errorf("replay_endpoint: %w", err)
		}
		if s.replay == s.endpoint {
			return s, fmt.Errorf("replay_endpoint %s: is endpoint as well; give it another port", k.ReplayEndpoint)
		}
	}
	var known bool
	if s.shape, known = shapes[k.Shape]; !known {
		return s, fmt.Errorf("shape %q: must be mixed, arrays or maps", k.Shape)
	}
	switch {
	case len(s.topic) > maxTopic:
		return s, fmt.Errorf("topic: must be at most %d bytes", maxTopic)
	case s.steps < 1:
		return s, fmt.Errorf("buffer_steps %d: must be at least 1", s.steps)
	case s.hwm < 1:
		return s, fmt.Errorf("hwm %d: must be at least 1", s.hwm)
	}
	return s, nil
}

// clashes tells whether the two would listen at one place.
func (s eventSettings) clashes(with eventSettings) bool {
	none := zmtp.Endpoint{}
	return s.endpoint == with.endpoint || s.endpoint == with.replay ||
		s.replay != none && (s.replay == with.replay || s.replay == with.endpoint)
}
