// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

const testBlock = 64

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// made returns the policy of that name for blocks of testBlock tokens.
func made[T replay.Policy](tb testing.TB, name string) T {
	tb.Helper()
	s, ok := ByName(name)
	if !ok {
		tb.Fatalf("no policy %q", name)
	}
	p, ok := s.New(replay.Setting{BlockSize: testBlock, Rand: seeded(1)}).(T)
	if !ok {
		tb.Fatalf("%s is not of the type asked for", name)
	}
	return p
}

// chain appends n blocks that build on those in front.
func chain(front []uint64, seed uint64, n int) []uint64 {
	blocks := slices.Clone(front)
	last := uint64(0)
	if len(blocks) > 0 {
		last = blocks[len(blocks)-1]
	}
	for range n {
		last = mix(last ^ mix(seed))
		blocks = append(blocks, last)
	}
	return blocks
}

// asking returns a request of whole blocks.
func asking(blocks []uint64) *replay.Request {
	return &replay.Request{Prompt: len(blocks) * testBlock, Blocks: blocks, Stream: true}
}

func route(p replay.Policy, r *replay.Request, up ...int) int { return p.Route(0, r, up) }

// wants fails unless every one of the given replicas is chosen, and no other, when
// the same choice is made anew many times.
func wants(t *testing.T, p replay.Policy, r func() *replay.Request, up []int, replicas ...int) {
	t.Helper()
	chooses(t, func() int {
		q := r()
		i := p.Route(0, q, up)
		p.Ended(0, q, i, replay.Failed, replay.Usage{})
		return i
	}, replicas...)
}

// chooses is wants for a choice of any kind.
func chooses(t *testing.T, choice func() int, replicas ...int) {
	t.Helper()
	seen := map[int]bool{}
	for range 64 {
		seen[choice()] = true
	}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, replicas) {
		t.Errorf("chosen %v, want %v", got, replicas)
	}
}

// fleet drives a policy through random requests, engines and mishaps.
type fleet struct {
	p       replay.Policy
	rand    *rand.Rand
	now     time.Duration
	up      []int
	flights []flight
	prompts [][]uint64
	chosen  []int
	// plain leaves out what only clients could say.
	plain bool
	id    int
}

type flight struct {
	r       *replay.Request
	replica int
	started bool
	tokens  int
}

func newFleet(p replay.Policy, seed uint64, replicas int) *fleet {
	f := &fleet{p: p, rand: seeded(seed), prompts: [][]uint64{nil}}
	if s, ok := p.(replay.Seer); ok {
		s.See(f)
	}
	for i := range replicas {
		f.up = append(f.up, i)
		f.joined(i)
	}
	return f
}

func (f *fleet) joined(replica int) {
	if m, ok := f.p.(replay.Member); ok {
		m.Joined(f.now, replica, replay.Capacity{CacheTokens: 4096, MaxSeqs: 16, MaxBatched: 2048})
	}
}

func (f *fleet) leave(replica int) {
	if m, ok := f.p.(replay.Member); ok {
		m.Left(f.now, replica)
	}
	f.up = slices.DeleteFunc(f.up, func(i int) bool { return i == replica })
	var again []*replay.Request
	for k := 0; k < len(f.flights); {
		if f.flights[k].replica != replica {
			k++
			continue
		}
		again = append(again, f.flights[k].r)
		f.end(k, replay.Failed)
	}
	for _, r := range again {
		f.route(r)
	}
}

func (f *fleet) request() *replay.Request {
	front := f.prompts[f.rand.IntN(len(f.prompts))]
	if len(front) > 100 {
		front = front[:f.rand.IntN(len(front))]
	}
	blocks := chain(front, f.rand.Uint64(), f.rand.IntN(12))
	if len(f.prompts) < 64 {
		f.prompts = append(f.prompts, blocks)
	} else {
		f.prompts[1+f.rand.IntN(63)] = blocks
	}
	r := &replay.Request{
		ID: f.id, Arrived: f.now,
		Prompt: len(blocks)*testBlock + f.rand.IntN(testBlock), Blocks: blocks,
		Stream: f.rand.IntN(4) > 0,
	}
	session, tenant, limit := f.rand.Uint64N(20), f.rand.IntN(3), f.rand.IntN(300)
	if !f.plain {
		r.Session, r.Tenant, r.MaxTokens = session, tenant, limit
	}
	f.id++
	return r
}

