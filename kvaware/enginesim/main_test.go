// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Of a whole Caddy, which keep to themselves when to end.
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"),
		goleak.IgnoreAnyFunction("github.com/caddyserver/caddy/v2.replaceLocalAdminServer.func2"))
}

// provision makes a handler ready to serve and takes it down with the test.
func provision(t testing.TB, h *Handler) *Handler {
	t.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	t.Cleanup(cancel)
	if h.Name == "" {
		h.Name = t.Name()
	}
	if h.Speed == 0 {
		h.Speed = 1000
	}
	if err := h.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Cleanup(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// serving is a handler behind a server of its own.
type serving struct {
	*testing.T
	handler *Handler
	url     string
}

func serve(t *testing.T, h *Handler) serving {
	t.Helper()
	provision(t, h)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.ServeHTTP(w, r, caddyhttp.HandlerFunc(nil)); err != nil {
			t.Errorf("serving: %v", err)
		}
	}))
	server.Config.ErrorLog = nil
	server.Start()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		server.Close()
	})
	return serving{t, h, server.URL}
}

func (s serving) request(method, path, body string, headers ...string) *http.Request {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return req
}

// post returns the whole answer and its status; err is what ended a broken one.
func (s serving) post(path, body string, headers ...string) (status int, answer []byte, err error) {
	s.Helper()
	res, err := http.DefaultClient.Do(s.request(http.MethodPost, path, body, headers...))
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(res.Body)
	return res.StatusCode, answer, err
}

// complete posts a request that must succeed.
func (s serving) complete(path, body string) []byte {
	s.Helper()
	status, answer, err := s.post(path, body)
	if err != nil || status != http.StatusOK {
		s.Fatalf("%s: status %d, %v: %s", body, status, err, answer)
	}
	return answer
}

// reply is what tests look at in an answer or an event of one.
type reply struct {
	ID      string
	Object  string
	Model   string
	Choices []struct {
		Index        int
		Message      struct{ Role, Content string }
		Text         string
		Delta        struct{ Role, Content string }
		FinishReason *string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Error *struct {
		Message, Type string
		Param         *string
		Code          int
	}
}

func decode(t testing.TB, answer []byte) reply {
	t.Helper()
	var r reply
	if err := json.Unmarshal(answer, &r); err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	return r
}

// events splits a stream into the data of its events.
func events(t testing.TB, stream []byte) []string {
	t.Helper()
	var all []string
	lines := bufio.NewScanner(strings.NewReader(string(stream)))
	for lines.Scan() {
		if line := lines.Text(); line != "" {
			data, ok := strings.CutPrefix(line, "data: ")
			if !ok {
				t.Fatalf("line %q", line)
			}
			all = append(all, data)
		}
	}
	return all
}
