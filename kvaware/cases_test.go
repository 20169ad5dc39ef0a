// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

const (
	requestCases = "../testdata/requests"
	streamCases  = "../testdata/streams"
)

type requestCase struct {
	Method       string            `json:"method"`
	Path         string            `json:"path"`
	Headers      map[string]string `json:"headers"`
	TokenBearing bool              `json:"token_bearing"`
	Accept       struct {
		TokenBearing []bool `json:"token_bearing"`
	} `json:"accept"`
	body []byte
}

// eachRequestCase calls f for every request body from the field.
func eachRequestCase(t *testing.T, f func(t *testing.T, name string, c requestCase)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(requestCases, "*.expect.json"))
	if err != nil || len(files) < 30 {
		t.Fatalf("%d cases, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".expect.json")
		var c requestCase
		readJSON(t, file, &c)
		for _, ending := range []string{".json", ".bin", ".json.gz"} {
			if data, err := os.ReadFile(filepath.Join(requestCases, name+ending)); err == nil {
				c.body = data
			}
		}
		t.Run(name, func(t *testing.T) { f(t, name, c) })
	}
}

func readJSON(t *testing.T, file string, v any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func TestEveryRequestReachesTheUpstreamByteForByte(t *testing.T) {
	engine := proxytest.NewEngine(t, proxytest.Tokens(1))
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	client := c.Client("site")

	send := func(t *testing.T, rc requestCase, chunked bool) {
		t.Helper()
		var body io.Reader
		if len(rc.body) > 0 {
			body = bytes.NewReader(rc.body)
		}
		req, err := http.NewRequest(rc.Method, "http://site"+rc.Path, body)
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range rc.Headers {
			req.Header.Set(k, v)
		}
		if chunked {
			req.ContentLength = -1
			if body == nil {
				return
			}
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		proxytest.ReadAll(t, res)
		seen := engine.Requests()
		last := seen[len(seen)-1]
		if last.Body != string(rc.body) || last.ReadError != nil {
			t.Errorf("chunked=%v: the upstream got %d bytes (%v), the client sent %d", chunked, len(last.Body), last.ReadError, len(rc.body))
		}
		if last.Method != rc.Method || last.Path != rc.Path || last.Length != req.ContentLength {
			t.Errorf("chunked=%v: the upstream got %s %s of length %d, the client sent %s %s of %d",
				chunked, last.Method, last.Path, last.Length, rc.Method, rc.Path, req.ContentLength)
		}
		if got := last.Header.Get("Content-Encoding"); got != rc.Headers["Content-Encoding"] {
			t.Errorf("Content-Encoding %q became %q", rc.Headers["Content-Encoding"], got)
		}
		tokens := res.Header.Get("X-KV-Aware-Prompt-Tokens") != "0"
		accept := append([]bool{rc.TokenBearing}, rc.Accept.TokenBearing...)
		for _, ok := range accept {
			if ok == tokens {
				return
			}
		}
		t.Errorf("chunked=%v: prompt found: %v, want one of %v", chunked, tokens, accept)
	}

	eachRequestCase(t, func(t *testing.T, name string, rc requestCase) {
		send(t, rc, false)
		send(t, rc, true)
		wantIdle(t)
	})

	full := requestCase{Method: "POST", Path: "/v1/chat/completions", Headers: map[string]string{"Content-Type": "application/json"}, TokenBearing: true}
	head, tail := `{"model":"m","messages":[{"role":"user","content":"`, `"}]}`
	filler := strings.Repeat("word ", (DefaultMaxBody-len(head)-len(tail))/5+1)[:DefaultMaxBody-len(head)-len(tail)]
	full.body = []byte(head + filler + tail)
	t.Run("chat_16mib_exactly", func(t *testing.T) {
		send(t, full, false)
		send(t, full, true)
		wantIdle(t)
	})
	full.body, full.TokenBearing = append(full.body, ' '), false
	t.Run("chat_16mib_and_one_byte", func(t *testing.T) {
		send(t, full, false)
		send(t, full, true)
		wantIdle(t)
	})

	plain := full
	plain.body, _ = os.ReadFile(filepath.Join(requestCases, "chat_plain.json"))
	for n := 1; n < len(plain.body); n++ {
		cut := plain
		cut.body = plain.body[:n]
		send(t, cut, false)
	}
	wantIdle(t)
}

type streamCase struct {
	File            string          `json:"file"`
	Path            string          `json:"path"`
	Status          int             `json:"status"`
	ContentType     string          `json:"content_type"`
	ContentEncoding string          `json:"content_encoding"`
	Request         json.RawMessage `json:"request"`
	ExpectedCount   int             `json:"expected_count"`
	End             string          `json:"end"`
	Deliver         struct {
		SplitAt []int `json:"split_at"`
	} `json:"deliver"`
	Accept struct {
		ExpectedCount []int `json:"expected_count"`
	} `json:"accept"`
}

// requestFor words the request of a stream case for its path.
func (sc streamCase) requestFor(t *testing.T) string {
	t.Helper()
	fields := make(map[string]any)
	if len(sc.Request) > 0 {
		if err := json.Unmarshal(sc.Request, &fields); err != nil {
			t.Fatal(err)
		}
	}
	if _, stated := fields["stream"]; !stated && strings.HasSuffix(sc.File, ".sse") {
		fields["stream"] = true
	}
	fields["model"] = "m"
	set := func(key string, value any) {
		if _, ok := fields[key]; !ok {
			fields[key] = value
		}
	}
	switch {
	case strings.HasSuffix(sc.Path, "/chat/completions"), strings.HasSuffix(sc.Path, "/messages"), sc.Path == "/api/chat":
		set("messages", []any{map[string]any{"role": "user", "content": "x"}})
	case strings.HasSuffix(sc.Path, "/responses"), strings.HasSuffix(sc.Path, "/embeddings"):
		set("input", "x")
	case sc.Path == "/generate":
		set("text", "x")
	case sc.Path == "/generate_stream":
		set("inputs", "x")
	default:
		set("prompt", "x")
	}
	data, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestEveryStreamReachesTheClientByteForByteAndLeavesNoLoad(t *testing.T) {
	var answer func(w http.ResponseWriter)
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) { answer(w) })
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))

	files, err := filepath.Glob(filepath.Join(streamCases, "*.expect.json"))
	if err != nil || len(files) < 30 {
		t.Fatalf("%d cases, %v", len(files), err)
	}
	for _, file := range files {
		var sc streamCase
		readJSON(t, file, &sc)
		data, err := os.ReadFile(filepath.Join(streamCases, sc.File))
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".expect.json"), func(t *testing.T) {
			deliveries := map[string][][]byte{
				"whole": {data}, "by 1": pieces(data, 1), "by 7": pieces(data, 7), "by 64": pieces(data, 64),
			}
			if at := sc.Deliver.SplitAt; len(at) > 0 {
				deliveries["split_at"] = splitAt(data, at)
			}
			for how, parts := range deliveries {
				before := loads(t).GeneratedTokens
				answer = func(w http.ResponseWriter) { deliver(w, sc, parts) }
				req, _ := http.NewRequest("POST", "http://site"+sc.Path, strings.NewReader(sc.requestFor(t)))
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Accept-Encoding", "identity")
				res, err := c.Client("site").Do(req)
				if err != nil {
					t.Fatalf("%s: %v", how, err)
				}
				got, err := io.ReadAll(res.Body)
				res.Body.Close()
				if cut := sc.End == "cut"; (err != nil) != cut {
					t.Errorf("%s: reading ended with %v, cut: %v", how, err, cut)
				}
				if !bytes.Equal(got, data) {
					t.Errorf("%s: the client got %d bytes, the upstream sent %d", how, len(got), len(data))
				}
				if res.StatusCode != sc.Status || res.Header.Get("Content-Type") != sc.ContentType || res.Header.Get("Content-Encoding") != sc.ContentEncoding {
					t.Errorf("%s: the client got %d %v", how, res.StatusCode, res.Header)
				}
				wantIdle(t)
				count := int(loads(t).GeneratedTokens - before)
				if !contains(append(sc.Accept.ExpectedCount, sc.ExpectedCount), count) && sc.ContentEncoding == "" {
					t.Errorf("%s: counted %d tokens, want %d", how, count, sc.ExpectedCount)
				}
				// Each delivery starts from an upstream of which nothing is known.
				defaultPool(t).forgetEverything()
			}
		})
	}
}

