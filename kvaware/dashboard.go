// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	kvcaddyfile "github.com/kvaware/caddy-kvaware/caddyfile"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/dashboard"
)

const dashboardDirective = "kv_aware_dashboard"

func init() {
	caddy.RegisterModule(new(Dashboard))
	httpcaddyfile.RegisterHandlerDirective(dashboardDirective, func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		d := new(Dashboard)
		return d, d.UnmarshalCaddyfile(h.Dispenser)
	})
	// Beside what answers by itself: behind what authenticates, and before proxies.
	httpcaddyfile.RegisterDirectiveOrder(dashboardDirective, httpcaddyfile.After, "metrics")
}

// Dashboard is an HTTP handler that shows where the load is, why requests went
// where they went, and what the caches are worth: a live page of all pools of
// kv_aware in this process, by its own stream of server-sent events. It answers at
// whatever path it is asked, and nothing else is behind it.
//
// It shows addresses of upstreams and how much they are used, and answers where a
// request that is pasted into it would go. It asks nobody who they are: put it
// behind an authentication of your own. It shows nothing of a prompt, and changes
// nothing.
type Dashboard struct {
	handler *dashboard.Handler
}

// CaddyModule returns the Caddy module information.
func (*Dashboard) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.kv_aware_dashboard",
		New: func() caddy.Module { return new(Dashboard) },
	}
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	kv_aware_dashboard [<matcher>]
func (*Dashboard) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	return kvcaddyfile.Block(d)
}

// dashboardHub feeds the dashboards of all configurations.
var dashboardHub = dashboard.NewHub(ownSource{})

// Provision sets up the handler.
func (d *Dashboard) Provision(ctx caddy.Context) error {
	d.handler = dashboard.NewHandler(dashboardHub)
	// A process that exits waits for its servers before it cleans up; a stream would
	// keep it from that.
	if server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		server.RegisterOnShutdown(d.handler.Close)
	}
	return nil
}

// Cleanup ends the streams, also where no server of ours shuts down.
func (d *Dashboard) Cleanup() error {
	if d.handler != nil {
		d.handler.Close()
	}
	return nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	d.handler.ServeHTTP(w, r)
	return nil
}

// ownSource is this process.
type ownSource struct{}

func (ownSource) Snapshot(_ context.Context, history bool) ([]byte, error) {
	query := url.Values{}
	if history {
		query.Set("history", "1")
	}
	s, err := takeSnapshot(query)
	if err != nil {
		return nil, err
	}
	return json.Marshal(s)
}

func (ownSource) Ask(question string, q dashboard.Question) (int, []byte) {
	ask := explain
	if question == "tokenize" {
		ask = showTokens
	}
	// Not the context of the request that asks: by its values the body would be
	// looked for there.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(q.Context, cancel)()
	var answer any
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/?"+q.Query.Encode(), io.NopCloser(q.Body))
	if err == nil {
		r.ContentLength = q.Length
		answer, err = ask(nil, r)
	}
	status := http.StatusOK
	if err != nil {
		status = http.StatusInternalServerError
		var refused caddy.APIError
		if errors.As(err, &refused) {
			status, err = refused.HTTPStatus, refused.Err
		}
		answer = map[string]string{"error": err.Error()}
	}
	data, err := json.Marshal(answer)
	if err != nil {
		return http.StatusInternalServerError, nil
	}
	return status, data
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Dashboard)(nil)
	_ caddy.CleanerUpper          = (*Dashboard)(nil)
	_ caddyfile.Unmarshaler       = (*Dashboard)(nil)
	_ caddyhttp.MiddlewareHandler = (*Dashboard)(nil)
	_ dashboard.Source            = ownSource{}
)
