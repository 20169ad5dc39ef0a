// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"strings"
	"testing"
)

// sse makes an event stream of data lines.
func sse(events ...string) string {
	return "data: " + strings.Join(events, "\n\ndata: ") + "\n\n"
}

// shapeTest is a response and what must come of it. Cached is one more than
// expected, 0 for unknown.
type shapeTest struct {
	name      string
	options   Options
	body      string
	cut       bool
	generated int
	deltas    int
	counted   bool
	prompt    int
	cached    int
	end       string
	per       []int // tokens per sequence
	engine    Engine
	id        string
	events    int
}

func TestShapesFromTheFieldAreCounted(t *testing.T) {
	for _, x := range shapeTests {
		t.Run(x.name, func(t *testing.T) {
			s := observe(t, x.options, []byte(x.body), !x.cut)
			check := func(what string, got, want any) {
				t.Helper()
				if got != want {
					t.Errorf("%s = %v, want %v", what, got, want)
				}
			}
			check("generated", s.Generated, x.generated)
			check("counted", s.Counted, x.counted)
			check("end", s.End, x.end)
			check("engine", s.Engine, x.engine)
			check("response id", s.ResponseID, x.id)
			check("cached", s.CachedTokens, x.cached-1)
			if x.prompt == 0 {
				x.prompt = -1
			}
			check("prompt", s.PromptTokens, x.prompt)
			check("deltas", s.Deltas, x.deltas)
			if x.events > 0 {
				check("events", s.Events, x.events)
			}
			if x.per != nil {
				_, r := deliver(t, x.options, []byte(x.body), 5, !x.cut)
				for i, want := range x.per {
					check("tokens of a sequence", r.generated[i], want)
				}
			}
			normal := !x.cut || x.end != EndCut
			normal = normal && x.end != EndError && x.end != EndHTTPError && x.end != EndEOF
			check("ended normally", s.EndedNormally, normal)
		})
	}
}

