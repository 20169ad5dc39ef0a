// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fakeEngine remembers the paths that were asked.
type fakeEngine struct {
	*httptest.Server
	mu    sync.Mutex
	paths []string
}

func newEngine(t *testing.T, answer http.HandlerFunc) *fakeEngine {
	t.Helper()
	e := new(fakeEngine)
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The server sees that a client has left only once the body was read.
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		e.mu.Lock()
		e.paths = append(e.paths, r.URL.Path)
		e.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *fakeEngine) asked() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.paths)
}

func (e *fakeEngine) base(t *testing.T) *url.URL {
	t.Helper()
	u, err := Parse(e.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// client asks engines with time enough.
func client(t *testing.T, o Options, engines ...*fakeEngine) *Client {
	t.Helper()
	for _, e := range engines {
		o.Engines = append(o.Engines, e.base(t))
	}
	if o.Timeout == 0 {
		o.Timeout = 20 * time.Second
	}
	if o.MaxConcurrent == 0 {
		o.MaxConcurrent = 4
	}
	c := New(o)
	t.Cleanup(c.Close)
	return c
}

var chat = Question{Path: "/v1/chat/completions", Body: []byte(`{"messages":[]}`), Prompts: 1}

// reasonOf gives why a question has no answer, "" if it has.
func reasonOf(t *testing.T, c *Client, q Question) Reason {
	t.Helper()
	_, err := c.Ask(t.Context(), q)
	return reason(t, err)
}

func reason(t *testing.T, err error) Reason {
	t.Helper()
	if err == nil {
		return ""
	}
	var typed *Error
	if !errors.As(err, &typed) {
		t.Fatalf("%v (%T) is no *Error", err, err)
	}
	return typed.Reason
}

// vLLM answers as vLLM does, with the two states that Render may be in.
func vLLM(rendering int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		render := strings.HasSuffix(r.URL.Path, "/render")
		switch {
		case render && rendering == http.StatusForbidden:
			w.WriteHeader(rendering)
			_, _ = io.WriteString(w, `{"error":{"message":"Scale-out endpoints are disabled.","type":"PermissionDeniedError","param":null,"code":403}}`)
		case render && rendering == http.StatusNotFound:
			w.WriteHeader(rendering)
			_, _ = io.WriteString(w, `{"detail":"Not Found"}`)
		case r.URL.Path == "/v1/chat/completions/render":
			_, _ = io.WriteString(w, renderChat)
		case r.URL.Path == "/v1/completions/render":
			_, _ = io.WriteString(w, renderBatch)
		case r.URL.Path == "/tokenize":
			_, _ = io.WriteString(w, tokenizeVLLM)
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"detail":"Not Found"}`)
		}
	}
}

func TestAnEngineThatRendersIsAskedForThat(t *testing.T) {
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodPost || string(body) != string(chat.Body) || r.Header.Get("Authorization") != "Bearer k" ||
			r.Header.Get("Content-Type") != "application/json" || r.Header["Idempotency-Key"] != nil {
			t.Errorf("asked with %s %q %v", r.Method, body, r.Header)
		}
		vLLM(http.StatusOK)(w, r)
	})
	c := client(t, Options{Header: http.Header{"Authorization": {"Bearer k"}}}, e)
	answer, err := c.Ask(t.Context(), chat)
	if err != nil || !slices.Equal(answer.IDs, []uint32{1, 22, 333}) || !slices.Equal(answer.Ends, []int{3}) {
		t.Errorf("got %v, %v", answer, err)
	}
	answer, err = c.Ask(t.Context(), Question{Path: "/v1/completions", Body: chat.Body, Prompts: 3, RenderOnly: true})
	if err != nil || !slices.Equal(answer.Ends, []int{2, 2, 3}) {
		t.Errorf("got %v, %v", answer, err)
	}
	if got := e.asked(); !slices.Equal(got, []string{"/v1/chat/completions/render", "/v1/completions/render"}) {
		t.Errorf("asked at %v", got)
	}
}

func TestAnEngineThatDoesNotRenderIsAskedToTokenize(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusForbidden} {
		e := newEngine(t, vLLM(status))
		c := client(t, Options{}, e)
		for range 2 {
			answer, err := c.Ask(t.Context(), chat)
			if err != nil || !slices.Equal(answer.IDs, []uint32{151644, 872, 198, 0}) {
				t.Errorf("got %v, %v", answer, err)
			}
		}
		if why := reasonOf(t, c, Question{Path: chat.Path, Body: chat.Body, Prompts: 1, RenderOnly: true}); why != Unsupported {
			t.Errorf("what only rendering tells is %q", why)
		}
		// The second time it is known.
		if got := e.asked(); !slices.Equal(got, []string{"/v1/chat/completions/render", "/tokenize", "/tokenize"}) {
			t.Errorf("asked at %v", got)
		}
	}
}

func TestTheWayOfAskingCanBeFixed(t *testing.T) {
	e := newEngine(t, vLLM(http.StatusNotFound))
	if why := reasonOf(t, client(t, Options{API: Render}, e), chat); why != Status {
		t.Errorf("an engine that cannot render gives %q", why)
	}
	if why := reasonOf(t, client(t, Options{API: Tokenize}, e), chat); why != "" {
		t.Errorf("an engine that tokenizes gives %q", why)
	}
	if why := reasonOf(t, client(t, Options{API: Tokenize}, e), Question{RenderOnly: true}); why != Unsupported {
		t.Errorf("what only rendering tells is %q", why)
	}
	if got := e.asked(); !slices.Equal(got, []string{"/v1/chat/completions/render", "/tokenize"}) {
		t.Errorf("asked at %v", got)
	}
}

func TestAModelThatTheEngineDoesNotHaveSaysNothingOfRendering(t *testing.T) {
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"error":{"message":"The model x does not exist.","type":"NotFoundError","param":"model","code":404}}`)
	})
	c := client(t, Options{}, e)
	for range 2 * failuresInARow {
		if why := reasonOf(t, c, chat); why != Refused {
			t.Errorf("got %q", why)
		}
	}
	for _, path := range e.asked() {
		if path != "/v1/chat/completions/render" {
			t.Errorf("asked at %s", path)
		}
	}
}

