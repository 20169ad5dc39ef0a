// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/trace"
)

// auditor is a policy of every kind that routes at random and holds the driver to
// its word.
type auditor struct {
	t    *testing.T
	rng  *rand.Rand
	size int
	now  time.Duration
	up   map[int]Capacity
	at   map[*Request]*attempt

	routed, completed, failed int
	tokens                    int
	polls                     int
	blocks                    map[int]map[uint64]bool
	stored, removed, cleared  int
	sight                     Sight
	firstSight                []Request
}

type attempt struct {
	replica, total int
	started        bool
	id             int
}

func (a *auditor) tick(now time.Duration) {
	a.t.Helper()
	if now < a.now {
		a.t.Fatalf("the clock went from %v back to %v", a.now, now)
	}
	a.now = now
}

func (a *auditor) Route(now time.Duration, r *Request, up []int) int {
	a.tick(now)
	if len(up) == 0 || !slices.IsSorted(up) {
		a.t.Fatalf("in service: %v", up)
	}
	for _, i := range up {
		if _, ok := a.up[i]; !ok {
			a.t.Fatalf("replica %d is said to be in service", i)
		}
	}
	if a.at[r] != nil {
		a.t.Fatal("a request that is under way is routed")
	}
	if len(r.Blocks) != r.Prompt/a.size || cap(r.Blocks) < len(r.Blocks) {
		a.t.Fatalf("%d blocks for %d tokens", len(r.Blocks), r.Prompt)
	}
	if len(a.firstSight) < 20 {
		c := *r
		c.truth, c.State, c.Blocks = nil, nil, slices.Clone(r.Blocks)
		a.firstSight = append(a.firstSight, c)
	}
	pick := up[a.rng.IntN(len(up))]
	if a.sight != nil {
		if a.sight.Output(r) < 1 || a.sight.Cached(r, pick) > r.Prompt || a.sight.Backlog(pick) < 0 || a.sight.Remaining(pick) < 0 || a.sight.Speed(pick) <= 0 {
			a.t.Fatal("a Seer sees nonsense")
		}
		if m := a.sight.Metrics(pick); m.KVUsage < 0 || m.KVUsage > 1 {
			a.t.Fatalf("%+v", m)
		}
	}
	r.State = a
	a.routed++
	a.at[r] = &attempt{replica: pick, id: r.ID}
	return pick
}

func (a *auditor) of(r *Request, replica int) *attempt {
	a.t.Helper()
	at := a.at[r]
	if at == nil || at.replica != replica || at.id != r.ID || r.State != a {
		a.t.Fatalf("heard of request %d at replica %d, where it is not", r.ID, replica)
	}
	return at
}

func (a *auditor) Started(now time.Duration, r *Request, replica int) {
	a.tick(now)
	at := a.of(r, replica)
	if at.started || !r.Stream {
		a.t.Fatal("started twice, or not streamed")
	}
	at.started, at.total = true, 1
}

func (a *auditor) Progress(now time.Duration, r *Request, replica, total int) {
	a.tick(now)
	at := a.of(r, replica)
	if !at.started || total <= at.total || total/16 != at.total/16+1 || total%16 != 0 {
		a.t.Fatalf("%d tokens after %d", total, at.total)
	}
	at.total = total
}

func (a *auditor) Ended(now time.Duration, r *Request, replica int, o Outcome, u Usage) {
	a.tick(now)
	at := a.of(r, replica)
	if u.Output < at.total || u.Cached > r.Prompt {
		a.t.Fatalf("%+v after %d tokens", u, at.total)
	}
	delete(a.at, r)
	switch o {
	case Completed:
		if r.Stream && (!at.started || u.Output-at.total > 16) {
			a.t.Fatalf("%d tokens at the end, %d before", u.Output, at.total)
		}
		a.completed++
		a.tokens += u.Output
	case Failed:
		a.failed++
	default:
		a.t.Fatal("rejected")
	}
}

