// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/recent"
)

const (
	metricsNamespace = "caddy"
	metricsSubsystem = "kv_aware"
)

// Collectors of the process. They belong to no pool and outlive every
// configuration.
var (
	panics = newCounterVec("panics_total",
		"Panics that were caught and routed around, by place. Anything but 0 is a bug.", "where")

	selectSeconds = newHistogramVec("select_duration_seconds",
		"Time spent on choosing an upstream, by stage: read waits for the client's body, tokenize turns it into block hashes (a body above 1 MiB after waiting for its turn), choose matches, weighs and charges.",
		prometheus.ExponentialBuckets(2e-6, 4, 12), "stage")
)

// stageSeconds are the stages of a choice, with their labels resolved.
var stageSeconds = struct{ read, tokenize, choose prometheus.Observer }{
	read:     selectSeconds.WithLabelValues("read"),
	tokenize: selectSeconds.WithLabelValues("tokenize"),
	choose:   selectSeconds.WithLabelValues("choose"),
}

// Places where panics are caught, so that each has a series from the start.
func init() {
	for _, where := range []string{"read", "select", "answer", "observe", "conclude", "explain", "engine", "follow"} {
		panics.WithLabelValues(where)
	}
}

func newCounterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: name, Help: help,
	}, labels)
}

func newHistogramVec(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: name, Help: help, Buckets: buckets,
	}, labels)
}

