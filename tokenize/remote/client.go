// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// API is the way in which engines are asked.
type API uint8

// The ways. Any asks by Render, and where an engine has no such endpoint, by
// Tokenize.
const (
	Any API = iota
	Render
	Tokenize
)

// Reason is why there is no answer.
type Reason string

// The reasons.
const (
	Busy        Reason = "busy"         // as many questions as may be are under way
	Open        Reason = "circuit_open" // the engines failed lately, and are left alone
	Timeout     Reason = "timeout"      // no answer in time
	Canceled    Reason = "canceled"     // the request ended first
	Unreachable Reason = "unreachable"  // no connection, or one that broke
	Refused     Reason = "refused"      // the engine cannot serve this request: 4xx
	Status      Reason = "status"       // another status than 200 that says nothing of the request
	Invalid     Reason = "invalid"      // an answer that is none
	Unsupported Reason = "unsupported"  // what cannot be asked in the ways that the engine has
)

// Reasons lists all of them.
var Reasons = []Reason{Busy, Open, Timeout, Canceled, Unreachable, Refused, Status, Invalid, Unsupported}

// Error says that there is no answer. It quotes nothing of question or answer.
type Error struct{ Reason Reason }

// Error returns the reason.
func (e *Error) Error() string { return "remote: no token ids: " + string(e.Reason) }

// Options say whom to ask, and how.
type Options struct {
	// Engines are the base URLs, at least one: a path is put behind theirs.
	Engines []*url.URL
	API     API
	// Timeout bounds a question as a whole, however many engines are tried.
	Timeout time.Duration
	// MaxConcurrent bounds the questions under way, of all engines together.
	MaxConcurrent int
	// Header is sent with each question.
	Header http.Header
	// Transport is one of the client's own by default.
	Transport http.RoundTripper
}

// Question is what an engine is asked.
type Question struct {
	// Path is the API's path: /v1/chat/completions or /v1/completions.
	Path string
	// Body is JSON. It is copied if an engine is asked, as the transport may still
	// be reading it when Ask returns.
	Body []byte
	// Prompts is the number of prompts, and so of lists in the answer.
	Prompts int
	// RenderOnly says that Tokenize would not take notice of all that matters.
	RenderOnly bool
}

// Answer is the ids of all prompts, one after the other; Ends says where each
// prompt's end. All ids are below 1<<31.
type Answer struct {
	IDs  []uint32
	Ends []int
}

// Client asks engines. It is safe for concurrent use, starts nothing until it is
// asked, and keeps connections until Close.
type Client struct {
	api       API
	timeout   time.Duration
	header    http.Header
	transport http.RoundTripper
	slots     chan struct{}
	engines   []*engine
	next      atomic.Uint32 // whose turn it is
	closed    atomic.Bool
}

// engine is one of those that are asked.
type engine struct {
	base *url.URL
	// Long questions have a circuit of their own: that these are late says nothing
	// of the others.
	short, long circuit
	// unrendered is when it was last seen to have no Render, in Unix nanoseconds;
	// 0: never.
	unrendered atomic.Int64
}

// renderAgainAfter is how long an engine that has no Render is not asked for it:
// another version may have taken its place.
const renderAgainAfter = 10 * time.Minute

const dialTimeout = 5 * time.Second

// New returns a client. It opens no connection.
func New(o Options) *Client {
	c := &Client{
		api:       o.API,
		timeout:   o.Timeout,
		header:    o.Header,
		transport: o.Transport,
		slots:     make(chan struct{}, o.MaxConcurrent),
	}
	if c.transport == nil {
		c.transport = &http.Transport{
			// Longer than a question may take: a connection that comes too late for
			// one serves the next.
			DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSHandshakeTimeout: dialTimeout,
			ForceAttemptHTTP2:   true,
			MaxIdleConnsPerHost: o.MaxConcurrent,
			// Below the 5 seconds after which uvicorn, vLLM's and SGLang's server,
			// closes a connection that is not used.
			IdleConnTimeout:    4 * time.Second,
			DisableCompression: true,
		}
	}
	for _, base := range o.Engines {
		c.engines = append(c.engines, &engine{base: base})
	}
	return c
}

