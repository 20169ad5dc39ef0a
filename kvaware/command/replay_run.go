// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay/ours"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay/peers"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay/report"
)

// What is kept of all runs together, so that memory does not grow with them.
const (
	keptRecords   = 2_000_000 // requests, of about 32 bytes
	recordsOfARun = 20_000
)

// references are the policies of which the better tells what load 1.0 is.
var references = []string{"dynamo_out", "llmd"}

// run does all runs, the cells one after the other, and returns what was found. With
// an error, also that the context has ended, that is what the runs done by then have
// found, nil if none was.
func (p *replayPlan) run(ctx context.Context, bar *progress) (*report.Replay, error) {
	found := p.describe()
	cells := len(p.traces) * len(p.fleets) * len(p.pressures) * len(p.routers)
	perCell := len(p.policies) * len(p.seeds)
	bar.expect(cells * perCell)
	records := min(keptRecords/max(cells*perCell, 1), recordsOfARun)
	pairs := found.Ours != "" && slices.ContainsFunc(found.Policies, func(p report.Policy) bool { return p.Peer })
	done := 0
	ended := func(err error) (*report.Replay, error) {
		if ctx.Err() != nil {
			err = fmt.Errorf("interrupted after %d of %d runs", done, cells*perCell)
		}
		if found.Missing = cells*perCell - done; done == 0 {
			return nil, err
		}
		return found, err
	}
	for _, t := range p.traces {
		for _, f := range p.fleets {
			full := 0.0 // requests a second at load 1.0
			for _, much := range p.pressures {
				c := replay.Config{
					Trace: t, Fleet: f, Rate: much.rate, Load: much.load, Clients: much.clients,
					Events: p.events, BlockSize: p.blockSize, SLO: p.slo, WarmUp: p.warmUp, Hints: p.hints,
					Records: pairs, RecordEvery: (t.Requests + records - 1) / max(records, 1),
				}
				if much.load > 0 {
					if full == 0 {
						bar.say("finding load 1.0 of " + t.Name + " on " + f.Name)
						c.Progress = func(tried, of int) {
							bar.say(fmt.Sprintf("finding load 1.0 of %s on %s, rate %d of about %d", t.Name, f.Name, tried+1, of))
						}
						calibration, err := calibrate(ctx, c, p.seeds[0])
						c.Progress = nil
						if err != nil {
							return ended(err)
						}
						full = calibration.Rate
						found.Calibrations = append(found.Calibrations, calibration)
					}
					c.Rate = much.load * full
				}
				for _, c.Routers = range p.routers {
					results, err := p.runCell(ctx, c, report.Points(cells, len(p.policies), len(f.Replicas)), bar)
					found.Results = append(found.Results, results...)
					done += len(results)
					if err != nil {
						return ended(err)
					}
				}
			}
		}
	}
	return found, nil
}

func calibrate(ctx context.Context, c replay.Config, seed uint64) (replay.Calibration, error) {
	c.Seed = seed
	specs := make([]replay.Spec, 0, len(references))
	for _, name := range references {
		spec, ok := peers.ByName(name)
		if !ok {
			return replay.Calibration{}, fmt.Errorf("no policy %s to tell the load by", name)
		}
		specs = append(specs, spec)
	}
	return replay.Calibrate(ctx, c, specs...)
}

// runCell runs every policy with every seed, as many at once as there are cores, and
// returns the results of the runs that ended, by seed and then by policy.
func (p *replayPlan) runCell(ctx context.Context, c replay.Config, points int, bar *progress) ([]*replay.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make([]*replay.Result, len(p.seeds)*len(p.policies))
	errs := make([]error, len(results))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(results)) {
		wg.Go(func() {
			for i := range next {
				c := c
				c.Seed, c.Policy = p.seeds[i/len(p.policies)], p.policies[i%len(p.policies)]
				if p.plots && i < len(p.policies) { // the plots are of the first seed
					c.Points = points
				}
				run := bar.begin(fmt.Sprintf("%s on %s, %s", c.Trace.Name, c.Fleet.Name, c.Policy.Name))
				c.Progress = run.at
				r, err := replay.Run(ctx, c)
				if err != nil {
					errs[i] = fmt.Errorf("%s on %s under %s: %w", c.Trace.Name, c.Fleet.Name, c.Policy.Name, err)
					cancel()
					continue
				}
				run.ended()
				results[i] = r
			}
		})
	}
feed:
	for i := range results {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	done := slices.DeleteFunc(results, func(r *replay.Result) bool { return r == nil })
	// What was cancelled for another's error is told after it.
	slices.SortStableFunc(errs, func(a, b error) int { return cancelled(a) - cancelled(b) })
	for _, err := range errs {
		if err != nil {
			return done, err
		}
	}
	if len(done) < len(errs) { // the end came between two runs
		return done, ctx.Err()
	}
	return done, nil
}

func cancelled(err error) int {
	if errors.Is(err, context.Canceled) {
		return 1
	}
	return 0
}

// describe says what is run.
func (p *replayPlan) describe() *report.Replay {
	r := &report.Replay{Seeds: p.seeds, BlockSize: p.blockSize, SLO: p.slo, Events: p.eventText, Hints: p.hints}
	for _, t := range p.traces {
		r.Traces = append(r.Traces, report.Trace{Name: t.Name, Requests: t.Requests, Prompt: t.Prompt, Output: t.Output})
	}
	for _, f := range p.fleets {
		r.Fleets = append(r.Fleets, report.Fleet{Name: f.Name, Replicas: len(f.Replicas), Summary: machinesOf(f)})
	}
	for _, s := range p.policies {
		r.Policies = append(r.Policies, report.Policy{Name: s.Name, Summary: s.Summary, Peer: isPeer(s.Name)})
		if r.Ours == "" && slices.ContainsFunc(ours.All(), func(o replay.Spec) bool { return o.Name == s.Name }) {
			r.Ours = s.Name
		}
	}
	return r
}

// machinesOf says what the machines of a fleet are.
func machinesOf(f replay.Fleet) string {
	var kinds []string
	count := make(map[string]int)
	for _, r := range f.Replicas {
		kind := machineSummary(r)
		if count[kind] == 0 {
			kinds = append(kinds, kind)
		}
		count[kind]++
	}
	for i, kind := range kinds {
		kinds[i] = fmt.Sprintf("%d × %s", count[kind], kind)
	}
	return strings.Join(kinds, "; ")
}

func machineSummary(r replay.Replica) string {
	s := r.Machine.Summary
	if r.Speed != 1 {
		s += fmt.Sprintf(" at %g of its speed", r.Speed)
	}
	return s
}
