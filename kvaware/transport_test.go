// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// fullTransport implements everything that reverse_proxy may ask a transport
// for, and notes what it was asked.
type fullTransport struct {
	asked []string
	ops   *headers.HeaderOps
}

func (f *fullTransport) note(what string) { f.asked = append(f.asked, what) }

func (f *fullTransport) RoundTrip(*http.Request) (*http.Response, error) {
	f.note("RoundTrip")
	return nil, io.ErrNoProgress
}
func (f *fullTransport) TLSEnabled() bool { f.note("TLSEnabled"); return true }
func (f *fullTransport) EnableTLS(*reverseproxy.TLSConfig) error {
	f.note("EnableTLS")
	return io.ErrNoProgress
}
func (f *fullTransport) EnableH2C() error           { f.note("EnableH2C"); return io.ErrNoProgress }
func (f *fullTransport) ProxyProtocolEnabled() bool { f.note("ProxyProtocolEnabled"); return true }
func (f *fullTransport) OverrideHealthCheckScheme(u *url.URL, port string) {
	f.note("OverrideHealthCheckScheme")
	u.Scheme = "scheme" + port
}
func (f *fullTransport) RequestHeaderOps() *headers.HeaderOps {
	f.note("RequestHeaderOps")
	return f.ops
}
func (f *fullTransport) DefaultBufferSizes() (request, response int64) {
	f.note("DefaultBufferSizes")
	return 3, 4
}
func (f *fullTransport) RequiresContentLength() bool { f.note("RequiresContentLength"); return true }

// bareTransport can do nothing but round trips.
type bareTransport struct{}

func (bareTransport) RoundTrip(*http.Request) (*http.Response, error) { return nil, io.ErrNoProgress }

func TestTheWrapperForwardsWhateverReverseProxyAsksATransport(t *testing.T) {
	ops := new(headers.HeaderOps)
	for method, call := range map[string]func(t *observingTransport) (forwarded, assumed bool){
		"RoundTrip": func(t *observingTransport) (bool, bool) {
			_, err := t.RoundTrip(new(http.Request))
			return errors.Is(err, io.ErrNoProgress), errors.Is(err, io.ErrNoProgress)
		},
		"TLSEnabled": func(t *observingTransport) (bool, bool) { v := t.TLSEnabled(); return v, !v },
		"EnableTLS": func(t *observingTransport) (bool, bool) {
			err := t.EnableTLS(nil)
			return errors.Is(err, io.ErrNoProgress), err != nil
		},
		"EnableH2C": func(t *observingTransport) (bool, bool) {
			err := t.EnableH2C()
			return errors.Is(err, io.ErrNoProgress), err != nil
		},
		"ProxyProtocolEnabled": func(t *observingTransport) (bool, bool) { v := t.ProxyProtocolEnabled(); return v, !v },
		"OverrideHealthCheckScheme": func(t *observingTransport) (bool, bool) {
			u := &url.URL{Scheme: "http"}
			t.OverrideHealthCheckScheme(u, "1")
			return u.Scheme == "scheme1", u.Scheme == "http"
		},
		"RequestHeaderOps": func(t *observingTransport) (bool, bool) { v := t.RequestHeaderOps(); return v == ops, v == nil },
		"DefaultBufferSizes": func(t *observingTransport) (bool, bool) {
			a, b := t.DefaultBufferSizes()
			return a == 3 && b == 4, a == 0 && b == 0
		},
		"RequiresContentLength": func(t *observingTransport) (bool, bool) { v := t.RequiresContentLength(); return v, !v },
	} {
		full := &fullTransport{ops: ops}
		if forwarded, _ := call(&observingTransport{inner: full, policy: new(Policy)}); !forwarded || !slices.Equal(full.asked, []string{method}) {
			t.Errorf("%s is not forwarded: the inner transport was asked %v", method, full.asked)
		}
		if _, assumed := call(&observingTransport{inner: bareTransport{}, policy: new(Policy)}); !assumed {
			t.Errorf("%s of a transport without it is not what reverse_proxy assumes", method)
		}
	}
}

// sourceOf parses the package of reverse_proxy as this build has it.
func sourceOf(t *testing.T) map[string]*ast.File {
	t.Helper()
	method := reflect.ValueOf((*reverseproxy.Handler).ServeHTTP)
	file, _ := runtime.FuncForPC(method.Pointer()).FileLine(method.Pointer())
	if !filepath.IsAbs(file) {
		t.Skip("built with -trimpath: Caddy's source cannot be found")
	}
	files := make(map[string]*ast.File)
	paths, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no source beside %s: %v", file, err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(path)] = parsed
	}
	return files
}

