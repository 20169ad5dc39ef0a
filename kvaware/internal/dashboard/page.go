// SPDX-License-Identifier: Apache-2.0

// Package dashboard is the live page: its files, the stream that feeds it, and the
// HTTP handler of both. It knows neither Caddy nor what it shows; that comes as
// JSON from a Source.
//
// The page is one document with its script and style in it, so it needs no path of
// its own, and its other addresses are queries of that path: ?stream is the stream
// of server-sent events, ?snapshot one snapshot with its history, and a POST of
// ?ask=explain or ?ask=tokenize asks about the body.
package dashboard

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

//go:embed page
var files embed.FS

// scripts are the page's, in order: they share one scope.
var scripts = []string{"words.js", "elements.js", "plots.js", "stream.js", "totals.js", "upstreams.js", "decisions.js", "explain.js", "page.js"}

const noncePlace = "NONCE"

// document is the page, but for its nonces.
var document = sync.OnceValue(func() string {
	file := func(name string) string {
		data, err := fs.ReadFile(files, "page/"+name)
		if err != nil {
			panic(err) // it is embedded
		}
		return string(data)
	}
	var code strings.Builder
	for _, name := range scripts {
		code.WriteString(file(name))
	}
	return strings.NewReplacer("/* page.css */", file("page.css"), "/* scripts */", code.String()).Replace(file("page.html"))
})

// Question is about the body of a request.
type Question struct {
	Context context.Context
	Query   url.Values // of the endpoint
	Body    io.Reader  // JSON
	Length  int64      // of the body in bytes, -1 if unknown
}

// Handler serves the page. It answers at whatever path it is asked.
type Handler struct {
	hub  *Hub
	done chan struct{}
	once sync.Once
}

// NewHandler makes a handler whose streams are the hub's. Close it.
func NewHandler(hub *Hub) *Handler {
	return &Handler{hub: hub, done: make(chan struct{})}
}

// Close ends the streams. Their clients come again by themselves.
func (h *Handler) Close() { h.once.Do(func() { close(h.done) }) }

// foreign refuses what other sites' pages send.
var foreign = http.NewCrossOriginProtection()

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store, no-transform")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")

	query := r.URL.Query()
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		switch {
		case query.Has("stream") && r.Method == http.MethodGet && ours(r):
			h.stream(w, r)
		case query.Has("snapshot") && ours(r):
			h.snapshot(w, r)
		case query.Has("stream"), query.Has("snapshot"):
			refuse(w, http.StatusForbidden, "asked for by another site, or with another method than GET")
		default:
			h.page(w, r)
		}
	case http.MethodPost:
		h.ask(w, r, query)
	default:
		header.Set("Allow", "GET, HEAD, POST")
		refuse(w, http.StatusMethodNotAllowed, "method not allowed: use GET, HEAD or POST")
	}
}

// ours reports whether a browser that tells says that the page itself asks, or the
// user.
func ours(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "" || site == "same-origin" || site == "none"
}

// page sends the document.
func (h *Handler) page(w http.ResponseWriter, r *http.Request) {
	var random [18]byte
	_, _ = rand.Read(random[:]) // never fails
	nonce := base64.StdEncoding.EncodeToString(random[:])
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Content-Security-Policy", "default-src 'none'; connect-src 'self'; img-src data:; "+
		"script-src 'nonce-"+nonce+"'; style-src 'nonce-"+nonce+"'; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'")
	if r.Method == http.MethodHead {
		return
	}
	_, _ = io.WriteString(w, strings.ReplaceAll(document(), noncePlace, nonce)) // who asked may be gone
}

// snapshot answers with one snapshot.
func (h *Handler) snapshot(w http.ResponseWriter, r *http.Request) {
	data, err := h.hub.source.Snapshot(r.Context(), true)
	if err != nil {
		refuse(w, http.StatusBadGateway, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}

// ask answers a question about the request's body.
func (h *Handler) ask(w http.ResponseWriter, r *http.Request, query url.Values) {
	question := query.Get("ask")
	if question != "explain" && question != "tokenize" {
		refuse(w, http.StatusNotFound, "no such question: ask=explain or ask=tokenize")
		return
	}
	if err := foreign.Check(r); err != nil {
		refuse(w, http.StatusForbidden, "asked by another site")
		return
	}
	// No form of another site can send this type.
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, "send the body as application/json")
		return
	}
	query.Del("ask")
	status, answer := h.hub.source.Ask(question, Question{Context: r.Context(), Query: query, Body: r.Body, Length: r.ContentLength})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(answer) //nolint:gosec // JSON, and said to be that
}

func refuse(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct {
		Error string `json:"error"`
	}{why})
}

// What the stream waits for.
const (
	// writeTime is how long a client may take for an event before it counts as gone.
	writeTime = 10 * time.Second
	// reconnect is when a client comes again after its stream has ended.
	reconnect = "retry: 1000\n\n"
)

// stream sends the hub's events until the client leaves or the handler is closed.
// Events come once a second, so that they are the heartbeat too.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request) {
	select {
	case <-h.done:
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, "the configuration is being replaced")
		return
	default:
	}
	s, err := h.hub.join()
	if err != nil {
		w.Header().Set("Retry-After", "10")
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer h.hub.leave(s)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // of an nginx in front
	control := http.NewResponseController(w)
	send := func(event []byte) bool {
		// Also lifts the server's own bound, which is for whole responses.
		_ = control.SetWriteDeadline(time.Now().Add(writeTime))
		if _, err := w.Write(event); err != nil {
			return false
		}
		err := control.Flush()
		return err == nil || errors.Is(err, http.ErrNotSupported)
	}
	if !send([]byte(reconnect)) {
		return
	}
	for {
		select {
		case <-h.done:
			return
		case <-r.Context().Done():
			return
		case event := <-s.events:
			if !send(event) {
				return
			}
		}
	}
}
