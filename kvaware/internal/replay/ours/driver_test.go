// SPDX-License-Identifier: Apache-2.0

package ours

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/engine"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// job is a request of a synthetic load.
type job struct {
	at             time.Duration
	prompt, output int
	blocks, tail   []uint64 // of the prompt, and of the output where a later prompt contains it
	// next follows when this one's answer has come, at is then the time between.
	next *job

	request      replay.Request
	sequence     engine.Sequence
	replica      int
	first, ended time.Duration
	arrived      time.Duration
}

// fleet runs jobs on modelled engines.
type fleet struct {
	policy  replay.Policy
	engines []*engine.Engine
	up      []int
	now     time.Duration
	follow  []*job
}

type sink struct {
	f *fleet
}

func (s sink) Admitted(*engine.Sequence, time.Duration)  {}
func (s sink) Preempted(*engine.Sequence, time.Duration) {}
func (s sink) Started(q *engine.Sequence, at time.Duration) {
	j := q.Owner.(*job)
	j.first = at
	if j.request.Stream {
		s.f.policy.Started(at, &j.request, j.replica)
	}
}
func (s sink) Generated(q *engine.Sequence, at time.Duration) {
	j := q.Owner.(*job)
	if j.request.Stream {
		s.f.policy.Progress(at, &j.request, j.replica, q.Generated())
	}
}
func (s sink) Finished(q *engine.Sequence, at time.Duration) {
	j := q.Owner.(*job)
	j.ended = at
	s.f.policy.Ended(at, &j.request, j.replica, replay.Completed, replay.Usage{Output: q.Output, Cached: q.Cached})
	if j.next != nil {
		j.next.at += at
		s.f.follow = append(s.f.follow, j.next)
	}
}

const blockSize = 16

// run gives the jobs to a policy over engines of those speeds and returns all
// that were served.
func run(spec replay.Spec, speeds []float64, jobs []*job, stream bool) (served []*job, hit float64, preempted uint64) {
	f := &fleet{}
	f.policy = spec.New(replay.Setting{BlockSize: blockSize, Rand: rand.New(rand.NewPCG(1, 2))})
	for i, speed := range speeds {
		p := engine.Default()
		p.Speed = speed
		e, err := engine.New(p, sink{f})
		if err != nil {
			panic(err)
		}
		f.engines = append(f.engines, e)
		f.up = append(f.up, i)
		if m, ok := f.policy.(replay.Member); ok {
			m.Joined(0, i, replay.Capacity{CacheTokens: e.Capacity(), MaxSeqs: p.MaxSeqs, MaxBatched: p.MaxBatchedTokens})
		}
	}
	queue := slices.Clone(jobs)
	byTime := func(a, b *job) int { return cmp.Compare(a.at, b.at) }
	slices.SortStableFunc(queue, byTime)
	ends := make([]time.Duration, len(f.engines))
	for {
		next, which := time.Duration(math.MaxInt64), -1
		for i, at := range ends {
			if at > 0 && at < next {
				next, which = at, i
			}
		}
		if len(queue) > 0 && queue[0].at <= next {
			next, which = queue[0].at, -2
		}
		if which == -1 {
			break
		}
		f.now = next
		touched := which
		if which == -2 {
			j := queue[0]
			queue = queue[1:]
			j.arrived = f.now
			j.request = replay.Request{ID: len(served), Arrived: f.now, Prompt: j.prompt, Blocks: j.blocks, Stream: stream}
			j.replica = f.policy.Route(f.now, &j.request, f.up)
			j.sequence = engine.Sequence{Prompt: j.prompt, Output: j.output, Blocks: j.blocks, OutputBlocks: j.tail, Owner: j}
			if err := f.engines[j.replica].Submit(f.now, &j.sequence); err != nil {
				panic(err)
			}
			served = append(served, j)
			touched = j.replica
		}
		at, busy := f.engines[touched].Advance(f.now)
		if !busy {
			at = 0
		}
		ends[touched] = at
		for _, j := range f.follow {
			i, _ := slices.BinarySearchFunc(queue, j, byTime)
			queue = slices.Insert(queue, i, j)
		}
		f.follow = f.follow[:0]
	}
	var queried, hits uint64
	for _, e := range f.engines {
		st := e.Stats()
		queried += st.QueriedTokens
		hits += st.HitTokens
		preempted += st.Preemptions
	}
	return served, float64(hits) / float64(max(1, queried)), preempted
}

