// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"io"
	"net/http"
	"sync/atomic"
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
	data   atomic.Pointer[[]byte]
	budget *bodyBudget
	taken  atomic.Int64 // bytes of the budget to be given back

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

// reader gives a body that starts at the first byte. A body that was not read
// to its end can be given out once with its rest; the rest is the client's
// own stream.
func (rp *replay) reader() io.ReadCloser {
	r := &replayReader{rp: rp, data: rp.bytes()}
	if rp.rest != nil {
		r.rest = rp.rest
	}
	return r
}

// held reports whether the bytes are still kept.
func (rp *replay) held() bool { return rp != nil && rp.data.Load() != nil }

// drop lets go of the bytes and of their share of the budget.
func (rp *replay) drop() {
	if rp == nil {
		return
	}
	rp.data.Store(nil)
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
	rp   *replay
	data []byte
	off  int
	rest io.Reader
}

func (r *replayReader) Read(p []byte) (int, error) {
	if r.off < len(r.data) {
		n := copy(p, r.data[r.off:])
		r.off += n
		return n, nil
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
	if r.off < len(r.data) {
		n, err := w.Write(r.data[r.off:])
		r.off += n
		total = int64(n)
		if err != nil {
			return total, err
		}
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
	if r.rest != nil && r.rp.closer != nil && r.off > 0 {
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
		server.Body = rp.reader()
		rp.server = server
	}
}

// rewind gives the next attempt the body from its first byte.
func (rp *replay) rewind(r *http.Request) {
	if rp != nil && rp.whole() && rp.bytes() != nil {
		r.Body = rp.reader()
	}
}