func TestWhateverAnEngineDoesThereIsAReason(t *testing.T) {
	respond := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	hang := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		why    Reason
	}{
		"400":              {respond(400, `{"error":{}}`), Refused},
		"422":              {respond(422, `{"detail":[]}`), Refused},
		"401":              {respond(401, `{"error":"Unauthorized"}`), Status},
		"403":              {respond(403, ``), Status},
		"404":              {respond(404, `{"detail":"Not Found"}`), Status},
		"429":              {respond(429, ``), Status},
		"500":              {respond(500, `{"error":{}}`), Status},
		"redirect":         {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/", http.StatusFound) }, Status},
		"204":              {respond(204, ``), Status},
		"no JSON":          {respond(200, `<html>`), Invalid},
		"another object":   {respond(200, `{"object":"list"}`), Invalid},
		"an error as 200":  {respond(200, `{"error":{"message":"no"}}`), Invalid},
		"two prompts":      {respond(200, `{"tokens":[[1],[2]]}`), Invalid},
		"empty":            {respond(200, ``), Invalid},
		"cut JSON":         {respond(200, `{"tokens":[1,2`), Invalid},
		"no headers":       {hang, Timeout},
		"broken":           {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, Unreachable},
		"a list of tokens": {respond(200, `{"tokens":["a","b"]}`), Invalid},
		"slow body": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"tokens":[1,2`)
			w.(http.Flusher).Flush()
			hang(w, r)
		}, Timeout},
		"cut body": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"tokens":[1,2]}`)
		}, Unreachable},
		"endless ids": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"tokens":[1`)
			for ids := strings.Repeat(",1", 1000); r.Context().Err() == nil; {
				_, _ = io.WriteString(w, ids)
			}
		}, Invalid},
		"endless other things": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"x":"`)
			for x := strings.Repeat("x", 1<<16); r.Context().Err() == nil; {
				_, _ = io.WriteString(w, x)
			}
		}, Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{API: Tokenize}
			if c.why == Timeout {
				o.Timeout = 20 * time.Millisecond
			}
			if why := reasonOf(t, client(t, o, newEngine(t, c.answer)), chat); why != c.why {
				t.Errorf("got %q, want %q", why, c.why)
			}
		})
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	base, err := Parse("http://" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if why := reasonOf(t, client(t, Options{Engines: []*url.URL{base}}), chat); why != Unreachable {
		t.Errorf("nobody listens: got %q", why)
	}
}

