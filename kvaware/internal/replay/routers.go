// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Routers are how many routers share a run's requests, each with a policy of its own
// that hears of those alone that come to it, and of what engines publish.
type Routers struct {
	N int `json:"n"` // 0 stands for 1
	// Sticky says that all requests of a session come to the same router, as behind a
	// balancer that knows clients again; else each comes to any, as behind one that
	// does not.
	Sticky bool `json:"sticky,omitempty"`
}

// MaxRouters bounds the routers of a run.
const MaxRouters = 64

func (r Routers) withDefaults() Routers {
	if r.N = cmp.Or(r.N, 1); r.N == 1 {
		r.Sticky = false
	}
	return r
}

// ParseRouters reads a number of routers, with /session behind it if they are sticky.
func ParseRouters(text string) (Routers, error) {
	number, by, sticky := strings.Cut(strings.TrimSpace(text), "/")
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > MaxRouters || sticky && by != "session" {
		return Routers{}, fmt.Errorf("routers %q: give whole numbers from 1 to %d, such as 4, or 4/session where a session's requests come to the same", text, MaxRouters)
	}
	return Routers{n, sticky}.withDefaults(), nil
}

func (r Routers) String() string {
	switch r = r.withDefaults(); {
	case r.N == 1:
		return "1 router"
	case r.Sticky:
		return strconv.Itoa(r.N) + " routers by session"
	}
	return strconv.Itoa(r.N) + " routers"
}

// employ makes the policies, one for each router. What the policy can do besides
// routing all of them do.
func (r *run) employ() error {
	for i := range r.Routers.N {
		// Their chance is another than that of the arrivals, and the same for each policy.
		chance := rand.New(rand.NewPCG(r.Seed, 0x706f6c696379+uint64(i)))
		r.routers = append(r.routers, r.Policy.New(Setting{BlockSize: r.BlockSize, Rand: chance}))
	}
	r.member = together(r.routers, func(all []Member) Member { return members(all) })
	r.listener = together(r.routers, func(all []Listener) Listener { return listeners(all) })
	r.poller = together(r.routers, func(all []Poller) Poller { return pollers(all) })
	_, r.streams = r.routers[0].(Streamer)
	if r.poller != nil {
		if r.poller.PollEvery() <= 0 {
			return fmt.Errorf("policy %s polls every %v", r.Policy.Name, r.poller.PollEvery())
		}
		r.pollAt = r.poller.PollEvery()
	}
	return nil
}

// together is what policies of one kind can do beyond Policy, as one: nil if nothing,
// and a single one's as it is.
func together[T any](routers []Policy, join func([]T) T) T {
	var all []T
	for _, p := range routers {
		if t, ok := p.(T); ok {
			all = append(all, t)
		}
	}
	switch len(all) {
	case 0:
		var none T
		return none
	case 1:
		return all[0]
	}
	return join(all)
}

// routerOf is the router to which a session's present request comes, the same under
// every policy.
func (r *run) routerOf(s *session) int {
	if r.Routers.N == 1 {
		return 0
	}
	id := s.base + s.turn
	if r.Routers.Sticky {
		id = s.base
	}
	return int(rand.NewPCG(r.Seed^0x726f75746572, uint64(id)).Uint64() % uint64(r.Routers.N))
}

type members []Member

func (m members) Joined(now time.Duration, replica int, c Capacity) {
	for _, one := range m {
		one.Joined(now, replica, c)
	}
}

func (m members) Left(now time.Duration, replica int) {
	for _, one := range m {
		one.Left(now, replica)
	}
}

type listeners []Listener

func (l listeners) EventDelay() time.Duration { return l[0].EventDelay() }

func (l listeners) Stored(now time.Duration, replica int, block uint64) {
	for _, one := range l {
		one.Stored(now, replica, block)
	}
}

func (l listeners) Removed(now time.Duration, replica int, block uint64) {
	for _, one := range l {
		one.Removed(now, replica, block)
	}
}

func (l listeners) Cleared(now time.Duration, replica int) {
	for _, one := range l {
		one.Cleared(now, replica)
	}
}

type pollers []Poller

func (p pollers) PollEvery() time.Duration { return p[0].PollEvery() }

func (p pollers) Polled(now time.Duration, replica int, m Metrics) {
	for _, one := range p {
		one.Polled(now, replica, m)
	}
}
