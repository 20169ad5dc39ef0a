// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const casesDir = "../../../testdata/streams"

// expectation is a NAME.expect.json.
type expectation struct {
	File             string            `json:"file"`
	Path             string            `json:"path"`
	Status           int               `json:"status"`
	ContentType      string            `json:"content_type"`
	ContentEncoding  string            `json:"content_encoding"`
	Request          map[string]any    `json:"request"`
	GeneratedTokens  *int              `json:"generated_tokens"`
	ExpectedCount    int               `json:"expected_count"`
	NonEmptyDeltas   int               `json:"non_empty_deltas"`
	PromptTokens     *int              `json:"prompt_tokens"`
	CachedTokens     *int              `json:"cached_tokens"`
	Events           int               `json:"events"`
	OutputEvents     int               `json:"output_events"`
	FirstOutputStart *int              `json:"first_output_start"`
	FirstOutputEnd   *int              `json:"first_output_end"`
	EndsNormally     bool              `json:"ends_normally"`
	End              string            `json:"end"`
	FinishReasons    map[string]string `json:"finish_reasons"`
	Bytes            int               `json:"bytes"`
	Accept           map[string][]int  `json:"accept"`
	Deliver          struct {
		SplitAt    []int `json:"split_at"`
		SplitEvery []int `json:"split_every"`
	} `json:"deliver"`

	body []byte
}

func loadCases(tb testing.TB) []expectation {
	tb.Helper()
	names, err := filepath.Glob(filepath.Join(casesDir, "*.expect.json"))
	if err != nil || len(names) == 0 {
		tb.Fatalf("no cases in %s: %v", casesDir, err)
	}
	var cases []expectation
	for _, name := range names {
		var x expectation
		b, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(b, &x)
		}
		if err == nil {
			x.body, err = os.ReadFile(filepath.Join(casesDir, x.File))
		}
		if err != nil {
			tb.Fatalf("%s: %v", name, err)
		}
		cases = append(cases, x)
	}
	return cases
}

func (x *expectation) options() Options {
	o := Options{
		Status: x.Status, ContentType: x.ContentType, ContentEncoding: x.ContentEncoding,
		Sequences: 1, Pooling: strings.HasSuffix(x.Path, "/embeddings"),
	}
	o.Streamed, _ = x.Request["stream"].(bool)
	if n, ok := x.Request["n"].(float64); ok {
		o.Sequences, o.Choices = int(n), int(n)
	}
	if in, ok := x.Request["input"].([]any); ok {
		o.Sequences = len(in)
	}
	return o
}

// deliveries gives the ways to cut the body, as lists of piece ends.
func (x *expectation) deliveries() map[string][]int {
	n := len(x.body)
	every := func(k int) (ends []int) {
		for i := k; i < n; i += k {
			ends = append(ends, i)
		}
		return append(ends, n)
	}
	ways := map[string][]int{"whole": {n}}
	for _, k := range append([]int{1, 2, 3, 7, 64, 4096}, x.Deliver.SplitEvery...) {
		ways["every "+strconv.Itoa(k)] = every(k)
	}
	if at := x.Deliver.SplitAt; len(at) > 0 {
		ways["split_at"] = append(slices.Clone(at), n)
	}
	var crlf []int
	for i := range x.body[:n-1] {
		if x.body[i] == '\r' && x.body[i+1] == '\n' {
			crlf = append(crlf, i+1)
		}
	}
	if len(crlf) > 0 {
		ways["between CR and LF"] = append(crlf, n)
	}
	return ways
}

// record is a Sink that checks the contract while it remembers.
type record struct {
	tb        testing.TB
	started   map[int]bool // visible
	generated map[int]int
	finished  map[int]bool
	calls     int
}

func newRecord(tb testing.TB) *record {
	return &record{tb: tb, started: map[int]bool{}, generated: map[int]int{}, finished: map[int]bool{}}
}

func (r *record) Started(seq int, visible bool) {
	r.calls++
	before, known := r.started[seq]
	if known && (before || !visible) {
		r.tb.Errorf("Started(%d, %v) again after visible=%v", seq, visible, before)
	}
	r.started[seq] = visible
}

func (r *record) Generated(seq, total int) {
	r.calls++
	if total < 0 {
		r.tb.Errorf("Generated(%d, %d)", seq, total)
	}
	if last, known := r.generated[seq]; known && last == total {
		r.tb.Errorf("Generated(%d, %d) repeated", seq, total)
	}
	r.generated[seq] = total
}

func (r *record) Finished(seq int) {
	r.calls++
	if r.finished[seq] {
		r.tb.Errorf("Finished(%d) again", seq)
	}
	r.finished[seq] = true
}

func (r *record) sum() (n int) {
	for _, g := range r.generated {
		n += g
	}
	return n
}

func (r *record) visible() bool {
	for _, v := range r.started {
		if v {
			return true
		}
	}
	return false
}

func TestEveryCaseIsReadAsExpectedHoweverItIsCut(t *testing.T) {
	for _, x := range loadCases(t) {
		for way, ends := range x.deliveries() {
			t.Run(x.File+"/"+way, func(t *testing.T) { checkCase(t, &x, ends) })
		}
	}
}