var shapeTests = []shapeTest{
	{
		name: "Moonshot puts usage into the choice",
		body: sse(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`,
			`{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}`,
			`{"choices":[{"index":0,"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":19,"completion_tokens":13,"total_tokens":32}}]}`, `[DONE]`),
		generated: 13, deltas: 1, counted: true, prompt: 19, end: EndDone, events: 4,
	},
	{
		name: "usage per choice is summed", options: Options{Sequences: 2, Choices: 2},
		body: sse(`{"choices":[{"index":0,"delta":{"content":"a"}}]}`, `{"choices":[{"index":1,"delta":{"content":"b"}}]}`,
			`{"choices":[{"index":1,"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":19,"completion_tokens":4}}]}`,
			`{"choices":[{"index":0,"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":19,"completion_tokens":6}}]}`, `[DONE]`),
		generated: 10, deltas: 2, counted: true, prompt: 19, end: EndDone, per: []int{6, 4},
	},
	{
		name: "continuous usage counts its choice, the last one all", options: Options{Sequences: 2, Choices: 2},
		body: sse(`{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":9,"completion_tokens":3}}`,
			`{"choices":[{"index":1,"delta":{"content":"b"}}],"usage":{"prompt_tokens":9,"completion_tokens":1}}`,
			`{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":9,"completion_tokens":6}}`,
			`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":14}}`, `[DONE]`),
		generated: 14, deltas: 3, counted: true, prompt: 9, end: EndDone, per: []int{12, 2},
	},
	{
		name: "continuous usage cut before its total is summed", options: Options{Sequences: 2, Choices: 2}, cut: true,
		body: sse(`{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":9,"completion_tokens":3}}`,
			`{"choices":[{"index":1,"delta":{"content":"b"}}],"usage":{"prompt_tokens":9,"completion_tokens":1}}`,
			`{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":9,"completion_tokens":6}}`),
		generated: 7, deltas: 3, counted: true, prompt: 9, end: EndCut, per: []int{6, 1},
	},
	{
		name: "one usage on the last of two choices is the total", options: Options{Sequences: 2, Choices: 2},
		body: sse(`{"choices":[{"index":0,"delta":{"content":"a"}}]}`, `{"choices":[{"index":1,"delta":{"content":"b"}}]}`,
			`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`,
			`{"choices":[{"index":1,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":20}}`, `[DONE]`),
		generated: 20, deltas: 2, counted: true, prompt: 7, end: EndDone,
	},
	{
		name: "Groq says it in x_groq",
		body: sse(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"x_groq":{"id":"req_1"}}`,
			`{"choices":[{"index":0,"delta":{"content":"a"}}]}`,
			`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"x_groq":{"id":"req_1","usage":{"queue_time":0.1,"prompt_tokens":8,"completion_tokens":5,"total_tokens":13}}}`, `[DONE]`),
		generated: 5, deltas: 1, counted: true, prompt: 8, end: EndDone,
	},
	{
		name: "token ids count exactly",
		body: sse(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"token_ids":null}],"prompt_token_ids":[1,2,3]}`,
			`{"choices":[{"index":0,"delta":{"content":"ab"},"token_ids":[5,6,7]}]}`,
			`{"choices":[{"index":0,"delta":{"content":""},"token_ids":[8]}]}`,
			`{"choices":[{"index":0,"delta":{"content":"flushed"},"token_ids":[]}]}`, `[DONE]`),
		generated: 4, deltas: 3, counted: true, end: EndDone, engine: EngineVLLM,
	},
	{
		name: "tokens per delta serve where nothing else does", options: Options{TokensPerDelta: 2.5},
		body:      sse(`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{"content":"a"}}]}`),
		generated: 8, deltas: 3, end: EndEOF,
	},
	{
		name: "deltas after a counter add to it", cut: true,
		body:      sse(`{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":7,"prompt_tokens":2}}`, `{"choices":[{"delta":{"content":"a"}}]}`),
		generated: 8, deltas: 2, prompt: 2, end: EndCut,
	},
	{
		name: "zero usage erases nothing",
		body: sse(`{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":7,"prompt_tokens":2}}`,
			`{"choices":[{"delta":{"content":""},"finish_reason":"stop"}],"usage":{"completion_tokens":0,"prompt_tokens":0}}`),
		generated: 7, deltas: 1, counted: true, prompt: 2, end: EndFinishReason,
	},
	{
		name: "content as a list of blocks",
		body: sse(`{"choices":[{"index":0,"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]}]}}]}`,
			`{"choices":[{"index":0,"delta":{"content":[{"type":"text","text":""}]}}]}`,
			`{"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"x"}]}}]}`, `[DONE]`),
		generated: 2, deltas: 2, end: EndDone,
	},
	{
		name: "refusal, audio and legacy function call",
		body: sse(`{"choices":[{"index":0,"delta":{"refusal":"no"}}]}`, `{"choices":[{"index":0,"delta":{"audio":{"id":"a","transcript":"x"}}}]}`,
			`{"choices":[{"index":0,"delta":{"function_call":{"name":"f","arguments":""}}}]}`,
			`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"arguments":""}}]}}]}`, `[DONE]`),
		generated: 3, deltas: 3, end: EndDone,
	},
	{
		name: "vLLM's responses events put type last",
		body: "event: response.created\n" + sse(`{"response":{"id":"resp_7","object":"response","usage":null,"error":null},"sequence_number":0,"type":"response.created"}`) +
			"event: response.reasoning_text.delta\n" + sse(`{"content_index":0,"delta":"a","item_id":"x","sequence_number":1,"type":"response.reasoning_text.delta"}`) +
			"event: response.function_call_arguments.delta\n" + sse(`{"delta":"{","item_id":"x","sequence_number":1,"type":"response.function_call_arguments.delta"}`) +
			"event: response.reasoning_text.done\n" + sse(`{"text":"a","item_id":"x","sequence_number":1,"type":"response.reasoning_text.done"}`) +
			"event: response.completed\n" + sse(`{"response":{"id":"resp_7","output":[{"type":"message","content":[{"type":"output_text","text":"a"}]}],"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":0},"output_tokens":9}},"type":"response.completed"}`),
		generated: 9, deltas: 2, counted: true, prompt: 5, cached: 1, end: EndCompleted, id: "resp_7",
	},
	{
		name:      "a failed response",
		body:      sse(`{"type":"response.created","response":{"id":"resp_8","error":null}}`, `{"type":"response.output_text.delta","delta":"a"}`, `{"type":"response.failed","response":{"id":"resp_8","error":{"code":"server_error"}}}`),
		generated: 1, deltas: 1, end: EndError, id: "resp_8",
	},
	{
		name:      "a whole response object",
		body:      `{"id":"resp_9","object":"response","status":"completed","error":null,"output":[{"type":"reasoning","summary":[]},{"id":"msg_1","type":"message","content":[{"type":"output_text","text":"x","usage":{"output_tokens":99}}]}],"text":{"format":{"type":"text"}},"usage":{"input_tokens":4,"output_tokens":6}}`,
		generated: 6, deltas: 1, counted: true, prompt: 4, end: EndJSON, id: "resp_9", events: 1,
	},
	{
		name: "the kind of an event on the event line after the data",
		body: "data: {\"index\":0,\"delta\":{\"text\":\"a\"}}\nevent: content_block_delta\n\n" +
			"data: {\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":3}}\nevent: message_delta\n\ndata: {}\nevent: message_stop\n\n",
		generated: 3, deltas: 1, counted: true, end: EndMessageStop,
	},
	{
		name: "Anthropic's error event",
		body: "event: content_block_delta\n" + sse(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}`) +
			"event: error\n" + sse(`{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`),
		generated: 1, deltas: 1, end: EndError,
	},
	{
		name: "Anthropic cut before its first total ignores the placeholder", cut: true,
		body: sse(`{"type":"message_start","message":{"usage":{"input_tokens":3,"output_tokens":8,"cache_creation_input_tokens":2,"cache_read_input_tokens":0}}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}`),
		generated: 1, deltas: 1, prompt: 5, cached: 1, end: EndCut,
	},
	{
		name: "SGLang's counters are summed over prompts", options: Options{Sequences: 2},
		body: sse(`{"text":"a","output_ids":[1],"meta_info":{"finish_reason":null,"prompt_tokens":5,"completion_tokens":1,"cached_tokens":4},"index":0}`,
			`{"text":"bb","output_ids":[1,2],"meta_info":{"finish_reason":null,"prompt_tokens":7,"completion_tokens":2,"cached_tokens":0},"index":1}`,
			`{"text":"aaa","output_ids":[1,2,3],"meta_info":{"finish_reason":{"type":"stop","matched":2},"prompt_tokens":5,"completion_tokens":3,"cached_tokens":4},"index":0}`, `[DONE]`),
		generated: 5, deltas: 3, counted: true, prompt: 12, cached: 5, end: EndDone, engine: EngineSGLang, per: []int{3, 2},
	},
	{
		name: "SGLang's prompt counts once for all its choices", options: Options{Sequences: 2, Choices: 2},
		body: sse(`{"text":"a","meta_info":{"finish_reason":null,"prompt_tokens":5,"completion_tokens":1,"cached_tokens":4},"index":0}`,
			`{"text":"b","meta_info":{"finish_reason":null,"prompt_tokens":5,"completion_tokens":2,"cached_tokens":5},"index":1}`, `[DONE]`),
		generated: 3, deltas: 2, counted: true, prompt: 5, cached: 5, end: EndDone, engine: EngineSGLang,
	},
	{
		name: "SGLang's incremental events",
		body: sse(`{"text":"a","output_ids":[1],"meta_info":{"completion_tokens":1,"prompt_tokens":5}}`,
			`{"text":"b","output_ids":[2],"meta_info":{"completion_tokens":2,"prompt_tokens":5}}`,
			`{"text":"","output_ids":[],"meta_info":{"completion_tokens":2,"prompt_tokens":5,"finish_reason":{"type":"stop"}}}`, `[DONE]`),
		generated: 2, deltas: 2, counted: true, prompt: 5, end: EndDone, engine: EngineSGLang,
	},
	{
		name: "SGLang's whole batch", options: Options{Sequences: 2},
		body:      `[{"text":"a","meta_info":{"finish_reason":{"type":"length"},"prompt_tokens":5,"completion_tokens":4}}, {"text":"b","meta_info":{"finish_reason":{"type":"stop"},"prompt_tokens":6,"completion_tokens":3}}]`,
		generated: 7, deltas: 2, counted: true, prompt: 11, end: EndJSON, engine: EngineSGLang, per: []int{4, 3}, events: 1,
	},
	{
		name: "llama.cpp's batch ends when all have stopped", options: Options{Sequences: 2}, cut: true,
		body: sse(`{"index":0,"content":"a","stop":false,"tokens_predicted":1,"tokens_evaluated":5}`,
			`{"index":1,"content":"b","stop":false,"tokens_predicted":1,"tokens_evaluated":6}`,
			`{"index":0,"content":"","stop":true,"tokens_predicted":2,"tokens_evaluated":5,"generation_settings":{"stop":["x"],"n_predict":7},"stop_type":"eos"}`),
		generated: 3, deltas: 2, counted: true, prompt: 11, end: EndCut, engine: EngineLlamaCpp, per: []int{2, 1},
	},
	{
		name:      "llama.cpp's whole completion",
		body:      `{"index":0,"content":"abc","tokens":[],"id_slot":0,"stop":true,"tokens_predicted":6,"tokens_evaluated":9,"generation_settings":{"tokens_predicted":77},"prompt":"{\"usage\":{\"completion_tokens\":5}}","tokens_cached":14,"timings":{"prompt_n":1,"cache_n":8,"predicted_n":6}}`,
		generated: 6, deltas: 1, counted: true, prompt: 9, cached: 9, end: EndJSON, engine: EngineLlamaCpp,
	},
	{
		name: "llama.cpp's chat without usage",
		body: sse(`{"choices":[{"index":0,"delta":{"content":"a"}}],"timings":{"prompt_n":3,"cache_n":9,"predicted_n":1}}`,
			`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"timings":{"prompt_n":3,"cache_n":9,"predicted_n":4}}`, `[DONE]`),
		generated: 4, deltas: 1, counted: true, prompt: 12, cached: 10, end: EndDone, engine: EngineLlamaCpp,
	},
	{
		name:      "TGI's whole answer with prefill and best_of",
		body:      `{"generated_text":"ab","details":{"finish_reason":"length","generated_tokens":4,"prefill":[{"id":1,"text":"a"},{"id":2,"text":"b"}],"tokens":[{"id":7,"text":"x"}],"best_of_sequences":[{"generated_text":"c","generated_tokens":3}]}}`,
		generated: 7, deltas: 1, counted: true, prompt: 2, end: EndJSON,
	},
	{
		name:      "Ollama's whole answer",
		body:      `{"model":"m","message":{"role":"assistant","content":"x"},"done":true,"done_reason":"stop","prompt_eval_count":5,"eval_count":7}`,
		generated: 7, deltas: 1, counted: true, prompt: 5, end: EndJSON, engine: EngineOllama, events: 1,
	},
	{
		name: "NDJSON with CRLF, blank lines and no last line end", options: Options{ContentType: "application/x-ndjson; charset=utf-8"},
		body:      "\r\n{\"response\":\"a\",\"done\":false}\r\n\r\n  {\"response\":\"b\",\"done\":false}\r\n{\"response\":\"\",\"done\":true,\"eval_count\":4}",
		generated: 4, deltas: 2, counted: true, end: EndDone, engine: EngineOllama, events: 3,
	},
	{
		name:      "a broken line loses only itself",
		body:      "{\"response\":\"a\",\"done\":false}\n{\"response\":,\"b\",\"done\":false}\n{\"response\":\"c\",\"done\":false}\n{\"done\":true,\"response\":\"\"}\n",
		generated: 2, deltas: 2, end: EndDone, engine: EngineOllama, events: 4,
	},
	{
		name:      "a pretty-printed answer",
		body:      "\n{\n  \"choices\": [\n    {\n      \"index\": 0,\n      \"message\": {\n        \"content\": \"a\\\"b\\\\\"\n      },\n      \"finish_reason\": \"stop\"\n    }\n  ],\n  \"usage\": {\n    \"completion_tokens\": 12 ,\n    \"prompt_tokens\": 3\n  }\n}\n",
		generated: 12, deltas: 1, counted: true, prompt: 3, end: EndJSON, events: 1,
	},
	{
		name:      "a usage elsewhere does not mislead",
		body:      `{"metadata":{"usage":{"completion_tokens":900}},"choices":[{"message":{"content":"{\"usage\":{\"completion_tokens\":800}}","usage":{"completion_tokens":700},"annotations":[{"usage":{"completion_tokens":600}}]}}],"usage":{"prompt_tokens":2,"completion_tokens":5,"completion_tokens_details":{"completion_tokens":500,"cached_tokens":3},"prompt_tokens_details":{"audio_tokens":4,"cached_tokens":1}}}`,
		generated: 5, deltas: 1, counted: true, prompt: 2, cached: 2, end: EndJSON,
	},
	{
		name: "odd counters are ignored",
		body: sse(`{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":-4,"prompt_tokens":1e3}}`,
			`{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":99999999999999999999,"prompt_tokens":"7"}}`,
			`{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":6.0,"prompt_tokens":5}}`),
		generated: 6, deltas: 3, counted: true, prompt: 5, end: EndEOF,
	},
	{
		name:      "data over several lines, a byte order mark, other fields",
		body:      "\xEF\xBB\xBFid: 1\r\nretry: 5\r\ndatabase: x\r\ndata: {\"choices\":[{\"delta\":\r\ndata: {\"content\":\"a\"}}]}\r\n\r\ndata: [DONE]\r\n\r\n",
		generated: 1, deltas: 1, end: EndDone, events: 2,
	},
	{
		name:      "lone CRs end lines too",
		body:      "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\rdata: [DONE]\r\r",
		generated: 1, deltas: 1, end: EndDone, events: 2,
	},
	{
		name:      "fields without a colon",
		body:      "data\n\nevent\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n",
		generated: 1, deltas: 1, end: EndEOF, events: 2,
	},
	{
		name:      "servers that forget the empty line",
		body:      "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\ndata: [DONE]\n",
		generated: 2, deltas: 2, end: EndDone, events: 3,
	},
	{
		name: "a whole event whose empty line never came is dropped when cut", cut: true,
		body:      sse(`{"choices":[{"delta":{"content":"a"}}]}`) + "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n",
		generated: 1, deltas: 1, end: EndCut, events: 1,
	},
	{
		name: "a cut after the end marker is no failure", cut: true,
		body:      sse(`{"choices":[{"delta":{"content":"a"}}]}`, `[DONE]`),
		generated: 1, deltas: 1, end: EndDone, events: 2,
	},
	{
		name:      "an old error object",
		body:      sse(`{"choices":[{"delta":{"content":"a"}}]}`, `{"object":"error","message":"x","type":"BadRequestError","code":400}`, `[DONE]`),
		generated: 1, deltas: 1, end: EndError,
	},
	{
		name:      "OpenRouter's error in a chunk",
		body:      sse(`{"choices":[{"delta":{"content":"a"}}]}`, `{"error":{"code":502,"message":"x"},"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}`),
		generated: 1, deltas: 1, end: EndError,
	},
	{
		name: "cached tokens that later usage leaves out",
		body: sse(`{"choices":[],"usage":{"completion_tokens":1,"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}`,
			`{"choices":[],"usage":{"completion_tokens":2,"prompt_tokens":9}}`, `[DONE]`),
		generated: 2, counted: true, prompt: 9, cached: 5, end: EndDone,
	},
	{
		name: "an id in a broken event",
		body: sse(`{"object":"response","id":"resp_0123456789abcdef0123456789abcdef","choices":[{"delta":{"content":"a"}}]!}`,
			`{"object":"response","id":"resp_0123456789abcdef0123456789abcdef","choices":[{"delta":{"content":"a"}}]}`, `[DONE]`),
		generated: 1, deltas: 1, end: EndDone,
	},
	{
		name:      "llama.cpp's older error field",
		body:      sse(`{"content":"a","stop":false,"tokens_predicted":1}`) + "error: {\"code\":500}\n\n",
		generated: 1, deltas: 1, counted: true, end: EndError, engine: EngineLlamaCpp, events: 1,
	},
	{
		name:      "KoboldCpp's token strings",
		body:      "event: message\ndata: {\"token\":\" a\",\"finish_reason\":null}\n\nevent: message\ndata: {\"token\":\"\"}\n\n",
		generated: 1, deltas: 1, end: EndEOF,
	},
	{
		name: "cached tokens stated with a choice, the total without them",
		body: sse(`{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":1,"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}}`,
			`{"choices":[],"usage":{"completion_tokens":2,"prompt_tokens":9}}`, `[DONE]`),
		generated: 2, deltas: 1, counted: true, prompt: 9, cached: 1, end: EndDone,
	},
	{
		name:    "error null is none",
		options: Options{}, body: sse(`{"error":null,"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}`),
		generated: 1, deltas: 1, end: EndFinishReason,
	},
	{
		name: "a status of 503 counts nothing", options: Options{Status: 503},
		body: sse(`{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":4}}`),
		end:  EndHTTPError, events: 1,
	},
	{name: "neither events nor JSON", body: "<html><body>data: nothing</body>\n\n</html>", end: EndEOF},
	{name: "nothing at all", end: EndEOF},
	{name: "nothing at all, cut", cut: true, end: EndCut},
	{
		name: "an index too high goes to the last sequence", options: Options{Sequences: 2},
		body:      sse(`{"choices":[{"index":99,"delta":{"content":"a"}},{"index":-1,"delta":{"content":"a"}},{"index":1,"delta":{"content":"a"}}]}`, `[DONE]`),
		generated: 3, deltas: 3, end: EndDone, per: []int{0, 3},
	},
	{
		name: "pooling generates nothing", options: Options{Pooling: true},
		body: `{"object":"list","data":[{"embedding":[1,2]}],"choices":[{"text":"x"}],"usage":{"prompt_tokens":9,"completion_tokens":3}}`,
		end:  EndJSON, prompt: 9,
	},
	{
		name:      "keys and strings with escapes",
		body:      sse(`{"a\"choices":[1],"x\\":"\\","choices":[{"d\u0065lta":{"content":"no"},"delta":{"content":"\""},"finish_reason":"st\"op\\"}]}`, `[DONE]`),
		generated: 1, deltas: 1, end: EndDone,
	},
}
