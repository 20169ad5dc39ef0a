// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestAfterStopNoGoroutineIsLeft(t *testing.T) {
	// What Caddy itself starts once and keeps is there before.
	engine := proxytest.NewEngine(t, nil)
	const noKeepAlive = "transport http {\n\t\t\tkeepalive off\n\t\t}"
	c := proxytest.Start(t, "", plain(proxy(engine.Addr(), stock, noKeepAlive)))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("hi", true)))
	c.Stop()
	engine.CloseClientConnections()
	there := goleak.IgnoreCurrent()

	conf := plain(proxy(engine.Addr()+" "+proxytest.Refused(t), kvAware, noKeepAlive+"\n\t\tlb_retries 2"))
	c = proxytest.Start(t, "", conf)
	for range 5 {
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("hi", true)))
		ctx, leave := context.WithCancel(context.Background())
		res, err := start(t, c, ctx, "leaves")
		if err != nil {
			t.Fatal(err)
		}
		leave()
		_ = res.Body.Close()
		c.Reload("", conf)
	}
	wantIdle(t)
	c.Stop()
	engine.CloseClientConnections()
	goleak.VerifyNone(t, there,
		// Storage's: it sees within five seconds that its lock was given back.
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"),
		goleak.IgnoreAnyFunction("github.com/caddyserver/caddy/v2.replaceLocalAdminServer.func2"))
}
