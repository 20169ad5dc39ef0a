// SPDX-License-Identifier: Apache-2.0

// Package trace gives the requests of a workload one after the other: read from a
// file or generated. A trace holds no text, only lengths, times and which prompts
// begin alike.
//
// # Text
//
// What stands in a prompt is told by [Segment]s, each a number that stands for
// some text and how many tokens of it there are. Two prompts begin alike as far as
// their segments do, so the hashes of their KV blocks follow for whatever block
// size an engine has: a block's hash covers the segments before its end, and
// blocks are equal only if all before them are. A file that names the blocks of
// its own size becomes segments of runs of these; a smaller block is equal in two
// prompts exactly if the file's block around its end is.
//
// # Time
//
// A session's first request comes at [Session.Start]. Its others come their
// [Turn.Think] after the answer before them has ended, not at the time at which
// they were recorded: a client cannot send what continues an answer that it does
// not have, and on a fleet that is slower or faster than the recorded one the
// recorded times would have turns overtake each other. What is scaled to a load is
// therefore how often sessions begin; how long a user thinks or a tool runs stays.
// A file that does not name sessions has one request in each, at its recorded time.
//
// Sessions that are generated, or of a file that does not say when they start, go on
// without end, those of a file over and over, each time as others. So a run finds the
// same mix of young and old sessions from its beginning to its end, wherever it ends.
//
// Readers and generators keep a bounded window, so that memory is flat in a
// trace's length, and give the same for the same seed.
package trace

import (
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Segment is a piece of text.
type Segment struct {
	Seed   uint64 // which text
	Tokens int    // how many tokens of it, from its beginning
}

// Turn is a request.
type Turn struct {
	// Think is the time from the end of the session's previous answer; 0 in its
	// first turn.
	Think     time.Duration
	Prompt    int  // tokens, at least 1
	Output    int  // tokens, at least 1
	MaxTokens int  // the client's bound of the output, 0 if it set none
	Whole     bool // the client takes the answer as a whole and not as a stream
	// Text is the prompt's, and after it the output's as far as a later prompt
	// repeats it. What follows the output does not count. It is not to be changed.
	Text []Segment
}

// Session is a client's series of requests, each of which is sent after the answer
// before it.
type Session struct {
	ID     uint64        // what a client that names its session would send; 0 if none
	Tenant int           // the owner of its requests; 0 if there is one only
	Start  time.Duration // since the trace's own time 0
	// Update says that new weights are loaded when it starts: caches are cleared.
	Update bool
	Turns  []Turn // at least one
}

// Source gives a trace's sessions in the order of their starts, and io.EOF after
// the last one if there is one. A session and what it holds may be kept.
type Source interface {
	Next() (*Session, error)
	io.Closer
}

// Trace is a workload that can be opened any number of times.
type Trace struct {
	Name     string
	Requests int // of a run
	// Rate is how many requests come in a second on the trace's clock, on average
	// and as if each session's requests came when it starts.
	Rate float64
	// Prompt and Output are the mean lengths in tokens.
	Prompt, Output float64
	// Life is how long all but one in twenty sessions last at most, by [Turn.Usual],
	// if sessions go on without end; else 0.
	Life time.Duration

	open func(seed uint64) (Source, error)
}

// Open begins the trace from its start.
func (t *Trace) Open(seed uint64) (Source, error) { return t.open(seed) }

// Of makes a trace of sessions that are at hand, in the order of their starts.
func Of(name string, sessions []*Session) (*Trace, error) {
	t := &Trace{Name: name, open: func(uint64) (Source, error) { return &list{sessions}, nil }}
	err := t.measure(&list{sessions}, 0)
	t.Life = 0
	return t, err
}

type list struct{ left []*Session }

func (l *list) Next() (*Session, error) {
	if len(l.left) == 0 {
		return nil, io.EOF
	}
	s := l.left[0]
	l.left = l.left[1:]
	return s, nil
}

func (l *list) Close() error { return nil }

// Usual is the time from the answer before a turn to the end of its own on an engine
// of a usual pace.
func (t *Turn) Usual() time.Duration { return t.Think + time.Duration(t.Output)*usualToken }

const usualToken = 20 * time.Millisecond

// measure reads a source, to its end or until there are so many requests, which also
// finds what is wrong with it.
func (t *Trace) measure(src Source, enough int) error {
	defer src.Close()
	var first, last time.Duration
	var prompt, output float64
	// Of many lives a sample that is thinned out is kept.
	var lives []time.Duration
	every := 1
	for n := 0; enough == 0 || t.Requests < enough; n++ {
		s, err := src.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if n == 0 {
			first = s.Start
		}
		last = s.Start
		t.Requests += len(s.Turns)
		life := time.Duration(0)
		for i := range s.Turns {
			prompt += float64(s.Turns[i].Prompt)
			output += float64(s.Turns[i].Output)
			life += s.Turns[i].Usual()
		}
		if n%every == 0 {
			lives = append(lives, life)
		}
		if len(lives) == 1<<16 {
			for i := range len(lives) / 2 {
				lives[i] = lives[2*i]
			}
			lives = lives[:len(lives)/2]
			every *= 2
		}
	}
	if t.Requests == 0 {
		return errNoRequests()
	}
	t.Prompt, t.Output = prompt/float64(t.Requests), output/float64(t.Requests)
	if span := (last - first).Seconds(); span > 0 {
		t.Rate = float64(t.Requests) / span
	} else {
		t.Rate = float64(t.Requests) // all at once: taken as one second's
	}
	slices.Sort(lives)
	t.Life = lives[len(lives)*19/20]
	return nil
}

// Hash appends the chained hashes of the turn's whole blocks of size tokens: those
// of the prompt, and those that the output completes, as far as its text is known.
func (t *Turn) Hash(size int, prompt, output []uint64) (p, o []uint64) {
	chain := uint64(size)
	at, from := size, 0 // where the next block ends, where the segment begins
	for _, s := range t.Text {
		to := from + s.Tokens
		for ; at <= to; at += size {
			if at > t.Prompt+t.Output {
				return prompt, output
			}
			h := mix(chain, s.Seed, uint64(at-from))
			if at <= t.Prompt {
				prompt = append(prompt, h)
			} else {
				output = append(output, h)
			}
		}
		chain = mix(chain, s.Seed, uint64(s.Tokens))
		from = to
	}
	return prompt, output
}

// mix spreads three numbers with the finaliser of splitmix64 (Steele, Lea, Flood
// 2014).
func mix(a, b, c uint64) uint64 {
	x := a + 0x9e3779b97f4a7c15 + b*0xd1342543de82ef95
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x += c
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// tokens is how many tokens the segments hold.
func tokens(text []Segment) int {
	n := 0
	for _, s := range text {
		n += s.Tokens
	}
	return n
}

// poisson gives times at which things begin that come at random, independently.
type poisson struct {
	rng  *rand.Rand
	rate float64 // a second
	now  float64 // seconds
}

func (p *poisson) next() time.Duration {
	at := p.now
	p.now += p.rng.ExpFloat64() / p.rate
	return time.Duration(math.Min(at, maxSeconds) * float64(time.Second))
}

func chance(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }
