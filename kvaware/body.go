// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"unsafe"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/kvaware/caddy-kvaware/tokenize"
)

// readOutcome says what became of the attempt to read a request's body. Its
// string form is the label of the fallback counter.
type readOutcome string

const (
	bodyRead       readOutcome = ""
	bodyNotLLM     readOutcome = "not_llm"    // nothing that could carry a prompt
	bodyUnlisted   readOutcome = "unlisted"   // an API whose prompt is not read
	bodyTooLong    readOutcome = "too_long"   // beyond max_body
	bodyNoRoom     readOutcome = "no_buffer"  // beyond max_buffered
	bodyBroken     readOutcome = "read_error" // the client or a limit cut it
	bodyCompressed readOutcome = "compressed" // Content-Encoding on the request
)

// mayCarryPrompt reports whether r can be an LLM request whose body is to be
// read, and of which kind its path says it is. Reading waits for the body's
// end, so nothing is read of a request that talks both ways.
func mayCarryPrompt(r *http.Request) (tokenize.Kind, readOutcome) {
	if r.Method != http.MethodPost || r.Body == nil || r.Body == http.NoBody {
		return tokenize.KindNone, bodyNotLLM
	}
	if caddyhttp.IsIncremental(r.Header) || r.Header.Get("Upgrade") != "" {
		return tokenize.KindNone, bodyNotLLM
	}
	kind := tokenize.KindOfPath(r.URL.Path)
	contentType := r.Header.Get("Content-Type")
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	json := media == "application/json" || strings.HasSuffix(media, "+json")
	switch {
	case strings.HasPrefix(media, "multipart/"):
		return kind, bodyNotLLM
	case kind == tokenize.Unlisted:
		return kind, bodyUnlisted
	case kind == tokenize.KindNone && !(json && r.ContentLength > 0):
		return kind, bodyNotLLM
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return kind, bodyCompressed
	}
	return kind, bodyRead
}

// readBody reads the body of r, at most maxBody bytes of it, and points r.Body
// (and r.GetBody) at a replay of it, as well as the body of the request that
// handlers after the proxy see. ContentLength stays as it was found.
//
// The replay is nil when nothing was taken from the client's stream.
func readBody(r *http.Request, maxBody int64, budget *bodyBudget) (*replay, readOutcome) {
	size := r.ContentLength
	if size > maxBody {
		return nil, bodyTooLong
	}
	if earlier := replayBehind(r); earlier != nil && earlier.whole() && earlier.bytes() != nil {
		// A proxy before this one kept it. Share the bytes.
		rp := &replay{budget: budget, closer: r.Body}
		data := earlier.bytes()
		rp.data.Store(&data)
		rp.install(r, nil)
		return rp, bodyRead
	}
	rp := &replay{budget: budget, closer: r.Body}
	server, untouched := serverRequest(r)
	var outcome readOutcome
	if size >= 0 {
		if size > budget.limit.Load() {
			return nil, bodyNoRoom
		}
		if outcome = rp.readKnown(r, server, untouched, size); outcome == bodyNoRoom && rp.bytes() == nil {
			return nil, bodyNoRoom
		}
	} else {
		outcome = rp.readUnknown(r.Body, maxBody)
	}
	rp.install(r, server)
	return rp, outcome
}

// readKnown reads a body whose length is known, in steps that double: what a
// client has only announced must take no room from others. Untouched says that
// nothing of it was taken from the server's request so far.
func (rp *replay) readKnown(r *http.Request, server *http.Request, untouched bool, size int64) readOutcome {
	if untouched && hasErrorRoutes(r) {
		// The replacer reads all in one go, if it reads, and its bytes cannot be
		// counted as they arrive.
		if !rp.take(size) {
			return bodyNoRoom
		}
		if data, ok := refilledByReplacer(r, server); ok {
			rp.data.Store(&data)
			if int64(len(data)) < size {
				// The replacer keeps a read error to itself.
				rp.err = io.ErrUnexpectedEOF
				return bodyBroken
			}
			return bodyRead
		}
		rp.budget.give(rp.taken.Swap(0))
	}
	var data []byte
	defer func() { rp.data.Store(&data) }()
	for int64(len(data)) < size {
		if len(data) == cap(data) {
			larger, ok := rp.enlarge(data, size)
			if !ok {
				rp.rest = r.Body
				return bodyNoRoom
			}
			data = larger
		}
		n, err := r.Body.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err != nil && int64(len(data)) < size {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			rp.err = err
			return bodyBroken
		}
	}
	// The end must be seen too: trailers are published there.
	var beyond [1]byte
	if n, err := r.Body.Read(beyond[:]); n > 0 || err != nil && !errors.Is(err, io.EOF) {
		// More than was announced, or a failure right behind the last byte: what
		// follows the bytes is then as the client's stream has it.
		rp.rest = io.MultiReader(bytes.NewReader(beyond[:n]), failWith(err, r.Body))
		return bodyBroken
	}
	return bodyRead
}

