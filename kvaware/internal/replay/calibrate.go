// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// Calibration says what load 1.0 is of a trace on a fleet: the highest rate at which
// the better of the reference policies keeps both the mean TTFT and the mean
// end-to-end latency within [Saturation] times what they are unloaded.
type Calibration struct {
	Trace string  `json:"trace"`
	Fleet string  `json:"fleet"`
	Rate  float64 `json:"rate"` // requests a second at load 1.0
	// Means of the better reference when hardly any two requests meet.
	UnloadedTTFT float64 `json:"unloaded_ttft_ms"`
	UnloadedE2E  float64 `json:"unloaded_e2e_ms"`
}

// Saturation is the multiple of the unloaded means at which a fleet is full.
const Saturation = 4

// The rate is found to within this ratio.
const calibrated = 1.01

// usualTries is how many rates are tried: a few to find bounds a factor of two apart,
// and seven halvings of that.
const usualTries = 10

// ErrTooShort says that a trace is over before the fleet is full, however often its
// sessions begin.
var ErrTooShort = errors.New("the trace has too few sessions to fill the fleet; give a longer trace or a smaller fleet")

// Calibrate finds load 1.0 by bisection. Of c the policy, the rate, the routers, the
// hints and the events do not count: it is found with one router, without hints, on
// the fleet as it is at the start. Progress is told how many
// rates were tried, of about how many.
func Calibrate(ctx context.Context, c Config, references ...Spec) (Calibration, error) {
	if len(references) == 0 {
		return Calibration{}, errors.New("no reference policy")
	}
	trying := c.Progress
	c.Events, c.Routers, c.Clients, c.Records, c.Points, c.Progress = nil, Routers{}, 0, false, 0, nil
	c.Hints = false
	c.Policy = references[0]
	c, err := c.withDefaults()
	if err != nil {
		return Calibration{}, err
	}
	out := Calibration{Trace: c.Trace.Name, Fleet: c.Fleet.Name}
	guess := c.guess()

	c.Rate = guess / 100
	alone, err := c.each(ctx, references)
	if err != nil {
		return out, err
	}
	out.UnloadedTTFT, out.UnloadedE2E = math.Inf(1), math.Inf(1)
	for _, r := range alone {
		if r.Measured == 0 {
			return out, fmt.Errorf("calibrating %s on %s: no request was measured, %d fit no replica", out.Trace, out.Fleet, r.Rejected)
		}
		out.UnloadedTTFT = min(out.UnloadedTTFT, r.TTFT.Mean)
		out.UnloadedE2E = min(out.UnloadedE2E, r.E2E.Mean)
	}
	most := limit{ttft: Saturation * out.UnloadedTTFT / 1e3, e2e: Saturation * out.UnloadedE2E / 1e3}
	tried := 0
	keeps := func(rate float64) (bool, error) {
		if trying != nil {
			trying(tried, usualTries)
		}
		tried++
		c.Rate = rate
		return c.within(ctx, most, references)
	}

	low, high := 0.0, 0.0
	for rate := guess; low == 0 || high == 0; {
		ok, err := keeps(rate)
		if errors.Is(err, ErrTooMany) {
			return out, fmt.Errorf("calibrating %s on %s: %w", out.Trace, out.Fleet, ErrTooShort)
		}
		if err != nil {
			return out, err
		}
		if ok {
			low = rate
			rate *= 2
		} else {
			high = rate
			rate /= 2
		}
		if rate > guess*1e4 || rate < guess/1e4 {
			return out, fmt.Errorf("calibrating %s on %s: %w", out.Trace, out.Fleet, ErrTooShort)
		}
	}
	for high/low > calibrated {
		rate := math.Sqrt(low * high)
		ok, err := keeps(rate)
		if err != nil {
			return out, err
		}
		if ok {
			low = rate
		} else {
			high = rate
		}
	}
	out.Rate = low
	return out, nil
}

// guess is about the rate at which a fleet without any cache hits is full.
func (c Config) guess() float64 {
	rate := 0.0
	for _, r := range c.Fleet.Replicas {
		p := r.params(c.BlockSize)
		// Decodes share a step among as many as there is memory for, say 32.
		seconds := c.Trace.Prompt*(p.Pace.Token+p.Pace.Pair*c.Trace.Prompt/2) +
			c.Trace.Output*(p.Pace.Step/32+p.Pace.Token+p.Pace.Context*c.Trace.Prompt)
		rate += p.Speed / max(seconds, 1e-6)
	}
	return rate
}

// each runs every reference at once.
func (c Config) each(ctx context.Context, references []Spec) ([]*Result, error) {
	results := make([]*Result, len(references))
	errs := make([]error, len(references))
	var wg sync.WaitGroup
	for i, ref := range references {
		wg.Go(func() {
			c := c
			c.Policy = ref
			results[i], errs[i] = Run(ctx, c)
		})
	}
	wg.Wait()
	return results, errors.Join(errs...)
}

// within tells whether a reference keeps to the limit. They run at once, and none
// goes on when one has.
func (c Config) within(ctx context.Context, most limit, references []Spec) (bool, error) {
	once, cancel := context.WithCancel(ctx)
	defer cancel()
	var kept atomic.Bool
	errs := make([]error, len(references))
	var wg sync.WaitGroup
	for i, ref := range references {
		wg.Go(func() {
			c := c
			c.Policy = ref
			r, err := simulate(once, c, most)
			switch {
			case errors.Is(err, errOverloaded):
			case err != nil:
				errs[i] = err
			case r.TTFT.Mean <= most.ttft*1e3 && r.E2E.Mean <= most.e2e*1e3:
				kept.Store(true)
				cancel()
			}
		})
	}
	wg.Wait()
	if kept.Load() && ctx.Err() == nil {
		return true, nil
	}
	return false, errors.Join(errs...)
}
