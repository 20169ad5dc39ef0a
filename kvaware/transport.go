// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

// observingTransport is the proxy's transport with the policy looking on. It
// acts only on requests that its own policy instance has routed; everything
// else, active health checks among it, goes straight through.
//
// It forwards each optional interface that reverse_proxy asks its transport
// for. Where the inner transport lacks one, the answer is what reverse_proxy
// assumes without it.
type observingTransport struct {
	inner  http.RoundTripper
	policy *Policy
}

// wrapTransport puts the policy's observer around the transport of the proxy
// that the policy is being provisioned for. The proxy loads its configured
// transport before its policy, and makes a default one after it where none is
// configured; so that default is made here.
func (p *Policy) wrapTransport(ctx caddy.Context) error {
	handler := p.proxy
	if handler == nil {
		p.logger.Warn("no reverse_proxy around this policy: responses are not observed, so load counts until each request ends")
		return nil
	}
	if _, ok := handler.Transport.(*observingTransport); ok {
		return errors.New("this reverse_proxy has a kv_aware policy already, inside the `fallback` of this one: each would charge every request")
	}
	if handler.Transport == nil {
		t := new(reverseproxy.HTTPTransport)
		if err := t.Provision(ctx); err != nil {
			return fmt.Errorf("provisioning default transport: %w", err)
		}
		handler.Transport = t
	}
	handler.Transport = &observingTransport{inner: handler.Transport, policy: p}
	return nil
}

// parentProxy gives the proxy that owns the module being provisioned: the last
// one of its ancestors, since a proxy may be nested in the response routes of
// another.
func parentProxy(ctx caddy.Context) *reverseproxy.Handler {
	modules := ctx.Modules()
	for i := len(modules) - 1; i >= 0; i-- {
		if h, ok := modules[i].(*reverseproxy.Handler); ok {
			return h
		}
	}
	return nil
}

// RoundTrip sends req to its upstream and observes what comes of it.
func (t *observingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	rt := t.policy.routed(req.Context())
	if rt == nil {
		return t.inner.RoundTrip(req)
	}
	rt.sendRank(req)
	res, err := t.inner.RoundTrip(req)
	if err != nil {
		rt.failed(req.Context(), err)
		return res, rt.surfaced(err)
	}
	rt.answered(req, res)
	return res, nil
}

// TLSEnabled implements reverseproxy.TLSTransport.
func (t *observingTransport) TLSEnabled() bool {
	inner, ok := t.inner.(reverseproxy.TLSTransport)
	return ok && inner.TLSEnabled()
}

// EnableTLS implements reverseproxy.TLSTransport.
func (t *observingTransport) EnableTLS(base *reverseproxy.TLSConfig) error {
	inner, ok := t.inner.(reverseproxy.TLSTransport)
	if !ok {
		return fmt.Errorf("transport %T does not support TLS", t.inner)
	}
	return inner.EnableTLS(base)
}

// EnableH2C implements reverseproxy.H2CTransport.
func (t *observingTransport) EnableH2C() error {
	inner, ok := t.inner.(reverseproxy.H2CTransport)
	if !ok {
		return fmt.Errorf("transport %T does not support h2c", t.inner)
	}
	return inner.EnableH2C()
}

// ProxyProtocolEnabled implements reverseproxy.ProxyProtocolTransport.
func (t *observingTransport) ProxyProtocolEnabled() bool {
	inner, ok := t.inner.(reverseproxy.ProxyProtocolTransport)
	return ok && inner.ProxyProtocolEnabled()
}

// OverrideHealthCheckScheme implements
// reverseproxy.HealthCheckSchemeOverriderTransport.
func (t *observingTransport) OverrideHealthCheckScheme(base *url.URL, port string) {
	if inner, ok := t.inner.(reverseproxy.HealthCheckSchemeOverriderTransport); ok {
		inner.OverrideHealthCheckScheme(base, port)
	}
}

// RequestHeaderOps implements reverseproxy.RequestHeaderOpsTransport.
func (t *observingTransport) RequestHeaderOps() *headers.HeaderOps {
	if inner, ok := t.inner.(reverseproxy.RequestHeaderOpsTransport); ok {
		return inner.RequestHeaderOps()
	}
	return nil
}

// DefaultBufferSizes implements reverseproxy.BufferedTransport.
func (t *observingTransport) DefaultBufferSizes() (request, response int64) {
	if inner, ok := t.inner.(reverseproxy.BufferedTransport); ok {
		return inner.DefaultBufferSizes()
	}
	return 0, 0
}

// RequiresContentLength implements reverseproxy.ContentLengthRequiredTransport.
func (t *observingTransport) RequiresContentLength() bool {
	inner, ok := t.inner.(reverseproxy.ContentLengthRequiredTransport)
	return ok && inner.RequiresContentLength()
}

// Interface guards
var (
	_ http.RoundTripper                                = (*observingTransport)(nil)
	_ reverseproxy.TLSTransport                        = (*observingTransport)(nil)
	_ reverseproxy.H2CTransport                        = (*observingTransport)(nil)
	_ reverseproxy.ProxyProtocolTransport              = (*observingTransport)(nil)
	_ reverseproxy.HealthCheckSchemeOverriderTransport = (*observingTransport)(nil)
	_ reverseproxy.RequestHeaderOpsTransport           = (*observingTransport)(nil)
	_ reverseproxy.BufferedTransport                   = (*observingTransport)(nil)
	_ reverseproxy.ContentLengthRequiredTransport      = (*observingTransport)(nil)
)