// registerMetrics registers everything with a configuration's registry. Each
// configuration has one of its own; what is collected lives in the process and
// in the pools, so counts go on over reloads.
func registerMetrics(reg prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{panics, selectSeconds, stateCollector{}} {
		var already prometheus.AlreadyRegisteredError
		if err := reg.Register(c); err != nil && !errors.As(err, &already) {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}

// poolMetrics are the counts of one pool. They live and end with it; no
// registry knows them but through stateCollector.
type poolMetrics struct {
	fallbacks, unsalted, asked          *prometheus.CounterVec
	recorded, invalidations             *prometheus.CounterVec
	scrapes, unlisted                   *prometheus.CounterVec
	requests, attempts, corrections     *prometheus.CounterVec
	firstToken, firstOutput, interToken *prometheus.HistogramVec
}

func newPoolMetrics() *poolMetrics {
	return &poolMetrics{
		fallbacks: newCounterVec("fallbacks_total",
			"Requests routed without their prompt, by the reason why it was not read.", "pool", "reason"),
		unsalted: newCounterVec("unsalted_total",
			"Requests with a body that inject_salt let go on without a salt, by the reason.", "pool", "reason"),
		asked: newCounterVec("remote_tokenizations_total",
			"Requests whose prompts the remote tokenizer was to make tokens of, by what became of it: answered, cached, given (as ids), or the reason why they were counted in another way.", "pool", "result"),
		recorded: newCounterVec("recorded_requests_total",
			"Requests while a recording was under way, for each of several, by what became of them in it.", "pool", "result"),
		invalidations: newCounterVec("invalidations_total",
			"How often what an upstream was believed to hold was withdrawn, by the reason.", "pool", "upstream", "reason"),
		scrapes: newCounterVec("engine_scrapes_total",
			"Questions to engines about themselves, by endpoint (metrics, models, details) and by what became of them.", "pool", "upstream", "endpoint", "result"),
		unlisted: newCounterVec("unlisted_models_total",
			"Requests for a model that none of the upstreams that could take them is known to serve, while others are: they may go to any.", "pool"),
		requests: newCounterVec("requests_total",
			"Requests, by the upstream that was chosen first and by what decided: load, affinity, fallback or no_tokens.", "pool", "upstream", "reason"),
		attempts: newCounterVec("attempts_total",
			"Attempts at requests that have ended, by outcome.", "pool", "upstream", "outcome"),
		corrections: newCounterVec("corrections_total",
			"Answers whose cached tokens corrected what the upstream was believed to hold: it held less (shortened) or more (extended), or other answers speak against that (disputed).", "pool", "upstream", "kind"),
		firstToken: newHistogramVec("time_to_first_token_seconds",
			"Time from the choice to the engine's first output, streamed requests only.",
			prometheus.ExponentialBuckets(5e-3, 2, 16), "pool", "upstream"),
		firstOutput: newHistogramVec("time_to_first_output_seconds",
			"Time from the choice to the first output that the client can see, which parsers may hold back; streamed requests only.",
			prometheus.ExponentialBuckets(5e-3, 2, 16), "pool", "upstream"),
		interToken: newHistogramVec("inter_token_seconds",
			"Time per token between two events of a streamed sequence, one observation per event.",
			prometheus.ExponentialBuckets(1e-3, 2, 13), "pool", "upstream"),
	}
}

func (m *poolMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.fallbacks, m.unsalted, m.asked, m.recorded, m.invalidations, m.scrapes, m.unlisted, m.requests, m.attempts, m.corrections, m.firstToken, m.firstOutput, m.interToken}
}

// upstreamMetrics are an upstream's counts with their labels resolved.
type upstreamMetrics struct {
	of                                  *poolMetrics
	labels                              prometheus.Labels
	firstToken, firstOutput, interToken prometheus.Observer
	outcomes                            [len(outcomeNames)]prometheus.Counter
	reasons                             [len(requestReasons)]prometheus.Counter
	shortened, extended, disputed       prometheus.Counter
	// uncached is the most that was collected as uncached tokens. They are the
	// difference of two sums that are not read at one instant, and a counter
	// that falls would be taken for one that started over.
	uncached atomic.Int64
	// recent is the last minute of what is counted here for ever.
	recent recent.Upstream
}

var outcomeNames = [...]string{
	ledger.Completed:  "completed",
	ledger.Failed:     "failed",
	ledger.Busy:       "busy",
	ledger.Rejected:   "rejected",
	ledger.Canceled:   "canceled",
	ledger.Superseded: "superseded",
}

// requestReasons are an attempt's reasons without what follows a colon.
var requestReasons = [...]string{"load", "affinity", "fallback", "no_tokens"}

// upstream makes an upstream's series.
func (m *poolMetrics) upstream(pool, address string) *upstreamMetrics {
	u := &upstreamMetrics{
		of:          m,
		labels:      prometheus.Labels{"pool": pool, "upstream": address},
		firstToken:  m.firstToken.WithLabelValues(pool, address),
		firstOutput: m.firstOutput.WithLabelValues(pool, address),
		interToken:  m.interToken.WithLabelValues(pool, address),
		shortened:   m.corrections.WithLabelValues(pool, address, "shortened"),
		extended:    m.corrections.WithLabelValues(pool, address, "extended"),
		disputed:    m.corrections.WithLabelValues(pool, address, "disputed"),
	}
	for i, name := range outcomeNames {
		u.outcomes[i] = m.attempts.WithLabelValues(pool, address, name)
	}
	for i, name := range requestReasons {
		u.reasons[i] = m.requests.WithLabelValues(pool, address, name)
	}
	return u
}

// forget takes the upstream's series away.
func (u *upstreamMetrics) forget() {
	u.of.attempts.DeletePartialMatch(u.labels)
	u.of.requests.DeletePartialMatch(u.labels)
	u.of.invalidations.DeletePartialMatch(u.labels)
	u.of.corrections.DeletePartialMatch(u.labels)
	u.of.scrapes.DeletePartialMatch(u.labels)
	u.of.firstToken.Delete(u.labels)
	u.of.firstOutput.Delete(u.labels)
	u.of.interToken.Delete(u.labels)
}

// routed counts a request whose first attempt goes to the upstream.
func (u *upstreamMetrics) routed(now time.Duration, reason string, prompt, cached int) {
	u.recent.Routed(now, prompt, cached)
	reason, _, _ = strings.Cut(reason, ":")
	for i, name := range requestReasons {
		if name == reason {
			u.reasons[i].Inc()
		}
	}
}

func (u *upstreamMetrics) ended(o ledger.Outcome) { u.outcomes[o].Inc() }

// started counts the time to the engine's first token and to the first one that
// the client sees, whichever of them it is.
func (u *upstreamMetrics) started(now, after time.Duration, engine, visible bool) {
	if engine {
		u.recent.FirstToken(now, after)
		u.firstToken.Observe(after.Seconds())
	}
	if visible {
		u.firstOutput.Observe(after.Seconds())
	}
}

func (u *upstreamMetrics) generated(now, gap time.Duration) {
	u.recent.InterToken(now, gap)
	u.interToken.Observe(gap.Seconds())
}

// uncachedTotal gives prompt tokens less cached ones, never less than before.
func (u *upstreamMetrics) uncachedTotal(prompt, cached int64) int64 {
	n := prompt - cached
	for {
		most := u.uncached.Load()
		if n <= most {
			return most
		}
		if u.uncached.CompareAndSwap(most, n) {
			return n
		}
	}
}

// stateCollector reads the pools when it is asked, so that gauges are what the
// ledger and the index say at that moment, whichever configuration serves.
type stateCollector struct{}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(metricsNamespace, metricsSubsystem, name), help,
		append([]string{"pool"}, labels...), nil)
}