func (a *auditor) Joined(now time.Duration, replica int, c Capacity) {
	a.tick(now)
	if _, ok := a.up[replica]; ok || c.CacheTokens <= 0 || c.MaxSeqs <= 0 || c.MaxBatched < c.MaxSeqs {
		a.t.Fatalf("replica %d joined: %+v", replica, c)
	}
	a.up[replica] = c
}

func (a *auditor) Left(now time.Duration, replica int) {
	a.tick(now)
	if _, ok := a.up[replica]; !ok {
		a.t.Fatalf("replica %d left twice", replica)
	}
	delete(a.up, replica)
}

func (a *auditor) PollEvery() time.Duration { return time.Second }
func (a *auditor) Polled(now time.Duration, replica int, m Metrics) {
	a.tick(now)
	if now%time.Second != 0 || m.KVUsage < 0 || m.KVUsage > 1 || m.PromptTokens < 0 || m.GenerationTokens < 0 {
		a.t.Fatalf("%v: %+v", now, m)
	}
	a.polls++
}

func (a *auditor) EventDelay() time.Duration { return 2 * time.Millisecond }
func (a *auditor) Stored(now time.Duration, replica int, block uint64) {
	a.tick(now)
	if a.blocks[replica] == nil {
		a.blocks[replica] = map[uint64]bool{}
	}
	if a.blocks[replica][block] {
		a.t.Fatal("stored twice")
	}
	a.blocks[replica][block] = true
	a.stored++
}
func (a *auditor) Removed(now time.Duration, replica int, block uint64) {
	a.tick(now)
	if !a.blocks[replica][block] {
		a.t.Fatal("removed, and was not there")
	}
	delete(a.blocks[replica], block)
	a.removed++
}
func (a *auditor) Cleared(now time.Duration, replica int) {
	a.tick(now)
	clear(a.blocks[replica])
	a.cleared++
}

func (a *auditor) See(s Sight) { a.sight = s }

func audit(t *testing.T, c Config) (*auditor, *Result) {
	t.Helper()
	all, r := audits(t, c)
	return all[0], r
}

// audits has an auditor at each router.
func audits(t *testing.T, c Config) ([]*auditor, *Result) {
	t.Helper()
	var all []*auditor
	c.Policy = Spec{Name: "auditor", New: func(s Setting) Policy {
		a := &auditor{t: t, rng: s.Rand, size: s.BlockSize, up: map[int]Capacity{}, at: map[*Request]*attempt{}, blocks: map[int]map[uint64]bool{}}
		all = append(all, a)
		return a
	}}
	c.BlockSize = 16
	r := simulated(t, c)
	return all, r
}

func TestEveryRequestEndsOnceAndThePolicyHearsOfAllInOrder(t *testing.T) {
	small := fleet(t, "3xa10,l4")
	events := []Event{
		{Kind: Slow, Replica: 1, After: 0.1, Factor: 3},
		{Kind: Leave, Replica: 0, After: 0.2},
		{Kind: Restart, Replica: 2, After: 0.3, Down: 5 * time.Second},
		{Kind: Join, Replica: 0, After: 0.5},
		{Kind: Update, After: 0.6},
		{Kind: Restart, Replica: 0, After: 0.7},
	}
	for _, g := range trace.Generators {
		if g.Name == "agents" {
			continue // of which hardly any fits so small a cache
		}
		tr := workload(t, g.Name, 800)
		c := Config{Trace: tr, Fleet: small, Events: events, Seed: 1, WarmUp: -1, Points: 10, BlockSize: 16}
		c.Rate = c.guess() * 0.8
		a, r := audit(t, c)
		if a.completed != r.Requests || a.completed+r.Rejected != 800 || a.failed != r.Retries || a.routed != a.completed+a.failed || len(a.at) != 0 {
			t.Errorf("%s: %d routed, %d completed, %d failed, %d under way; %d completed, %d rejected, %d retried",
				g.Name, a.routed, a.completed, a.failed, len(a.at), r.Requests, r.Rejected, r.Retries)
		}
		if got := r.TokensPerSecond * r.Seconds; a.tokens < int(got)-1 || a.tokens > int(got)+1 {
			t.Errorf("%s: %d tokens, counted %.1f", g.Name, a.tokens, got)
		}
		if r.Measured != r.Requests || a.failed == 0 || a.polls == 0 || a.stored == 0 || a.removed == 0 || a.cleared < 4 {
			t.Errorf("%s: %d measured; %d failed, %d polls, %d stored, %d removed, %d cleared", g.Name, r.Measured, a.failed, a.polls, a.stored, a.removed, a.cleared)
		}
		sum := 0
		for _, p := range r.Replicas {
			sum += p.Requests
			if len(p.Points) != len(r.Times) || len(r.Times) > 10 || len(r.Times) < 5 {
				t.Errorf("%s: %d points at %d times", g.Name, len(p.Points), len(r.Times))
			}
		}
		if sum != r.Requests || len(a.up) != 4 {
			t.Errorf("%s: %d requests at replicas, %d in all; in service %v", g.Name, sum, r.Requests, slices.Collect(maps.Keys(a.up)))
		}
	}
}

