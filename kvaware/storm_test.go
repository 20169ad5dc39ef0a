// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// moody answers in one of the ways in which engines answer and fail.
func moody(w http.ResponseWriter, r *http.Request) {
	switch n := rand.IntN(20); {
	case n == 0:
		panic(http.ErrAbortHandler) // no answer
	case n == 1:
		w.WriteHeader(500)
	case n == 2:
		w.WriteHeader(429)
	case n == 3:
		w.WriteHeader(400)
	case n == 4: // dies mid-stream
		w.Header().Set("Content-Type", "text/event-stream")
		for range rand.IntN(5) {
			proxytest.Event(w, `{"choices":[{"index":0,"delta":{"content":"a"}}]}`)
		}
		panic(http.ErrAbortHandler)
	case n == 5: // says that it failed
		w.Header().Set("Content-Type", "text/event-stream")
		proxytest.Event(w, `{"error":{"message":"out of memory"}}`)
		proxytest.Event(w, "[DONE]")
	case n == 6: // stalls until the client leaves or the stream's test ends
		w.Header().Set("Content-Type", "text/event-stream")
		proxytest.Event(w, `{"choices":[{"index":1,"delta":{"content":"a"}}]}`)
		if rand.IntN(2) == 0 {
			return
		}
		proxytest.Tokens(3)(w, r)
	case n == 7:
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"chat.completion","choices":[{"index":0,"message":{"content":"x"}}],"usage":{"completion_tokens":7}}`)
	case n == 8:
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, "not gzip at all")
	default:
		proxytest.Tokens(rand.IntN(40))(w, r)
	}
}

func TestAStormOfMixedRequestsWithRandomDisconnectsEndsAtExactlyZeroLoad(t *testing.T) {
	engines := []*proxytest.Engine{proxytest.NewEngine(t, moody), proxytest.NewEngine(t, moody), proxytest.NewEngine(t, moody)}
	conf := site(addrs(engines...)+" "+proxytest.Refused(t), "cache_tokens 3000", "lb_retries 2")
	c := proxytest.Start(t, "", conf)

	bodies := []func(i int) (path, body string){
		func(i int) (string, string) {
			return "/v1/chat/completions", chat(prose(fmt.Sprint("s", i%7), 100), true)
		},
		func(i int) (string, string) {
			return "/v1/chat/completions", chat(prose(fmt.Sprint("n", i%7), 50), false)
		},
		func(i int) (string, string) {
			return "/v1/completions", `{"model":"m","n":3,"max_tokens":20,"stream":true,"prompt":["` + prose("b", 40) + `","` + prose("c", i%50) + `"]}`
		},
		func(int) (string, string) { return "/v1/embeddings", `{"model":"e","input":["one","two"]}` },
		func(int) (string, string) { return "/v1/chat/completions", `{"model":"m","messages":[` },
		func(int) (string, string) { return "/v1/rerank", `{"query":"q","documents":["a","b"]}` },
		func(int) (string, string) { return "/generate", `{"text":"hello","stream":true}` },
		func(int) (string, string) { return "/v1/models", "" },
	}
	client := c.Client("site")
	var all sync.WaitGroup
	const n, atOnce = 1000, 100
	slots := make(chan struct{}, atOnce)
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			path, body := bodies[i%len(bodies)](i)
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			method := "POST"
			if body == "" {
				method = "GET"
			}
			req, _ := http.NewRequestWithContext(ctx, method, "http://site"+path, strings.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			if rand.IntN(4) == 0 {
				req.ContentLength = -1
			}
			if rand.IntN(10) == 0 {
				go leave() // at any time, before the answer included
			}
			res, err := client.Do(req)
			if err != nil {
				return
			}
			if rand.IntN(3) == 0 {
				_, _ = io.CopyN(io.Discard, res.Body, rand.Int64N(200))
				leave()
			} else {
				_, _ = io.Copy(io.Discard, res.Body)
			}
			res.Body.Close()
		})
		if i == n/2 {
			c.Reload("", conf)
		}
	}
	all.Wait()
	wantIdle(t)
	pl := defaultPool(t)
	for _, u := range pl.all() {
		if s := pl.index.Stats(u.slot); s.Blocks > s.Capacity {
			t.Errorf("%s holds %d of %d blocks", u.address, s.Blocks, s.Capacity)
		}
	}
}
