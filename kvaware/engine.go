// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	kvcaddyfile "github.com/kvaware/caddy-kvaware/caddyfile"
)

// Engine is what is learnt of each upstream from endpoints of its own, over the
// proxy's own transport: the size of the KV cache and of its blocks, whether
// prefixes are kept in it, when the process started, whether it sleeps, and the
// models that are served. Where nothing can be learnt, nothing changes.
type Engine struct {
	// How often each upstream is asked. From 100ms to 1h. Default: 5s.
	Scrape caddy.Duration `json:"scrape,omitempty"`

	// Headers to send, such as an API key. Global placeholders such as {env.NAME}
	// are replaced in their values. Default: none.
	Headers http.Header `json:"headers,omitempty"`

	// Where the engine has its metrics in the Prometheus text format. Default:
	// `/metrics`, and `/prometheus/metrics` where that is JSON (TensorRT-LLM).
	MetricsPath string `json:"metrics_path,omitempty"`

	// Where the engine lists its models as OpenAI does. Default: `/v1/models`.
	ModelsPath string `json:"models_path,omitempty"`

	// `auto`: a request goes to upstreams that list its model, or an alias of it,
	// while one of them is available; upstreams of which no list is known may serve
	// any model. `off`: models are not asked for, and every upstream may serve
	// every model. Default: `auto`.
	Models string `json:"models,omitempty"`
}

// The defaults and bounds of the engine's options.
const (
	defaultScrape = 5 * time.Second
	minScrape     = 100 * time.Millisecond
	maxScrape     = time.Hour

	metricsPath        = "/metrics"
	trtllmMetricsPath  = "/prometheus/metrics"
	defaultModelsPath  = "/v1/models"
	modelsAuto         = "auto"
	modelsOff          = "off"
	leastScrapeTimeout = time.Second
	mostScrapeTimeout  = 5 * time.Second
)

// scraping are an Engine's options with defaults and placeholders filled in.
type scraping struct {
	every, timeout time.Duration
	header         http.Header
	metrics        string // path; "" finds out
	models         string // path; "" asks for none
	described      string
}

// provision checks the options. It is nil without them.
func (e *Engine) provision(repl *caddy.Replacer) (*scraping, error) {
	if e == nil {
		return nil, nil
	}
	s := &scraping{every: time.Duration(e.Scrape), metrics: e.MetricsPath, models: e.ModelsPath}
	if s.every == 0 {
		s.every = defaultScrape
	}
	if s.every < minScrape || s.every > maxScrape {
		return nil, fmt.Errorf("engine: scrape %v: expecting %v to %v", s.every, minScrape, maxScrape)
	}
	s.timeout = max(leastScrapeTimeout, min(s.every, mostScrapeTimeout))
	for option, path := range map[string]string{"metrics_path": e.MetricsPath, "models_path": e.ModelsPath} {
		if path != "" && !strings.HasPrefix(path, "/") {
			return nil, fmt.Errorf("engine: %s %q: expecting a path such as %s", option, path, metricsPath)
		}
	}
	switch e.Models {
	case "", modelsAuto:
		if s.models == "" {
			s.models = defaultModelsPath
		}
	case modelsOff:
		if s.models != "" {
			return nil, fmt.Errorf("engine: models_path is given, but models is off: leave one of them out")
		}
	default:
		return nil, fmt.Errorf("engine: models %q: expecting auto or off", e.Models)
	}
	var err error
	if s.header, err = replacedHeader(repl, e.Headers); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	s.described = fmt.Sprintf("scrape %v, metrics %q, models %q", s.every, s.metrics, s.models) + describeHeader(s.header)
	return s, nil
}

// readEngineOption reads `engine` and the block that may follow it.
func (p *Policy) readEngineOption(d *caddyfile.Dispenser, name string) error {
	if args := d.RemainingArgs(); len(args) > 0 {
		return d.Errf("%s takes its options in a block, one a line: unexpected argument %q", name, args[0])
	}
	e := new(Engine)
	p.Engine = e
	return kvcaddyfile.Tail(
		kvcaddyfile.Option{Name: "scrape", Read: kvcaddyfile.Duration(&e.Scrape, minScrape)},
		headerUp(&e.Headers),
		kvcaddyfile.Option{Name: "metrics_path", Read: kvcaddyfile.String(&e.MetricsPath)},
		kvcaddyfile.Option{Name: "models_path", Read: kvcaddyfile.String(&e.ModelsPath)},
		kvcaddyfile.Option{Name: "models", Read: kvcaddyfile.OneOf(&e.Models, modelsAuto, modelsOff)},
	)(d, name)
}
