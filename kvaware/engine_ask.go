// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

// What became of asking an engine.
const (
	askedOK          = "ok"
	askedUnreachable = "unreachable"
	askedTimeout     = "timeout"
	askedStatus      = "status" // other than 200
	askedTooLong     = "too_long"
	askedInvalid     = "invalid" // not in the form of that endpoint
)

// Most bytes of an answer that are read.
const (
	maxMetricsBody = 8 << 20
	maxJSONBody    = 4 << 20
)

// askError is why an engine told nothing. It quotes nothing of what it said.
type askError struct {
	result string
	status int
	json   bool  // it is labelled as JSON
	err    error // of the transport
}

func (e *askError) Error() string {
	if e.status != 0 {
		return "status " + strconv.Itoa(e.status)
	}
	return e.result
}

func (e *askError) Unwrap() error { return e.err }

// errTooLong ends an answer that is longer than is read.
var errTooLong = errors.New("too long")

// bounded fails when more than left bytes were read.
type bounded struct {
	from io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLong
	}
	return n, err
}

// What Caddy's own packages keep in the context of a request to an upstream, under
// keys of theirs: how it is dialled, and for whom (PROXY protocol).
const (
	dialInfoKey      = caddy.CtxKey("reverse_proxy.dial_info")
	proxyProtocolVar = "reverse_proxy.proxy_protocol_info"
)

// get asks the engine at a network address for a path, over the transport of the
// policy's proxy as active health checks go, and has read take in the answer.
func (p *Policy) get(ctx context.Context, s *scraping, address, path string, most int64, read func(http.Header, io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	req, err := p.question(ctx, s, address, path)
	if err != nil {
		return &askError{result: askedUnreachable, err: err}
	}
	res, err := p.proxy.Transport.RoundTrip(req)
	if err != nil {
		return failedAsk(ctx, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return &askError{result: askedStatus, status: res.StatusCode}
	}
	body := &bounded{from: res.Body, left: most}
	if err := read(res.Header, body); err != nil {
		return failedAsk(ctx, err)
	}
	// What is left lets the connection be used again.
	if _, err := io.Copy(io.Discard, body); err != nil {
		return failedAsk(ctx, err)
	}
	return nil
}

func failedAsk(ctx context.Context, err error) error {
	var typed *askError
	switch {
	case errors.As(err, &typed):
		return typed
	case errors.Is(err, errTooLong):
		return &askError{result: askedTooLong}
	case errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded):
		return &askError{result: askedTimeout}
	}
	return &askError{result: askedUnreachable, err: err}
}

// question makes the request for get.
func (p *Policy) question(ctx context.Context, s *scraping, address, path string) (*http.Request, error) {
	addr, err := caddy.ParseNetworkAddress(address)
	if err != nil {
		return nil, err
	}
	dial := reverseproxy.DialInfo{
		Upstream: &reverseproxy.Upstream{Dial: address},
		Network:  addr.Network,
		Address:  addr.JoinHostPort(0),
		Host:     addr.Host,
		Port:     strconv.Itoa(int(addr.StartPort)),
	}
	host := dial.Address
	if addr.IsUnixNetwork() || addr.IsFdNetwork() {
		// A socket has a path for a host, which tells its connections apart.
		host, dial.Port = url.QueryEscape(host), ""
	}
	path, query, _ := strings.Cut(path, "?")
	u := &url.URL{Scheme: "http", Host: host, Path: path, RawQuery: query}
	inner := p.proxy.Transport
	if wrapped, ok := inner.(*observingTransport); ok {
		inner = wrapped.inner
	}
	if t, ok := inner.(reverseproxy.HealthCheckSchemeOverriderTransport); ok {
		t.OverrideHealthCheckScheme(u, dial.Port)
	} else if t, ok := inner.(reverseproxy.TLSTransport); ok && t.TLSEnabled() {
		u.Scheme = "https"
	}
	vars := make(map[string]any)
	if t, ok := inner.(reverseproxy.ProxyProtocolTransport); ok && t.ProxyProtocolEnabled() {
		local := reverseproxy.ProxyProtocolInfo{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)}
		vars[proxyProtocolVar] = local
		u.Host = url.QueryEscape(local.AddrPort.String() + "->" + host)
	}
	repl := caddy.NewReplacer()
	repl.Set("http.reverse_proxy.upstream.hostport", dial.Address)
	repl.Set("http.reverse_proxy.upstream.host", dial.Host)
	repl.Set("http.reverse_proxy.upstream.port", dial.Port)
	ctx = context.WithValue(ctx, caddy.ReplacerCtxKey, repl)
	ctx = context.WithValue(ctx, caddyhttp.VarsCtxKey, vars)
	ctx = context.WithValue(ctx, dialInfoKey, dial)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost", nil)
	if err != nil {
		return nil, err
	}
	req.URL = u // its host may be none that can be parsed
	if dial.Port != "" {
		req.Host = dial.Address
	}
	req = req.WithContext(context.WithValue(ctx, caddyhttp.OriginalRequestCtxKey, *req))
	req.Header.Set("User-Agent", "caddy-kv-aware")
	for name, values := range s.header {
		if name == "Host" {
			req.Host = values[0]
			continue
		}
		req.Header[name] = values
	}
	return req, nil
}

// wholeJSON reads an answer whole.
func wholeJSON[T any](into *T, parse func([]byte) (T, error)) func(http.Header, io.Reader) error {
	return func(_ http.Header, from io.Reader) error {
		data, err := io.ReadAll(from)
		if err != nil {
			return err
		}
		if *into, err = parse(data); err != nil {
			return &askError{result: askedInvalid, err: err}
		}
		return nil
	}
}

// readSleeping reads vLLM's answer to GET /is_sleeping.
func readSleeping(data []byte) (asleep bool, err error) {
	var answer struct {
		Sleeping *bool `json:"is_sleeping"`
	}
	if err := json.Unmarshal(data, &answer); err != nil || answer.Sleeping == nil {
		return false, fmt.Errorf("no is_sleeping")
	}
	return *answer.Sleeping, nil
}

// isJSON reports whether an answer is labelled as JSON.
func isJSON(h http.Header) bool {
	return strings.Contains(strings.ToLower(h.Get("Content-Type")), "json")
}
