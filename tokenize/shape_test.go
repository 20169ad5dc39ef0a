// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// readBody reads a body and its texts, with "|" between prompts.
func readBody(t testing.TB, path, body string) (*Request, []string) {
	t.Helper()
	rd := NewReader()
	req, err := rd.Read(KindOfPath(path), path, []byte(body))
	if err != nil {
		t.Fatalf("%s %.200s: %v", path, body, err)
	}
	rd.Chain(req, byteEncoder{}, 1)
	var texts []string
	for i, p := range req.Prompts {
		if i > 0 {
			texts = append(texts, "|")
		}
		one := *req
		one.Prompts = []Prompt{p}
		prompt, ids := textsOf(rd, &one)
		texts = append(texts, prompt...)
		for range ids {
			texts = append(texts, "ids")
		}
	}
	return req, texts
}

func TestPromptsOfEveryShapeAreFound(t *testing.T) {
	for _, c := range []struct {
		name, path, body string
		kind             Kind
		texts            []string
	}{
		{"list of strings", "/v1/completions", `{"prompt":["a","b"]}`, OpenAICompletions, []string{"a", "|", "b"}},
		{"list of lists", "/v1/completions", `{"prompt":[[1,2],[3]]}`, OpenAICompletions, []string{"ids", "|", "ids"}},
		{"suffix for each", "/v1/completions", `{"prompt":["a","b"],"suffix":"z"}`, OpenAICompletions, []string{"a", "z", "|", "b", "z"}},
		{"llama.cpp mixed prompt", "/completion", `{"prompt":[12,"a",7,8]}`, LlamaCompletion, []string{"a", "ids", "ids"}},
		{"llama.cpp several", "/completion", `{"prompt":["a",[1,"b"],{"prompt_string":"c","multimodal_data":["aGk="]}]}`, LlamaCompletion, []string{"a", "|", "b", "ids", "|", "c"}},
		{"llama.cpp without v1", "/completions", `{"prompt":"a","n_predict":4}`, LlamaCompletion, []string{"a"}},
		{"sglang batch", "/generate", `{"text":["a","b"],"image_data":["u","v"]}`, SGLangGenerate, []string{"a", "|", "b"}},
		{"sglang ids batch", "/generate", `{"input_ids":[[1],[2]]}`, SGLangGenerate, []string{"ids", "|", "ids"}},
		{"sglang behind a prefix", "/api/generate", `{"text":"a"}`, SGLangGenerate, []string{"a"}},
		{"tgi image in the text", "/generate", `{"inputs":"look ![](data:image/png;base64,AAAA) here"}`, TGI, []string{"look ", " here"}},
		{"embeddings ids", "/v1/embeddings", `{"input":[1,2,3]}`, OpenAIEmbeddings, []string{"ids"}},
		{"embeddings messages", "/v1/embeddings", `{"messages":[{"role":"user","content":"a"}]}`, OpenAIEmbeddings, []string{"a"}},
		{"ollama embeddings", "/api/embeddings", `{"prompt":"a"}`, OpenAIEmbeddings, []string{"a"}},
		{"ollama raw", "/api/generate", `{"prompt":"a","system":"s","raw":true}`, OllamaGenerate, []string{"a"}},
		{"ollama tool call", "/api/chat", `{"messages":[{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"b": 1, "a": [2]}}}]}]}`, OllamaChat, []string{"f", `{"b":1,"a":[2]}`}},
		{"anthropic system string", "/v1/messages", `{"system":"s","messages":[{"role":"user","content":"a"}]}`, AnthropicMessages, []string{"s", "a"}},
		{"anthropic document of parts", "/v1/messages", `{"messages":[{"role":"user","content":[{"type":"document","source":{"type":"content","content":[{"type":"text","text":"d"}]}}]}]}`, AnthropicMessages, []string{"d"}},
		{"reasoning and name", "/v1/chat/completions", `{"messages":[{"content":"a","name":"n","role":"assistant","reasoning_content":"r","refusal":"no"}]}`, OpenAIChat, []string{"n", "r", "a", "no"}},
		{"function_call", "/v1/chat/completions", `{"messages":[{"role":"assistant","function_call":{"name":"f","arguments":"{}"}}],"functions":[{"name":"f"}]}`, OpenAIChat, []string{`[{"name":"f"}]`, "f", "{}"}},
		{"parts without type", "/v1/chat/completions", `{"messages":[{"role":"user","content":["x",{"text":"a"},{"image_url":"u"},{"video_url":{"url":"v"}},{"refusal":"r"}]}]}`, OpenAIChat, []string{"x", "a", "r"}},
		{"a part of an unknown type", "/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"hologram", "v":1}]}]}`, OpenAIChat, []string{`{"type":"hologram","v":1}`}},
		{"chat at an unknown path", "/v2/talk", `{"messages":[{"role":"user","content":"a"}]}`, OpenAIChat, []string{"a"}},
		{"content as one part", "/v1/chat/completions", `{"messages":[{"role":"user","content":{"type":"text","text":"a"}}]}`, OpenAIChat, []string{"a"}},
		{"refusal as a part", "/v1/chat/completions", `{"messages":[{"role":"assistant","content":[{"type":"refusal","refusal":"no"},7,[]]}]}`, OpenAIChat, []string{"no"}},
		{"calls without function", "/v1/chat/completions", `{"messages":[{"role":"assistant","tool_calls":[{"name":"f","input":{"a":1}},"x"]}]}`, OpenAIChat, []string{"f", `{"a":1}`}},
		{"mistral's thinking parts", "/v1/chat/completions", `{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":[{"type":"text","text":"t"}]},{"type":"text","text":"a"}]}]}`, OpenAIChat, []string{"t", "a"}},
		{"search results", "/v1/messages", `{"messages":[{"role":"user","content":[{"type":"search_result","source":"u","title":"t","content":[{"type":"text","text":"a"}]}]}]}`, AnthropicMessages, []string{"t", "a"}},
		{"text and image to embed", "/v1/embeddings", `{"input":[{"text":"a","image":"u"},{"image":"v"}]}`, OpenAIEmbeddings, []string{"a", "|"}},
		{"escapes of control characters", "/v1/completions", `{"prompt":"\b\f\n\r\t\/\\\""}`, OpenAICompletions, []string{"\b\f\n\r\t/\\\""}},
		{"tgi text with an open bracket", "/generate", `{"inputs":"a ![](b"}`, TGI, []string{"a ![](b"}},
		{"prompts of no kind are left out", "/v1/completions", `{"prompt":["a",null,true,"b"]}`, OpenAICompletions, []string{"a", "|", "b"}},
		{"responses outputs of every form", "/v1/responses", `{"input":[{"type":"computer_call_output","output":{"type":"computer_screenshot","image_url":"u"}},{"type":"function_call_output","output":{"type":"input_text","text":"a"}},{"type":"web_search_call","id":"w"},{"id":"x"}]}`, OpenAIResponses, []string{"a", `{"type":"web_search_call","id":"w"}`, `{"id":"x"}`}},
		{"responses with instructions only", "/v1/responses", `{"instructions":"i"}`, OpenAIResponses, []string{"i"}},
		{"responses custom tool", "/v1/responses", `{"input":[{"type":"custom_tool_call","name":"n","input":"i"},{"type":"custom_tool_call_output","output":"o"}]}`, OpenAIResponses, []string{"n", "i", "o"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, texts := readBody(t, c.path, c.body)
			if req.Kind != c.kind || !slices.Equal(texts, c.texts) {
				t.Errorf("%v %q, want %v %q", req.Kind, texts, c.kind, c.texts)
			}
		})
	}
}

func TestAMessageIsTheSameWhateverItsMembersAndTheirOrder(t *testing.T) {
	blocks := func(message string) []uint64 {
		rd := NewReader()
		rd.SetSecret(1)
		req, err := rd.Read(OpenAIChat, "", []byte(`{"messages":[`+message+`,{"role":"user","content":"b"}]}`))
		if err != nil {
			t.Fatal(message, err)
		}
		rd.Chain(req, byteEncoder{}, 1)
		return slices.Clone(req.Prompts[0].Blocks)
	}
	want := blocks(`{"role":"user","content":"a"}`)
	for _, same := range []string{
		`{"content":"a","role":"user"}`, `{"role":"user","name":null,"content":"a"}`, `{"role":"system","role":"user","content":"a"}`,
		`{"content":"b","content":"a","role":"user"}`, `{"id":"x","r\u006fle":"us\u0065r","content":"\u0061"}`, `{"role":"user","content":["a"]}`,
	} {
		if got := blocks(same); !slices.Equal(got, want) {
			t.Errorf("%s has other blocks", same)
		}
	}
	for _, other := range []string{
		`{"role":"tool","content":"a"}`, `{"role":"user","content":"b"}`, `{"role":"user","role":"a"}`, `{"content":"user","content":"a"}`,
	} {
		if got := blocks(other); slices.Equal(got, want) {
			t.Errorf("%s has the same blocks", other)
		}
	}
}

func TestBodiesWithoutAPromptSaySo(t *testing.T) {
	for _, c := range []struct {
		path, body string
		want       Reason
	}{
		{"/v1/chat/completions", `{}`, ReasonNoPrompt},
		{"/v1/chat/completions", `{"messages":[]}`, ReasonNoPrompt},
		{"/v1/chat/completions", `{"messages":"hi"}`, ReasonNoPrompt},
		{"/v1/chat/completions", `{"messages":[1,null,"x"]}`, ReasonNoPrompt},
		{"/v1/completions", `{"prompt":null}`, ReasonNoPrompt},
		{"/v1/completions", `{"prompt":[]}`, ReasonNoPrompt},
		{"/v1/completions", `{"prompt":7}`, ReasonNoPrompt},
		{"/v1/completions", `{"prompt":"a","prompt":null}`, ReasonNoPrompt},
		{"/v1/responses", `{"model":"m"}`, ReasonNoPrompt},
		{"/v1/responses", `{"input":[]}`, ReasonNoPrompt},
		{"/v1/responses", `{"input":7}`, ReasonNoPrompt},
		{"/api/generate", `{"model":"m","prompt":"","keep_alive":0}`, ReasonNoPrompt},
		{"/v1/embeddings", `{"input":[]}`, ReasonNoPrompt},
		{"/generate", `{"sampling_params":{}}`, ReasonNoPrompt},
		{"/generate", `{"text":[]}`, ReasonNoPrompt},
		{"/generate_stream", `{"inputs":["a"]}`, ReasonNoPrompt},
		{"/api/generate", `{"model":"m"}`, ReasonNoPrompt},
		{"/v1/rerank", `{"messages":[{"role":"user","content":"a"}]}`, ReasonUnlisted},
		{"/v1/rerank", `not json`, ReasonUnlisted},
		{"/hook", `{"messages":["a"]}`, ReasonUnlisted},
		{"/hook", `{"messages":[{"content":"a"}]}`, ReasonUnlisted},
		{"/hook", `{"prompt":"a"}`, ReasonUnlisted},
		{"/hook", `not json`, ReasonNotJSON},
	} {
		req, err := NewReader().Read(KindOfPath(c.path), c.path, []byte(c.body))
		var e *Error
		if !errors.As(err, &e) || e.Reason != c.want || len(req.Prompts) != 0 {
			t.Errorf("%s %s: %d prompts, error %v; want %s", c.path, c.body, len(req.Prompts), err, c.want)
		}
	}
}

func TestMaxOutputIsTheBestExpectationGiven(t *testing.T) {
	for _, c := range []struct {
		path, body string
		want       int
	}{
		{"/v1/chat/completions", `"max_tokens":9`, 9},
		{"/v1/chat/completions", `"max_tokens":9,"max_completion_tokens":7`, 7},
		{"/v1/chat/completions", `"max_tokens":9,"max_completion_tokens":null`, 9},
		{"/v1/chat/completions", `"max_tokens":9,"nvext":{"agent_hints":{"osl":3}}`, 3},
		{"/v1/chat/completions", `"max_tokens":"12"`, 12},
		{"/v1/chat/completions", `"max_tokens":12.5`, -1},
		{"/v1/chat/completions", `"max_tokens":NaN`, -1},
		{"/v1/chat/completions", `"max_tokens":1e12`, 1<<31 - 1},
		{"/v1/chat/completions", `"max_tokens":5,"max_tokens":6`, 6},
		{"/v1/chat/completions", `"max_tokens":[5]`, -1},
		{"/v1/completions", `"prompt":"a","max_tokens":null`, -1},
		{"/v1/completions", `"prompt":"a"`, 16},
		{"/v1/responses", `"input":"a","max_output_tokens":11`, 11},
		{"/v1/embeddings", `"input":"a","max_tokens":11`, 0},
		{"/generate", `"text":"a","sampling_params":{"max_new_tokens":0}`, 0},
		{"/generate", `"text":["a","b"],"sampling_params":[{"max_new_tokens":4},{"max_new_tokens":8}]`, 8},
		{"/generate", `"text":"a"`, 128},
		{"/generate", `"inputs":"a"`, -1},
		{"/generate", `"inputs":"a","parameters":{"max_new_tokens":6}`, 6},
		{"/completion", `"prompt":"a","n_predict":-1`, -1},
		{"/completion", `"prompt":"a","n_predict":21`, 21},
		{"/api/chat", `"options":{"num_predict":-2}`, -1},
		{"/api/chat", `"options":{"num_predict":22}`, 22},
	} {
		req, _ := readBody(t, c.path, `{"messages":[{"role":"user","content":"a"}],`+c.body+`}`)
		if req.MaxOutput != c.want {
			t.Errorf("%s %s: %d, want %d", c.path, c.body, req.MaxOutput, c.want)
		}
	}
}

func TestChoicesAndStreamFollowTheApi(t *testing.T) {
	for _, c := range []struct {
		path, body string
		choices    int
		stream     bool
	}{
		{"/v1/chat/completions", `"n":3,"stream":true`, 3, true},
		{"/v1/chat/completions", `"n":0,"stream":null`, 1, false},
		{"/v1/chat/completions", `"n":1000000000,"stream":"true"`, maxChoices, true},
		{"/v1/chat/completions", `"n":-4,"stream":1`, 1, true},
		{"/v1/completions", `"prompt":"a","n":2,"best_of":5`, 5, false},
		{"/v1/embeddings", `"input":"a","n":4,"stream":true`, 1, false},
		{"/generate", `"text":"a","sampling_params":[{"n":2}],"stream":true`, 2, true},
		{"/generate", `"inputs":"a","parameters":{"best_of":3}`, 3, false},
		{"/generate_stream", `"inputs":"a"`, 1, true},
		{"/api/chat", `"model":"m"`, 1, true},
		{"/api/chat", `"stream":false`, 1, false},
		{"/api/generate", `"prompt":"a","stream":null`, 1, true},
	} {
		req, _ := readBody(t, c.path, `{"messages":[{"role":"user","content":"a"}],`+c.body+`}`)
		if req.Choices != c.choices || req.Stream != c.stream {
			t.Errorf("%s %s: %d choices, stream %v", c.path, c.body, req.Choices, req.Stream)
		}
	}
}

func TestRequestsThatTheEngineComputesWholeAreMarked(t *testing.T) {
	for body, want := range map[string]bool{
		`"prompt_logprobs":0`:                                true,
		`"prompt_logprobs":null`:                             false,
		`"echo":true`:                                        false,
		`"echo":true,"logprobs":0`:                           true,
		`"logprobs":5`:                                       false,
		`"cache_prompt":false`:                               true,
		`"cache_prompt":true`:                                false,
		`"return_logprob":true,"logprob_start_len":0`:        true,
		`"return_logprob":true,"logprob_start_len":-1`:       false,
		`"parameters":{"decoder_input_details":true}`:        true,
		`"parameters":{"decoder_input_details":false}`:       false,
		`"return_logprob":false,"logprob_start_len":0,"n":1`: false,
	} {
		req, _ := readBody(t, "/v1/completions", `{"prompt":"a",`+body+`}`)
		if req.NoReuse != want {
			t.Errorf("%s: NoReuse %v", body, req.NoReuse)
		}
	}
}

func TestPairsOfPrefillAndDecodeAreMarked(t *testing.T) {
	for body, want := range map[string]bool{
		`"kv_transfer_params":{"do_remote_decode":true}`: true,
		`"kv_transfer_params":null`:                      false,
		`"bootstrap_host":"a","bootstrap_room":17`:       true,
		`"bootstrap_room":null`:                          false,
		`"n":1`:                                          false,
	} {
		req, _ := readBody(t, "/v1/completions", `{"prompt":"a",`+body+`}`)
		if req.Transfers != want {
			t.Errorf("%s: Transfers %v", body, req.Transfers)
		}
	}
}

func TestEarlierTurnsThatAreOnlyNamedAreNoticed(t *testing.T) {
	for body, id := range map[string]string{
		`{"input":"a","previous_response_id":"resp_1"}`:  "resp_1",
		`{"input":"a","conversation":{"id":"conv_1"}}`:   "",
		`{"input":"a","prompt":{"id":"pmpt_1"}}`:         "",
		`{"input":[{"type":"item_reference","id":"x"}]}`: "",
	} {
		req, _ := readBody(t, "/v1/responses", body)
		if req.WholePrompt || req.PreviousResponseID != id {
			t.Errorf("%s: whole %v, previous %q", body, req.WholePrompt, req.PreviousResponseID)
		}
	}
	if req, _ := readBody(t, "/v1/responses", `{"input":"a","previous_response_id":null}`); !req.WholePrompt {
		t.Error("a null previous_response_id names nothing")
	}
}

func TestAdaptersAndSaltsPartEachPromptOfABatch(t *testing.T) {
	rd := NewReader()
	body := `{"text":["same","same","same"],"lora_path":["x","y","x"]}`
	req, err := rd.Read(SGLangGenerate, "/generate", []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	rd.Chain(req, byteEncoder{}, 4)
	first := func(i int) uint64 { return req.Prompts[i].Blocks[0] }
	if first(0) == first(1) || first(0) != first(2) {
		t.Error("prompts must be parted by their own adapter only")
	}
	alone := `{"text":"same","lora_path":"x"}`
	chain := slices.Clone(req.Prompts[0].Blocks)
	if req, err = rd.Read(SGLangGenerate, "/generate", []byte(alone)); err != nil {
		t.Fatal(err)
	}
	rd.Chain(req, byteEncoder{}, 4)
	if !slices.Equal(chain, req.Prompts[0].Blocks) {
		t.Error("a prompt of a batch must match the same prompt alone")
	}
}

func TestDeeplyNestedContentIsCopiedNotFollowed(t *testing.T) {
	deep := strings.Repeat(`{"type":"tool_result","content":[`, 300) + `{"type":"text","text":"x"}` + strings.Repeat(`]}`, 300)
	req, texts := readBody(t, "/v1/messages", `{"messages":[{"role":"user","content":[`+deep+`]}]}`)
	if req.Messages != 1 || len(texts) > 1 {
		t.Errorf("%d messages, %d texts", req.Messages, len(texts))
	}
}

func TestThePromptIsCutToItsEndWhereTheEngineCutsIt(t *testing.T) {
	long, _ := readBody(t, "/v1/completions", `{"prompt":"abcdefgh","truncate_prompt_tokens":3}`)
	short, _ := readBody(t, "/v1/completions", `{"prompt":"fgh"}`)
	if long.Prompts[0].Tokens != 3 || !slices.Equal(long.Prompts[0].Blocks, short.Prompts[0].Blocks) {
		t.Errorf("%d tokens are left", long.Prompts[0].Tokens)
	}
}

func TestMediaAreChargedAnEstimateAndToldApart(t *testing.T) {
	big := strings.Repeat("QUJD", 100<<10)
	for _, part := range []string{
		`{"type":"image_url","image_url":{"url":"data:image/png;base64,%"}}`,
		`{"type":"input_image","image_url":"data:image/png;base64,%"}`,
		`{"type":"image","source":{"type":"base64","data":"%"}}`,
		`{"type":"input_audio","input_audio":{"data":"%","format":"wav"}}`,
		`{"type":"video_url","video_url":{"url":"%"}}`,
		`{"type":"file","file":{"file_data":"%"}}`,
		`{"type":"document","source":{"type":"base64","data":"%"}}`,
		`{"type":"hologram","data":"%"}`,
		`{"type":"redacted_thinking","data":"%"}`,
	} {
		body := `{"messages":[{"role":"user","content":[` + part + `]}]}`
		a, _ := readBody(t, "/v1/chat/completions", strings.Replace(body, "%", big+"a", 1))
		b, _ := readBody(t, "/v1/chat/completions", strings.Replace(body, "%", big+"b", 1))
		if n := a.Prompts[0].Tokens; n < opaqueTokens || n > 3000 {
			t.Errorf("%s: %d tokens", part, n)
		}
		if a.Prompts[0].Blocks[3] == b.Prompts[0].Blocks[3] {
			t.Errorf("%s: other data has the same blocks", part)
		}
		if a.Prompts[0].Blocks[2] != b.Prompts[0].Blocks[2] {
			t.Errorf("%s: blocks before the medium differ", part)
		}
	}
}

func TestTemplateTokensAreChargedAsChatMLSpendsThem(t *testing.T) {
	req, _ := readBody(t, "/v1/chat/completions", `{"messages":[{"role":"system","content":"abc"},{"role":"user","content":"defg"}]}`)
	// Three before and two after each message, three to begin the answer.
	if got, want := req.Prompts[0].Tokens, 3+4+2*5+3; got != want {
		t.Errorf("%d tokens, want %d", got, want)
	}
}

func TestAnAssistantsLastMessageIsContinuedWhereTheApiDoes(t *testing.T) {
	body := `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`
	anthropic, _ := readBody(t, "/v1/messages", body)
	openai, _ := readBody(t, "/v1/chat/completions", body)
	if got := openai.Prompts[0].Tokens - anthropic.Prompts[0].Tokens; got != endTokens+startTokens {
		t.Errorf("%d tokens more in the OpenAI API, want %d", got, endTokens+startTokens)
	}
}

func TestWhatNamesAnAdapterIsFound(t *testing.T) {
	for body, want := range map[string]string{
		`"lora_path":"a"`:                          "a",
		`"adapter_id":"a"`:                         "a",
		`"parameters":{"adapter_id":"a"}`:          "a",
		`"lora_request":{"lora_name":"a", "id":1}`: `{"lora_name":"a","id":1}`,
		`"lora":[ {"id":0} ]`:                      `[{"id":0}]`,
		`"lora":null`:                              "",
		`"model":"base"`:                           "",
	} {
		req, _ := readBody(t, "/v1/completions", `{"prompt":"a",`+body+`}`)
		if req.LoRA != want {
			t.Errorf("%s: %q, want %q", body, req.LoRA, want)
		}
	}
}

func TestMediaAreToldApartByWhatNamesThem(t *testing.T) {
	seen := map[string]string{}
	for _, part := range []string{
		`{"type":"image_url","image_url":{"url":"u"}}`,
		`{"type":"image_url","image_url":{"url":"v"}}`,
		`{"type":"image_url","image_url":{"url":"u"},"uuid":"1"}`,
		`{"type":"image_url","image_url":null,"uuid":"2"}`,
		`{"type":"image","source":{"type":"file","file_id":"1f"}}`,
		`{"type":"input_image","file_id":"2f"}`,
		`{"type":"input_file","file_url":"u"}`,
		`{"type":"input_file","filename":"only"}`,
		`{"type":"video","video":["f1","f2"]}`,
		`{"type":"video","video":["f1","f3"]}`,
		`{"audio_url":{"url":"u"}}`,
		`{"video":"u"}`,
	} {
		id := identityOf(t, "/v1/chat/completions", []byte(`{"messages":[{"role":"user","content":[`+part+`]}]}`))
		if other, ok := seen[id]; ok {
			t.Errorf("%s and %s are one", part, other)
		}
		seen[id] = part
	}
	nested := `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":{"url":{"url":{"url":{"url":"u"}}}}}}]}]}`
	if req, _ := readBody(t, "/v1/chat/completions", nested); req.Images != 1 {
		t.Errorf("%d images", req.Images)
	}
}

func TestErrorsHoldNoTextOfTheBody(t *testing.T) {
	_, err := NewReader().Read(OpenAIChat, "/v1/chat/completions", []byte(`{"messages":[{"content":"secret`))
	if got, want := err.Error(), "reading request body: truncated at byte 31"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
}