// measure is the mean and the 99th percentile of times to first token and of
// whole answers, in seconds.
type measure struct{ ttft, ttft99, e2e, e2e99 float64 }

func (m measure) score() float64 { return math.Pow(m.ttft*m.ttft99*m.e2e*m.e2e99, 0.25) }

func measured(jobs []*job) measure {
	of := func(f func(*job) time.Duration) (mean, p99 float64) {
		all := make([]float64, len(jobs))
		for i, j := range jobs {
			all[i] = f(j).Seconds()
			mean += all[i] / float64(len(jobs))
		}
		slices.Sort(all)
		return mean, all[len(all)*99/100]
	}
	var m measure
	m.ttft, m.ttft99 = of(func(j *job) time.Duration { return j.first - j.arrived })
	m.e2e, m.e2e99 = of(func(j *job) time.Duration { return j.ended - j.arrived })
	return m
}

func hashed(parent uint64, n int, rnd *rand.Rand) []uint64 {
	chain := make([]uint64, n)
	for i := range chain {
		parent = parent*0x9e3779b97f4a7c15 + rnd.Uint64()
		chain[i] = parent
	}
	return chain
}

// agents are sessions whose every prompt contains the conversation so far.
func agents(seed uint64, sessions, turns int, every time.Duration) []*job {
	rnd := rand.New(rand.NewPCG(seed, 1))
	system := hashed(1, 128, rnd)
	var jobs []*job
	at := time.Duration(0)
	for range sessions {
		at += time.Duration(rnd.ExpFloat64() * float64(every))
		chain := slices.Clone(system)
		chain = append(chain, hashed(chain[len(chain)-1], 200+rnd.IntN(1200), rnd)...)
		var last *job
		for turn := range 1 + rnd.IntN(2*turns) {
			out := 40 + int(300*rnd.ExpFloat64())
			j := &job{at: at, prompt: len(chain)*blockSize + 1 + rnd.IntN(blockSize-1), output: min(out, 4000), blocks: slices.Clip(chain)}
			out = (j.prompt%blockSize + j.output) / blockSize
			j.tail = hashed(chain[len(chain)-1], out, rnd)
			if turn > 0 {
				j.at = time.Duration((1 + 8*rnd.ExpFloat64()) * float64(time.Second))
				last.next = j
			} else {
				jobs = append(jobs, j)
			}
			last = j
			chain = append(chain[:len(chain):len(chain)], j.tail...)
			chain = append(chain, hashed(chain[len(chain)-1], 10+int(120*rnd.ExpFloat64()), rnd)...)
			if len(chain) > 8000 {
				break
			}
		}
	}
	return jobs
}

// rollouts are groups of samples of one prompt, with long-tailed outputs.
func rollouts(seed uint64, groups, samples int, every time.Duration) []*job {
	rnd := rand.New(rand.NewPCG(seed, 2))
	var jobs []*job
	at := time.Duration(0)
	for range groups {
		at += time.Duration(rnd.ExpFloat64() * float64(every))
		chain := hashed(7, 30+rnd.IntN(60), rnd)
		for range samples {
			out := int(400 * math.Exp(1.2*rnd.NormFloat64()))
			jobs = append(jobs, &job{at: at, prompt: len(chain)*blockSize + 5, output: max(16, min(out, 16000)), blocks: chain})
		}
	}
	return jobs
}

// chats are prompts that share nothing.
func chats(seed uint64, n int, every time.Duration) []*job {
	rnd := rand.New(rand.NewPCG(seed, 3))
	var jobs []*job
	at := time.Duration(0)
	for range n {
		at += time.Duration(rnd.ExpFloat64() * float64(every))
		blocks := 1 + int(60*math.Exp(rnd.NormFloat64()))
		chain := hashed(9, min(blocks, 4000), rnd)
		jobs = append(jobs, &job{at: at, prompt: len(chain)*blockSize + 3, output: 8 + int(250*rnd.ExpFloat64()), blocks: chain})
	}
	return jobs
}