func (f *fleet) route(r *replay.Request) {
	i := f.p.Route(f.now, r, slices.Clone(f.up))
	f.chosen = append(f.chosen, i)
	f.flights = append(f.flights, flight{r: r, replica: i})
	l, ok := f.p.(replay.Listener)
	if !ok {
		return
	}
	for _, b := range r.Blocks {
		if f.rand.IntN(3) > 0 {
			l.Stored(f.now, i, b)
		}
	}
}

func (f *fleet) end(k int, o replay.Outcome) {
	x := f.flights[k]
	f.flights = slices.Delete(f.flights, k, k+1)
	f.p.Ended(f.now, x.r, x.replica, o, replay.Usage{Output: x.tokens})
}

// step lets one thing happen.
func (f *fleet) step() {
	f.now += time.Duration(f.rand.Int64N(int64(2 * time.Second)))
	switch k := f.rand.IntN(100); {
	case k < 40:
		f.route(f.request())
	case k < 90 && len(f.flights) > 0:
		i := f.rand.IntN(len(f.flights))
		x := &f.flights[i]
		switch {
		case f.rand.IntN(3) == 0:
			f.end(i, replay.Outcome(f.rand.IntN(2)))
		case !x.r.Stream:
			x.tokens++
		case !x.started:
			x.started = true
			f.p.Started(f.now, x.r, x.replica)
		default:
			x.tokens += f.rand.IntN(200)
			f.p.Progress(f.now, x.r, x.replica, x.tokens)
		}
	case k < 94:
		i := f.rand.IntN(8 + f.rand.IntN(100))
		if slices.Contains(f.up, i) {
			break
		}
		f.up = append(f.up, i)
		slices.Sort(f.up)
		f.joined(i)
	case k < 97 && len(f.up) > 1:
		f.leave(f.up[f.rand.IntN(len(f.up))])
	default:
		i := f.up[f.rand.IntN(len(f.up))]
		if p, ok := f.p.(replay.Poller); ok {
			p.Polled(f.now, i, f.Metrics(i))
		}
		if l, ok := f.p.(replay.Listener); ok {
			b := f.prompts[f.rand.IntN(len(f.prompts))]
			for k := len(b) - 1; k >= len(b)/2; k-- {
				l.Removed(f.now, i, b[k])
			}
			if f.rand.IntN(4) == 0 {
				l.Cleared(f.now, i)
			}
		}
	}
}

func (f *fleet) drain() {
	for len(f.flights) > 0 {
		f.end(f.rand.IntN(len(f.flights)), replay.Outcome(f.rand.IntN(2)))
	}
}

// The fleet as a Seer sees it.

func (f *fleet) Output(r *replay.Request) int { return 100 + r.ID%50 }

func (f *fleet) Cached(r *replay.Request, replica int) int { return r.Prompt / (2 + replica) }

func (f *fleet) Metrics(replica int) replay.Metrics {
	return replay.Metrics{Running: replica % 5, Waiting: replica % 3, KVUsage: float64(replica%10) / 10}
}

func (f *fleet) Backlog(replica int) float64 { return float64(replica%4) / 2 }

func (f *fleet) Remaining(replica int) int { return replica * 10 }

func (f *fleet) Speed(replica int) float64 { return 1 + float64(replica%2) }

var ofTwo = []int{0, 1}

// routes expects the choices for one request after the other, the events of each
// before it.
func routes(t *testing.T, p replay.Policy, r func() *replay.Request, up []int, want ...int) []*replay.Request {
	t.Helper()
	var all []*replay.Request
	for k, w := range want {
		q := r()
		if got := route(p, q, up...); got != w {
			t.Fatalf("request %d went to %d, want %d of %v", k, got, w, want)
		}
		all = append(all, q)
	}
	return all
}

// tell reports blocks as stored.
func tell(p replay.Listener, replica int, blocks []uint64) {
	for _, b := range blocks {
		p.Stored(0, replica, b)
	}
}

// somePrompts makes prompts up, some of which build on others.
func somePrompts(seed uint64, n int) [][]uint64 {
	rand := seeded(seed)
	var prompts [][]uint64
	for k := range n {
		var front []uint64
		if k > 3 {
			front = prompts[rand.IntN(k)]
			front = front[:rand.IntN(len(front)+1)]
		}
		prompts = append(prompts, chain(front, rand.Uint64(), 1+rand.IntN(12)))
	}
	return prompts
}

// held returns how many of the first blocks are in the set.
func held(set map[uint64]bool, blocks []uint64) int {
	for k, b := range blocks {
		if !set[b] {
			return k
		}
	}
	return len(blocks)
}
