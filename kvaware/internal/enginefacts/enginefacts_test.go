// SPDX-License-Identifier: Apache-2.0

package enginefacts

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func sampleFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestMetricsOfEveryEngineAreRead(t *testing.T) {
	for file, want := range map[string]Facts{
		"vllm_0.32.txt": {
			Engine: VLLM, BlockSize: 16, KVTokens: 430_080, Engines: 1, PrefixCaching: Yes, Awake: Yes,
			Started: 1.79596800125e9, PromptTokens: 51234, Running: 3, Waiting: 1,
		},
		// What hits come in, and not the smallest group's block; the sum of blocks makes no tokens.
		"vllm_0.32_dp2_asleep.txt": {
			Engine: VLLM, BlockSize: 256, KVTokens: 200_000, Engines: 2, PrefixCaching: No, Awake: No, Started: 1.79596900075e9,
		},
		// The blocks are those of both engines.
		"vllm_0.11.txt": {Engine: VLLM, BlockSize: 16, KVTokens: 80_000, Engines: 2, PrefixCaching: Yes, Started: 1.76342880044e9},
		"vllm_0.8.txt":  {Engine: VLLM, BlockSize: 16, Engines: 1, PrefixCaching: Yes},
		// The smaller of two ranks that differ; workers of one rank count once.
		"sglang_0.5.23_dp2.txt": {Engine: SGLang, BlockSize: 64, KVTokens: 468_000, Engines: 2, PromptTokens: 8.128902e6, Running: 7},
		"sglang_0.5.10.txt":     {Engine: SGLang, BlockSize: 1, KVTokens: 300_000, Engines: 1},
		"trtllm.txt":            {Engine: TRTLLM, BlockSize: 32, KVTokens: 288_000, Started: 1.79e9, Running: 4},
		"llamacpp.txt":          {Engine: LlamaCPP, PromptTokens: 914, Running: 1, Waiting: 2},
		"tgi.txt":               {Engine: TGI, Waiting: 3},
	} {
		got, err := ReadMetrics(bytes.NewReader(sampleFile(t, file)))
		if err != nil || got != want {
			t.Errorf("%s: %v\ngot  %+v\nwant %+v", file, err, got, want)
		}
	}
}

func TestDetailsOfEveryEngineAreRead(t *testing.T) {
	for _, tt := range []struct {
		engine, file string
		want         Facts
	}{
		{SGLang, "sglang_server_info.json", Facts{Engine: SGLang, BlockSize: 64, KVTokens: 470_000, Engines: 2, PrefixCaching: No}},
		{LlamaCPP, "llamacpp_props.json", Facts{Engine: LlamaCPP, KVTokens: 32_768}},
		{TGI, "tgi_info.json", Facts{Engine: TGI, KVTokens: 32_000}},
	} {
		for _, d := range Details(tt.engine) {
			if got, err := d.Read(sampleFile(t, tt.file)); err != nil || got != tt.want {
				t.Errorf("%s%s: %v\ngot  %+v\nwant %+v", tt.engine, d.Path, err, got, tt.want)
			}
			if _, err := d.Read([]byte("<html>")); !errors.Is(err, ErrNoDetails) {
				t.Errorf("%s%s: no JSON gives %v", tt.engine, d.Path, err)
			}
			if got, err := d.Read([]byte(`{"page_size":"x","total_slots":[],"n_ctx":{},"max_batch_total_tokens":-1,"dp_size":1e300,"disable_radix_cache":3,"max_total_num_tokens":1.5}`)); err != nil || got.KVTokens != 0 || got.BlockSize != 0 {
				t.Errorf("%s%s: mistyped fields give %+v, %v", tt.engine, d.Path, got, err)
			}
		}
	}
}

