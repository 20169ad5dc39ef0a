// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bytes"
	"compress/gzip"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestARoleOnlyChunkStartsOnlyWhereTheUpstreamIsKnownForIt(t *testing.T) {
	role := sse(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`)
	text := sse(`{"choices":[{"index":0,"delta":{"content":"a"}}]}`)
	for _, x := range []struct {
		name       string
		roleStarts bool
		body       string
		started    bool
	}{
		{"known", true, role, true},
		{"unknown", false, role, false},
		{"progress of the prefill", true, sse(`{"choices":[{"index":0,"delta":{"role":"assistant","content":null}}],"prompt_progress":{"total":9,"cache":0,"processed":2}}`), false},
		{"no role", true, sse(`{"choices":[{"index":0,"delta":{"role":null,"content":""}}]}`), false},
		{"no choice", true, sse(`{"choices":[],"prompt_filter_results":[]}`), false},
		{"Anthropic", true, sse(`{"type":"message_start","message":{"role":"assistant","content":[],"usage":{"input_tokens":1,"output_tokens":0}}}`), true},
		{"Anthropic, unknown", false, sse(`{"type":"message_start","message":{"role":"assistant","content":[],"usage":{"input_tokens":1,"output_tokens":2}}}`), false},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := newRecord(t)
			var o Observer
			o.Reset(Options{RoleStarts: x.roleStarts}, r)
			o.Write([]byte(x.body))
			visible, started := r.started[0]
			if started != x.started || visible {
				t.Errorf("started %v visible %v, want %v, false", started, visible, x.started)
			}
			o.Write([]byte(text))
			if !r.started[0] {
				t.Error("not started by text")
			}
		})
	}
}

func TestAMovedCounterWithoutTextEndsThePrefill(t *testing.T) {
	r := newRecord(t)
	var o Observer
	o.Reset(Options{}, r)
	o.Write([]byte(sse(`{"choices":[{"index":0,"delta":{"content":""}}],"usage":{"prompt_tokens":4,"completion_tokens":0}}`)))
	if len(r.started) > 0 {
		t.Fatal("started by a counter of zero")
	}
	o.Write([]byte(sse(`{"choices":[{"index":0,"delta":{"content":""}}],"usage":{"prompt_tokens":4,"completion_tokens":2}}`)))
	if visible, started := r.started[0]; !started || visible {
		t.Errorf("started %v visible %v", started, visible)
	}
	if r.generated[0] != 2 {
		t.Errorf("generated %d", r.generated[0])
	}
}

func TestALineThatIsNotTheLastWaitsForItsEnd(t *testing.T) {
	for name, x := range map[string]struct {
		options Options
		body    string
		early   bool
	}{
		"done is false":       {Options{ContentType: "application/json"}, `{"response":"a","done":false}`, false},
		"the label is NDJSON": {Options{ContentType: "application/x-ndjson"}, `{"response":"a"}`, false},
		"a whole answer":      {Options{ContentType: "application/json"}, `{"response":"a","done":true}`, true},
	} {
		r := newRecord(t)
		var o Observer
		o.Reset(x.options, r)
		o.Write([]byte(x.body))
		if r.visible() != x.early {
			t.Errorf("%s: output seen at the bracket: %v", name, r.visible())
		}
		o.Write([]byte("\n"))
		if !r.visible() {
			t.Errorf("%s: output not seen at the line's end", name)
		}
	}
}

func TestOneObserverServesResponseAfterResponse(t *testing.T) {
	cases := loadCases(t)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	var o Observer
	for _, x := range append(cases, cases...) {
		want, _ := deliver(t, x.options(), x.body, 9, true)
		o.Reset(x.options(), newRecord(t))
		o.Write(x.body)
		if got := o.End(true); got != want {
			t.Errorf("%s: %+v, want %+v", x.File, got, want)
		}
		if again := o.End(false); again.Generated != want.Generated || again.Events != want.Events {
			t.Errorf("%s: a second End gives %+v", x.File, again)
		}
		o.Write(x.body)
	}
}

func TestRandomCutsChangeNothing(t *testing.T) {
	chance := rand.New(rand.NewPCG(3, 4))
	for _, x := range loadCases(t) {
		want, _ := deliver(t, x.options(), x.body, len(x.body), true)
		for range 50 {
			r := newRecord(t)
			var o Observer
			o.Reset(x.options(), r)
			for rest := x.body; len(rest) > 0; {
				n := min(1+chance.IntN(1+chance.IntN(200)), len(rest))
				o.Write(rest[:n])
				rest = rest[n:]
			}
			if got := o.End(true); got != want {
				t.Fatalf("%s: %+v, want %+v", x.File, got, want)
			}
		}
	}
}

func TestATornEventCountsForNothing(t *testing.T) {
	for _, x := range loadCases(t) {
		if !strings.HasSuffix(x.File, ".sse") || x.File == "sse_crlf.sse" {
			continue
		}
		whole := 0 // bytes of whole events
		want, _ := deliver(t, x.options(), nil, 1, false)
		for n := range x.body {
			torn := x.body[:n]
			if bytes.HasSuffix(torn, []byte("\n\n")) {
				whole = n
				want, _ = deliver(t, x.options(), torn, n, false)
			}
			if bytes.Contains(torn[whole:], []byte("[DONE]")) {
				continue // the end marker needs no empty line
			}
			got, _ := deliver(t, x.options(), torn, n, false)
			want.Streamed = got.Streamed // known from the first byte on
			if got != want {
				t.Fatalf("%s cut at %d: %+v, want %+v", x.File, n, got, want)
			}
		}
	}
}

func TestATotalIsSharedOutInProportion(t *testing.T) {
	for _, x := range []struct {
		deltas []int
		total  int
		want   []int
	}{
		{[]int{1, 1}, 10, []int{5, 5}},
		{[]int{1, 1, 1}, 10, []int{3, 3, 4}},
		{[]int{3, 0, 1}, 8, []int{6, 0, 2}},
		{[]int{0, 0}, 7, []int{3, 4}},
		{[]int{5, 5}, 1, []int{0, 1}},
	} {
		r := newRecord(t)
		var o Observer
		o.Reset(Options{Sequences: len(x.deltas)}, r)
		for i, n := range x.deltas {
			index := string(rune('0' + i))
			o.Write([]byte(sse(`{"choices":[{"index":` + index + `,"delta":{}}]}`)))
			for range n {
				o.Write([]byte(sse(`{"choices":[{"index":` + index + `,"delta":{"content":"a"}}]}`)))
			}
		}
		o.Write([]byte(sse(`{"choices":[],"usage":{"completion_tokens":` + strconv.Itoa(x.total) + `}}`)))
		s := o.End(true)
		for i, want := range x.want {
			if r.generated[i] != want {
				t.Errorf("%v total %d: sequence %d has %d, want %d", x.deltas, x.total, i, r.generated[i], want)
			}
		}
		if s.Generated != x.total || r.sum() != x.total || !s.Counted {
			t.Errorf("%v: %d of %d, sink %d, counted %v", x.deltas, s.Generated, x.total, r.sum(), s.Counted)
		}
	}
}

func TestACompressedStreamIsEstimatedFromItsBytes(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	const tokens = 400
	words := strings.Fields("the tide leaves small bright pools where crabs argue over nothing and gulls keep score all afternoon")
	for i := range tokens {
		_, _ = z.Write([]byte(sse(`{"id":"chatcmpl-9f2c","object":"chat.completion.chunk","created":1764400001,"model":"qwen3-8b","choices":[{"index":0,"delta":{"content":" ` + words[i*7%len(words)] + `"},"logprobs":null,"finish_reason":null}]}`)))
		_ = z.Flush()
	}
	_ = z.Close()
	options := Options{ContentEncoding: "gzip", Streamed: true, Sequences: 2}
	s := observe(t, options, b.Bytes(), true)
	if s.Generated < tokens/2 || s.Generated > tokens*2 {
		t.Errorf("estimated %d of %d tokens from %d bytes", s.Generated, tokens, b.Len())
	}
	if s.Counted || s.Events != 0 || !s.EndedNormally {
		t.Errorf("%+v", s)
	}
	if s, r := deliver(t, options, b.Bytes()[:10], 10, false); s.Generated != 0 || len(r.started) != 0 || s.EndedNormally {
		t.Errorf("the header alone gives %+v, started %v", s, r.started)
	}
	if s, _ := deliver(t, Options{ContentEncoding: "br", Status: 500}, b.Bytes(), 100, true); s.Generated != 0 || !s.Failed {
		t.Errorf("an error page gives %+v", s)
	}
	if s, _ := deliver(t, Options{ContentEncoding: "Identity"}, []byte(sse(`[DONE]`)), 100, true); s.End != EndDone {
		t.Errorf("identity gives %+v", s)
	}
}

// flood repeats a piece until n bytes were written.
func flood(o *Observer, piece string, n int) {
	p := []byte(piece)
	for ; n > 0; n -= len(p) {
		o.Write(p)
	}
}

func TestAHugeAnswerIsNotBuffered(t *testing.T) {
	size := 100 << 20
	run := func(name, head, piece, tail string, want int) {
		t.Run(name, func(t *testing.T) {
			r := newRecord(t)
			var o Observer
			o.Reset(Options{}, r)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			o.Write([]byte(head))
			flood(&o, piece, size)
			if n := cap(o.tally.sequences); n > 8 {
				t.Errorf("%d sequences held", n)
			}
			o.Write([]byte(tail))
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
				t.Errorf("%d bytes allocated", used)
			}
			if s := o.End(true); s.Generated != want {
				t.Errorf("generated %d, want %d: %+v", s.Generated, want, s)
			}
		})
	}
	usage := `,"usage":{"prompt_tokens":3,"completion_tokens":5}}`
	run("text", `{"choices":[{"message":{"content":"`, strings.Repeat(`word \"quoted\" \\ `, 2000), `"}}]`+usage, 5)
	size = 2 << 20
	run("numbers", `{"logits":[`, strings.Repeat("0.0123, ", 4000), `0],"choices":[{"message":{"content":"a"}}]`+usage, 5)
	run("a key", `{"`, strings.Repeat("key", 9000), `":1,"choices":[{"message":{"content":"a"}}]`+usage, 5)
	run("one event", `data: {"choices":[{"delta":{"content":"`, strings.Repeat("word ", 8000), `"}}]`+usage+"\n\n", 5)
	run("a line without end", "", strings.Repeat("noise", 9000), "", 0)
	run("a comment", ":", strings.Repeat("noise", 9000), "\n"+sse(`{"choices":[{"delta":{"content":"a"}}]}`), 1)
	run("deep nesting", `{"x":`, strings.Repeat("[", 9000), "", 0)
	run("choices without end", `{"choices":[`, strings.Repeat(`{"index":7000,"delta":{"content":"a"}},`, 900), `]`+usage, 5)
	run("escapes", `{"choices":[{"message":{"content":"`, strings.Repeat(`\`, 9000), `"}}]`+usage, 5)
}

func TestAnEventInSteadyStateAllocatesNothing(t *testing.T) {
	for name, event := range steadyEvents {
		var o Observer
		o.Reset(Options{Sequences: 2, TokensPerDelta: 1.5}, nothing{})
		events := variants(event)
		o.Write(events[0])
		p, i := events[0], 0
		if n := testing.AllocsPerRun(1000, func() { o.Write(events[i&7]); i++ }); n != 0 {
			t.Errorf("%s: %v allocations per event", name, n)
		}
		if n := testing.AllocsPerRun(1000, func() {
			for i := range p {
				o.Write(p[i : i+1])
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations per event in single bytes", name, n)
		}
	}
}

// nothing is a Sink that ignores what it is told.
type nothing struct{}

func (nothing) Started(int, bool)  {}
func (nothing) Generated(int, int) {}
func (nothing) Finished(int)       {}

// steadyEvents are events from the middle of streams; # is what changes from
// one to the next beside the text.
var steadyEvents = map[string]string{
	"openai":       sse(`{"id":"chatcmpl-9f2c","object":"chat.completion.chunk","created":1764400001,"model":"qwen3-8b","choices":[{"index":0,"delta":{"content":" harbor"},"logprobs":null,"finish_reason":null}]}`),
	"openai usage": sse(`{"id":"chatcmpl-9f2c","object":"chat.completion.chunk","created":1764400001,"model":"qwen3-8b","choices":[{"index":1,"delta":{"content":" area(r):"},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":40,"total_tokens":45,"completion_tokens":5}}`),
	"responses":    "event: response.output_text.delta\n" + sse(`{"type":"response.output_text.delta","sequence_number":#,"item_id":"msg_1","output_index":0,"content_index":0,"delta":" cliffs","logprobs":[],"obfuscation":"aX"}`),
	"anthropic":    "event: content_block_delta\n" + sse(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" needs"}}`),
	"ollama":       `{"model":"llama3.2","created_at":"2026-11-29T08:52:19.38540#Z","message":{"role":"assistant","content":" sleep"},"done":false}` + "\n",
	"sglang":       sse(`{"text":" Sand dunes drift","output_ids":[9,8,7,#],"meta_info":{"id":"8f01","finish_reason":null,"prompt_tokens":12,"weight_version":"default","completion_tokens":4,"cached_tokens":4}}`),
	"llamacpp":     sse(`{"index":0,"content":" stands","tokens":[502],"stop":false,"id_slot":1,"tokens_predicted":2,"tokens_evaluated":40}`),
	"tgi":          "data:" + `{"index":#,"token":{"id":102,"text":"Larks","logprob":-0.5,"special":false},"generated_text":null,"details":null}` + "\n\n",
}

func variants(event string) (events [8][]byte) {
	for i := range events {
		events[i] = []byte(strings.ReplaceAll(event, "#", strconv.Itoa(i+1)))
	}
	return events
}

func BenchmarkEvent(b *testing.B) {
	names := make([]string, 0, len(steadyEvents))
	for name := range steadyEvents {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		events := variants(steadyEvents[name])
		b.Run(name, func(b *testing.B) {
			var o Observer
			o.Reset(Options{Sequences: 2}, nothing{})
			o.Write(events[0])
			b.SetBytes(int64(len(events[0])))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				o.Write(events[i&7])
			}
		})
	}
}

func BenchmarkWholeStream(b *testing.B) {
	for _, x := range loadCases(b) {
		if x.File != "vllm_chat_usage_final.sse" && x.File != "anthropic_text.sse" && x.File != "ollama_chat.ndjson" {
			continue
		}
		b.Run(x.File, func(b *testing.B) {
			var o Observer
			b.SetBytes(int64(len(x.body)))
			b.ReportAllocs()
			for b.Loop() {
				o.Reset(x.options(), nothing{})
				o.Write(x.body)
				_ = o.End(true)
			}
		})
	}
}

func BenchmarkAnswerOf8MB(b *testing.B) {
	const size = 8 << 20
	for name, body := range map[string]string{
		"text":       `{"choices":[{"index":0,"message":{"role":"assistant","content":"` + strings.Repeat(`Tides turn twice a day.\n`, size/25) + `"},"finish_reason":"stop"}],"usage":{"completion_tokens":7}}`,
		"embeddings": `{"data":[{"embedding":[` + strings.Repeat(`-0.012345678,`, size/13) + `0]}],"usage":{"prompt_tokens":7}}`,
		"logprobs":   `{"choices":[{"index":0,"logprobs":{"content":[` + strings.Repeat(`{"token":" a","logprob":-0.1,"bytes":[32,97],"top_logprobs":[]},`, size/64) + `{}]},"message":{"content":"x"}}],"usage":{"completion_tokens":7}}`,
	} {
		b.Run(name, func(b *testing.B) {
			var o Observer
			p := []byte(body)
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				o.Reset(Options{}, nothing{})
				for piece := range slices.Chunk(p, 32<<10) {
					o.Write(piece)
				}
				if s := o.End(true); !s.EndedNormally {
					b.Fatalf("%+v", s)
				}
			}
		})
	}
}