// Close closes the connections that are not in use, and the others when their
// question ends. The client still works after it.
func (c *Client) Close() {
	c.closed.Store(true)
	c.closeIdle()
}

func (c *Client) closeIdle() {
	if t, ok := c.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// Ask asks one engine after the other, beginning with the next in turn, until one
// answers. Every error is an *[Error]. It takes no longer than Timeout, nor than
// ctx lasts.
func (c *Client) Ask(ctx context.Context, q Question) (Answer, error) {
	if q.RenderOnly && c.api == Tokenize {
		return Answer{}, &Error{Unsupported}
	}
	select {
	case c.slots <- struct{}{}:
	default:
		return Answer{}, &Error{Busy}
	}
	defer func() {
		<-c.slots
		if c.closed.Load() {
			c.closeIdle()
		}
	}()
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	reason, copied := Open, false
	first := int(c.next.Add(1) % uint32(len(c.engines)))
	for i := range c.engines {
		e := c.engines[(first+i)%len(c.engines)]
		if !c.circuit(e, q).admit(time.Now()) {
			continue
		}
		if !copied {
			q.Body, copied = bytes.Clone(q.Body), true
		}
		answer, why := c.askSettled(ctx, limited, e, q)
		switch why {
		case "", Timeout, Canceled, Refused:
			if why != "" {
				return Answer{}, &Error{why}
			}
			return answer, nil
		}
		reason = why
	}
	return Answer{}, &Error{reason}
}

// sureRate is how many bytes of text every engine encodes in a second.
const sureRate = 1 << 20

// circuit returns the one that a question to an engine goes by.
func (c *Client) circuit(e *engine, q Question) *circuit {
	if int64(len(q.Body)) > int64(c.timeout)*sureRate/int64(time.Second) {
		return &e.long
	}
	return &e.short
}

// askSettled asks one engine that was admitted, and tells its circuit.
func (c *Client) askSettled(ctx, limited context.Context, e *engine, q Question) (answer Answer, why Reason) {
	v := failed // also if what follows panics
	circuit := c.circuit(e, q)
	defer func() { circuit.settle(v, time.Now()) }()
	answer, why = c.askEngine(limited, e, q)
	if why != "" && limited.Err() != nil {
		// Whatever it was, it is because of that.
		why = Timeout
		if ctx.Err() != nil {
			why = Canceled
		}
	}
	switch why {
	case "", Refused:
		v = alive
	case Canceled, Unsupported:
		v = nothing
	}
	return answer, why
}

func (c *Client) askEngine(ctx context.Context, e *engine, q Question) (Answer, Reason) {
	if c.api != Tokenize && e.mayRender(time.Now()) || c.api == Render {
		answer, why := c.exchange(ctx, e.base.JoinPath(q.Path, "render"), "token_ids", q)
		if why != missing {
			return answer, why
		}
		if c.api == Render {
			return Answer{}, Status
		}
		e.unrendered.Store(time.Now().UnixNano())
	}
	if q.RenderOnly {
		return Answer{}, Unsupported
	}
	answer, why := c.exchange(ctx, e.base.JoinPath("tokenize"), "tokens", q)
	if why == missing {
		why = Status
	}
	return answer, why
}

func (e *engine) mayRender(now time.Time) bool {
	at := e.unrendered.Load()
	return at == 0 || now.Sub(time.Unix(0, at)) >= renderAgainAfter
}

// Parse reads an engine's base URL.
func Parse(base string) (*url.URL, error) {
	const want = "expecting the base URL of an engine, such as http://10.0.0.1:8000"
	u, err := url.Parse(base)
	var detail *url.Error
	switch {
	case errors.As(err, &detail):
		return nil, fmt.Errorf("%w: %s", detail.Err, want) // without the URL, which may hold a password
	case err != nil:
		return nil, err
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, errors.New(want)
	case u.User != nil:
		return nil, errors.New("a URL is logged and shown: give credentials as a header instead")
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return nil, errors.New("expecting a base URL, without query and fragment")
	case strings.HasSuffix(u.Path, "/tokenize") || strings.HasSuffix(u.Path, "/render"):
		return nil, errors.New("expecting the base URL of an engine, to which the API's paths are added")
	}
	return u, nil
}
