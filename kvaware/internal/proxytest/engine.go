// SPDX-License-Identifier: Apache-2.0

package proxytest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Engine is a fake upstream. It remembers every request, with its body read to
// the end, and answers as its handler says.
type Engine struct {
	*httptest.Server

	mu   sync.Mutex
	seen []Seen
}

// Seen is a request as it arrived at an engine.
type Seen struct {
	Method, Path string
	Header       http.Header
	Length       int64 // ContentLength, -1 when chunked
	Body         string
	ReadError    error
	Trailer      http.Header
	Proto        string // "HTTP/1.1", "HTTP/2.0"
}

// NewEngine starts an engine. A nil handler streams three tokens.
func NewEngine(t testing.TB, handler http.HandlerFunc) *Engine {
	t.Helper()
	return NewEngineAs(t, handler, (*httptest.Server).Start)
}

// NewEngineAs is NewEngine for a server that starts in another way than by
// plain HTTP/1.
func NewEngineAs(t testing.TB, handler http.HandlerFunc, start func(*httptest.Server)) *Engine {
	t.Helper()
	e := new(Engine)
	if handler == nil {
		handler = Tokens(3)
	}
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		e.mu.Lock()
		e.seen = append(e.seen, Seen{r.Method, r.URL.Path, r.Header.Clone(), r.ContentLength, string(body), err, r.Trailer.Clone(), r.Proto})
		e.mu.Unlock()
		handler(w, r)
	}))
	start(e.Server)
	t.Cleanup(e.Close)
	return e
}

// Addr is the engine's address as a Caddyfile names it.
func (e *Engine) Addr() string {
	_, addr, _ := strings.Cut(e.URL, "://")
	return addr
}

// Requests gives the requests that arrived so far.
func (e *Engine) Requests() []Seen {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]Seen(nil), e.seen...)
}

// Tokens answers with a chat stream of n tokens, as vLLM words it, and its
// usage.
func Tokens(n int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		Event(w, `{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`)
		for i := range n {
			Event(w, fmt.Sprintf(`{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"t%d"},"finish_reason":null}]}`, i))
		}
		Event(w, `{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop","stop_reason":null}]}`)
		Event(w, fmt.Sprintf(`{"id":"c","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":%d,"total_tokens":%d}}`, n, n+10))
		Event(w, "[DONE]")
	}
}

// Event writes one server-sent event and flushes it.
func Event(w http.ResponseWriter, data string) {
	_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
	_ = http.NewResponseController(w).Flush()
}

// Refused gives an address at which nothing listens.
func Refused(t testing.TB) string {
	t.Helper()
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	return strings.TrimPrefix(s.URL, "http://")
}
