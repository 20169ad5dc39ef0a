// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// Symptom: a few idle connections that announced large bodies and sent nothing
// took the whole of max_buffered, and nobody's prompt was read any more.
func TestBytesThatAreOnlyAnnouncedTakeNoRoomFromOthers(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "max_buffered 1MiB", ""))
	for range 3 {
		conn := c.Dial("site")
		defer conn.Close()
		fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: site\r\nContent-Type: application/json\r\nContent-Length: 1048500\r\n\r\n{")
	}
	pl := defaultPool(t)
	eventually(t, "all are being read", func() bool { return pl.budget.held.Load() >= 3*32<<10 })
	res := c.Post("/v1/chat/completions", chat(prose("small", 20), true))
	proxytest.ReadAll(t, res)
	if n := res.Header.Get("X-KV-Aware-Prompt-Tokens"); n == "0" || n == "" {
		t.Errorf("a small request found no room: %q prompt tokens", n)
	}
	if held := pl.budget.held.Load(); held > 4*32<<10 {
		t.Errorf("%d bytes count as held for 3 that arrived", held)
	}
}

// A body that finds room for its beginning only goes on whole.
func TestABodyThatOutgrowsTheRoomWhileItIsReadArrivesWhole(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "max_buffered 200KiB", ""))
	pl := defaultPool(t)
	if !pl.budget.take(100 << 10) {
		t.Fatal("no room")
	}
	body := chat(prose("large", 50_000), true)[:150<<10]
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", body))
	if got := engine.Requests()[0].Body; got != body {
		t.Errorf("%d bytes arrived of %d", len(got), len(body))
	}
	pl.budget.give(100 << 10)
	wantIdle(t)
}
