// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/route"
)

// attempt is one request on its way at one upstream. Whoever comes first ends
// it: the end of the body, its closing, a failed round trip, the headers of an
// answer that is no success, the next attempt, or the request's end. Everything of
// it but finish runs on the request's goroutine.
type attempt struct {
	routing   *routing
	upstream  *upstream
	placement route.Placement // its charge in the ledger and its hold on the index

	reason    string
	sequences []sequence
	seqSpace  [1]sequence

	engineStarted bool // the first token was seen, visible or not
	outputSeen    bool // the first visible one was

	again    bool        // the request was sent before
	answered atomic.Bool // with a success

	probe rankProbe // set before the attempt is known to others
}

// sequence is one answer being generated.
type sequence struct {
	generated int
	at        time.Duration // of the last token
}

// finish ends the attempt once. Safe from any goroutine.
func (a *attempt) finish(outcome ledger.Outcome) {
	if !a.placement.Release(outcome, outcome == ledger.Completed && a.answered.Load()) {
		return
	}
	if outcome == ledger.Completed && a.answered.Load() {
		a.voteRank()
	}
	a.routing.recorded.attempted(outcome, a.answered.Load())
	a.upstream.labels.ended(outcome)
	a.routing.policy.pool.free()
}

// failed ends the current attempt because the round trip did.
func (rt *routing) failed(ctx context.Context, err error) {
	a := rt.current.Load()
	if a == nil {
		return
	}
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(ctx.Err(), context.Canceled):
		a.finish(ledger.Canceled)
		return
	case rt.clientsFault(err):
		a.finish(ledger.Rejected)
		return
	}
	a.finish(ledger.Failed)
	rt.avoid(a.upstream)
	if refused(err) {
		// Nothing listens there: the engine is gone, and its caches with it.
		rt.policy.pool.invalidateEngine(a.upstream, withdrawnRefused)
	}
}

// surfaced gives the error of a failed round trip as it would be without this
// policy. A client that is too slow with its body gets its request canceled by
// the server; that is all the transport sees of it when the body was read
// before, and would turn a timeout into a client that left.
func (rt *routing) surfaced(err error) error {
	var slow net.Error
	if rt.replay != nil && errors.Is(err, context.Canceled) && errors.As(rt.replay.err, &slow) && slow.Timeout() {
		return rt.replay.err
	}
	return err
}

// refused reports whether nothing listens at the address that was dialled.
// Caddy's dial error hides the error that it holds, so its text must tell.
func refused(err error) bool {
	var dial reverseproxy.DialError
	if !errors.As(err, &dial) {
		return false
	}
	text := err.Error()
	return strings.Contains(text, syscall.ECONNREFUSED.Error()) || // also of a unix socket nobody serves
		strings.Contains(text, syscall.ENOENT.Error()) || // a unix socket that was removed
		strings.Contains(text, "actively refused") // Windows
}

// clientsFault reports whether the round trip failed because the client's body
// could not be read to its end.
func (rt *routing) clientsFault(err error) bool {
	var tooLong *http.MaxBytesError
	if errors.As(err, &tooLong) {
		return true
	}
	return rt.replay != nil && rt.replay.err != nil && errors.Is(err, rt.replay.err)
}

// answered takes in the headers of a response, and has its body observed.
func (rt *routing) answered(req *http.Request, res *http.Response) {
	a := rt.current.Load()
	if a == nil {
		return
	}
	defer func() {
		if val := recover(); val != nil {
			rt.policy.panicked("answer", val)
		}
	}()
	if rt.policy.ResponseHeaders {
		a.tellClient(res.Header)
	}
	switch code := res.StatusCode; {
	case code == http.StatusSwitchingProtocols:
		// The body is now the connection itself and must stay what it is.
		a.finish(ledger.Completed)
		rt.begun()
		return
	case code >= 500:
		rt.avoid(a.upstream)
		a.finish(ledger.Failed)
	case code == http.StatusTooManyRequests:
		rt.avoid(a.upstream)
		a.finish(ledger.Busy)
	case code >= 400:
		rt.avoid(a.upstream)
		a.finish(ledger.Rejected)
	case code >= 300 || code < 200:
		a.finish(ledger.Completed)
	default:
		a.answered.Store(true)
		if rt.control != nil {
			rt.policy.pool.controlled(a.upstream, rt.control)
		}
		if res.Body == nil || res.Body == http.NoBody {
			a.finish(ledger.Completed)
		}
	}
	if res.Body == nil || res.Body == http.NoBody {
		return
	}
	res.Body = a.observe(req, res)
}

// tellClient sets the response headers that show the decision.
func (a *attempt) tellClient(h http.Header) {
	h.Set("X-KV-Aware-Upstream", a.upstream.address)
	h.Set("X-KV-Aware-Prompt-Tokens", strconv.Itoa(a.placement.PromptTokens))
	h.Set("X-KV-Aware-Cached-Tokens", strconv.Itoa(a.placement.CachedTokens))
	h.Set("X-KV-Aware-Load", strconv.FormatInt(int64(a.placement.Load), 10))
}
