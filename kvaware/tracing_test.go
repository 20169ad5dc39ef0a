// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// exported keeps the spans that Caddy's tracing exports in these tests. A shutdown
// does not clear it, so it can be read once Caddy has stopped.
var exported spanExporter

type spanExporter struct {
	mu    sync.Mutex // guards spans
	spans tracetest.SpanStubs
}

func (e *spanExporter) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spans = append(e.spans, tracetest.SpanStubsFromReadOnlySpans(spans)...)
	return nil
}

func (*spanExporter) Shutdown(context.Context) error { return nil }

// taken stops Caddy, which flushes all spans, and gives what they say of us.
func (e *spanExporter) taken(t *testing.T, c *proxytest.Caddy) (of []map[string]string, all string) {
	t.Helper()
	c.Stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.spans {
		ours := map[string]string{}
		for _, a := range s.Attributes {
			if name, is := strings.CutPrefix(string(a.Key), "kv_aware."); is {
				ours[name] = a.Value.String()
			}
		}
		of = append(of, ours)
		all += fmt.Sprintf("%+v\n", s)
	}
	e.spans = nil
	return of, all
}

var registerExporter = sync.OnceFunc(func() {
	autoexport.RegisterSpanExporter("kv_aware_test", func(context.Context) (sdktrace.SpanExporter, error) { return &exported, nil })
})

// traced runs Caddy with tracing in front of a proxy.
func traced(t *testing.T, sampler, upstreams, directives string) *proxytest.Caddy {
	t.Helper()
	registerExporter()
	t.Setenv("OTEL_TRACES_EXPORTER", "kv_aware_test")
	t.Setenv("OTEL_TRACES_SAMPLER", sampler)
	return proxytest.Start(t, "", plain("tracing\n"+proxy(upstreams, kvAware, directives)))
}

func TestTheRequestsSpanCarriesTheDecision(t *testing.T) {
	engine := proxytest.NewEngine(t, proxytest.Tokens(7))
	c := traced(t, "always_on", engine.Addr(), "")
	const secret = "xylophone-secret-4711"
	body := chat(secret+prose("span", 100), true)
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", body))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", body))
	spans, all := exported.taken(t, c)
	if len(spans) != 2 {
		t.Fatalf("%d spans", len(spans))
	}
	for i, s := range spans {
		if s["upstream"] != engine.Addr() || s["reason"] != "load" || s["generated_tokens"] != "7" || len(s["prompt_tokens"]) != 3 || s["load"] == "0" || len(s) != 6 {
			t.Errorf("span %d: %v", i, s)
		}
	}
	if spans[0]["cached_tokens"] != "0" || spans[1]["cached_tokens"] == "0" {
		t.Errorf("cached tokens: %v", spans)
	}
	if strings.Contains(all, secret) {
		t.Errorf("a span holds a prompt: %s", all)
	}
}

func TestASpanTellsTheAttemptThatWasAnswered(t *testing.T) {
	failing := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	good := proxytest.NewEngine(t, nil)
	c := traced(t, "always_on", addrs(failing, good), "lb_retries 1\n\t\tlb_retry_match {\n\t\t\texpression {rp.status_code} == 503\n\t\t}")
	for i := range 20 {
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose(fmt.Sprint("w", i), 60), true)))
	}
	spans, _ := exported.taken(t, c)
	for i, s := range spans {
		if s["upstream"] != good.Addr() || s["generated_tokens"] != "3" {
			t.Errorf("span %d: %v", i, s)
		}
	}
	if len(spans) != 20 || len(failing.Requests()) == 0 {
		t.Errorf("%d spans, %d requests failed", len(spans), len(failing.Requests()))
	}
}

func TestASpanThatIsNotSampledIsLeftAlone(t *testing.T) {
	engine := proxytest.NewEngine(t, proxytest.Tokens(7))
	c := traced(t, "always_off", engine.Addr(), "")
	if body := proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("hello", true))); !strings.Contains(body, "[DONE]") {
		t.Errorf("answers %q", body)
	}
	if spans, _ := exported.taken(t, c); len(spans) != 0 {
		t.Errorf("exported %v", spans)
	}
}