var (
	loadDesc      = describe("load_tokens", "Token load by kind: uncached prompt tokens not yet prefilled, and KV tokens of running decodes.", "upstream", "kind")
	modelledDesc  = describe("modelled_tokens", "What of the load is modelled because no event has shown it: prompt tokens taken out of prefill, and KV tokens in decode.", "upstream", "kind")
	inflightDesc  = describe("inflight_requests", "Requests that hold a charge.", "upstream")
	runningDesc   = describe("running_sequences", "Sequences running: one for each prompt and choice of the requests.", "upstream")
	failingDesc   = describe("failure_score", "What recent failures weigh, in requests.", "upstream")
	promptDesc    = describe("prompt_tokens_total", "Prompt tokens of answered requests.", "upstream")
	cachedDesc    = describe("cached_tokens_total", "Prompt tokens of answered requests that were believed to be in the KV cache of the upstream when it was chosen.", "upstream")
	uncachedDesc  = describe("uncached_tokens_total", "Prompt tokens of answered requests that the upstream had to compute.", "upstream")
	predictedDesc = describe("predicted_cached_tokens_total", "Cached prompt tokens that were predicted of answers that report them.", "upstream")
	reportedDesc  = describe("reported_cached_tokens_total", "Cached prompt tokens that the same answers report.", "upstream")
	generatedDesc = describe("generated_tokens_total", "Tokens generated, counted when a request ends.", "upstream")
	heldDesc      = describe("index_blocks", "KV blocks that the index believes held, by state: prompts of running requests (pinned) and of finished ones (idle), output of running requests (generating) and of finished ones (output).", "upstream", "state")
	capacityDesc  = describe("index_capacity_blocks", "KV blocks that the index believes to fit.", "upstream")
	evictedDesc   = describe("index_evictions_total", "KV blocks that the index believes evicted.", "upstream")
	bytesDesc     = describe("index_bytes", "Memory of the index.")
	distinctDesc  = describe("index_distinct_blocks", "Different KV blocks in the index, each counted once however many upstreams hold it.")
	bufferedDesc  = describe("buffered_bytes", "Bytes of request bodies held for replay.")
	tokensDesc    = describe("token_cache_bytes", "Memory of the cache of encoded prompts.")
	segmentsDesc  = describe("token_cache_segments_total", "Pieces of prompts looked up in the cache of encoded prompts, by result.", "result")
)

// Describe implements prometheus.Collector.
func (stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		loadDesc, modelledDesc, inflightDesc, runningDesc, failingDesc,
		promptDesc, cachedDesc, uncachedDesc, predictedDesc, reportedDesc, generatedDesc,
		heldDesc, capacityDesc, evictedDesc, bytesDesc, distinctDesc, bufferedDesc,
		tokensDesc, segmentsDesc,
	} {
		ch <- d
	}
	for _, d := range eventsDescs {
		ch <- d
	}
	for _, c := range newPoolMetrics().collectors() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (stateCollector) Collect(ch chan<- prometheus.Metric) {
	eachPool(func(pl *pool) {
		for _, u := range pl.all() {
			collectUpstream(ch, pl, u)
		}
		collectEvents(ch, pl)
		size := pl.index.Size()
		gauge(ch, bytesDesc, float64(size.Bytes), pl.name)
		gauge(ch, distinctDesc, float64(size.Blocks), pl.name)
		gauge(ch, bufferedDesc, float64(pl.budget.held.Load()), pl.name)
		tokens := pl.tokens.Load().Stats()
		gauge(ch, tokensDesc, float64(tokens.Bytes), pl.name)
		counter(ch, segmentsDesc, float64(tokens.Hits), pl.name, "hit")
		counter(ch, segmentsDesc, float64(tokens.Misses), pl.name, "miss")
		for _, c := range pl.metrics.collectors() {
			c.Collect(ch)
		}
	})
}

func collectUpstream(ch chan<- prometheus.Metric, pl *pool, u *upstream) {
	s, held, ok := pl.state(u)
	if !ok {
		return
	}
	gauge(ch, loadDesc, float64(s.PrefillTokens), pl.name, u.address, "prefill")
	gauge(ch, loadDesc, float64(s.DecodeTokens), pl.name, u.address, "decode")
	gauge(ch, modelledDesc, float64(s.ModelledPrefillTokens), pl.name, u.address, "prefill")
	gauge(ch, modelledDesc, float64(s.ModelledDecodeTokens), pl.name, u.address, "decode")
	gauge(ch, inflightDesc, float64(s.Live), pl.name, u.address)
	gauge(ch, runningDesc, float64(s.Running), pl.name, u.address)
	gauge(ch, failingDesc, s.FailureScore, pl.name, u.address)
	counter(ch, promptDesc, float64(s.PromptTokens), pl.name, u.address)
	counter(ch, cachedDesc, float64(s.CachedTokens), pl.name, u.address)
	counter(ch, uncachedDesc, float64(u.labels.uncachedTotal(s.PromptTokens, s.CachedTokens)), pl.name, u.address)
	predicted, reported := u.reports.totals()
	counter(ch, predictedDesc, float64(predicted), pl.name, u.address)
	counter(ch, reportedDesc, float64(reported), pl.name, u.address)
	counter(ch, generatedDesc, float64(s.GeneratedTokens), pl.name, u.address)
	gauge(ch, heldDesc, float64(held.Pinned), pl.name, u.address, "pinned")
	gauge(ch, heldDesc, float64(held.Idle), pl.name, u.address, "idle")
	gauge(ch, heldDesc, float64(held.Generating), pl.name, u.address, "generating")
	gauge(ch, heldDesc, float64(held.Output), pl.name, u.address, "output")
	gauge(ch, capacityDesc, float64(held.Capacity), pl.name, u.address)
	counter(ch, evictedDesc, float64(held.Evicted), pl.name, u.address)
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func counter(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}
