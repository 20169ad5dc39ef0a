// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"slices"
	"strings"
	"testing"
)

func TestModelsOfOpenAIHaveTheirEncoding(t *testing.T) {
	for encoding, models := range map[string][]string{
		"o200k_base": {
			"gpt-4o", "gpt-4o-mini", "gpt-4o-2024-05-13", "chatgpt-4o-latest", "gpt-4.1", "gpt-4.1-nano", "gpt-4.5-preview",
			"gpt-5", "gpt-5-mini", "gpt-5.1-codex", "o1", "o1-preview", "o3", "o3-mini", "o4-mini", "o4-mini-high",
			"openai/gpt-4o-mini", "openrouter/openai/gpt-4o:free", "azure/gpt-4o", "GPT-4o", "OpenAI/GPT-4O",
			"ft:gpt-4o:acme::1a2b", "ft:gpt-4o-mini-2024-07-18:acme::1", "ft:gpt-4.1-mini:acme::1",
			"gpt-oss-20b", "openai/gpt-oss-120b", "gpt-oss:20b", "unsloth/gpt-oss-20b-GGUF", "/models/gpt-oss-20b",
		},
		"cl100k_base": {
			"gpt-4", "gpt-4-0613", "gpt-4-32k", "gpt-4-turbo-preview", "gpt-3.5", "gpt-3.5-turbo", "gpt-3.5-turbo-16k",
			"gpt-35-turbo", "azure/gpt-35-turbo-16k", "ft:gpt-3.5-turbo:acme::1", "ft:gpt-4:acme::1", "davinci-002", "ft:babbage-002:acme::1",
			"text-embedding-ada-002", "text-embedding-3-small", "openai/text-embedding-3-large",
		},
		"p50k_base": {"text-davinci-003", "text-davinci-002", "code-davinci-002", "code-cushman-001", "text-davinci-edit-001"},
		"r50k_base": {"davinci", "ada", "davinci:ft-acme-2023", "text-curie-001", "text-search-ada-doc-001", "gpt2", "openai-community/gpt2"},
	} {
		if !slices.Contains(Encodings(), encoding) {
			t.Errorf("%s is no encoding", encoding)
		}
		for _, model := range models {
			if got, exact := EncodingForModel(model); got != encoding || !exact {
				t.Errorf("%s: %s, exact %t; want %s", model, got, exact, encoding)
			}
		}
	}
}

func TestOtherModelsGetAStandIn(t *testing.T) {
	for _, model := range []string{
		"", "/", ":", "ft:", "openai/", "llama-3.1-8b", "Qwen/Qwen3-32B", "claude-sonnet-4", "someone/gpt-4-x-alpaca", "someone/ada",
		"gpt-40", "gpt-3.5x", "gpt-ossified", "o1x", "o10", "o", "text-embedding-4", "my-gpt-4o", "distilgpt2", "gpt-4oo", "adaptive",
		strings.Repeat("/", 1000), strings.Repeat("gpt-4", 1000), "gpt-\xff", "ﬀgpt-4",
	} {
		if got, exact := EncodingForModel(model); got != "o200k_base" || exact {
			t.Errorf("%.40q: %s, exact %t", model, got, exact)
		}
	}
}

func TestNoNameMatchesTwoRows(t *testing.T) {
	for i, a := range modelEncodings {
		if a.name != strings.ToLower(a.name) {
			t.Errorf("%s is not in lower case", a.name)
		}
		for _, b := range modelEncodings[i+1:] {
			for _, p := range [][2]string{{a.name, b.name}, {b.name, a.name}} {
				rest, ok := strings.CutPrefix(p[1], p[0])
				short := a
				if p[0] == b.name {
					short = b
				}
				if ok && (rest == "" || short.form == namePrefix || short.form == familyName && rest[0] == '-') {
					t.Errorf("%s matches the row of %s", p[1], p[0])
				}
			}
		}
	}
}

// The ids are those of tiktoken's own tests for gpt2 (tests/test_encoding.py).
func TestGPT2EncodesAsR50K(t *testing.T) {
	e := encodingOf(t, "r50k_base")
	for text, want := range map[string][]uint32{
		"hello world": {31373, 995},
		"0000":        {2388},
		"00000":       {20483},
		"0000000":     {24598},
	} {
		if got := e.Append(nil, []byte(text)); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestTellingTheEncodingAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { EncodingForModel("openrouter/OpenAI/GPT-4o-mini:free") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzEncodingForModel(f *testing.F) {
	for _, model := range []string{"openai/gpt-4o", "ft:gpt-4:a::b", "gpt-oss:20b", "a/b:c/d"} {
		f.Add(model)
	}
	f.Fuzz(func(t *testing.T, model string) {
		encoding, exact := EncodingForModel(model)
		if !slices.Contains(Encodings(), encoding) || !exact && encoding != standIn {
			t.Errorf("%q: %s, exact %t", model, encoding, exact)
		}
		if again, same := EncodingForModel(strings.ToUpper(model)); isASCII(model) && (again != encoding || same != exact) {
			t.Errorf("%q in capitals: %s, exact %t", model, again, same)
		}
	})
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 }) < 0
}

func BenchmarkEncodingForModel(b *testing.B) {
	for _, model := range []string{"gpt-4o", "openrouter/openai/gpt-4o-mini:free", "meta-llama/Llama-3.1-8B-Instruct"} {
		b.Run(strings.ReplaceAll(model, "/", "_"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				EncodingForModel(model)
			}
		})
	}
}
