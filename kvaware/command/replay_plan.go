// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay/ours"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay/peers"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/trace"
)

// replayPlan is what a replay runs: every policy on every trace, fleet and pressure.
type replayPlan struct {
	traces    []*trace.Trace
	fleets    []replay.Fleet
	policies  []replay.Spec
	pressures []pressure
	routers   []replay.Routers
	seeds     []uint64
	events    []replay.Event
	eventText string
	hints     bool // as in replay.Config
	blockSize int
	warmUp    float64 // as in replay.Config
	slo       replay.SLO
	plots     bool // points of replicas are wanted
}

// pressure is how much comes. All zero stands for the trace's own times.
type pressure struct {
	load, rate float64
	clients    int
}

const (
	maxSeeds     = 1000
	maxBlockSize = 1 << 16 // the engine's
	// Of a generator whose number of requests is not given.
	generatedRequests = 10_000
)

func replayPlanOf(cmd *cobra.Command) (*replayPlan, error) {
	flags := cmd.Flags()
	p := new(replayPlan)
	var err error
	text := func(name string) string {
		s, _ := flags.GetString(name)
		return s
	}
	requests, _ := flags.GetInt("requests")
	if requests < 0 {
		return nil, fmt.Errorf("--requests %d: give 1 or more", requests)
	}
	given, _ := flags.GetStringArray("trace")
	// What takes time to read comes last, and what is cheap to get wrong first.
	if p.policies, err = policiesOf(text("policies")); err != nil {
		return nil, err
	}
	if p.fleets, err = fleetsOf(cmd); err != nil {
		return nil, err
	}
	if p.pressures, err = pressuresOf(cmd); err != nil {
		return nil, err
	}
	if p.routers, err = routersOf(text("routers")); err != nil {
		return nil, err
	}
	if p.slo, err = sloOf(text("slo")); err != nil {
		return nil, err
	}
	p.eventText = text("events")
	if p.events, err = replay.ParseEvents(p.eventText); err != nil {
		return nil, fmt.Errorf("--events: %w", err)
	}
	for _, f := range p.fleets {
		for _, e := range p.events {
			if e.Replica >= len(f.Replicas) {
				return nil, fmt.Errorf("--events: replica %d: fleet %s has %d, numbered from 0", e.Replica, f.Name, len(f.Replicas))
			}
		}
	}
	p.hints, _ = flags.GetBool("hints")
	p.blockSize, _ = flags.GetInt("block-size")
	if p.blockSize < 1 || p.blockSize > maxBlockSize {
		return nil, fmt.Errorf("--block-size %d: give 1 to %d tokens", p.blockSize, maxBlockSize)
	}
	if p.warmUp, _ = flags.GetFloat64("warm-up"); !(p.warmUp >= 0 && p.warmUp < 1) {
		return nil, fmt.Errorf("--warm-up %g: give a share from 0 to below 1", p.warmUp)
	} else if p.warmUp == 0 {
		p.warmUp = -1 // which 0 does not stand for
	}
	idle, _ := flags.GetDuration("max-idle")
	if idle < 0 {
		return nil, fmt.Errorf("--max-idle %v: give 0 or more", idle)
	} else if idle == 0 {
		idle = -1
	}
	first, _ := flags.GetUint64("seed")
	n, _ := flags.GetInt("seeds")
	if n < 1 || n > maxSeeds {
		return nil, fmt.Errorf("--seeds %d: give 1 to %d", n, maxSeeds)
	}
	for i := range uint64(n) {
		p.seeds = append(p.seeds, first+i)
	}
	p.traces, err = tracesOf(given, trace.Options{Requests: requests, MaxIdle: idle})
	return p, err
}

// policiesOf reads names, of which all, ours and peers stand for several. Each policy
// comes once.
func policiesOf(text string) ([]replay.Spec, error) {
	us, others := ours.All(), peers.All()
	all := slices.Concat(us, others)
	var specs []replay.Spec
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		var some []replay.Spec
		switch name {
		case "all":
			some = all
		case "ours":
			some = us
		case "peers":
			some = slices.DeleteFunc(slices.Clone(others), func(s replay.Spec) bool { return s.Name == bound })
		default:
			i := slices.IndexFunc(all, func(s replay.Spec) bool { return s.Name == name })
			if i < 0 {
				var names []string
				for _, s := range all {
					names = append(names, s.Name)
				}
				return nil, fmt.Errorf("no policy %q; there are %s, and all, ours, peers", name, strings.Join(names, ", "))
			}
			some = all[i : i+1]
		}
		for _, s := range some {
			if !slices.ContainsFunc(specs, func(have replay.Spec) bool { return have.Name == s.Name }) {
				specs = append(specs, s)
			}
		}
	}
	return specs, nil
}

// bound is the policy that knows what no router can: no peer to be compared with.
const bound = "oracle"

func isPeer(name string) bool {
	_, ok := peers.ByName(name)
	return ok && name != bound
}

func fleetsOf(cmd *cobra.Command) ([]replay.Fleet, error) {
	flags := cmd.Flags()
	texts, _ := flags.GetStringArray("fleet")
	replicas, _ := flags.GetInt("replicas")
	switch {
	case flags.Changed("replicas"):
		texts = []string{fmt.Sprintf("%dx%s", replicas, replay.Machines[0].Name)}
	case len(texts) == 0:
		texts = []string{"8x" + replay.Machines[0].Name}
	}
	var fleets []replay.Fleet
	for _, text := range texts {
		f, err := replay.ParseFleet(text)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(fleets, func(have replay.Fleet) bool { return have.Name == f.Name }) {
			return nil, fmt.Errorf("fleet %s is given twice", f.Name)
		}
		fleets = append(fleets, f)
	}
	return fleets, nil
}

