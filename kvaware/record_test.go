// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/trace"
)

// recorder reads a recording.
type recorder struct {
	t      testing.TB
	res    *http.Response
	in     *bufio.Reader
	hashes []string // of the line before
	bytes  []byte   // all that came
}

// startRecording begins a recording, which takes requests from when it returns.
func startRecording(t testing.TB, c *proxytest.Caddy, query string) *recorder {
	t.Helper()
	res, err := c.Client("admin").Get("http://127.0.0.1/kv_aware/record" + query)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if res.StatusCode != 200 {
		t.Fatalf("%s: %s", res.Status, proxytest.ReadAll(t, res))
	}
	return &recorder{t: t, res: res, in: bufio.NewReader(res.Body)}
}

// next gives the next line, with all its hashes.
func (r *recorder) next() (line trace.Line) {
	r.t.Helper()
	text, err := r.in.ReadBytes('\n')
	r.bytes = append(r.bytes, text...)
	if err != nil {
		r.t.Fatalf("no further line: %v", err)
	}
	if err := json.Unmarshal(text, &line); err != nil {
		r.t.Fatalf("%v in %s", err, text)
	}
	line.Hashes = append(append([]string(nil), r.hashes[:line.Keep]...), line.Hashes...)
	r.hashes = line.Hashes
	return line
}

// end reads the rest, which has no line, and gives the summary.
func (r *recorder) end() (sum Recording) {
	r.t.Helper()
	if rest, err := io.ReadAll(r.in); err != nil || len(rest) > 0 {
		r.t.Fatalf("ends with %v and %q", err, rest)
	}
	if err := json.Unmarshal([]byte(r.res.Trailer.Get(RecordingTrailer)), &sum); err != nil {
		r.t.Fatal(err)
	}
	return sum
}

// stopRecordings ends all recordings as a reload does.
func stopRecordings(t testing.TB) { defaultPool(t).recordings.stop() }

func sharedStart(a, b []string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func TestARecordingIsATraceOfLengthsAndSharedPrefixesWithoutText(t *testing.T) {
	engine := proxytest.NewEngine(t, proxytest.Tokens(7))
	c := proxytest.Start(t, "", site(engine.Addr(), "isolate_by {header.X-Tenant}", ""))
	rec := startRecording(t, c, "")
	other := startRecording(t, c, "?pool=")
	long := prose("geheim", 600)
	var counts []int
	for i, body := range []string{
		chat(long, true),
		chat(long+prose("mehr", 100), false),
		fmt.Sprintf(`{"model":"geheim","stream":true,"max_tokens":50,"messages":[{"role":"user","content":%q}]}`, long),
	} {
		req, _ := http.NewRequest("POST", "http://site/v1/chat/completions", strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Tenant", []string{"geheim-a", "geheim-a", "geheim-b"}[i])
		res, err := c.Client("site").Do(req)
		if err != nil {
			t.Fatal(err)
		}
		proxytest.ReadAll(t, res)
		var asked Tokenized
		ask(t, c, "POST", "/kv_aware/tokenize", body, 200, &asked)
		counts = append(counts, asked.Prompts[0].Tokens)
	}
	lines := []trace.Line{rec.next(), rec.next(), rec.next()}
	last := 0.0
	for i, line := range lines {
		if line.Input != counts[i] || line.Output != 7 {
			t.Errorf("line %d: %d and %d tokens, want %d and 7", i, line.Input, line.Output, counts[i])
		}
		if line.BlockSize != 64 || len(line.Hashes) != line.Input/64 {
			t.Errorf("line %d: %d hashes of blocks of %d", i, len(line.Hashes), line.BlockSize)
		}
		if line.Timestamp < last {
			t.Errorf("line %d comes before the one before", i)
		}
		last = line.Timestamp
	}
	if n := sharedStart(lines[0].Hashes, lines[1].Hashes); n < len(lines[0].Hashes)-1 {
		t.Errorf("the second prompt begins as the first, but shares %d of %d blocks", n, len(lines[0].Hashes))
	}
	if n := sharedStart(lines[0].Hashes, lines[2].Hashes); n != 0 {
		t.Errorf("tenants and models share %d blocks", n)
	}
	if lines[0].Tenant != 1 || lines[1].Tenant != 1 || lines[2].Tenant != 2 {
		t.Errorf("tenants %d, %d, %d", lines[0].Tenant, lines[1].Tenant, lines[2].Tenant)
	}
	if lines[0].Stream != nil || lines[1].Stream == nil || *lines[1].Stream || lines[2].MaxTokens != 50 {
		t.Errorf("stream and max_tokens: %+v", lines)
	}
	if theirs := other.next(); theirs.Input != lines[0].Input || sharedStart(theirs.Hashes, lines[0].Hashes) != 0 || theirs.Hashes[3] == lines[0].Hashes[3] {
		t.Errorf("two recordings have hashes in common, or other lengths: %+v", theirs)
	}
	other.next()
	other.next()
	stopRecordings(t)
	want := Recording{Ended: "reload", Lines: 3, Recorded: 3}
	if a, b := rec.end(), other.end(); a != want || b != want {
		t.Errorf("they end with %+v and %+v", a, b)
	}
	if text := string(rec.bytes); strings.Contains(text, "geheim") || strings.Contains(text, "mehr") {
		t.Errorf("text in %s", text)
	}
	file := filepath.Join(t.TempDir(), "traffic.jsonl")
	if err := os.WriteFile(file, rec.bytes, 0o600); err != nil {
		t.Fatal(err)
	}
	tr, err := trace.Load(file, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if tr.Requests != 3 || tr.Output != 7 || tr.Prompt != float64(counts[0]+counts[1]+counts[2])/3 {
		t.Errorf("as a trace: %+v", tr)
	}
	src, err := tr.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var chains [][]uint64
	for range 3 {
		s, err := src.Next()
		if err != nil {
			t.Fatal(err)
		}
		chain, _ := s.Turns[0].Hash(64, nil, nil)
		chains = append(chains, chain)
	}
	if chains[0][7] != chains[1][7] || chains[0][0] == chains[2][0] {
		t.Error("prompts of the trace do not begin alike where those of the requests did")
	}
}

func TestLinesComeInTheOrderOfArrivalThoughRequestsEndInAnother(t *testing.T) {
	gate := make(chan struct{})
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.RawQuery, "slow") {
			gated(gate)(w, r)
			return
		}
		proxytest.Tokens(5)(w, r)
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	rec := startRecording(t, c, "")
	slow := c.Post("/v1/chat/completions?slow", chat(prose("s", 100), true))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("f", 200), true)))
	close(gate)
	proxytest.ReadAll(t, slow)
	if a, b := rec.next(), rec.next(); a.Output != 2 || b.Output != 5 || a.Timestamp > b.Timestamp {
		t.Errorf("lines %+v and %+v", a, b)
	}
}

