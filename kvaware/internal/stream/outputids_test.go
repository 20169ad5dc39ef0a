// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// wantsIDs are the options of an answer whose output's ids are asked for.
var wantsIDs = Options{OutputIDs: true}

// outputIDTests are answers and the ids of their output, none if they do not say
// all.
var outputIDTests = []struct {
	name, body string
	cut        bool
	want       []uint32
}{
	{"a chat of vLLM", `{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a b c"},"finish_reason":"stop","token_ids":[11, 12,13,151645]}],"usage":{"prompt_tokens":3,"completion_tokens":4},"prompt_logprobs":null,"prompt_token_ids":[1,2,3]}`, false, []uint32{11, 12, 13, 151645}},
	{"a completion", `{"choices":[{"index":0,"text":"a","finish_reason":"length","prompt_token_ids":[1,2,3],"token_ids":[0]}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`, false, []uint32{0}},
	{"a stream", sse(
		`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":[1,2,3]}`,
		`{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":[11]}]}`,
		`{"choices":[{"index":0,"delta":{"content":"b c"},"finish_reason":null,"token_ids":[12,13]}]}`,
		`{"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop","token_ids":[14]}]}`,
		`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}`, "[DONE]"), false, []uint32{11, 12, 13, 14}},
	{"a stream without usage", sse(
		`{"choices":[{"index":0,"text":"a","finish_reason":null,"token_ids":[11]}]}`,
		`{"choices":[{"index":0,"text":"b","finish_reason":"length","token_ids":[12]}]}`, "[DONE]"), false, []uint32{11, 12}},
	{"a running count", sse(
		`{"choices":[{"index":0,"text":"a","finish_reason":null,"token_ids":[11]}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`,
		`{"choices":[{"index":0,"text":"b","finish_reason":"length","token_ids":[12]}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`, "[DONE]"), false, []uint32{11, 12}},
	{"a tool call that is counted", sse(
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls","token_ids":[11,12]}]}`,
		`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}`, "[DONE]"), false, []uint32{11, 12}},

	{"none", `{"choices":[{"index":0,"text":"a","finish_reason":"stop","token_ids":null}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`, false, nil},
	{"no output", `{"choices":[{"index":0,"text":"","finish_reason":"stop","token_ids":[]}],"usage":{"prompt_tokens":3,"completion_tokens":0}}`, false, nil},
	{"fewer than counted", `{"choices":[{"index":0,"text":"a","finish_reason":"stop","token_ids":[11,12]}],"usage":{"prompt_tokens":3,"completion_tokens":3}}`, false, nil},
	{"more than counted", `{"choices":[{"index":0,"text":"a","finish_reason":"stop","token_ids":[1,2,3,11]}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`, false, nil},
	{"text without ids", sse(
		`{"choices":[{"index":0,"text":"a","finish_reason":null,"token_ids":[11]}]}`,
		`{"choices":[{"index":0,"text":"b","finish_reason":"length"}]}`, "[DONE]"), false, nil},
	{"a tool call of which nobody counts all", sse(
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls","token_ids":[11,12]}]}`, "[DONE]"), false, nil},
	{"no ids", `{"choices":[{"index":0,"text":"a","finish_reason":"stop","token_ids":["11",null,-3,1e3,{"a":1},[5]]}],"usage":{"prompt_tokens":3,"completion_tokens":6}}`, false, nil},
	{"an id that is none", `{"choices":[{"index":0,"text":"a","finish_reason":"stop","token_ids":[11,99999999999999999999,12]}],"usage":{"prompt_tokens":3,"completion_tokens":3}}`, false, nil},
	{"another choice", `{"choices":[{"index":0,"text":"a","finish_reason":"stop","token_ids":[11]},{"index":1,"text":"b","finish_reason":"stop","token_ids":[12]}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`, false, nil},
	{"an event that was cut", "data: " + `{"choices":[{"index":0,"text":"a","finish_reason":null,"token_ids":[11]}]}` + "\n\ndata: " + `{"choices":[{"index":0,"text":"b","finish_reason":null,"token_ids":[12]}`, true, []uint32{11}},
	{"an error", `{"error":{"message":"x"},"choices":[{"token_ids":[11`, true, nil},
}

// idsOf observes a body in pieces of that size.
func idsOf(body string, size int, clean bool) []uint32 {
	var o Observer
	o.Reset(wantsIDs, nothing{})
	for piece := range slices.Chunk([]byte(body), size) {
		o.Write(piece)
	}
	o.End(clean)
	return slices.Clone(o.OutputIDs())
}

func TestIDsOfTheOutputAreReadIfAllAreThere(t *testing.T) {
	for _, x := range outputIDTests {
		for size := 1; size <= len(x.body); size += 1 + size/3 {
			if got := idsOf(x.body, size, !x.cut); !slices.Equal(got, x.want) {
				t.Errorf("%s, in pieces of %d: %v, want %v", x.name, size, got, x.want)
				break
			}
		}
	}
}

func TestIDsAreOnlyReadOfOneSequenceThatIsAskedFor(t *testing.T) {
	for _, options := range []Options{{}, {Sequences: 2, OutputIDs: true}} {
		var o Observer
		o.Reset(options, nothing{})
		o.Write([]byte(outputIDTests[0].body))
		o.End(true)
		if got := o.OutputIDs(); got != nil || len(o.ids.ids) > 0 {
			t.Errorf("%+v: %v", options, got)
		}
	}
}

func TestIDsOfOneAnswerAreNotThoseOfTheNext(t *testing.T) {
	var o Observer
	for _, x := range outputIDTests {
		o.Reset(wantsIDs, nothing{})
		o.Write([]byte(x.body))
		o.End(!x.cut)
		if got := o.OutputIDs(); !slices.Equal(got, x.want) {
			t.Errorf("%s: %v, want %v", x.name, got, x.want)
		}
	}
}

func TestAnswersOfTooManyIDsAreGivenUp(t *testing.T) {
	for _, n := range []int{maxOutputIDs, maxOutputIDs + 1} {
		body := `{"choices":[{"index":0,"text":"a","finish_reason":"stop","token_ids":[1` + strings.Repeat(",1", n-1) + fmt.Sprintf(`]}],"usage":{"completion_tokens":%d}}`, n)
		var o Observer
		o.Reset(wantsIDs, nothing{})
		o.Write([]byte(body))
		o.End(true)
		if got, all := len(o.OutputIDs()), n <= maxOutputIDs; all && got != n || !all && (got > 0 || o.ids.ids != nil) {
			t.Errorf("%d of %d ids", got, n)
		}
		o.Reset(wantsIDs, nothing{})
		if cap(o.ids.ids) > keptOutputIDs {
			t.Errorf("room for %d ids is kept", cap(o.ids.ids))
		}
	}
}

// idEvent is an event with ids from the middle of a stream.
var idEvent = sse(`{"id":"chatcmpl-9f2c","object":"chat.completion.chunk","created":1764400001,"model":"qwen3-8b","choices":[{"index":0,"delta":{"content":" harbor"},"logprobs":null,"finish_reason":null,"token_ids":[4711#]}]}`)

func TestIDsInSteadyStateAllocateNothing(t *testing.T) {
	var o Observer
	o.Reset(wantsIDs, nothing{})
	o.ids.ids = make([]uint32, 0, keptOutputIDs)
	events, i := variants(idEvent), 0
	if n := testing.AllocsPerRun(1000, func() { o.Write(events[i&7]); i++ }); n != 0 {
		t.Errorf("%v allocations per event", n)
	}
	if len(o.ids.ids) != i {
		t.Errorf("%d ids of %d events", len(o.ids.ids), i)
	}
}

func BenchmarkEventWithIDs(b *testing.B) {
	events := variants(idEvent)
	for name, wanted := range map[string]bool{"wanted": true, "not": false} {
		b.Run(name, func(b *testing.B) {
			var o Observer
			b.SetBytes(int64(len(events[0])))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%keptOutputIDs == 0 {
					o.Reset(Options{OutputIDs: wanted}, nothing{})
				}
				o.Write(events[i&7])
			}
		})
	}
}
