// SPDX-License-Identifier: Apache-2.0

// Package recent keeps what an upstream did in the last minute, in fixed memory:
// counts by second, from which rates are made, and sketches of its latencies. It
// is written beside each request and token, and read when someone looks.
//
// All times are told by the caller, on one monotonic clock of its own.
package recent

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// seconds are kept; the last one is still being counted.
	seconds = 64
	// RateWindow is what rates are of, in whole seconds, and Window what all else is
	// of. Sketches forget by quarters of it.
	RateWindow = 10 * time.Second
	Window     = time.Minute
)

// Upstream is what one upstream did lately. The zero value is ready. It is safe
// for concurrent use; a reader may see a request's counts in part.
type Upstream struct {
	mu      sync.Mutex // held while counts of an old second are cleared
	seconds [seconds]second

	firstToken, interToken Sketch
}

// second is what was counted in one second.
type second struct {
	number                           atomic.Int64 // from 1 on; 0 before the first
	requests, prompt, cached, output atomic.Int64
}

func numberOf(now time.Duration) int64 { return int64(now/time.Second) + 1 }

// at gives the counts of a second, cleared if they were of an older one.
func (u *Upstream) at(now time.Duration) *second {
	n := numberOf(now)
	s := &u.seconds[n%seconds]
	if s.number.Load() == n {
		return s
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if s.number.Load() < n {
		s.requests.Store(0)
		s.prompt.Store(0)
		s.cached.Store(0)
		s.output.Store(0)
		s.number.Store(n)
	}
	return s
}

// Routed counts a request that is sent there, with its prompt's tokens and those
// of them that it is believed to hold.
func (u *Upstream) Routed(now time.Duration, prompt, cached int) {
	s := u.at(now)
	s.requests.Add(1)
	s.prompt.Add(int64(prompt))
	s.cached.Add(int64(cached))
}

// Generated counts tokens.
func (u *Upstream) Generated(now time.Duration, tokens int) {
	u.at(now).output.Add(int64(tokens))
}

// FirstToken takes in a time to first token.
func (u *Upstream) FirstToken(now, after time.Duration) { u.firstToken.add(now, after) }

// InterToken takes in the time between two tokens.
func (u *Upstream) InterToken(now, gap time.Duration) { u.interToken.add(now, gap) }

// Totals are sums over one upstream or several.
type Totals struct {
	// Of RateWindow.
	Requests, Generated, Computed float64 // per second; Computed are prompt tokens that were not cached
	// Of Window.
	PromptTokens, CachedTokens int64
	FirstToken, InterToken     Distribution
}

// AddTo adds what the upstream did before now.
func (u *Upstream) AddTo(t *Totals, now time.Duration) {
	last := numberOf(now) - 1 // the last whole second
	rated := min(int64(RateWindow/time.Second), max(last, 1))
	var requests, generated, computed int64
	for i := range u.seconds {
		s := &u.seconds[i]
		age := last - s.number.Load()
		if s.number.Load() == 0 || age < -1 || age >= int64(Window/time.Second) {
			continue
		}
		prompt, cached := s.prompt.Load(), s.cached.Load()
		t.PromptTokens += prompt
		t.CachedTokens += cached
		if age >= 0 && age < rated {
			requests += s.requests.Load()
			generated += s.output.Load()
			computed += prompt - cached
		}
	}
	t.Requests += float64(requests) / float64(rated)
	t.Generated += float64(generated) / float64(rated)
	t.Computed += float64(max(0, computed)) / float64(rated)
	u.firstToken.addTo(&t.FirstToken, now)
	u.interToken.addTo(&t.InterToken, now)
}
