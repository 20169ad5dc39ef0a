// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Attributes of the request's span. They are no gen_ai.usage.*: counts are the
// router's, cached tokens its belief, and backends add up those that the clients'
// own spans say.
const (
	spanUpstream        = attribute.Key("kv_aware.upstream")
	spanPromptTokens    = attribute.Key("kv_aware.prompt_tokens")
	spanCachedTokens    = attribute.Key("kv_aware.cached_tokens")
	spanGeneratedTokens = attribute.Key("kv_aware.generated_tokens")
	spanLoad            = attribute.Key("kv_aware.load")
	spanReason          = attribute.Key("kv_aware.reason")
)

// traceDecision tells the decision to the span that Caddy's `tracing` handler began
// for the request, if it did and the span is sampled. A further attempt's decision
// takes the place of the one before.
func traceDecision(ctx context.Context, a *attempt) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(
			spanUpstream.String(a.upstream.address),
			spanPromptTokens.Int(a.placement.PromptTokens),
			spanCachedTokens.Int(a.placement.CachedTokens),
			spanLoad.Int64(int64(a.placement.Load)),
			spanReason.String(a.reason),
		)
	}
}

// traceEnd tells the span how much was generated. The span is open until the
// request's handlers have returned, and so takes it on the request's goroutine only.
func traceEnd(ctx context.Context, generated int) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(spanGeneratedTokens.Int(generated))
	}
}