func checkCase(t *testing.T, x *expectation, ends []int) {
	r := newRecord(t)
	var o Observer
	o.Reset(x.options(), r)
	body := bytes.Clone(x.body)
	start, firstOutput := 0, -1
	for _, end := range ends {
		o.Write(body[start:end])
		if firstOutput < 0 && r.visible() {
			firstOutput = end
			if x.FirstOutputEnd != nil && start >= *x.FirstOutputEnd {
				t.Errorf("output seen in bytes %d to %d, too late: the event ends at %d", start, end, *x.FirstOutputEnd)
			}
		}
		start = end
	}
	s := o.End(x.End != "cut")

	if !bytes.Equal(body, x.body) {
		t.Error("the body was changed")
	}
	if x.FirstOutputEnd == nil && len(r.started) > 0 {
		t.Errorf("started %v without output", r.started)
	}
	if x.FirstOutputEnd != nil && firstOutput < *x.FirstOutputEnd {
		t.Errorf("output seen after %d bytes, the event ends at %d", firstOutput, *x.FirstOutputEnd)
	}
	check := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s = %v, want %v", what, got, want)
		}
	}
	check("bytes", len(x.body), x.Bytes)
	check("generated", s.Generated, x.ExpectedCount)
	check("sum of the last Generated calls", r.sum(), s.Generated)
	check("events", s.Events, x.Events)
	check("deltas", s.Deltas, x.NonEmptyDeltas)
	if !slices.Contains(x.Accept["output_events"], s.OutputEvents) {
		check("output events", s.OutputEvents, x.OutputEvents)
	}
	if x.GeneratedTokens != nil {
		check("counted", s.Counted, true)
	}
	if x.PromptTokens != nil {
		check("prompt tokens", s.PromptTokens, *x.PromptTokens)
	} else if x.EndsNormally {
		check("prompt tokens", s.PromptTokens, -1)
	}
	if x.CachedTokens != nil {
		check("cached tokens", s.CachedTokens, *x.CachedTokens)
	} else if s.CachedTokens > 0 && x.EndsNormally {
		t.Errorf("cached tokens = %d, want none", s.CachedTokens)
	}
	check("ended normally", s.EndedNormally, x.EndsNormally)
	check("end", s.End, x.End)
	check("failed", s.Failed, x.End == "error_event" || x.End == "http_error")
	check("finished", len(r.finished) >= len(x.FinishReasons), true)
	for seq, want := range x.FinishReasons {
		i, err := strconv.Atoi(seq)
		if err != nil {
			t.Fatal(err)
		}
		check("finish reason "+seq, o.FinishReason(i), want)
		check("finished "+seq, r.finished[i], true)
	}
}

func TestTheEngineIsKnownByTheFieldsOnlyItSends(t *testing.T) {
	want := map[string]Engine{
		"vllm_chat_usage_final.sse":                  EngineVLLM,
		"vllm_completions_whole_answer_in_one_event": EngineVLLM,
		"sglang_chat":     EngineSGLang,
		"sglang_generate": EngineSGLang,
		"llamacpp":        EngineLlamaCpp,
		"ollama_chat":     EngineOllama,
		"ollama_generate": EngineOllama,
		"tgi_generate":    EngineTGI,
		"azure":           EngineUnknown,
		"mistral":         EngineUnknown,
		"openai_chat":     EngineUnknown,
		"anthropic":       EngineUnknown,
	}
	for _, x := range loadCases(t) {
		for prefix, engine := range want {
			if !strings.HasPrefix(x.File, prefix) {
				continue
			}
			s := observe(t, x.options(), x.body, true)
			if s.Engine != engine {
				t.Errorf("%s: engine %v, want %v", x.File, s.Engine, engine)
			}
		}
	}
}

// observe delivers the body whole and then byte by byte, and requires the same
// summary and the same last words to the sink.
func observe(tb testing.TB, options Options, body []byte, clean bool) Summary {
	tb.Helper()
	s, r := deliver(tb, options, body, len(body), clean)
	s1, r1 := deliver(tb, options, body, 1, clean)
	if s != s1 {
		tb.Errorf("whole: %+v\nby bytes: %+v", s, s1)
	}
	if a, b := fmt.Sprint(r.started, r.generated, r.finished), fmt.Sprint(r1.started, r1.generated, r1.finished); a != b {
		tb.Errorf("sink, whole: %s\nby bytes: %s", a, b)
	}
	if r.sum() != s.Generated {
		tb.Errorf("sum of the last Generated calls is %d, summary says %d", r.sum(), s.Generated)
	}
	return s
}

func deliver(tb testing.TB, options Options, body []byte, size int, clean bool) (Summary, *record) {
	tb.Helper()
	r := newRecord(tb)
	var o Observer
	o.Reset(options, r)
	for piece := range slices.Chunk(body, max(size, 1)) {
		o.Write(piece)
	}
	return o.End(clean), r
}
