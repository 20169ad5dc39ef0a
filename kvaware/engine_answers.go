// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/enginefacts"
)

// engineAnswers is what an engine has said so far, by endpoint.
type engineAnswers struct {
	metrics, details enginefacts.Facts
	models           *enginefacts.Models
	answered         time.Time

	metricsAt string    // the path where they were found, "" if not yet
	detailsIn int       // how many times to ask before details are asked for again
	newest    float64   // the latest start of a process that was told
	fell      time.Time // when the count of prompt tokens last fell
	several   bool      // more than one process answers at the address
	gone      bool      // nothing listened there the last time

	results map[string]string // by endpoint; what is logged when it changes
}

// detailsEvery is how many times an engine is asked for its metrics until it is
// asked for what hardly changes.
const detailsEvery = 60

// ask asks an engine for all that it may say. A panic of ours ends the question.
func (p *enginePoller) ask(ctx context.Context, by *Policy, s *scraping) {
	defer func() {
		if val := recover(); val != nil {
			by.panicked("engine", val)
		}
	}()
	asked := p.pool.now()
	trouble := ""
	note := func(what string, err error) bool {
		if ctx.Err() != nil {
			return false
		}
		p.note(by, what, err)
		if err != nil && trouble == "" {
			trouble = what + ": " + err.Error()
		}
		if err == nil {
			p.answered = asked
		}
		return err == nil
	}

	var found enginefacts.Facts
	metrics, err := p.askMetrics(ctx, by, s, &found)
	p.heard(err)
	if note("metrics", err) {
		p.metricsAt = metrics
		p.started(found, by.logger, asked)
		p.metrics = found
	}
	if s.models == "" {
		p.models = nil
	} else {
		var models enginefacts.Models
		err := by.get(ctx, s, p.up.address, s.models, maxJSONBody, wholeJSON(&models, enginefacts.ReadModels))
		if note("models", err) && !p.sameModels(&models) {
			p.models = &models
		}
	}
	engine := p.metrics.Engine
	if engine == "" && p.models != nil {
		engine = p.models.Engine
	}
	p.askDetails(ctx, by, s, engine)
	awake := found.Awake
	if awake == enginefacts.Unknown && engine == enginefacts.VLLM && p.up.asleep(asked.UnixNano()) {
		awake = p.askSleeping(ctx, by, s)
	}
	if ctx.Err() != nil {
		return // what failed did so because of us
	}
	p.up.awakeSince(awake, asked)
	f := &engineFacts{Facts: p.metrics, models: p.models, answered: p.answered, trouble: trouble}
	f.Add(p.details)
	f.Engine = engine
	p.pool.told(p.up, f, by.logger)
}

// askMetrics gives the path where metrics were found.
func (p *enginePoller) askMetrics(ctx context.Context, by *Policy, s *scraping, found *enginefacts.Facts) (path string, err error) {
	path = s.metrics
	if path == "" {
		path = p.metricsAt
	}
	if path == "" {
		path = metricsPath
	}
	read := func(h http.Header, from io.Reader) (err error) {
		*found, err = enginefacts.ReadMetrics(from)
		if errors.Is(err, enginefacts.ErrNoMetrics) {
			return &askError{result: askedInvalid, json: isJSON(h)}
		}
		return err
	}
	err = by.get(ctx, s, p.up.address, path, maxMetricsBody, read)
	var typed *askError
	if errors.As(err, &typed) && typed.json && s.metrics == "" && path == metricsPath {
		path = trtllmMetricsPath
		err = by.get(ctx, s, p.up.address, path, maxMetricsBody, read)
	}
	return path, err
}