func TestThisCaddyAsksATransportForNothingThatTheWrapperLacks(t *testing.T) {
	// The interfaces that are forwarded, by name, with their methods.
	forwarded := map[string]reflect.Type{
		"TLSTransport":                        reflect.TypeFor[reverseproxy.TLSTransport](),
		"H2CTransport":                        reflect.TypeFor[reverseproxy.H2CTransport](),
		"ProxyProtocolTransport":              reflect.TypeFor[reverseproxy.ProxyProtocolTransport](),
		"HealthCheckSchemeOverriderTransport": reflect.TypeFor[reverseproxy.HealthCheckSchemeOverriderTransport](),
		"RequestHeaderOpsTransport":           reflect.TypeFor[reverseproxy.RequestHeaderOpsTransport](),
		"BufferedTransport":                   reflect.TypeFor[reverseproxy.BufferedTransport](),
		"ContentLengthRequiredTransport":      reflect.TypeFor[reverseproxy.ContentLengthRequiredTransport](),
	}
	wrapper := reflect.TypeFor[*observingTransport]()
	for name, typ := range forwarded {
		if !wrapper.Implements(typ) {
			t.Errorf("the wrapper does not implement %s", name)
		}
	}
	declared, asserted := 0, 0
	for file, parsed := range sourceOf(t) {
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if _, ok := n.Type.(*ast.InterfaceType); ok && strings.HasSuffix(n.Name.Name, "Transport") {
					declared++
					if forwarded[n.Name.Name] == nil {
						t.Errorf("%s declares %s, which the wrapper does not forward", file, n.Name.Name)
					}
				}
			case *ast.TypeAssertExpr:
				if field, ok := n.X.(*ast.SelectorExpr); !ok || field.Sel.Name != "Transport" {
					break
				}
				asserted++
				name, _ := n.Type.(*ast.Ident)
				if name == nil || forwarded[name.Name] == nil {
					t.Errorf("%s asserts that a transport is %v, which the wrapper is not", file, describeNode(n.Type))
				}
			case *ast.TypeSwitchStmt:
				ast.Inspect(n.Assign, func(n ast.Node) bool {
					if field, ok := n.(*ast.SelectorExpr); ok && field.Sel.Name == "Transport" {
						t.Errorf("%s switches on the type of a transport, which the wrapper hides", file)
					}
					return true
				})
				return false
			}
			return true
		})
	}
	if declared < len(forwarded) || asserted < 4 {
		t.Errorf("found %d interfaces and %d assertions: this test looks in the wrong place", declared, asserted)
	}
}

func describeNode(n ast.Expr) string {
	switch n := n.(type) {
	case nil:
		return "(a type switch)"
	case *ast.Ident:
		return n.Name
	case *ast.StarExpr:
		return "*" + describeNode(n.X)
	case *ast.SelectorExpr:
		return describeNode(n.X) + "." + n.Sel.Name
	}
	return fmt.Sprintf("%T", n)
}

func TestThisCaddyLoadsTransportThenPolicyThenTheDefaultTransport(t *testing.T) {
	var order []string
	for _, parsed := range sourceOf(t) {
		for _, decl := range parsed.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Name.Name != "Provision" || fn.Recv == nil || describeNode(fn.Recv.List[0].Type) != "*Handler" {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.BasicLit:
					switch n.Value {
					case `"TransportRaw"`, `"SelectionPolicyRaw"`:
						order = append(order, strings.Trim(n.Value, `"`))
					}
				case *ast.CompositeLit:
					if describeNode(n.Type) == "HTTPTransport" {
						order = append(order, "HTTPTransport")
					}
				case *ast.TypeAssertExpr:
					if describeNode(n.Type) == "RequestHeaderOpsTransport" {
						order = append(order, "RequestHeaderOps")
					}
				}
				return true
			})
		}
	}
	if want := []string{"TransportRaw", "SelectionPolicyRaw", "HTTPTransport", "RequestHeaderOps"}; !slices.Equal(order, want) {
		t.Errorf("the proxy is provisioned in the order %v, the wrapper counts on %v", order, want)
	}
}

// probePolicy is a selection policy that lets a test look at the request that
// policies are given.
type probePolicy struct{}

var onProbe func(*http.Request)

func init() { caddy.RegisterModule(probePolicy{}) }

func (probePolicy) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.selection_policies.kv_aware_test_probe",
		New: func() caddy.Module { return new(probePolicy) },
	}
}

func (probePolicy) UnmarshalCaddyfile(d *caddyfile.Dispenser) error { d.Next(); return nil }

func (probePolicy) Select(pool reverseproxy.UpstreamPool, r *http.Request, _ http.ResponseWriter) *reverseproxy.Upstream {
	onProbe(r)
	return pool[0]
}

func TestTheServersRequestIsFoundBehindTheBodyOfThisCaddysClone(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	for name, directive := range map[string]string{
		"alone": "", "behind an access log": "log", "behind tracing": "tracing",
		"with a size limit": "request_body {\n\tmax_size 1MB\n}",
	} {
		var found, clone *http.Request
		onProbe = func(r *http.Request) { found, _ = serverRequest(r); clone = r }
		c := proxytest.Start(t, "", plain(directive+"\n"+proxy(engine.Addr(), "lb_policy kv_aware_test_probe", "")))
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("hi", true)))
		if found == nil || found == clone || found.URL == clone.URL || found.URL.Path != "/v1/chat/completions" {
			t.Errorf("%s: this Caddy keeps the server's request where it is not looked for, so handlers after the proxy lose the body (found %v)", name, found)
		}
	}
}

func TestWhereTheServersRequestIsNotFoundRetriesStillHaveTheBody(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	// A body that is buffered to its end has no way back to where it came from.
	const directives = "request_buffers 1MiB\n\t\tlb_retries 3"
	var found *http.Request
	onProbe = func(r *http.Request) { found, _ = serverRequest(r) }
	body := chat(prose("buffered", 500), true)
	c := proxytest.Start(t, "", plain(proxy(engine.Addr(), "lb_policy kv_aware_test_probe", directives)))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", body))
	if found != nil {
		t.Fatal("the server's request was found: this test needs another case")
	}
	c = proxytest.Start(t, "", plain(proxy(proxytest.Refused(t)+" "+engine.Addr(), kvAware, directives)))
	for range 5 {
		for _, chunked := range []bool{false, true} {
			res := do(t, c.Client("site"), post(t, "http://site/v1/chat/completions", body, chunked))
			proxytest.ReadAll(t, res)
			seen := engine.Requests()
			if last := seen[len(seen)-1]; res.StatusCode != 200 || last.Body != body {
				t.Fatalf("got %d; the upstream %d of %d bytes", res.StatusCode, len(last.Body), len(body))
			}
		}
	}
	wantIdle(t)
}
