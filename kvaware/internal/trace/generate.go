// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Param is a generator's parameter.
type Param struct {
	Name    string
	Value   float64 // its default
	Meaning string
}

// most is the greatest value of a parameter. What multiplies the requests that are
// at hand at once has a lower one.
func (p *Param) most() float64 {
	switch p.Name {
	case "turns":
		return 1000
	case "samples":
		return 10_000
	}
	return maxTokens
}

// Generator makes a workload.
type Generator struct {
	Name    string
	Summary string // one line
	Params  []Param

	make func(g *gen) *Session // the next one, with no Start
}

// gen is a generator under way.
type gen struct {
	*rand.Rand
	values map[string]float64
	serial uint64 // of what must be unlike anything else
	n      int    // sessions made
	// pending are sessions that come at the time of the one before them.
	pending []*Session
}

func (g *gen) of(name string) float64 { return g.values[name] }
func (g *gen) count(name string) int  { return int(g.values[name]) }

// fresh is a text that no other is like.
func (g *gen) fresh(tokens int) Segment {
	g.serial++
	return Segment{Seed: mix(g.serial, 0, 6), Tokens: tokens}
}

// named is a text that the same kind and number stand for.
func named(kind, number uint64, tokens int) Segment {
	return Segment{Seed: mix(kind, number, 7), Tokens: tokens}
}

// around is a length of that mean, log-normal with the given deviation of its
// logarithm, which is what lengths of prompts and answers look like.
func (g *gen) around(mean, sigma float64) int {
	x := mean * math.Exp(sigma*g.NormFloat64()-sigma*sigma/2)
	return int(min(max(x, 1), maxTokens/16))
}

func (g *gen) wait(mean float64) time.Duration {
	return time.Duration(min(mean*g.ExpFloat64(), maxSeconds) * float64(time.Second))
}

// zipf is a number below n, the smaller the likelier.
func (g *gen) zipf(n int) uint64 {
	if n < 2 {
		return 0
	}
	return rand.NewZipf(g.Rand, 1.2, 1, uint64(n-1)).Uint64()
}

// generated is a Source.
type generated struct {
	gen    gen
	make   func(*gen) *Session
	arrive poisson
	at     time.Duration
}

func (s *generated) Close() error { return nil }

func (s *generated) Next() (*Session, error) {
	var next *Session
	if len(s.gen.pending) > 0 {
		next = s.gen.pending[0]
		s.gen.pending = s.gen.pending[1:]
	} else {
		next = s.make(&s.gen)
		s.at = s.arrive.next()
	}
	next.Start = s.at
	return next, nil
}

// Generate makes a trace of a generator's name and, after a colon, parameters that
// differ from its defaults: "chat:turns=5,users=100". A run has so many requests.
func Generate(spec string, requests int) (*Trace, error) {
	name, given, _ := strings.Cut(spec, ":")
	var g *Generator
	for i := range Generators {
		if Generators[i].Name == name {
			g = &Generators[i]
		}
	}
	if g == nil {
		var names []string
		for i := range Generators {
			names = append(names, Generators[i].Name)
		}
		return nil, &Error{Problem: fmt.Sprintf("no generator %q", name), Remedy: "there are " + strings.Join(names, ", ")}
	}
	if requests < 1 {
		return nil, &Error{Problem: fmt.Sprintf("%d requests", requests), Remedy: "ask for at least one"}
	}
	values := make(map[string]float64, len(g.Params))
	for _, p := range g.Params {
		values[p.Name] = p.Value
	}
	if given != "" {
		for pair := range strings.SplitSeq(given, ",") {
			key, text, _ := strings.Cut(pair, "=")
			if g.param(key) == nil {
				return nil, &Error{Problem: fmt.Sprintf("generator %s has no parameter %q", name, key), Remedy: "it has " + g.parameters()}
			}
			v, err := strconv.ParseFloat(text, 64)
			if most := g.param(key).most(); err != nil || !(v >= 0 && v <= most) {
				return nil, &Error{Problem: fmt.Sprintf("%s=%s", key, text), Remedy: fmt.Sprintf("give a number from 0 to %.0f", most)}
			}
			values[key] = v
		}
	}
	t := &Trace{Name: spec, open: func(seed uint64) (Source, error) {
		return &generated{
			gen:    gen{Rand: chance(seed, 2), values: values},
			make:   g.make,
			arrive: poisson{rng: chance(seed, 3), rate: 1},
		}, nil
	}}
	src, err := t.open(0)
	if err != nil {
		return nil, err
	}
	// Rate and lengths are those of many, so that they do not hang on the number.
	if err := t.measure(src, max(requests, 20_000)); err != nil {
		return nil, err
	}
	t.Requests = requests
	return t, nil
}

func (g *Generator) param(name string) *Param {
	for i := range g.Params {
		if g.Params[i].Name == name {
			return &g.Params[i]
		}
	}
	return nil
}

func (g *Generator) parameters() string {
	var names []string
	for _, p := range g.Params {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}
