// SPDX-License-Identifier: Apache-2.0

package choose

import "math"

// The constants of the latency objective. They were found by simulation and the
// optimum is flat: within a factor of two they make little difference.
const (
	evictionWeight = 1.5
	// delayShare is the part of the waiting prompts that a prefill delays.
	delayShare = 0.5
	// memoryWeight and the fourth power of the use make memory a price where it is
	// short, and none where it is not.
	memoryWeight = 4
	// leastKVUse keeps the other factors in force where the cache is empty.
	leastKVUse = 0.02
)

// FullKVUse is the KV use from which on requests are likely to wait for memory.
const FullKVUse = 0.9

// Terms are what a request means to one candidate, in seconds unless said
// otherwise. All are finite and not negative.
type Terms struct {
	Own   float64 // prefill of what it would have to compute of this request
	Queue float64 // prefill of what waits there
	// Wait is how long the request is likely to wait for memory, or for a place among
	// the sequences that the engine runs.
	Wait float64
	// Delay is what its prefill takes from those that wait there, and Memory what
	// the memory that it newly takes would have given others: see the functions.
	Delay, Memory float64
	// Eviction is the prefill that others lose by making room for it. It counts
	// only once Priced says that it is known.
	Eviction float64
	Priced   bool
	Step     float64 // a decode step there with this request

	Sequences float64 // running there with this request, 1 or more
	KVUse     float64 // share of its KV cache that running requests hold, this one included

	// Ghosts are the requests like this one that recent failures count as, and
	// GhostSeconds how long their prefill takes.
	Ghosts, GhostSeconds float64

	// Excluded is as in Candidate.
	Excluded bool

	ranked float64 // scratch of LeastLatency
}

// Latency is what the objective of that name minimises:
//
//	(queue + own + step + wait + delay + memory + 1.5·eviction) · √(sequences · (kv_use + 0.02) · step)
//
// The sum is what the request waits for its first token, and what others wait
// because of it. The root stands for what each later token takes, and is a factor
// so that it need not be said how many seconds of waiting are worth one second of
// decoding. Recent failures count as queue and as sequences.
func Latency(t *Terms) float64 {
	return t.seconds() * math.Sqrt(t.crowd())
}

func (t *Terms) seconds() float64 {
	return t.Queue + t.Own + t.Step + t.Wait + t.Delay + t.Memory + evictionWeight*t.Eviction + t.GhostSeconds
}

func (t *Terms) crowd() float64 { return (t.Sequences + t.Ghosts) * (t.KVUse + leastKVUse) * t.Step }

// rank is the square of the latency: in the same order, without a root.
func (t *Terms) rank() float64 {
	s := t.seconds()
	return s * s * t.crowd()
}

// Delay is what a prefill takes from the prompts that wait where it goes, in
// seconds. An engine fills its steps with chunks of several prompts, so those that
// wait end later even if they came first; half of them, as a mean.
func Delay(waiting, own float64) float64 { return delayShare * waiting * own }

// Memory is what it takes from others that a request newly holds a share of a KV
// cache for some seconds, in seconds. Where memory is what keeps an engine from
// serving more, that share of its time is lost; use, the share that running
// requests hold and are likely to need until they end, says how likely it is.
func Memory(share, use, seconds float64) float64 {
	use = min(use, 1)
	use *= use
	return memoryWeight * max(0, share) * use * use * seconds
}

// Wait is how long a request is likely to wait until running sequences end that
// hold what it lacks, in seconds. Share is what it lacks of all that they hold,
// remaining how many tokens each has yet to generate on average, step the seconds
// that one takes.
func Wait(share, remaining, step float64) float64 { return max(0, share) * remaining * step }

// LeastLatency returns the index of the candidate of least latency; equal ones
// are broken at random. It returns -1 if there is no candidate or all are
// excluded. Evictions are priced on demand, by price, and only for candidates that
// may be chosen; price may be nil where all are.
func LeastLatency(terms []Terms, price func(i int) float64, rnd Rand) int {
	// The one that is best before evictions is priced first, so that most others
	// need not be.
	best := -1
	for i := range terms {
		t := &terms[i]
		if t.Excluded {
			continue
		}
		t.ranked = t.rank()
		if best < 0 || t.ranked < terms[best].ranked {
			best = i
		}
	}
	if best < 0 {
		return -1
	}
	prices := mostPriced
	settle := func(t *Terms, i int) {
		if !t.Priced {
			prices--
			t.Eviction, t.Priced = price(i), true
			t.ranked = t.rank()
		}
	}
	first, ties := best, 1
	settle(&terms[first], first)
	for k := 1; k < len(terms); k++ {
		i := first + k
		if i >= len(terms) {
			i -= len(terms)
		}
		t := &terms[i]
		if t.Excluded || t.ranked > terms[best].ranked || !t.Priced && prices <= 0 {
			continue
		}
		settle(t, i)
		switch least := terms[best].ranked; {
		case t.ranked < least:
			best, ties = i, 1
		case t.ranked == least:
			if ties++; intN(rnd, ties) == 0 {
				best = i
			}
		}
	}
	return best
}

// mostPriced bounds how many evictions are priced for one choice. In a fleet
// that is so large that more would be, one as good as the best is among these.
const mostPriced = 32
