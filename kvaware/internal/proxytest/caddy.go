// SPDX-License-Identifier: Apache-2.0

// Package proxytest runs a whole Caddy inside a test, on unix sockets and
// without ports, in front of fake engines whose answers a test writes.
package proxytest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile" // the http.* directives
	_ "github.com/caddyserver/caddy/v2/modules/standard"          // what a plain build has
)

// Caddy is a running Caddy. There is one per process: tests that use it cannot
// run in parallel.
type Caddy struct {
	t   testing.TB
	dir string
	// loads counts the configurations that were taken. Each listens at sockets
	// of its own: Go's server drops a connection whose request arrives while it
	// shuts down, and with a shared socket the old configuration may still take
	// the first connection that was meant for the new one.
	loads atomic.Int64

	mu    sync.Mutex // guards conns
	conns []net.Conn // opened by clients, closed at the test's end
}

// Start runs Caddy with a Caddyfile whose site blocks say `bind {SITE}` (or
// {SITE2}, {SITE3} for further ones): the names are replaced by unix sockets,
// and {DIR} by a directory that is removed at the test's end.
// Global options may be given in the Caddyfile's first lines without the block
// around them, as options.
func Start(t testing.TB, options, sites string) *Caddy {
	t.Helper()
	dir, err := os.MkdirTemp("", "kv") // t.TempDir's paths are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	c := &Caddy{t: t, dir: dir}
	t.Cleanup(func() {
		// A test that fails with a stream open must not wait for the stream's end,
		// as Caddy does when it stops.
		c.hangUp()
		_ = caddy.Stop()
		_ = os.RemoveAll(dir)
	})
	c.Reload(options, sites)
	return c
}

// Reload loads another configuration, as `caddy reload --force` does.
func (c *Caddy) Reload(options, sites string) {
	c.t.Helper()
	if err := c.TryReload(options, sites); err != nil {
		c.t.Fatalf("loading configuration: %v", err)
	}
}

// TryReload is Reload for configurations that may be refused.
func (c *Caddy) TryReload(options, sites string) error {
	c.t.Helper()
	adapted, err := c.adapt(options, sites)
	if err != nil {
		return err
	}
	return c.load(adapted)
}

func (c *Caddy) load(adapted []byte) error {
	err := caddy.Load(adapted, true)
	if err == nil {
		c.loads.Add(1)
	}
	return err
}

// ReloadJSON is Reload with a last edit of the adapted configuration, for what
// no Caddyfile can say. Each pair of texts is replaced once.
func (c *Caddy) ReloadJSON(options, sites string, oldNew ...string) {
	c.t.Helper()
	adapted, err := c.adapt(options, sites)
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(oldNew); i += 2 {
		if !strings.Contains(string(adapted), oldNew[i]) {
			c.t.Fatalf("no %s in %s", oldNew[i], adapted)
		}
		adapted = []byte(strings.Replace(string(adapted), oldNew[i], oldNew[i+1], 1))
	}
	if err := c.load(adapted); err != nil {
		c.t.Fatalf("loading configuration: %v", err)
	}
}

// adapt turns a Caddyfile into JSON.
func (c *Caddy) adapt(options, sites string) ([]byte, error) {
	c.t.Helper()
	next := c.loads.Load() + 1
	text := "{\n\tadmin unix/" + c.socket("admin", next) + "\n\tauto_https off\n\tpersist_config off\n\tstorage file_system {DIR}\n" + options + "\n}\n" + sites
	text = strings.NewReplacer(
		"{SITE}", "unix/"+c.socket("site", next),
		"{SITE2}", "unix/"+c.socket("site2", next),
		"{SITE3}", "unix/"+c.socket("site3", next),
		"{DIR}", c.dir,
	).Replace(text)
	adapted, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), nil)
	if err != nil {
		return nil, err
	}
	for _, w := range warnings {
		if !strings.Contains(w.Message, "not formatted") {
			c.t.Errorf("adapting: %s", w)
		}
	}
	return adapted, nil
}

// Stop stops Caddy before the test's end.
func (c *Caddy) Stop() {
	c.t.Helper()
	if err := caddy.Stop(); err != nil {
		c.t.Fatal(err)
	}
}

// Dir is the directory that {DIR} stands for.
func (c *Caddy) Dir() string { return c.dir }

// socket is where a configuration, counted from 1, listens for a site.
func (c *Caddy) socket(name string, load int64) string {
	if name == "admin" {
		return filepath.Join(c.dir, name)
	}
	return filepath.Join(c.dir, fmt.Sprint(name, ".", load))
}

// Client gives a client whose connections all go to the named site ("site",
// "site2", …), whatever the URL's host. It keeps no connections.
func (c *Caddy) Client(site string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "unix", c.socket(site, c.loads.Load()))
			if err == nil {
				c.mu.Lock()
				c.conns = append(c.conns, conn)
				c.mu.Unlock()
			}
			return conn, err
		},
	}}
}

// hangUp closes the connections of all clients.
func (c *Caddy) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// Dial opens a raw connection to the named site.
func (c *Caddy) Dial(site string) net.Conn {
	c.t.Helper()
	conn, err := net.Dial("unix", c.socket(site, c.loads.Load()))
	if err != nil {
		c.t.Fatal(err)
	}
	return conn
}

// Post sends a JSON body to a path of the first site.
func (c *Caddy) Post(path, body string) *http.Response {
	c.t.Helper()
	res, err := c.Client("site").Post("http://site"+path, "application/json", strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	return res
}

// Admin calls the admin API and returns status, headers and body. The endpoint
// is one for all configurations, so right after a reload its old server may
// still take a connection and drop it: such a call is made again.
func (c *Caddy) Admin(method, path, body string) (int, http.Header, string) {
	c.t.Helper()
	for tries := 0; ; tries++ {
		req, err := http.NewRequest(method, "http://127.0.0.1"+path, strings.NewReader(body))
		if err != nil {
			c.t.Fatal(err)
		}
		if body == "" {
			req.Body = nil
			req.ContentLength = 0
		} else {
			req.Header.Set("Content-Type", "application/json")
		}
		res, err := c.Client("admin").Do(req)
		if err == nil {
			return res.StatusCode, res.Header, ReadAll(c.t, res)
		}
		if tries == 100 {
			c.t.Fatal(err)
		}
		<-time.After(time.Millisecond * time.Duration(tries))
	}
}

// ReadAll reads and closes a response's body.
func ReadAll(t testing.TB, res *http.Response) string {
	t.Helper()
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("reading response: %v", err)
	}
	return string(data)
}

// Adapt turns the sites of a Caddyfile into JSON that nobody loads.
func Adapt(t testing.TB, sites string) []byte {
	t.Helper()
	c := &Caddy{t: t, dir: t.TempDir()}
	adapted, err := c.adapt("", sites)
	if err != nil {
		t.Fatal(err)
	}
	return adapted
}