func TestNobodyWaitsForAPlaceAmongTheQuestions(t *testing.T) {
	arrived, gate := make(chan struct{}), make(chan struct{})
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-gate
		vLLM(http.StatusOK)(w, r)
	})
	c := client(t, Options{MaxConcurrent: 2}, e)
	done := make(chan Reason)
	for range 2 {
		go func() { done <- reasonOf(t, c, chat) }()
		<-arrived
	}
	if why := reasonOf(t, c, chat); why != Busy {
		t.Errorf("a third question is %q", why)
	}
	close(gate)
	for range 2 {
		if why := <-done; why != "" {
			t.Errorf("a question that had a place is %q", why)
		}
	}
	go func() { <-arrived }()
	if why := reasonOf(t, c, chat); why != "" {
		t.Errorf("after them a question is %q", why)
	}
}

func TestARequestThatEndsSaysNothingOfTheEngine(t *testing.T) {
	arrived := make(chan struct{}, 1)
	var patient atomic.Bool
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if patient.Load() {
			vLLM(http.StatusOK)(w, r)
			return
		}
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	c := client(t, Options{}, e)
	for range 2 * failuresInARow {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-arrived; cancel() }()
		if _, err := c.Ask(ctx, chat); reason(t, err) != Canceled {
			t.Errorf("got %v", err)
		}
	}
	patient.Store(true)
	if why := reasonOf(t, c, chat); why != "" {
		t.Errorf("then a question is %q", why)
	}
}

func TestSeveralEnginesTakeTurnsAndStandInForEachOther(t *testing.T) {
	a, b := newEngine(t, vLLM(http.StatusOK)), newEngine(t, vLLM(http.StatusOK))
	broken := newEngine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	c := client(t, Options{}, a, broken, b)
	for range 30 {
		if why := reasonOf(t, c, chat); why != "" {
			t.Errorf("got %q", why)
		}
	}
	if n, m := len(a.asked()), len(b.asked()); n < 10 || m < 10 || n+m != 30 {
		t.Errorf("one was asked %d times, the other %d times", n, m)
	}
	if n := len(broken.asked()); n != failuresInARow {
		t.Errorf("the broken one was asked %d times", n)
	}
}

func TestConnectionsAreKeptAndClosedWithTheClient(t *testing.T) {
	var mu sync.Mutex
	states := make(map[http.ConnState]int)
	closed := make(chan struct{})
	e := &fakeEngine{Server: httptest.NewUnstartedServer(vLLM(http.StatusOK))}
	e.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if states[s]++; s == http.StateClosed {
			close(closed)
		}
	}
	e.Start()
	t.Cleanup(e.Server.Close)
	c := client(t, Options{}, e)
	for range 5 {
		if why := reasonOf(t, c, chat); why != "" {
			t.Errorf("got %q", why)
		}
	}
	c.Close()
	<-closed
	if mu.Lock(); states[http.StateNew] != 1 {
		t.Errorf("%d connections for five questions", states[http.StateNew])
	}
	mu.Unlock()
}

func TestBaseURLsThatCannotBeAreRefused(t *testing.T) {
	for _, base := range []string{"", "10.0.0.1:8000", "ftp://x", "http://", "http://:80", "http://u:secret@x", "http://x?a=b", "http://x?", "http://x#f", "http://x/tokenize", "http://x/v1/chat/completions/render", "http://%zz", "http://a b"} {
		_, err := Parse(base)
		if err == nil {
			t.Errorf("%q is taken", base)
		} else if strings.Contains(fmt.Sprint(err), "secret") {
			t.Errorf("%q: %v", base, err)
		}
	}
	for _, base := range []string{"http://10.0.0.1:8000", "https://engine/prefix/", "http://[::1]:80"} {
		if _, err := Parse(base); err != nil {
			t.Errorf("%q: %v", base, err)
		}
	}
}
