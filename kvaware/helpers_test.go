// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// site is a Caddyfile with one proxy over the given upstreams. Options go into
// the policy's block, directives into the proxy's.
func site(upstreams, options, directives string) string {
	return fmt.Sprintf(`http://site {
	bind {SITE}
	reverse_proxy %s {
		lb_policy kv_aware {
			response_headers
			%s
		}
		%s
	}
}
`, upstreams, options, directives)
}

func addrs(engines ...*proxytest.Engine) string {
	all := make([]string, len(engines))
	for i, e := range engines {
		all[i] = e.Addr()
	}
	return strings.Join(all, " ")
}

// defaultPool gives the pool without a name.
func defaultPool(t testing.TB) *pool {
	t.Helper()
	var found *pool
	eachPool(func(pl *pool) {
		if pl.name == "" {
			found = pl
		}
	})
	if found == nil {
		t.Fatal("no pool in use")
	}
	return found
}

// loads gives the sum of all upstreams' snapshots.
func loads(t testing.TB) (sum ledger.Snapshot) {
	t.Helper()
	pl := defaultPool(t)
	for _, u := range pl.all() {
		s := pl.ledger.Snapshot(u.load)
		sum.PrefillTokens += s.PrefillTokens
		sum.DecodeTokens += s.DecodeTokens
		sum.Running += s.Running
		sum.Live += s.Live
		sum.ModelledDecodeTokens += s.ModelledDecodeTokens
		sum.ModelledPrefillTokens += s.ModelledPrefillTokens
		sum.GeneratedTokens += s.GeneratedTokens
		sum.PromptTokens += s.PromptTokens
		sum.CachedTokens += s.CachedTokens
	}
	return sum
}

// wantIdle waits until nothing runs and nothing is left behind: charges, load,
// pins, output room of running requests, buffered bytes. Waiting for all of it at
// once also covers a request that is charged only after its client has left.
func wantIdle(t testing.TB) {
	t.Helper()
	pl := defaultPool(t)
	var left string
	defer func() {
		if t.Failed() && left != "" {
			t.Logf("left behind: %s", left)
		}
	}()
	eventually(t, "nothing is left behind", func() bool {
		left = leftBehind(pl)
		return left == ""
	})
}

// leftBehind says what of a pool is not idle, "" if all is.
func leftBehind(pl *pool) string {
	if n := pl.live.Load(); n != 0 {
		return fmt.Sprint(n, " charges")
	}
	if n := pl.budget.held.Load(); n != 0 {
		return fmt.Sprint(n, " bytes of bodies")
	}
	for _, u := range pl.all() {
		s := pl.ledger.Snapshot(u.load)
		if s.Live != 0 || s.PrefillTokens != 0 || s.DecodeTokens != 0 || s.Running != 0 || s.ModelledDecodeTokens != 0 || s.ModelledPrefillTokens != 0 {
			return fmt.Sprintf("%s has load %+v", u.address, s)
		}
		if i := pl.index.Stats(u.slot); i.Pinned != 0 || i.Generating != 0 {
			return fmt.Sprintf("%s has pins %+v", u.address, i)
		}
	}
	return ""
}

// eventually waits for what another goroutine brings about. It polls, since
// what it waits for ends in Caddy's or the server's own goroutines, which give
// no sign; a condition that holds is noticed at once.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for wait := time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		if holds() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		<-time.After(wait)
	}
}

// chat is a chat request with one user message.
func chat(text string, stream bool) string {
	return fmt.Sprintf(`{"model":"m","stream":%v,"messages":[{"role":"user","content":%q}]}`, stream, text)
}

// prose is text of about n tokens that depends on the seed from its first word.
func prose(seed string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s%d ", seed, i%10)
	}
	return b.String()
}

// gated streams a token, waits for the gate, and ends the stream.
func gated(gate <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		proxytest.Event(w, `{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}`)
		select {
		case <-gate:
		case <-r.Context().Done():
			return
		}
		proxytest.Event(w, `{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"b"}}]}`)
		proxytest.Event(w, "[DONE]")
	}
}