func TestAPolicyCannotSeeHowLongAnOutputWillBe(t *testing.T) {
	sessions := func(output int) []*trace.Session {
		var all []*trace.Session
		for i := range 20 {
			text := []trace.Segment{{Seed: uint64(i), Tokens: 300}, {Seed: 99, Tokens: 500}}
			all = append(all, &trace.Session{Start: time.Duration(i) * time.Millisecond, Turns: []trace.Turn{{Prompt: 300, Output: output + i, Text: text}}})
		}
		return all
	}
	var seen [2][]Request
	for i, output := range []int{1, 400} {
		tr, err := trace.Of("mine", sessions(output))
		if err != nil {
			t.Fatal(err)
		}
		a, _ := audit(t, Config{Trace: tr, Fleet: fleet(t, "2xh100")})
		seen[i] = a.firstSight
		for _, r := range seen[i] {
			if extra := r.Blocks[:cap(r.Blocks)]; len(extra) > len(r.Blocks) {
				for _, h := range extra[len(r.Blocks):] {
					if h != 0 {
						t.Error("behind the prompt's blocks there are others")
					}
				}
			}
		}
	}
	if len(seen[0]) != 20 || !reflect.DeepEqual(seen[0], seen[1]) {
		t.Errorf("what a policy sees first depends on the output: %+v and %+v", seen[0], seen[1])
	}
	for i := range reflect.TypeFor[Request]().NumField() {
		f := reflect.TypeFor[Request]().Field(i)
		if f.Name == "Output" || f.IsExported() && f.Type == reflect.TypeFor[*request]() {
			t.Errorf("field %s shows it", f.Name)
		}
	}
}

func TestWithHintsEachRequestTellsItsOutput(t *testing.T) {
	for _, hints := range []bool{false, true} {
		told := make(map[int]int)
		wrong := 0
		spec := Spec{Name: "mine", New: func(Setting) Policy {
			return &heard{blind: blind{func(up []int) int { return up[0] }}, route: func(r *Request) { told[r.ID] = r.MaxTokens },
				ended: func(r *Request, u Usage) {
					if told[r.ID] != u.Output {
						wrong++
					}
				}}
		}}
		r := simulated(t, Config{Trace: workload(t, "rl", 200), Fleet: fleet(t, "2xh100"), Policy: spec, Rate: 20, Hints: hints})
		if r.Requests != 200 || hints != (wrong == 0) {
			t.Errorf("hints %v: of %d requests %d told another length than their output's", hints, r.Requests, wrong)
		}
	}
}

func TestClosedLoopsKeepTheirNumberOfSessions(t *testing.T) {
	tr := workload(t, "chat:think=0", 2000)
	most := 0
	under := 0
	c := Config{Trace: tr, Fleet: fleet(t, "2xh100"), Clients: 24, Policy: Spec{Name: "count", New: func(s Setting) Policy {
		return &counting{blind{func(up []int) int { under++; most = max(most, under); return up[s.Rand.IntN(len(up))] }}, &under}
	}}}
	r := simulated(t, c)
	if most != 24 || r.Requests != 2000 || r.Clients != 24 {
		t.Errorf("%d at once, %d requests", most, r.Requests)
	}
}

