// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

const noPolicy = `http://site {
	bind {SITE}
	respond nothing
}
`

// serveIt runs the command until the returned function is called, which gives what
// it ended with, and gives the page's address.
func serveIt(t *testing.T, args ...string) (page string, end func() error) {
	t.Helper()
	cmd := &cobra.Command{Use: "kv-aware", SilenceUsage: true, SilenceErrors: true}
	addCommands(cmd)
	out, in := io.Pipe()
	cmd.SetOut(in)
	cmd.SetErr(in)
	cmd.SetArgs(append([]string{"dashboard", "--no-open", "--listen", "127.0.0.1:0"}, args...))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- cmd.ExecuteContext(ctx)
		in.Close()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("it ended with %v", <-done)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	page = regexp.MustCompile(`http://127\.0\.0\.1:\d+/`).FindString(line)
	if page == "" {
		t.Fatalf("it says %q", line)
	}
	return page, func() error {
		cancel()
		return <-done
	}
}

func get(t *testing.T, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if req.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return res, proxytest.ReadAll(t, res)
}

func TestTheDashboardShowsTheRunningCaddy(t *testing.T) {
	c, address := start(t, site)
	page, end := serveIt(t, "--address", address)
	if res, body := get(t, page); res.StatusCode != 200 || !strings.Contains(body, "<title>kv_aware</title>") || !strings.Contains(res.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
		t.Errorf("the page: %d %.200s", res.StatusCode, body)
	}
	if res, body := get(t, page+"?snapshot"); res.StatusCode != 200 || !strings.Contains(body, `"history":{`) || !strings.Contains(body, `"pool":""`) {
		t.Errorf("a snapshot: %d %.300s", res.StatusCode, body)
	}
	// A name that is made to resolve to the loopback address.
	if res, body := get(t, page, "Host", "evil.example"); res.StatusCode != http.StatusForbidden {
		t.Errorf("under another name: %d %.200s", res.StatusCode, body)
	}
	ask := func(body string) (int, string) {
		res, err := http.Post(page+"?ask=explain", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, proxytest.ReadAll(t, res)
	}
	if status, answer := ask(`{"messages":[{"role":"user","content":"hi"}]}`); status != 200 || !strings.Contains(answer, `"upstreams":[`) {
		t.Errorf("explain: %d %s", status, answer)
	}
	if status, answer := ask("{"); status != http.StatusBadGateway || !strings.Contains(answer, "ends too early") {
		t.Errorf("explain of a broken body: %d %s", status, answer)
	}

	res, err := http.Get(page + "?stream")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	events := bufio.NewReader(res.Body)
	await := func(want string) {
		t.Helper()
		for {
			line, err := events.ReadString('\n')
			if err != nil {
				t.Fatalf("no %s: %v", want, err)
			}
			if strings.HasPrefix(line, want) {
				return
			}
		}
	}
	await("event: snapshot")
	admin := c.Dir() + "/admin"
	if err := os.Rename(admin, admin+".away"); err != nil {
		t.Fatal(err)
	}
	await(`data: {"error":"no Caddy answers at`)
	if err := os.Rename(admin+".away", admin); err != nil {
		t.Fatal(err)
	}
	await("event: snapshot")
	if err := end(); err != nil {
		t.Errorf("interrupted, it ends with %v", err)
	}
	if _, err := io.Copy(io.Discard, events); err != nil {
		t.Errorf("its stream ends with %v", err)
	}
}

func TestTheDashboardSaysWhatIsMissing(t *testing.T) {
	fails(t, "", []string{"dashboard", "--address", "unix/" + t.TempDir() + "/none"}, "no Caddy answers", "is it running")
	_, address := start(t, noPolicy)
	fails(t, "", []string{"dashboard", "--address", address}, "no proxy with lb_policy kv_aware in its configuration")
	fails(t, "", []string{"dashboard", "--address", address, "--pool", "x"}, "no such pool")
}

func TestTheDashboardIsServedOnLoopbackOnly(t *testing.T) {
	_, address := start(t, site)
	for _, listen := range []string{":2020", "0.0.0.0:2020", "192.0.2.1:2020", "example.com:2020", "2020"} {
		fails(t, "", []string{"dashboard", "--no-open", "--address", address, "--listen", listen}, "--listen", "127.0.0.1")
	}
}
