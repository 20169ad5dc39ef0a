// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// Symptom: where the fallback policy chose an upstream that was full by then,
// the request was refused although another was free.
func TestAFallbackThatChoosesAFullUpstreamIsOverruled(t *testing.T) {
	one, two := proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil)
	proxytest.Start(t, "", site(addrs(one, two), "fallback first", "unhealthy_request_count 1"))
	p := defaultPool(t).explainer
	ctx, cancel := context.WithCancel(context.Background())
	// Caddy counts a request on its upstream only after Select returned, so both
	// requests find the first one free.
	for i, want := range p.proxy.Upstreams {
		r, err := http.NewRequestWithContext(ctx, "GET", "http://site/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		if u := p.Select(p.proxy.Upstreams, r, nil); u != want {
			t.Errorf("request %d went to %v, not to %v", i, u, want)
		}
	}
	cancel()
	wantIdle(t)
}

// Symptom: a fallback policy that begins with the same upstream every time sent
// a retry to the upstream that had just refused it, and the client got a 502.
func TestARetryOverrulesAFallbackThatChoosesWhatFailed(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(proxytest.Refused(t)+" "+engine.Addr(), "fallback first", "lb_retries 2"))
	res, err := c.Client("site").Get("http://site/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	proxytest.ReadAll(t, res)
	if res.StatusCode != http.StatusOK {
		t.Errorf("status %d although an upstream is well", res.StatusCode)
	}
	wantIdle(t)
}

// Symptom: kv_aware as the fallback of kv_aware charged a request twice, and
// with a limit of one request refused every one.
func TestAProxyHasNoTwoPoliciesOfThisKind(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	conf := site(engine.Addr(), "", "")
	c := proxytest.Start(t, "", conf)
	refs, _ := pools.References("")
	for _, fallback := range []string{"fallback kv_aware", "fallback header X-A {\n\tfallback kv_aware\n}"} {
		if err := c.TryReload("", site(engine.Addr(), fallback, "")); err == nil || !strings.Contains(err.Error(), "already") {
			t.Errorf("%s: %v", fallback, err)
		}
		if n, _ := pools.References(""); n != refs {
			t.Errorf("the pool had %d references and has %d", refs, n)
		}
	}
}