func TestARecordingLeavesOutWhatFailsAndCountsRetriesOnce(t *testing.T) {
	good := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.RawQuery, "bad") {
			http.Error(w, "no", 400)
			return
		}
		proxytest.Tokens(3)(w, r)
	})
	c := proxytest.Start(t, "", site(proxytest.Refused(t)+" "+good.Addr(), "", "lb_retries 3"))
	rec := startRecording(t, c, "")
	for i := range 4 {
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose(fmt.Sprint("r", i), 100), true)))
	}
	proxytest.ReadAll(t, c.Post("/v1/chat/completions?bad", chat(prose("b", 100), true)))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", `{"messages":[`))
	for range 4 {
		if line := rec.next(); line.Output != 3 {
			t.Errorf("%+v", line)
		}
	}
	wantIdle(t)
	stopRecordings(t)
	if sum := rec.end(); sum != (Recording{Ended: "reload", Lines: 4, Recorded: 4, Failed: 1, Unread: 1}) {
		t.Errorf("%+v", sum)
	}
}

func TestAnAnswerThatTheClientLeavesIsRecordedAsFarAsItCame(t *testing.T) {
	gate := make(chan struct{})
	defer close(gate)
	engine := proxytest.NewEngine(t, gated(gate))
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	rec := startRecording(t, c, "")
	ctx, leave := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, "POST", "http://site/v1/chat/completions", strings.NewReader(chat(prose("l", 100), true)))
	res, err := c.Client("site").Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	leave()
	_ = res.Body.Close()
	if line := rec.next(); line.Output != 1 {
		t.Errorf("%+v", line)
	}
}

func TestEachChoiceOfEachPromptHasALine(t *testing.T) {
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"text_completion","choices":[{"index":0,"text":"a"},{"index":1,"text":"b"},{"index":2,"text":"c"},{"index":3,"text":"d"}],"usage":{"prompt_tokens":300,"completion_tokens":40}}`)
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	rec := startRecording(t, c, "")
	proxytest.ReadAll(t, c.Post("/v1/completions", fmt.Sprintf(`{"model":"m","n":2,"prompt":[%q,%q]}`, prose("p", 100), prose("q", 200))))
	var lines []trace.Line
	output := 0
	for range 4 {
		lines = append(lines, rec.next())
		output += lines[len(lines)-1].Output
	}
	if lines[0].Input != lines[1].Input || lines[2].Input != lines[3].Input || lines[0].Input >= lines[2].Input || output != 40 {
		t.Errorf("%+v", lines)
	}
	if n := len(lines[0].Hashes); n == 0 || sharedStart(lines[0].Hashes, lines[1].Hashes) != n || sharedStart(lines[1].Hashes, lines[2].Hashes) != 0 {
		t.Errorf("hashes of %+v", lines)
	}
}

func TestAReloadEndsARecordingWithWhatHasEnded(t *testing.T) {
	gate := make(chan struct{})
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.RawQuery, "slow") {
			gated(gate)(w, r)
			return
		}
		proxytest.Tokens(5)(w, r)
	})
	sites := site(engine.Addr(), "", "")
	c := proxytest.Start(t, "", sites)
	rec := startRecording(t, c, "")
	slow := c.Post("/v1/chat/completions?slow", chat(prose("s", 100), true))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("f", 200), true)))
	wantOneWaitingAsServed(t)
	c.Reload("", sites)
	if line := rec.next(); line.Output != 5 {
		t.Errorf("%+v", line)
	}
	if sum := rec.end(); sum != (Recording{Ended: "reload", Lines: 1, Recorded: 1, Unfinished: 1}) {
		t.Errorf("%+v", sum)
	}
	close(gate)
	proxytest.ReadAll(t, slow)
	if defaultPool(t).recordings.active.Load() != nil {
		t.Error("the recording is still there")
	}
}

// wantOneWaitingAsServed waits until the second request of a recording has ended.
func wantOneWaitingAsServed(t testing.TB) {
	t.Helper()
	rec := (*defaultPool(t).recordings.active.Load())[0]
	eventually(t, "the second request has ended", func() bool {
		rec.mu.Lock()
		defer rec.mu.Unlock()
		return len(rec.waiting) == 2 && rec.waiting[1].result.Load() == recordServed
	})
}
