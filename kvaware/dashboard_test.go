// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// dashed is a site with a dashboard at /dash, and what else is given.
func dashed(upstreams, directives string) string {
	return strings.Replace(site(upstreams, "", ""), "bind {SITE}", "bind {SITE}\n\tkv_aware_dashboard /dash\n\t"+directives, 1)
}

// watch opens the dashboard's stream.
func watch(t testing.TB, c *proxytest.Caddy) (*bufio.Reader, *http.Response) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://site/dash?stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "gzip")
	res, err := c.Client("site").Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return bufio.NewReader(res.Body), res
}

// nextSnapshot reads a stream up to its next snapshot.
func nextSnapshot(t testing.TB, events *bufio.Reader) (s Snapshot) {
	t.Helper()
	for {
		line, err := events.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if err := json.Unmarshal([]byte(data), &s); err != nil {
				t.Fatal(err)
			}
			return s
		}
	}
}

func TestTheDashboardStreamsTheLoadAndNothingOfPrompts(t *testing.T) {
	const secret = "xylophone"
	gate := make(chan struct{})
	engine := proxytest.NewEngine(t, gated(gate))
	c := proxytest.Start(t, "", dashed(engine.Addr(), "encode gzip zstd"))
	events, res := watch(t, c)
	if res.StatusCode != 200 || res.Header.Get("Content-Encoding") != "" || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%d %v", res.StatusCode, res.Header)
	}
	if first := nextSnapshot(t, events); len(first.Pools) != 1 || first.Pools[0].History == nil || first.Pools[0].Upstreams[0].Address != engine.Addr() {
		t.Fatalf("first comes %+v", first)
	}
	running := c.Post("/v1/chat/completions", chat(secret+prose(secret, 200), true))
	for nextSnapshot(t, events).Pools[0].Upstreams[0].Requests != 1 {
	}
	close(gate)
	proxytest.ReadAll(t, running)
	for nextSnapshot(t, events).Pools[0].Upstreams[0].Requests != 0 {
	}

	page, err := c.Client("site").Get("http://site/dash")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := c.Client("site").Get("http://site/dash?snapshot")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{proxytest.ReadAll(t, page), proxytest.ReadAll(t, whole)} {
		if strings.Contains(text, secret) || !strings.Contains(text, "decisions") {
			t.Errorf("it shows %s", text)
		}
	}
}

func TestTheDashboardAnswersWhereARequestWouldGo(t *testing.T) {
	const secret = "xylophone"
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", dashed(engine.Addr(), ""))
	ask := func(query, body string) (int, string) {
		res, err := c.Client("site").Post("http://site/dash?"+query, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, proxytest.ReadAll(t, res)
	}
	body := chat(secret+prose(secret, 100), true)
	_, _, explained := c.Admin("POST", "/kv_aware/explain", body)
	if status, got := ask("ask=explain&pool=", body); status != 200 || got+"\n" != explained || !strings.Contains(got, engine.Addr()) {
		t.Errorf("explain: %d %s", status, got)
	}
	if status, got := ask("ask=tokenize&path=/v1/chat/completions", body); status != 200 || !strings.Contains(got, `"role":"user"`) || strings.Contains(got, secret) {
		t.Errorf("tokenize: %d %s", status, got)
	}
	for query, want := range map[string]int{"ask=explain&pool=x": 404, "ask=explain&limit=-1": 400} {
		if status, got := ask(query, body); status != want || !strings.Contains(got, `"error"`) {
			t.Errorf("%s: %d %s", query, status, got)
		}
	}
	if status, got := ask("ask=explain", `{"messages":[{"role":"user","content":"`+secret); status != 400 || strings.Contains(got, secret) || !strings.Contains(got, "ends too early") {
		t.Errorf("a broken body: %d %s", status, got)
	}
	if n := loads(t).Live; n != 0 || len(engine.Requests()) != 0 {
		t.Error("asking charged or sent something")
	}
}

func TestReloadAndStopEndTheDashboardsStreams(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	conf := dashed(engine.Addr(), "")
	c := proxytest.Start(t, "", conf)
	c.Stop()
	there := goleak.IgnoreCurrent()
	c = proxytest.Start(t, "", conf)

	ends := func(events *bufio.Reader, do func()) {
		t.Helper()
		nextSnapshot(t, events)
		do()
		if _, err := io.Copy(io.Discard, events); err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("the stream ends with %v", err)
		}
	}
	events, _ := watch(t, c)
	ends(events, func() { c.Reload("", conf) })
	events, _ = watch(t, c)
	if err := c.TryReload("", strings.Replace(conf, "kv_aware_dashboard", "kv_aware_dashboard nonsense", 1)); err == nil {
		t.Fatal("a bad configuration was taken")
	}
	if err := c.TryReload("", conf+"http://other {\n\tbind {SITE2}\n\ttls /nowhere/cert /nowhere/key\n}\n"); err == nil {
		t.Fatal("a configuration that cannot be provisioned was taken")
	}
	nextSnapshot(t, events)
	nextSnapshot(t, events) // it goes on
	ends(events, c.Stop)
	engine.CloseClientConnections()
	goleak.VerifyNone(t, there,
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"),
		goleak.IgnoreAnyFunction("github.com/caddyserver/caddy/v2.replaceLocalAdminServer.func2"))
}

func TestADashboardWithoutPoolsSaysSo(t *testing.T) {
	c := proxytest.Start(t, "", "http://site {\n\tbind {SITE}\n\tkv_aware_dashboard /dash\n}\n")
	events, _ := watch(t, c)
	if s := nextSnapshot(t, events); s.Pools == nil || len(s.Pools) != 0 {
		t.Errorf("got %+v", s)
	}
}
