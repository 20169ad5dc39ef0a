// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/kvaware/caddy-kvaware/kvaware/enginesim"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/trace"
)

func TestRecordWritesATraceThatReplays(t *testing.T) {
	const engines = `http://site {
	bind {SITE}
	reverse_proxy unix/{DIR}/site2.1 {
		lb_policy kv_aware
	}
}
http:// {
	bind {SITE2}
	kv_aware_engine {
		speed 1000
		output 20
	}
}
`
	c, address := start(t, engines)
	file := filepath.Join(t.TempDir(), "traffic.jsonl")
	type ran struct {
		out string
		err error
	}
	done := make(chan ran)
	go func() {
		out, err := run(t, "", "record", "--address", address, "--output", file)
		done <- ran{out, err}
	}()
	// Requests count once the recording has begun.
	for written := false; !written; {
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("geheim ", 300)+`"}]}`))
		<-time.After(time.Millisecond)
		info, err := os.Stat(file)
		written = err == nil && info.Size() > 0
	}
	c.Reload("", engines)
	r := <-done
	if r.err != nil || !strings.HasPrefix(r.out, "Recorded ") || !strings.Contains(r.out, "It ended early") {
		t.Errorf("%v: %s", r.err, r.out)
	}
	text, err := os.ReadFile(file)
	if err != nil || strings.Contains(string(text), "geheim") {
		t.Errorf("%v: %s", err, text)
	}
	tr, err := trace.Load(file, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if tr.Prompt < 300 || tr.Output < 5 || tr.Output > 35 {
		t.Errorf("%+v", tr)
	}
	if out := succeed(t, "", "replay", "--trace", file, "--replicas", "2", "--policies", "kv_aware", "--load", "trace", "--html", ""); !strings.Contains(out, "kv_aware") {
		t.Errorf("replays as %s", out)
	}
}

func TestRecordSaysHowItEndedAndWritesWholeLines(t *testing.T) {
	const line = `{"timestamp":0,"input_length":5,"output_length":9}` + "\n"
	for _, c := range []struct {
		body, trailer string
		abort         bool
		out, err      string
	}{
		{body: line, trailer: `{"ended":"duration","recorded":1,"lines":1}`, out: line + "Recorded 1 request.\n"},
		{body: line + line, trailer: `{"ended":"reload","recorded":1,"lines":2,"failed":1,"unread":2,"unfinished":3,"dropped":4}`, out: line + line +
			"Recorded 1 request in 2 lines.\nLeft out: 1 request that failed.\nLeft out: 2 requests that had a prompt that was not read.\n" +
			"Left out: 3 requests that did not end in time.\nLeft out: 4 requests that came faster than their lines were taken.\n" +
			"It ended early: Caddy's configuration was replaced.\n"},
		{body: line, out: line, err: "breaks off"},
		{body: line + line[:9], abort: true, out: line, err: "(1 line written)"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/kv_aware/record" || r.URL.Query().Get("duration") != "5m" || r.URL.Query().Get("pool") != "big" {
				t.Errorf("asks %s", r.URL)
			}
			w.Header().Set("Trailer", "Kv-Aware-Recording")
			_, _ = io.WriteString(w, c.body)
			_ = http.NewResponseController(w).Flush()
			if c.abort {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Kv-Aware-Recording", c.trailer)
		}))
		out, err := run(t, "", "record", "--address", strings.TrimPrefix(server.URL, "http://"), "--duration", "5m", "--pool", "big")
		server.Close()
		if out != c.out || fmt.Sprint(err) == "<nil>" != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("prints %q and %v", out, err)
		}
	}
	_, address := start(t, site)
	fails(t, "", []string{"record", "--address", address, "--duration", "1y"}, "duration", "10m")
	fails(t, "", []string{"record", "--address", address, "--output", t.TempDir()}, "is a directory")
}