func TestModelsAndAdaptersAreRead(t *testing.T) {
	for file, want := range map[string][]string{
		"models_vllm.json":     {"vllm", "Qwen/Qwen3-8B", "qwen3", "sql-lora*"},
		"models_sglang.json":   {"sglang", "base", "tuned*", "base:tuned*"},
		"models_ollama.json":   {"ollama", "llama3.2:latest", "llama3.2", "qwen3:8b"},
		"models_llamacpp.json": {"llama.cpp", "m.gguf"},
	} {
		all, err := ReadModels(sampleFile(t, file))
		got := []string{all.Engine}
		all.Names(func(name string, adapter bool) {
			if adapter {
				name += "*"
			}
			got = append(got, name)
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %v, %v, want %v", file, got, err, want)
		}
	}
}

func TestWhatIsNoListOfModelsIsAnError(t *testing.T) {
	for _, text := range []string{"", "[]", "null", "{}", `{"data":null}`, `{"data":[`, "<html>", `{"object":"error","message":"x"}`} {
		if _, err := ReadModels([]byte(text)); !errors.Is(err, ErrNoModels) {
			t.Errorf("%q gives %v", text, err)
		}
	}
	// Entries that are odd are left out or taken as far as they go.
	all, err := ReadModels([]byte(`{"data":[{"id":5},{"id":""},{"id":"a","parent":7,"max_model_len":"x"},{"id":"` + strings.Repeat("x", MaxName+1) + `"}]}`))
	if err != nil || len(all.List) != 1 || all.List[0] != (Model{ID: "a"}) {
		t.Errorf("got %+v, %v", all, err)
	}
	var many strings.Builder
	for i := range MaxModels + 5 {
		fmt.Fprintf(&many, `,{"id":"m%d"}`, i)
	}
	if all, err = ReadModels([]byte(`{"data":[` + many.String()[1:] + `]}`)); err != nil || len(all.List) != MaxModels || !all.Cut {
		t.Errorf("%d models, cut %v, %v", len(all.List), all.Cut, err)
	}
}

func TestOddLinesAreLeftOutAndTheOthersRead(t *testing.T) {
	const good = "\nsglang:max_total_num_tokens{dp_rank=\"0\"} 1000\n"
	for name, odd := range map[string]string{
		"a line without an end":          "vllm:cache_config_info{a=\"",
		"a line of many megabytes":       "x{a=\"" + strings.Repeat("y", 3<<20) + "\"} 1",
		"labels that never end":          "sglang:page_size{" + strings.Repeat(`a="b",`, 5000),
		"more labels than are looked at": "sglang:page_size{" + strings.Repeat(`a="b",`, 2000) + "} 5",
		"no value":                       "sglang:page_size ",
		"values that are no numbers":     "sglang:max_total_num_tokens NaN\nsglang:max_total_num_tokens{dp_rank=\"0\"} +Inf\nsglang:page_size x",
		"values out of range":            "sglang:page_size -5\nsglang:page_size 1e30\nsglang:page_size 1.5",
		"bytes that are no text":         "\xff\x00\xfe{\x00} \x01",
		"other formats":                  "{\"name\",le=\"1\"} 4\n}{ 4\n= 4",
		"comments":                       "#\n# \n#sglang:page_size 9",
	} {
		got, err := ReadMetrics(strings.NewReader(odd + good))
		if err != nil || got.KVTokens != 1000 || got.BlockSize != 0 {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

func TestLabelsAreUnescapedAndMayStandInAnyOrder(t *testing.T) {
	got, err := ReadMetrics(strings.NewReader(
		"vllm:cache_config_info { engine = \"a\\\"b\\\\\\n,}{\" , kv_cache_size_tokens=\"1600\",block_size=\"16\", } 1 1795968000000"))
	if err != nil || got.KVTokens != 1600 || got.BlockSize != 16 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestWhatIsNoMetricsIsAnError(t *testing.T) {
	for _, text := range []string{"", "\n\n", "# only\n# comments\n", "<html><body>hello</body></html>", `[{"iter":1,"kvCacheStats":{"maxNumBlocks":1}}]`} {
		if got, err := ReadMetrics(strings.NewReader(text)); !errors.Is(err, ErrNoMetrics) || got != (Facts{}) {
			t.Errorf("%q gives %+v, %v", text, got, err)
		}
	}
	broken := io.MultiReader(strings.NewReader("sglang:page_size 16\n"), iotest.ErrReader(io.ErrUnexpectedEOF))
	if got, err := ReadMetrics(broken); !errors.Is(err, io.ErrUnexpectedEOF) || got.BlockSize != 16 {
		t.Errorf("a text that breaks gives %+v, %v", got, err)
	}
}

func TestRanksAreBounded(t *testing.T) {
	var text strings.Builder
	for i := range 3 * maxRanks {
		fmt.Fprintf(&text, "sglang:page_size{dp_rank=\"%d\"} 16\n", i)
	}
	if got, err := ReadMetrics(strings.NewReader(text.String())); err != nil || got.Engines != maxRanks {
		t.Errorf("%d ranks, %v", got.Engines, err)
	}
}

func FuzzMetrics(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txt")
	for _, name := range files {
		f.Add(sampleFile(f, filepath.Base(name)))
	}
	f.Add([]byte("vllm:cache_config_info{engine=\"\\"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := ReadMetrics(bytes.NewReader(data))
		checkFacts(t, got)
		if again, err2 := ReadMetrics(iotest.OneByteReader(bytes.NewReader(data))); again != got || (err == nil) != (err2 == nil) {
			t.Errorf("%+v, %v in one piece; %+v, %v in many", got, err, again, err2)
		}
	})
}

func FuzzAnswers(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.json")
	for _, name := range files {
		f.Add(sampleFile(f, filepath.Base(name)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := ReadModels(data)
		if err != nil && len(all.List) > 0 {
			t.Error("models beside an error")
		}
		all.Names(func(name string, _ bool) {
			if name == "" && all.Engine != Ollama {
				t.Error("a model without a name")
			}
		})
		for _, engine := range []string{SGLang, LlamaCPP, TGI} {
			for _, d := range Details(engine) {
				got, _ := d.Read(data)
				checkFacts(t, got)
			}
		}
	})
}

func checkFacts(t *testing.T, f Facts) {
	t.Helper()
	if f.BlockSize < 0 || f.BlockSize > maxBlock || f.KVTokens < 0 || f.KVTokens > maxTokens ||
		f.Engines < 0 || f.Engines > maxRanks || f.Capacity() < 0 {
		t.Errorf("facts out of range: %+v", f)
	}
	for _, v := range []float64{f.Started, f.PromptTokens, f.Running, f.Waiting} {
		if !(v >= 0 && v <= maxTokens) {
			t.Errorf("facts out of range: %+v", f)
		}
	}
}

func BenchmarkMetrics(b *testing.B) {
	text := slices.Concat(sampleFile(b, "vllm_0.32.txt"), bytes.Repeat([]byte("vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"0.001\",model_name=\"Qwen/Qwen3-8B\"} 0.0\n"), 400))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadMetrics(bytes.NewReader(text)); err != nil {
			b.Fatal(err)
		}
	}
}