// forgetEverything makes a test's upstreams unknown again.
func (pl *pool) forgetEverything() {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for address, u := range pl.byAddress {
		u.removed.Store(true)
		delete(pl.byAddress, address)
	}
	clear(pl.byDial)
}

func deliver(w http.ResponseWriter, sc streamCase, parts [][]byte) {
	w.Header().Set("Content-Type", sc.ContentType)
	if sc.ContentEncoding != "" {
		w.Header().Set("Content-Encoding", sc.ContentEncoding)
	}
	w.WriteHeader(sc.Status)
	flush := http.NewResponseController(w)
	for _, part := range parts {
		_, _ = w.Write(part)
		_ = flush.Flush()
	}
	if sc.End == "cut" {
		panic(http.ErrAbortHandler)
	}
}

func pieces(data []byte, size int) [][]byte {
	var parts [][]byte
	for len(data) > size {
		parts = append(parts, data[:size])
		data = data[size:]
	}
	return append(parts, data)
}

func splitAt(data []byte, at []int) [][]byte {
	var parts [][]byte
	from := 0
	for _, to := range at {
		parts = append(parts, data[from:to])
		from = to
	}
	return append(parts, data[from:])
}

func contains(all []int, n int) bool {
	for _, m := range all {
		if m == n {
			return true
		}
	}
	return false
}

func TestACompressedStreamIsCountedByEstimateAndPassesUntouched(t *testing.T) {
	var zipped bytes.Buffer
	zw := gzip.NewWriter(&zipped)
	data, err := os.ReadFile(filepath.Join(streamCases, "vllm_chat_usage_final.sse"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = zw.Write(data)
	_ = zw.Close()
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		deliver(w, streamCase{Status: 200, ContentType: "text/event-stream", ContentEncoding: "gzip"}, pieces(zipped.Bytes(), 50))
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	req, _ := http.NewRequest("POST", "http://site/v1/chat/completions", strings.NewReader(chat("hello", true)))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept-Encoding", "gzip")
	res, err := c.Client("site").Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if got := proxytest.ReadAll(t, res); got != zipped.String() || res.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("the client got %d bytes, the upstream sent %d", len(got), zipped.Len())
	}
	wantIdle(t)
	if n := loads(t).GeneratedTokens; n < 1 || n > 100 {
		t.Errorf("estimated %d tokens of a stream of 7", n)
	}
}
