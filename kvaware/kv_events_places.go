// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

// checkEvents refuses upstreams of which nobody can tell where they publish, or
// that would be taken for each other.
func (p *Policy) checkEvents() error {
	if p.events == nil || p.proxy == nil {
		return nil
	}
	taken := placesOf{make(map[zmtp.Endpoint]string), make(map[zmtp.Endpoint]string)}
	for _, u := range p.proxy.Upstreams {
		if err := p.events.checkUpstream(u.Dial, taken); err != nil {
			return fmt.Errorf("kv_events: %w", err)
		}
	}
	return nil
}

// placesOf is what upstreams that were checked have at which endpoint.
type placesOf struct {
	events, replays map[zmtp.Endpoint]string // the upstream's address
}

// checkUpstream refuses a static upstream of which nobody can tell where it
// publishes, or that would publish or replay where something else is.
func (c *eventsConfig) checkUpstream(dial string, taken placesOf) error {
	if c.listen != (zmtp.Endpoint{}) {
		return nil
	}
	resolved := caddy.NewReplacer().ReplaceKnown(dial, "")
	address, ok := plainAddress(resolved)
	if !ok {
		if strings.Contains(resolved, "{") && !slices.ContainsFunc(c.endpoints, func(e EventsEndpoint) bool { return e.Upstream != "" }) {
			return fmt.Errorf("upstream %s: its address is only known with a request: name the upstreams that it may be by `endpoint <url> <upstream address>`", dial)
		}
		return nil // if it is no address at all, the proxy says so
	}
	for rank := range c.ranks {
		at, ok, err := c.endpointOf(address, rank, false)
		if err != nil {
			return fmt.Errorf("upstream %s: %w", dial, err)
		}
		if !ok {
			return fmt.Errorf("upstream %s: a unix socket has no host, so its events are at no port of it: give `endpoint <url> %s`", dial, dial)
		}
		if other, ok := taken.events[at]; ok && other != address {
			return fmt.Errorf("upstreams %s and %s would both be followed at %s: give each an `endpoint <url> <upstream address>` of its own", other, dial, at)
		}
		taken.events[at] = address
		replay, ok, err := c.endpointOf(address, rank, true)
		if err != nil {
			return fmt.Errorf("upstream %s: %w", dial, err)
		}
		if !ok {
			continue
		}
		if other, ok := taken.replays[replay]; ok && other != address {
			return fmt.Errorf("upstreams %s and %s would both replay at %s: give each a `replay <url> <upstream address>` of its own", other, dial, replay)
		}
		taken.replays[replay] = address
	}
	for at, address := range taken.replays {
		if other, ok := taken.events[at]; ok {
			return fmt.Errorf("the events of upstream %s and the replays of %s would both be at %s: an engine has each at a port of its own, and rank r at these ports plus r", other, address, at)
		}
	}
	return nil
}
