// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// start sends a streamed chat that the test can walk away from.
func start(t *testing.T, c *proxytest.Caddy, ctx context.Context, prompt string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", "http://site/v1/chat/completions", strings.NewReader(chat(prompt, true)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return c.Client("site").Do(req)
}

func TestAClientThatLeavesDuringPrefillGivesTheChargeBack(t *testing.T) {
	arrived, canceled := make(chan struct{}), make(chan struct{})
	engine := proxytest.NewEngine(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(canceled)
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	ctx, leave := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, err := start(t, c, ctx, prose("long", 1000))
		done <- err
	}()
	<-arrived
	if s := loads(t); s.PrefillTokens < 900 || s.Running != 1 {
		t.Errorf("during prefill the load is %+v", s)
	}
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v", err)
	}
	<-canceled // the engine is told
	wantIdle(t)
	pl := defaultPool(t)
	for _, u := range pl.all() {
		if n := pl.index.Stats(u.slot).Blocks; n != 0 {
			t.Errorf("%d blocks of a prompt that was never answered stay in the index", n)
		}
	}
}

func TestAClientThatLeavesMidStreamGivesTheChargeBackAndThePromptStaysCached(t *testing.T) {
	canceled := make(chan struct{})
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		proxytest.Event(w, `{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}`)
		<-r.Context().Done()
		close(canceled)
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	ctx, leave := context.WithCancel(context.Background())
	res, err := start(t, c, ctx, prose("long", 1000))
	if err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(res.Body).ReadString('\n'); !strings.HasPrefix(line, "data: ") {
		t.Fatalf("got %q", line)
	}
	eventually(t, "the first token moved the charge from prefill to decode", func() bool {
		s := loads(t)
		return s.PrefillTokens == 0 && s.DecodeTokens > 900 && s.Running == 1
	})
	leave()
	res.Body.Close()
	<-canceled
	wantIdle(t)
	pl := defaultPool(t)
	for _, u := range pl.all() {
		if n := pl.index.Stats(u.slot).Idle; n < 50 {
			t.Errorf("%d blocks of a prompt that was prefilled are left in the index", n)
		}
	}
}

func TestAnUpstreamThatDiesMidStreamCutsTheClientAndGivesTheChargeBack(t *testing.T) {
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		proxytest.Event(w, `{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}`)
		panic(http.ErrAbortHandler)
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	res, err := start(t, c, context.Background(), "hi")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err == nil || !strings.Contains(string(body), `"content":"a"`) {
		t.Errorf("the client got %q and then %v, want the token and an error", body, err)
	}
	wantIdle(t)
	pl := defaultPool(t)
	u := pl.all()[0]
	if s := pl.ledger.Snapshot(u.load); s.Failures != 1 || s.FailureScore == 0 {
		t.Errorf("the failure was not noted: %+v", s)
	}
}

func TestASuccessWithoutABodyGivesTheChargeBackAtItsHeaders(t *testing.T) {
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	res := c.Post("/v1/chat/completions", chat("hi", false))
	proxytest.ReadAll(t, res)
	wantIdle(t)
}

func TestAnErrorAnswerGivesTheChargeBackAtItsHeaders(t *testing.T) {
	release := make(chan struct{})
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(500)
		_ = http.NewResponseController(w).Flush()
		<-release
	})
	defer close(release)
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	res, err := start(t, c, context.Background(), prose("x", 500))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	// The body is still open, and may be for minutes in a response route.
	eventually(t, "the charge is given back", func() bool { return loads(t).Live == 0 })
}
