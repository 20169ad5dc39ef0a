// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/kvaware/caddy-kvaware/tokenize"
)

// Why a request of inject_salt goes on without a salt, besides the outcomes of
// reading it: labels of the counter.
const (
	unsaltedAPI      = "api"        // engines take no salt in this API
	unsaltedDigest   = "digest"     // the body is vouched for by a header or trailer
	unsaltedRepeated = "duplicates" // too many salts in the body
)

// maxSaltEdits bounds the places of a body in which a salt is replaced. Nobody
// gives more than one or two in earnest, and each has its cost in memory.
const maxSaltEdits = 64

// digestHeaders vouch for the bytes of a body: with one of them, a body that was
// changed is a broken one to whoever checks (RFC 1864, 3230, 9530, and AWS's).
var digestHeaders = [...]string{"Content-Md5", "Digest", "Content-Digest", "Repr-Digest", "X-Amz-Content-Sha256"}

// vouchedFor reports whether a digest came with the body of a request, which was
// read to its end.
func vouchedFor(r *http.Request) bool {
	for _, name := range digestHeaders {
		if len(r.Header[name]) > 0 || len(r.Trailer[name]) > 0 {
			return true
		}
	}
	return false
}

// salt gives what engines are to part the tenant's cache by: 128 bits in
// hexadecimal digits, which every engine and cache behind it can take. What the
// client asked for parts its tenant's cache further; without the key, no client
// can tell what another tenant's salt is, or get it.
func (rt *routing) salt(given, nested string) string {
	sum := mac(&rt.keys.salts, rt.tenantName, given, nested)
	return hex.EncodeToString(sum[:16])
}

// isolate takes note of whose request it is.
func (rt *routing) isolate(tenant string) {
	rt.tenantName = tenant
	rt.tenant = rt.keys.tenant(tenant)
}

// readSalted reads the request, with inject_salt so that its chain and what the
// upstream is sent have the tenant's salt.
func (rt *routing) readSalted(r *http.Request, rd *tokenize.Reader, kind tokenize.Kind) (*tokenize.Request, error) {
	body := rt.replay.bytes()
	if !rt.policy.InjectSalt {
		return rd.Read(kind, r.URL.Path, body)
	}
	rt.unsalted = unsaltedDigest
	if !vouchedFor(r) {
		rd.SetSalter(rt.salt)
		req, err := rd.Read(kind, r.URL.Path, body)
		edits := rd.Salting(make([]tokenize.Edit, 0, 2))
		switch {
		case len(edits) > maxSaltEdits:
			rt.unsalted = unsaltedRepeated
		case len(edits) > 0:
			rt.send(r, edits)
			return req, err
		default:
			rt.unsalted = unsaltedAPI
			var typed *tokenize.Error
			if errors.As(err, &typed) && typed.Reason != tokenize.ReasonNoPrompt {
				rt.unsalted = string(typed.Reason)
			}
			return req, err
		}
		rd.SetSalter(nil)
	}
	return rd.Read(kind, r.URL.Path, body)
}

// send has upstreams sent the body with these changes.
func (rt *routing) send(r *http.Request, edits []tokenize.Edit) {
	longer := rt.replay.alter(edits)
	rt.salted = true
	r.Body = rt.replay.reader()
	if r.ContentLength < 0 {
		return
	}
	r.ContentLength += longer
	// Of no meaning to Go's transports, but one of the operator's may look at it.
	if r.Header["Content-Length"] != nil {
		r.Header["Content-Length"] = []string{strconv.FormatInt(r.ContentLength, 10)}
	}
}

// countUnsalted counts a body that goes on without the salt that it should have.
func (rt *routing) countUnsalted(r *http.Request) {
	if !rt.policy.InjectSalt || rt.salted || r.Method != http.MethodPost || !carriesBody(r) {
		return
	}
	pool := rt.policy.pool
	pool.metrics.unsalted.WithLabelValues(pool.name, rt.unsalted).Inc()
}

// ownsProxy reports whether the policy being provisioned is its proxy's own one,
// and not the fallback of another.
func ownsProxy(ctx caddy.Context, p *Policy) bool {
	modules := ctx.Modules()
	for i := len(modules) - 1; i >= 0; i-- {
		switch m := modules[i].(type) {
		case *reverseproxy.Handler:
			return true
		case *Policy:
			if m != p {
				return false
			}
		default:
			return false
		}
	}
	return true // no proxy at all
}