func pressuresOf(cmd *cobra.Command) ([]pressure, error) {
	flags := cmd.Flags()
	name := "load"
	for _, other := range []string{"rate", "clients"} {
		if flags.Changed(other) {
			name = other
		}
	}
	text, _ := flags.GetString(name)
	var all []pressure
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		wrong := fmt.Errorf("--%s %q: give numbers above 0", name, part)
		const leastLoad, mostLoad, leastRate, mostRate = 1e-3, 100, 1e-4, 1e6
		var p pressure
		switch x, err := strconv.ParseFloat(part, 64); {
		case name == "load" && part == "trace":
		case err != nil || !(x > 0) || math.IsInf(x, 0):
			return nil, wrong
		case name == "load" && (x < leastLoad || x > mostLoad):
			return nil, fmt.Errorf("--load %q: give numbers from %g to %g, of which 1 is what the fleet bears", part, leastLoad, float64(mostLoad))
		case name == "load":
			p.load = x
		case name == "rate" && (x < leastRate || x > mostRate):
			return nil, fmt.Errorf("--rate %q: give numbers from %g to %g", part, leastRate, float64(mostRate))
		case name == "rate":
			p.rate = x
		case x != math.Trunc(x) || x > 1e6:
			return nil, fmt.Errorf("--clients %q: give whole numbers up to 1000000", part)
		default:
			p.clients = int(x)
		}
		if slices.Contains(all, p) {
			return nil, fmt.Errorf("--%s %s is given twice", name, part)
		}
		all = append(all, p)
	}
	return all, nil
}

func routersOf(text string) ([]replay.Routers, error) {
	var all []replay.Routers
	for part := range strings.SplitSeq(text, ",") {
		r, err := replay.ParseRouters(part)
		if err != nil {
			return nil, fmt.Errorf("--routers: %w", err)
		}
		if slices.Contains(all, r) {
			return nil, fmt.Errorf("--routers: %v are given twice", r)
		}
		all = append(all, r)
	}
	return all, nil
}

func sloOf(text string) (replay.SLO, error) {
	first, between, _ := strings.Cut(text, ",")
	ttft, err1 := time.ParseDuration(strings.TrimSpace(first))
	itl, err2 := time.ParseDuration(strings.TrimSpace(between))
	if err1 != nil || err2 != nil || ttft <= 0 || itl <= 0 {
		return replay.SLO{}, fmt.Errorf("--slo %q: give two times, such as 2s,100ms", text)
	}
	return replay.SLO{TTFT: ttft.Seconds() * 1e3, ITL: itl.Seconds() * 1e3}, nil
}

// tracesOf reads files and makes generators. Each has a name of its own.
func tracesOf(given []string, o trace.Options) ([]*trace.Trace, error) {
	var specs []string
	for _, text := range given {
		specs = append(specs, splitTraces(text)...)
	}
	if len(specs) == 0 {
		return nil, errors.New("no trace: give a file or a generator with --trace; --list shows the generators")
	}
	var traces []*trace.Trace
	for _, spec := range specs {
		t, err := traceOf(spec, o)
		if err != nil {
			return nil, fmt.Errorf("trace %s: %w", shown(spec), err)
		}
		if taken := func(have *trace.Trace) bool { return have.Name == t.Name }; slices.ContainsFunc(traces, taken) {
			if t.Name = spec; slices.ContainsFunc(traces, taken) {
				return nil, fmt.Errorf("trace %s is given twice", shown(spec))
			}
		}
		traces = append(traces, t)
	}
	return traces, nil
}

// splitTraces takes traces apart at commas, but not a file that has one in its name,
// nor the parameters of a generator.
func splitTraces(text string) []string {
	if _, err := os.Stat(text); err == nil {
		return []string{text}
	}
	var specs []string
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		key, _, assigned := strings.Cut(part, "=")
		switch last := len(specs) - 1; {
		case assigned && last >= 0 && !strings.Contains(key, ":") && strings.Contains(specs[last], ":") && isGenerator(specs[last]):
			specs[last] += "," + part
		case part == "generators":
			for _, g := range trace.Generators {
				specs = append(specs, g.Name)
			}
		case part != "":
			specs = append(specs, part)
		}
	}
	return specs
}

func isGenerator(spec string) bool {
	name, _, _ := strings.Cut(spec, ":")
	return slices.ContainsFunc(trace.Generators, func(g trace.Generator) bool { return g.Name == name })
}

func traceOf(spec string, o trace.Options) (*trace.Trace, error) {
	if isGenerator(spec) {
		return trace.Generate(spec, cmp.Or(o.Requests, generatedRequests))
	}
	t, err := trace.Load(spec, o)
	if errors.Is(err, fs.ErrNotExist) && !strings.ContainsAny(spec, `./\`) {
		var names []string
		for _, g := range trace.Generators {
			names = append(names, g.Name)
		}
		return nil, fmt.Errorf("no such file, and no generator; there are %s: %w", strings.Join(names, ", "), err)
	}
	return t, err
}
