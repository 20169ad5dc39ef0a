// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"net/http"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestTenantsDoNotFindEachOthersPrefixes(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), "isolate_by {header.X-Tenant}", ""))
	body := chat(prose("tenants ", 100), true)
	cached := func(tenant string) string {
		req, err := http.NewRequest("POST", "http://site/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Tenant", tenant)
		res, err := c.Client("site").Do(req)
		if err != nil {
			t.Fatal(err)
		}
		proxytest.ReadAll(t, res)
		wantIdle(t)
		return res.Header.Get("X-KV-Aware-Cached-Tokens")
	}
	for _, step := range []struct {
		tenant string
		found  bool
	}{{"a", false}, {"b", false}, {"a", true}, {"b", true}, {"", false}} {
		if got := cached(step.tenant); (got != "0") != step.found {
			t.Errorf("tenant %q found %s cached tokens", step.tenant, got)
		}
	}
	for tenant, want := range map[string]bool{"a": true, "c": false} {
		_, _, answer := c.Admin("POST", "/kv_aware/explain?tenant="+tenant, body)
		if strings.Contains(answer, `"cached_tokens":0`) == want {
			t.Errorf("explained for tenant %q: %s", tenant, answer)
		}
	}
}
