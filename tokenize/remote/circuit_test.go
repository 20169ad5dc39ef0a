// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// transport answers in the place of an engine.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func down(*http.Request) (*http.Response, error) { return nil, errors.New("down") }

// silent never answers.
func silent(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func up(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(tokenizeVLLM))}, nil
}

func TestAnEngineThatIsDownCostsNextToNothing(t *testing.T) {
	const timeout = 50 * time.Millisecond
	for name, dead := range map[string]transport{"down": down, "silent": silent} {
		synctest.Test(t, func(t *testing.T) {
			asked, answer := 0, dead
			c := New(Options{
				Engines: []*url.URL{{Scheme: "http", Host: "engine"}}, API: Tokenize, Timeout: timeout, MaxConcurrent: 1,
				Transport: transport(func(r *http.Request) (*http.Response, error) {
					asked++
					return answer(r)
				}),
			})
			waited := func(n int) (total time.Duration) {
				for range n {
					start := time.Now()
					if why := reasonOf(t, c, chat); why == "" {
						t.Fatal("a dead engine answers")
					}
					took := time.Since(start)
					if took > timeout {
						t.Errorf("%s: a question took %v", name, took)
					}
					total += took
				}
				return total
			}
			waited(failuresInARow)
			if took := waited(1000); took != 0 || asked != failuresInARow {
				t.Errorf("%s: 1000 questions took %v, the engine was asked %d times", name, took, asked-failuresInARow)
			}
			// One question tries now and then.
			for range 10 {
				time.Sleep(retryAfter)
				asked = 0
				if took := waited(100); took > timeout || asked != 1 {
					t.Errorf("%s: 100 questions took %v, the engine was asked %d times", name, took, asked)
				}
			}
			// It is used again from the first answer on.
			answer = up
			if why := reasonOf(t, c, chat); why != Open {
				t.Errorf("%s: before its time a question is %q", name, why)
			}
			time.Sleep(retryAfter)
			for range 10 {
				if why := reasonOf(t, c, chat); why != "" {
					t.Errorf("%s: once it is back, a question is %q", name, why)
				}
			}
			// And one failure among answers does not close it out.
			for range 3 * failuresInARow {
				answer = dead
				waited(1)
				answer = up
				if why := reasonOf(t, c, chat); why != "" {
					t.Errorf("%s: after one failure a question is %q", name, why)
				}
			}
		})
	}
}

func TestLongQuestionsThatAreLateKeepNoOthersFromTheEngine(t *testing.T) {
	const timeout = 50 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		c := New(Options{
			Engines: []*url.URL{{Scheme: "http", Host: "engine"}}, API: Tokenize, Timeout: timeout, MaxConcurrent: 1,
			Transport: transport(func(r *http.Request) (*http.Response, error) {
				if r.ContentLength > 100_000 {
					return silent(r)
				}
				return up(r)
			}),
		})
		long := Question{Path: "/v1/chat/completions", Body: []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat("a", 100_000) + `"}]}`), Prompts: 1}
		for i := range 20 {
			start, want := time.Now(), Open
			if i < failuresInARow {
				want = Timeout
			}
			if why := reasonOf(t, c, long); why != want || want == Open && time.Since(start) > 0 {
				t.Errorf("long question %d: %s after %v, want %s", i, why, time.Since(start), want)
			}
			if why := reasonOf(t, c, chat); why != "" {
				t.Errorf("after %d long questions another is not answered: %s", i+1, why)
			}
		}
	})
}

func TestOnlyOneQuestionProbes(t *testing.T) {
	var c circuit
	now := time.Now()
	for range failuresInARow {
		if !c.admit(now) {
			t.Fatal("not admitted")
		}
		c.settle(failed, now)
	}
	now = now.Add(retryAfter)
	if !c.admit(now) || c.admit(now) {
		t.Error("not one probe")
	}
	c.settle(nothing, now) // withdrawn: the next may try at once
	if !c.admit(now) {
		t.Error("no probe after one that was withdrawn")
	}
	c.settle(failed, now)
	if c.admit(now.Add(retryAfter - 1)) {
		t.Error("a probe right after one that failed")
	}
}

func TestRenderingIsTriedAgainLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		renders := 0
		c := New(Options{
			Engines: []*url.URL{{Scheme: "http", Host: "engine"}}, Timeout: time.Second, MaxConcurrent: 1,
			Transport: transport(func(r *http.Request) (*http.Response, error) {
				if strings.HasSuffix(r.URL.Path, "/render") {
					renders++
					return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody}, nil
				}
				return up(r)
			}),
		})
		for hour := range 3 {
			for range 10 {
				if why := reasonOf(t, c, chat); why != "" {
					t.Errorf("got %q", why)
				}
			}
			if renders != hour+1 {
				t.Errorf("in hour %d it was asked to render %d times", hour, renders)
			}
			time.Sleep(time.Hour)
		}
	})
}
