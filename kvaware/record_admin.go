// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bufio"
	"encoding/json"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
)

const (
	defaultRecording = 10 * time.Minute
	maxRecording     = 24 * time.Hour
	// recordGrace is how long requests that run when the time is over may take to end.
	recordGrace = time.Minute
	// recordStall is how long a client may take nothing of what is ready.
	recordStall = 10 * time.Second
)

// RecordingTrailer is the HTTP trailer in which GET /kv_aware/record says at its end
// what became of the recording: a [Recording] as JSON.
const RecordingTrailer = "Kv-Aware-Recording"

// Recording sums up a recording. Requests that were retried count once.
type Recording struct {
	Ended      string `json:"ended"`      // what ended it: duration or reload
	Lines      int64  `json:"lines"`      // written, one for each choice of each prompt
	Recorded   int64  `json:"recorded"`   // requests in them
	Failed     int64  `json:"failed"`     // left out: not answered with a success
	Unread     int64  `json:"unread"`     // left out: the prompt was not read
	Unfinished int64  `json:"unfinished"` // left out: still running
	Dropped    int64  `json:"dropped"`    // left out: lines were not taken as fast as they came
}

// record answers GET /kv_aware/record[?pool=][&duration=] with the pool's requests
// as a trace: JSON lines in the order of arrival, each written once the request and
// all before it have ended. It ends after the duration and once what runs then has
// ended, with the configuration, or when the client leaves.
func record(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		return refuse(http.StatusMethodNotAllowed, "method not allowed: use GET")
	}
	query := r.URL.Query()
	duration := defaultRecording
	if query.Has("duration") {
		var err error
		if duration, err = caddy.ParseDuration(query.Get("duration")); err != nil || duration <= 0 || duration > maxRecording {
			return refuse(http.StatusBadRequest, "duration: expecting one up to 24h, such as 10m")
		}
	}
	v, err := poolToAsk(query)
	if err != nil {
		return err
	}
	rec := newRecording(v.pool, v.params.blockSize)
	if !v.pool.recordings.begin(rec) {
		return refuse(http.StatusTooManyRequests, "%d recordings of this pool are under way already: end one of them, or try again later", maxRecordings)
	}
	defer v.pool.recordings.leave(rec)
	rec.serve(w, r, duration)
	return nil
}

// serve writes the recording to the client until it is over.
func (rec *recording) serve(w http.ResponseWriter, r *http.Request, duration time.Duration) {
	conn := http.NewResponseController(w)
	// The server's read timeout is for requests, and would end this one.
	_ = conn.SetReadDeadline(time.Time{})
	defer func() { _ = conn.SetWriteDeadline(time.Time{}) }()
	w.Header().Set("Content-Type", "application/jsonl")
	w.Header().Set("Trailer", RecordingTrailer)
	w.WriteHeader(http.StatusOK)
	// A client that takes nothing more is left.
	buffer := bufio.NewWriterSize(stallingWriter{w, conn}, 32<<10)
	flush := func() error {
		if err := buffer.Flush(); err != nil {
			return err
		}
		return conn.Flush()
	}
	lines := newLineWriter(rec, buffer)
	ended, err := rec.run(r, duration, lines, flush)
	rec.close()
	sum := rec.summary(ended, lines.lines)
	caddy.Log().Named("admin.api.kv_aware").Info("recording ended",
		zap.String("pool", rec.pool.name),
		zap.String("by", ended),
		zap.Int64("recorded", sum.Recorded),
		zap.Int64("failed", sum.Failed),
		zap.Int64("unread", sum.Unread),
		zap.Int64("unfinished", sum.Unfinished),
		zap.Int64("dropped", sum.Dropped))
	if err != nil {
		panic(http.ErrAbortHandler) // so that the answer does not look whole
	}
	if text, err := json.Marshal(sum); err == nil {
		w.Header().Set(RecordingTrailer, string(text))
	}
}

// stallingWriter gives each write so long to be taken.
type stallingWriter struct {
	w    http.ResponseWriter
	conn *http.ResponseController
}

func (s stallingWriter) Write(p []byte) (int, error) {
	_ = s.conn.SetWriteDeadline(time.Now().Add(recordStall))
	return s.w.Write(p)
}

// run writes lines until the recording is over, and tells by what.
func (rec *recording) run(r *http.Request, duration time.Duration, lines *lineWriter, flush func() error) (ended string, err error) {
	over := time.NewTimer(duration)
	defer over.Stop()
	ended = "client"
	last, done := false, false // no more requests come in; none is waited for
	stopped := rec.stopped
	for {
		w, ok, left := rec.take(done)
		if ok {
			if err := lines.write(w); err != nil {
				return "client", err
			}
			continue
		}
		if err := flush(); err != nil {
			return "client", err
		}
		if done || last && left == 0 {
			return ended, nil
		}
		select {
		case <-rec.wake:
		case <-over.C:
			if last {
				done = true
				break
			}
			last, ended = true, "duration"
			rec.close()
			over.Reset(recordGrace)
		case <-stopped:
			rec.close()
			stopped, done, ended = nil, true, "reload"
		case <-r.Context().Done():
			return "client", r.Context().Err()
		}
	}
}

// summary says what became of the requests up to now.
func (rec *recording) summary(ended string, lines int64) Recording {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return Recording{
		Ended:      ended,
		Lines:      lines,
		Recorded:   rec.counts[resultRecorded],
		Failed:     rec.counts[resultFailed],
		Unread:     rec.counts[resultUnread],
		Unfinished: rec.counts[resultUnfinished],
		Dropped:    rec.counts[resultDropped],
	}
}
