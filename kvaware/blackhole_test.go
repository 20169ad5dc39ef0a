// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestAnUpstreamThatFailsAtOnceGetsFewRequestsAndComesBackWhenItIsWell(t *testing.T) {
	for name, fail := range map[string]func(http.ResponseWriter){
		"answers 500": func(w http.ResponseWriter) { w.WriteHeader(500) },
		"cuts":        func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			skipped := clockThatSkips(t)
			var ill atomic.Bool
			ill.Store(true)
			// Working engines answer one request for each further one that is sent,
			// so that they are always loaded.
			const atOnce, n = 24, 480
			turn := make(chan struct{}, atOnce)
			work := func(w http.ResponseWriter, r *http.Request) {
				<-turn
				proxytest.Tokens(2)(w, r)
			}
			bad := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
				if ill.Load() {
					fail(w)
					return
				}
				work(w, r)
			})
			one, two := proxytest.NewEngine(t, work), proxytest.NewEngine(t, work)
			c := proxytest.Start(t, "", plain(proxy(addrs(bad, one, two), kvAware, "")))
			client := c.Client("site")

			run := func(from int) {
				var all sync.WaitGroup
				slots := make(chan struct{}, atOnce)
				for i := range n {
					if i >= atOnce {
						select {
						case turn <- struct{}{}:
						default:
						}
					}
					slots <- struct{}{}
					all.Go(func() {
						defer func() { <-slots }()
						res, err := client.Do(post(t, "http://site/v1/chat/completions", chat(prose(fmt.Sprint("q", from+i, "x"), 60), true), false))
						if err != nil {
							t.Error(err)
							return
						}
						_, _ = io.Copy(io.Discard, res.Body)
						_ = res.Body.Close()
					})
				}
				done := make(chan struct{})
				go func() {
					for {
						select {
						case turn <- struct{}{}:
						case <-done:
							return
						}
					}
				}()
				all.Wait()
				close(done)
			}
			run(0)
			if got := len(bad.Requests()); got > n/10 {
				t.Errorf("an upstream that fails at once got %d of %d requests", got, n)
			}
			ill.Store(false)
			before := len(bad.Requests())
			skipped.Store(int64(10 * time.Minute)) // nobody remembers a failure for so long
			run(n)
			if got := len(bad.Requests()) - before; got < n/6 {
				t.Errorf("a recovered upstream got %d of %d requests", got, n)
			}
			wantIdle(t)
		})
	}
}

// clockThatSkips puts a pool in the place of the default one, whose clock is
// ahead of the real one by as many nanoseconds as the result says.
func clockThatSkips(t *testing.T) *atomic.Int64 {
	t.Helper()
	skipped := new(atomic.Int64)
	_, there, _ := pools.LoadOrNew("", func() (caddy.Destructor, error) {
		return newPool("", poolParams{tokenizer: "auto", blockSize: DefaultBlockSize, cacheTokens: DefaultCacheTokens, maxBuffered: DefaultMaxBuffered, tokenCache: DefaultTokenCache}, func() time.Time {
			return time.Now().Add(time.Duration(skipped.Load()))
		}), nil
	})
	if there {
		t.Fatal("the pool is in use already")
	}
	t.Cleanup(func() { _, _ = pools.Delete("") })
	return skipped
}
