// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"io"
	"net/http"
	"sync/atomic"

	"github.com/kvaware/caddy-kvaware/tokenize"
)

// bodyBudget bounds the bytes of request bodies held at one time by all
// requests of a pool.
type bodyBudget struct {
	held  atomic.Int64
	limit atomic.Int64
}

// take reserves n bytes, or reports that there is no room for them.
func (b *bodyBudget) take(n int64) bool {
	if b.held.Add(n) > b.limit.Load() {
		b.held.Add(-n)
		return false
	}
	return true
}

func (b *bodyBudget) give(n int64) { b.held.Add(-n) }

// replay is the body of one request, kept so that every attempt can send it
// from its beginning. It lives until the response begins or the request ends,
// whichever comes first; readers handed out before that keep the bytes alive
// for as long as a transport still reads them.
//
// It is used on the request's goroutine, except drop, which the end of the
// request may call from another; hence the atomics.
type replay struct {
	data atomic.Pointer[[]byte]
	// outgoing is what upstreams are sent if it is not the data as they came: parts
	// of them, and of little else.
	outgoing atomic.Pointer[[][]byte]
	budget   *bodyBudget
	taken    atomic.Int64 // bytes of the budget to be given back

	// What follows the bytes when they are not the whole body: the rest of the
	// client's stream, or the error that reading it ended with.
	rest io.Reader
	err  error
	// closer closes the client's body.
	closer io.Closer
	// server is the request whose Body was pointed at this replay for the
	// handlers that come after the proxy.
	server *http.Request
}

// whole reports whether the body was read to its end, so that it can be sent
// more than once.
func (rp *replay) whole() bool { return rp.rest == nil && rp.err == nil }

func (rp *replay) bytes() []byte {
	if p := rp.data.Load(); p != nil {
		return *p
	}
	return nil
}

// reader gives the body for an upstream, from its first byte. A body that was not
// read to its end can be given out once with its rest; the rest is the client's
// own stream.
func (rp *replay) reader() io.ReadCloser {
	r := rp.original()
	if parts := rp.outgoing.Load(); parts != nil {
		r.parts = *parts
	}
	return r
}

// original is reader for handlers that come after the proxy: the body as it came.
func (rp *replay) original() *replayReader {
	r := &replayReader{rp: rp, rest: rp.rest}
	if r.one[0] = rp.bytes(); len(r.one[0]) > 0 {
		r.parts = r.one[:]
	}
	return r
}

// alter changes what upstreams are sent, and tells by how much longer it is. The
// body was read to its end.
func (rp *replay) alter(edits []tokenize.Edit) (longer int64) {
	data := rp.bytes()
	parts := make([][]byte, 0, 2*len(edits)+1)
	at := 0
	for _, e := range edits {
		parts = append(parts, data[at:e.Start], []byte(e.Text))
		longer += int64(len(e.Text) - (e.End - e.Start))
		at = e.End
	}
	parts = append(parts, data[at:])
	rp.outgoing.Store(&parts)
	return longer
}

// held reports whether the bytes are still kept.
func (rp *replay) held() bool { return rp != nil && rp.data.Load() != nil }

// drop lets go of the bytes and of their share of the budget.
func (rp *replay) drop() {
	if rp == nil {
		return
	}
	rp.data.Store(nil)
	rp.outgoing.Store(nil)
	if n := rp.taken.Swap(0); n > 0 {
		rp.budget.give(n)
	}
}

// dropServed also takes the bytes away from the request that later handlers
// see. Only for the request's goroutine, and only once a response has begun:
// a proxy that has sent its request leaves nothing of the body behind.
func (rp *replay) dropServed() {
	if rp == nil {
		return
	}
	if rp.server != nil {
		if r, ok := rp.server.Body.(*replayReader); ok && r.rp == rp {
			rp.server.Body = http.NoBody
		}
		rp.server = nil
	}
	rp.drop()
}

// replayReader reads a replay from its beginning, then what follows it.
type replayReader struct {
	rp    *replay
	parts [][]byte  // others may read them too
	one   [1][]byte // room for the parts of a body as it came
	part  int       // the part being read
	off   int       // in it
	rest  io.Reader
}

// begun reports whether anything of it was read.
func (r *replayReader) begun() bool { return r.part > 0 || r.off > 0 }

func (r *replayReader) Read(p []byte) (int, error) {
	for r.part < len(r.parts) {
		n := copy(p, r.parts[r.part][r.off:])
		if r.off += n; r.off == len(r.parts[r.part]) {
			r.part++
			r.off = 0
		}
		if n > 0 || len(p) == 0 {
			return n, nil
		}
	}
	if r.rest != nil {
		return r.rest.Read(p)
	}
	if r.rp.err != nil {
		return 0, r.rp.err
	}
	return 0, io.EOF
}

// WriteTo lets a transport take the bytes without a buffer of its own.
func (r *replayReader) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for r.part < len(r.parts) {
		n, err := w.Write(r.parts[r.part][r.off:])
		r.off += n
		total += int64(n)
		if err != nil {
			return total, err
		}
		r.part++
		r.off = 0
	}
	if r.rest != nil {
		n, err := io.Copy(w, r.rest)
		return total + n, err
	}
	return total, r.rp.err
}

// Close leaves a replayed body open, since the next attempt starts over; the
// server closes the client's body when the handler returns. A body with a
// live rest is closed as it would be without us.
func (r *replayReader) Close() error {
	if r.rest != nil && r.rp.closer != nil && r.begun() {
		return r.rp.closer.Close()
	}
	return nil
}

// install points the proxy's request and the one that later handlers see at
// the replay.
func (rp *replay) install(r, server *http.Request) {
	r.Body = rp.reader()
	if rp.whole() {
		r.GetBody = func() (io.ReadCloser, error) { return rp.reader(), nil }
	}
	if server != nil {
		server.Body = rp.original()
		rp.server = server
	}
}

// rewind gives the next attempt the body from its first byte.
func (rp *replay) rewind(r *http.Request) {
	if rp != nil && rp.whole() && rp.bytes() != nil {
		r.Body = rp.reader()
	}
}