type counting struct {
	blind
	under *int
}

func (c *counting) Ended(time.Duration, *Request, int, Outcome, Usage) { *c.under-- }

func TestRequestsWaitForAReplicaWhenNoneIsInService(t *testing.T) {
	tr := workload(t, "uniform", 400)
	c := Config{Trace: tr, Fleet: fleet(t, "h100"), Rate: 50, WarmUp: -1, Policy: roundRobin(),
		Events: []Event{{Kind: Restart, After: 0.5, Down: 20 * time.Second}}}
	r := simulated(t, c)
	if r.Requests != 400 || r.Rejected != 0 || r.TTFT.Max < 19_000 {
		t.Errorf("%d completed, %d rejected, longest wait %v ms", r.Requests, r.Rejected, r.TTFT.Max)
	}
	c.Events = []Event{{Kind: Leave, After: 0.5}}
	if r = simulated(t, c); r.Requests+r.Rejected != 400 || r.Rejected < 200 {
		t.Errorf("%d completed, %d rejected of those for which no replica came back", r.Requests, r.Rejected)
	}
}

func TestWhatFitsOnlyLargeReplicasGoesThere(t *testing.T) {
	var sessions []*trace.Session
	for i, prompt := range []int{1000, 100_000, 1_000_000} {
		sessions = append(sessions, &trace.Session{Start: time.Duration(i) * time.Second,
			Turns: []trace.Turn{{Prompt: prompt, Output: 10, Text: []trace.Segment{{Seed: uint64(i), Tokens: prompt}}}}})
	}
	tr, err := trace.Of("mine", sessions)
	if err != nil {
		t.Fatal(err)
	}
	r := simulated(t, Config{Trace: tr, Fleet: fleet(t, "a10,h100"), WarmUp: -1, Policy: Spec{Name: "first", New: func(Setting) Policy {
		return &blind{func(up []int) int { return up[0] }}
	}}})
	if r.Replicas[0].Requests != 1 || r.Replicas[1].Requests != 1 || r.Rejected != 1 {
		t.Errorf("%+v, %d rejected", r.Replicas, r.Rejected)
	}
}

func TestARunEndsWhenItIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c := Config{Trace: workload(t, "uniform", 100), Fleet: fleet(t, "2"), Policy: roundRobin()}
	if _, err := Run(ctx, c); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestAnEventOfAReplicaThatIsNotThereIsRefused(t *testing.T) {
	c := Config{Trace: workload(t, "uniform", 100), Fleet: fleet(t, "2"), Policy: roundRobin(), Events: []Event{{Kind: Leave, Replica: 2}}}
	if _, err := Run(context.Background(), c); err == nil {
		t.Error("it is accepted")
	}
}

// ears counts what it hears of answers.
type ears struct {
	blind
	started, progress int
}

func (e *ears) Started(time.Duration, *Request, int)       { e.started++ }
func (e *ears) Progress(time.Duration, *Request, int, int) { e.progress++ }

type allEars struct{ ears }

func (*allEars) StreamsAll() {}

func TestOnlyAStreamerHearsOfTokensThatTheClientTakesAsAWhole(t *testing.T) {
	plain, streamer := &ears{}, &allEars{}
	for p, heard := range map[Policy]*ears{plain: plain, streamer: &streamer.ears} {
		heard.pick = func(up []int) int { return up[0] }
		c := Config{Trace: workload(t, "whole", 100), Fleet: fleet(t, "2"), Rate: 5,
			Policy: Spec{Name: "ears", New: func(Setting) Policy { return p }}}
		simulated(t, c)
	}
	if plain.started != 0 || plain.progress != 0 || streamer.started != 100 || streamer.progress == 0 {
		t.Errorf("heard of %d and %d, the streamer of %d and %d", plain.started, plain.progress, streamer.started, streamer.progress)
	}
}
