// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// lastLogEntry waits for a log with at least one entry and gives the last.
func lastLogEntry(t testing.TB, c *proxytest.Caddy) (entry map[string]any) {
	t.Helper()
	eventually(t, "the access log has an entry", func() bool {
		text, err := os.ReadFile(filepath.Join(c.Dir(), "access.log"))
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		return err == nil && json.Unmarshal([]byte(lines[len(lines)-1]), &entry) == nil
	})
	return entry
}

func TestTheAccessLogAndThePlaceholdersTellTheDecision(t *testing.T) {
	engine := proxytest.NewEngine(t, proxytest.Tokens(7))
	c := proxytest.Start(t, "", plain("log {\n\toutput file {DIR}/access.log\n}\n"+
		"log_append said {http.reverse_proxy.kv_aware.generated_tokens}\n"+
		proxy(engine.Addr(), kvAware, "header_down X-T {rp.kv_aware.upstream}\n\t\theader_down X-R {http.reverse_proxy.kv_aware.reason}")))
	res := c.Post("/v1/chat/completions", chat(prose("log", 100), true))
	proxytest.ReadAll(t, res)
	if res.Header.Get("X-T") != engine.Addr() || res.Header.Get("X-R") != "load" {
		t.Errorf("placeholders in response headers: %v", res.Header)
	}
	entry := lastLogEntry(t, c)
	for field, holds := range map[string]func(any) bool{
		"kv_aware_upstream":         func(v any) bool { return v == engine.Addr() },
		"kv_aware_prompt_tokens":    func(v any) bool { n, _ := v.(float64); return n >= 100 },
		"kv_aware_cached_tokens":    func(v any) bool { return v == 0. },
		"kv_aware_generated_tokens": func(v any) bool { return v == 7. },
		"kv_aware_load":             func(v any) bool { n, _ := v.(float64); return n >= 100 },
		"kv_aware_reason":           func(v any) bool { return v == "load" },
		"said":                      func(v any) bool { return v == 7. || v == "7" },
		"status":                    func(v any) bool { return v == 200. },
	} {
		if v, ok := entry[field]; !ok || !holds(v) {
			t.Errorf("%s is %v (%v)", field, v, ok)
		}
	}
}

func TestNothingOfAPromptIsLoggedEvenAtDebugLevel(t *testing.T) {
	const secret = "xylophone-secret-4711"
	engine := proxytest.NewEngine(t, nil)
	cut := proxytest.NewEngine(t, moody)
	c := proxytest.Start(t, "log {\n\tlevel DEBUG\n\toutput file {DIR}/all.log\n}", plain("log {\n\toutput file {DIR}/access.log\n\tlevel DEBUG\n}\n"+
		proxy(addrs(engine, cut)+" "+proxytest.Refused(t), "lb_policy kv_aware {\n\t\t\tmax_body 4KiB\n\t\t}", "lb_retries 2")))
	for i, body := range []string{
		chat(secret, true), chat(secret, false), `{"prompt":"` + secret, `{"model":"` + secret + `","prompt":["` + secret + `"]}`,
		chat(secret+prose("long", 3000), true),
		`{"model":"m","previous_response_id":"` + secret + `","input":"` + secret + `"}`,
		`{"messages":"` + secret + `"}`, secret,
	} {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/api/chat"} {
			res, err := c.Client("site").Do(post(t, "http://site"+path, body, i%2 == 0))
			if err != nil {
				continue // moody
			}
			_ = res.Body.Close()
		}
	}
	wantIdle(t)
	c.Stop()
	sawDecision := false
	for _, name := range []string{"all.log", "access.log"} {
		text, err := os.ReadFile(filepath.Join(c.Dir(), name))
		if err != nil || len(text) == 0 {
			t.Fatalf("%s: %d bytes, %v", name, len(text), err)
		}
		if i := strings.Index(string(text), secret); i >= 0 {
			t.Errorf("%s holds a prompt: %s", name, text[max(0, i-300):i+len(secret)])
		}
		sawDecision = sawDecision || strings.Contains(string(text), "chose upstream")
	}
	if !sawDecision {
		t.Error("no log at debug level was looked at")
	}
}