// failWith reads err, or what is left of body when there was none.
func failWith(err error, body io.Reader) io.Reader {
	if err == nil {
		return body
	}
	return errReader{err}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// readUnknown reads a body of unknown length, in steps that double. It reports
// why it stopped before the body's end, if it did: at the limit, at the
// budget, or at an error.
func (rp *replay) readUnknown(body io.Reader, maxBody int64) readOutcome {
	var buf []byte
	defer func() { rp.data.Store(&buf) }()
	for {
		if len(buf) == cap(buf) {
			larger, ok := rp.enlarge(buf, maxBody+1)
			if !ok {
				rp.rest = body
				return bodyNoRoom
			}
			buf = larger
		}
		n, err := body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case errors.Is(err, io.EOF):
			if int64(len(buf)) > maxBody {
				return bodyTooLong
			}
			return bodyRead
		case err != nil:
			rp.err = err
			return bodyBroken
		case int64(len(buf)) > maxBody:
			rp.rest = body
			return bodyTooLong
		}
	}
}

// enlarge gives a copy of buf with twice the room, but no more than most in
// all, if the budget has it.
func (rp *replay) enlarge(buf []byte, most int64) (larger []byte, ok bool) {
	const least = 32 << 10
	grow := min(max(int64(cap(buf)), least), most-int64(cap(buf)))
	if !rp.take(grow) {
		return nil, false
	}
	larger = make([]byte, len(buf), int64(cap(buf))+grow)
	copy(larger, buf)
	return larger, true
}

// take takes n bytes of the budget, to be given back with the others.
func (rp *replay) take(n int64) bool {
	if !rp.budget.take(n) {
		return false
	}
	rp.taken.Add(n)
	return true
}

// hasErrorRoutes reports whether handlers may look for the body after the proxy
// has failed.
func hasErrorRoutes(r *http.Request) bool {
	srv, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	return srv != nil && srv.Errors != nil
}

// replayBehind finds the replay that an earlier proxy left as the body.
func replayBehind(r *http.Request) *replay {
	server, _ := serverRequest(r)
	if server == nil {
		return nil
	}
	if rr, ok := server.Body.(*replayReader); ok && !rr.begun() {
		return rr.rp
	}
	return nil
}

// serverRequest finds the request that the proxy was called with behind the
// body of its clone. Caddy keeps that pointer in the wrapper which publishes
// trailers, in an unexported field; there is no exported way from the clone to
// its original, and without it every handler after the proxy would find a
// drained body. The result is nil when the wrappers are not the known ones,
// and then only the clone's body is replaced.
//
// Untouched is false when request_buffers took the beginning of the body, which
// the server's request then lacks.
func serverRequest(clone *http.Request) (server *http.Request, untouched bool) {
	v := reflect.ValueOf(clone.Body)
	untouched = true
	for range 4 {
		if v.Kind() == reflect.Interface {
			v = v.Elem()
		}
		if v.Kind() == reflect.Pointer && !v.IsNil() {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct {
			return nil, false
		}
		if f := v.FieldByName("original"); f.IsValid() {
			if f.Type() != reflect.TypeFor[*http.Request]() || f.IsNil() {
				return nil, false
			}
			return (*http.Request)(f.UnsafePointer()), untouched
		}
		if inner := v.FieldByName("ReadCloser"); inner.IsValid() {
			v = inner
		} else if v = v.FieldByName("body"); v.IsValid() {
			untouched = false
		} else {
			return nil, false
		}
	}
	return nil, false
}

// refilledByReplacer reads the body by way of the request's replacer when the
// request that error routes see is not the one that the proxy was given: a
// handler between them (tracing, for one) made a copy. Reading through the
// proxy's request would leave nothing to the other, whose body only its
// replacer can replace. To find out which case it is, the replacer is given a
// probe to read in the place of server's body: it reads the probe only if both
// are one request, and then nothing else happened.
//
// A body that a handler wrapped (a size limit, say) is not read this way: the
// wrapper exists on the copy only and must not be passed by. And without error
// routes nobody would look for the body.
func refilledByReplacer(r, server *http.Request) ([]byte, bool) {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok || !connectionBody(server.Body) {
		return nil, false
	}
	body, probe := server.Body, new(probeBody)
	server.Body = probe
	val, ok := repl.Get("http.request.body")
	server.Body = body
	text, isText := val.(string)
	if !ok || !isText || probe.read {
		return nil, false
	}
	// The bytes are only ever read, as the string's are.
	return unsafe.Slice(unsafe.StringData(text), len(text)), true //nolint:gosec // see above
}

// probeBody is an empty body that remembers having been read.
type probeBody struct{ read bool }

func (b *probeBody) Read([]byte) (int, error) {
	b.read = true
	return 0, io.EOF
}

func (*probeBody) Close() error { return nil }

// connectionBody reports whether body is the server's own, or only counted on
// its way (by the access log, by tracing), not one that a handler changes.
func connectionBody(body io.ReadCloser) bool {
	t := reflect.TypeOf(body)
	if t == nil {
		return false
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.PkgPath() {
	case "net/http":
		return t.Name() != "maxBytesReader"
	case "golang.org/x/net/http2", "github.com/quic-go/quic-go/http3", "github.com/caddyserver/caddy/v2/modules/caddyhttp":
		return true
	}
	return strings.HasPrefix(t.PkgPath(), "go.opentelemetry.io/")
}
