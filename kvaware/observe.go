// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/stream"
)

// observedBody is a response's body on its way to the client, with the observer
// looking on. The bytes pass as they are and when they are.
type observedBody struct {
	inner    io.ReadCloser
	attempt  *attempt
	request  *http.Request
	observer *stream.Observer // nil when there is nothing to observe
	collects int64            // bytes that response_buffers takes before the answer is decided on, -1 for all
	begun    bool
	over     bool
}

var observers = sync.Pool{New: func() any { return new(stream.Observer) }}

// observe wraps the body of a response that the client will be given.
func (a *attempt) observe(req *http.Request, res *http.Response) io.ReadCloser {
	rt := a.routing
	b := &observedBody{inner: res.Body, attempt: a, request: req, collects: rt.policy.proxy.ResponseBuffers}
	if a.placement.Ended() || !rt.observed {
		return b
	}
	a.sequences = a.seqSpace[:]
	if n := min(max(1, len(rt.request.Demand.Prompts))*rt.request.Demand.Choices, ledger.MaxSequences); n > 1 {
		a.sequences = make([]sequence, n)
	}
	encoding := res.Header.Get("Content-Encoding")
	if res.Uncompressed {
		encoding = ""
	}
	b.observer = observers.Get().(*stream.Observer)
	b.observer.Reset(stream.Options{
		Status:          res.StatusCode,
		ContentType:     res.Header.Get("Content-Type"),
		ContentEncoding: encoding,
		Sequences:       len(a.sequences),
		Choices:         rt.request.Demand.Choices,
		Streamed:        rt.streamed,
		Pooling:         rt.request.Demand.Pooling,
		TokensPerDelta:  a.upstream.load.TokensPerDelta(),
		RoleStarts:      a.upstream.roles.Load(),
		OutputIDs:       rt.goesOnKnown,
	}, a)
	return b
}

// Read passes on what the upstream sends.
func (b *observedBody) Read(p []byte) (int, error) {
	if !b.begun && b.collects == 0 {
		// The client is being given this answer: there is no further attempt.
		b.begun = true
		b.attempt.routing.begun()
	}
	n, err := b.inner.Read(p)
	if b.collects > 0 {
		b.collects -= min(int64(n), b.collects)
	}
	if n > 0 && b.observer != nil {
		b.show(p[:n])
	}
	if err != nil {
		b.end(err)
	}
	return n, err
}

// Close closes the upstream's body. Closing it before its end means that nobody
// wants the rest.
func (b *observedBody) Close() error {
	b.end(errClosedEarly)
	return b.inner.Close()
}

var errClosedEarly = errors.New("closed before the end")

// show lets the observer see bytes. If it panics, the response goes on without.
func (b *observedBody) show(p []byte) {
	defer b.guard("observe")
	b.observer.Write(p)
	if id := b.observer.ResponseID(); id != "" && b.attempt.routing.response == 0 {
		b.attempt.made(id)
	}
}

// guard is deferred around what looks at a response.
func (b *observedBody) guard(where string) {
	if val := recover(); val != nil {
		b.observer = nil // not back into the pool: its state is unknown
		b.attempt.routing.policy.panicked(where, val)
	}
}

// end takes the response's end: io.EOF, errClosedEarly, or what cut it.
func (b *observedBody) end(err error) {
	if b.over {
		return
	}
	b.over = true
	a := b.attempt
	outcome := ledger.Completed
	switch {
	case errors.Is(err, io.EOF):
	case b.request.Context().Err() != nil || errors.Is(err, errClosedEarly):
		outcome = ledger.Canceled
	default:
		outcome = ledger.Failed
	}
	if b.observer != nil && b.conclude(errors.Is(err, io.EOF)) {
		outcome = ledger.Failed
	}
	a.finish(outcome)
	a.routing.disarm()
}

// conclude ends the observation. It reports whether the response itself says
// that it failed.
func (b *observedBody) conclude(clean bool) (failed bool) {
	defer b.guard("conclude")
	a := b.attempt
	o := b.observer
	sum := o.End(clean)
	b.observer = nil

	if sum.Counted && sum.Streamed {
		a.upstream.load.LearnTokensPerDelta(sum.Generated, sum.Deltas)
	}
	a.routing.learn(sum.PromptTokens)
	a.corrects(&sum)
	if sum.EndedNormally && sum.Deltas > 0 {
		a.placement.Answered(sum.Inner)
	}
	if sum.EndedNormally && !sum.Transferred {
		a.continued(o.OutputIDs())
	}
	observers.Put(o)
	switch sum.Engine {
	case stream.EngineUnknown:
	case stream.EngineVLLM, stream.EngineSGLang:
		a.upstream.roles.Store(true)
	default:
		a.upstream.roles.Store(false)
	}
	if sum.ResponseID != "" {
		a.made(sum.ResponseID)
	}
	a.routing.publishEnd(b.request, sum.Generated)
	return sum.Failed
}

// continued tells the index what is cached of an output with these ids: all but the
// last, which nothing was computed from yet. None are told where not all are known.
func (a *attempt) continued(ids []uint32) {
	if len(ids) == 0 {
		return
	}
	if chain := a.routing.goesOn.Append(nil, ids[:len(ids)-1]); len(chain) > 0 {
		a.placement.Continued(chain)
	}
}

// made remembers that the attempt's upstream made a response of that id.
func (a *attempt) made(id string) {
	r := &a.routing.policy.pool.responses
	key := r.key(id)
	a.routing.response = key
	r.remember(key, a.upstream)
}

// Started implements stream.Sink.
func (a *attempt) Started(seq int, visible bool) {
	now := a.routing.policy.pool.ledger.Now()
	a.placement.Started(seq, now)
	if told := &a.upstream.engine.engineTold; told.asleepUntil.Load() != 0 {
		told.mark(false, a.routing.policy.pool.now()) // it generates
	}
	if a.routing.streamed {
		a.upstream.labels.started(now, now-a.placement.Sent(), !a.engineStarted, visible && !a.outputSeen)
	}
	a.engineStarted = true
	a.outputSeen = a.outputSeen || visible
}

// Generated implements stream.Sink.
func (a *attempt) Generated(seq, total int) {
	if seq >= len(a.sequences) {
		return
	}
	now := a.routing.policy.pool.ledger.Now()
	a.placement.Generated(seq, total, now)
	s := &a.sequences[seq]
	before := *s
	s.generated, s.at = total, now
	a.routing.recorded.generated(seq, total)
	n := total - before.generated
	if n <= 0 {
		return
	}
	a.upstream.labels.recent.Generated(now, n)
	if before.generated > 0 && a.routing.streamed {
		a.upstream.labels.generated(now, (now-before.at)/time.Duration(n))
	}
}

// Finished implements stream.Sink.
func (a *attempt) Finished(seq int) { a.placement.Finished(seq) }

// Interface guard
var _ stream.Sink = (*attempt)(nil)