// askDetails asks for what an engine says elsewhere, now and then.
func (p *enginePoller) askDetails(ctx context.Context, by *Policy, s *scraping, engine string) {
	all := enginefacts.Details(engine)
	if len(all) == 0 || p.detailsIn > 0 {
		p.detailsIn--
		return
	}
	p.detailsIn = detailsEvery
	for _, d := range all {
		var found enginefacts.Facts
		err := by.get(ctx, s, p.up.address, d.Path, maxJSONBody, wholeJSON(&found, d.Read))
		if ctx.Err() != nil {
			return
		}
		p.note(by, "details", err)
		if err == nil {
			p.details = found
			return
		}
	}
}

func (p *enginePoller) askSleeping(ctx context.Context, by *Policy, s *scraping) enginefacts.Told {
	var asleep bool
	err := by.get(ctx, s, p.up.address, "/is_sleeping", maxJSONBody, wholeJSON(&asleep, readSleeping))
	switch {
	case err != nil:
		return enginefacts.Unknown
	case asleep:
		return enginefacts.No
	}
	return enginefacts.Yes
}

// sameModels reports whether a list says what the one before did.
func (p *enginePoller) sameModels(models *enginefacts.Models) bool {
	return p.models != nil && p.models.Equal(models)
}

// heard takes in whether anything listens there.
func (p *enginePoller) heard(err error) {
	var typed *askError
	gone := errors.As(err, &typed) && typed.err != nil && refused(typed.err)
	if gone && !p.gone {
		p.pool.invalidateEngine(p.up, withdrawnRefused)
		p.up.mark(false, p.pool.now()) // what comes up there next is awake
		p.detailsIn = 0
	}
	p.gone = gone
}

// started looks at whether the process is the one that answered before. A process
// that started later is a new one, whose cache is empty. If one that started
// earlier answers again, several engines are behind the address, and none of them
// has started anew.
func (p *enginePoller) started(found enginefacts.Facts, log *zap.Logger, asked time.Time) {
	anew := false
	switch {
	case found.Started > 0 && p.newest > 0:
		anew = found.Started > p.newest+1
		p.several = p.several || found.Started < p.newest-1
	case found.Started == 0 && found.PromptTokens < p.metrics.PromptTokens:
		// No engine starts twice within ten questions and computes prompts between.
		if !p.fell.IsZero() && asked.Sub(p.fell) < fallsApart {
			p.several = true
		}
		anew, p.fell = true, asked
	}
	p.newest = max(p.newest, found.Started)
	if p.several {
		if p.results["several"] == "" {
			p.result("several", "seen")
			log.Warn("several engines answer at one address: their caches cannot be told apart; list each of them as an upstream of its own",
				zap.String("upstream", p.up.address))
		}
		return
	}
	if anew {
		log.Info("the engine has started anew: what it held is forgotten", zap.String("upstream", p.up.address))
		p.pool.invalidateEngine(p.up, withdrawnRestarted)
		p.up.each(func(rank *upstream) { p.pool.observedCapacity(rank, 0) })
		p.details, p.detailsIn = enginefacts.Facts{}, 0
	}
}

// fallsApart is how far apart two falls of a count are at least if each is a start.
const fallsApart = time.Minute

// note counts what became of a question, and logs it when it is not what it was.
func (p *enginePoller) note(by *Policy, what string, err error) {
	result := askedOK
	var typed *askError
	if errors.As(err, &typed) {
		result = typed.result
	}
	p.pool.metrics.scrapes.WithLabelValues(p.pool.name, p.up.address, what, result).Inc()
	if before := p.result(what, result); before == result || before == "" && result == askedOK {
		return
	}
	if result == askedOK {
		by.logger.Info("the engine answers again", zap.String("upstream", p.up.address), zap.String("what", what))
		return
	}
	by.logger.Warn("the engine does not tell of itself: what is known of it stays as it was",
		zap.String("upstream", p.up.address), zap.String("what", what), zap.Error(err))
}

// result keeps an endpoint's result, and gives the one before.
func (p *enginePoller) result(what, result string) (before string) {
	if p.results == nil {
		p.results = make(map[string]string)
	}
	before = p.results[what]
	p.results[what] = result
	return before
}
