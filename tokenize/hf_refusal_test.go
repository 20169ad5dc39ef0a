// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"strings"
	"testing"
)

// Each case is a tiny tokenizer with one part replaced, and what the error says.
func TestWhatIsNotUnderstoodIsRefused(t *testing.T) {
	for _, c := range []struct{ name, of, old, new, says string }{
		{"unknown pattern", "qwen", `"Regex":"(?i:`, `"Regex":"x(?i:`, "regular expression"},
		{"behavior", "qwen", `"behavior":"Isolated"`, `"behavior":"Removed"`, "behavior"},
		{"gaps dropped", "deepseek", `"behavior":"Isolated","invert":false`, `"behavior":"Removed","invert":true`, "behavior"},
		{"normalizer", "qwen", `{"type":"NFC"}`, `{"type":"NFKC"}`, `"NFKC" is not known`},
		{"pre-tokenizer", "starcoder", `"type":"Digits"`, `"type":"Punctuation"`, `"Punctuation" is not known`},
		{"post-processor", "llama2", `"type":"TemplateProcessing"`, `"type":"Template"`, `"Template" is not known`},
		{"spaces left", "gemma", `"content":"▁"`, `"content":"▁ "`, "leaves"},
		{"dropout", "qwen", `"dropout":null`, `"dropout":0.5`, "chance"},
		{"suffix", "qwen", `"end_of_word_suffix":null`, `"end_of_word_suffix":"</w>"`, "suffix"},
		{"unknown setting", "qwen", `"dropout":null`, `"dropin":null`, `"dropin" is not known`},
		{"model type", "qwen", `"type":"BPE"`, `"type":"WordLevel"`, "WordLevel"},
		{"missing byte", "qwen", `"!":0`, `"!!!!":0`, "255 of the 256 bytes"},
		{"missing fallback", "llama2", `"<0x41>"`, `"<0x4141>"`, "<0x41>"},
		{"no unknown token", "unknown", `"unk_token":"<unk>"`, `"unk_token":null`, "dropped"},
		{"token twice", "qwen", `"!":0`, `"!":0,"!":9000`, "twice"},
		{"id twice", "qwen", `"!":0`, `"!":1`, "twice"},
		{"far id twice", "llama2", `"<0x00>":3,"<0x01>":4`, `"<0x00>":2000000000,"<0x01>":2000000000`, "twice"},
		{"id out of range", "qwen", `"!":0`, `"!":2147483648`, "above"},
		{"id of a mile", "qwen", `"!":0`, `"!":` + strings.Repeat("9", 100000), "above"},
		{"fraction", "qwen", `"!":0`, `"!":0.5`, "no integer"},
		{"negative id", "qwen", `"!":0`, `"!":-1`, "id expected"},
		{"merge of the unknown", "qwen", `"merges":[`, `"merges":[["nowhere","!"],`, "merge 0 is of an unknown token"},
		{"merge into the unknown", "qwen", `"merges":[`, `"merges":[["!","!"],`, "merge 0 makes an unknown token"},
		{"merge of one", "qwen", `"merges":[`, `"merges":[["!"],`, "merge of one"},
		{"merge of three", "qwen", `"merges":[`, `"merges":[["!","!","!"],`, "merge of three"},
		{"merge without space", "qwen", `"merges":[`, `"merges":["!!",`, "without a space"},
		{"merge of nothing", "qwen", `"merges":[`, `"merges":[" !",`, "unknown token"},
		{"added id", "qwen", `"id":460`, `"id":461`, "would give it 460"},
		{"added twice", "qwen", `"content":"<think>"`, `"content":"<|start|>"`, "twice"},
		{"empty added", "qwen", `"content":"<think>"`, `"content":""`, "empty"},
		{"key twice", "qwen", `"normalizer"`, `"model"`, "twice"},
		{"something behind", "qwen", `{"version"`, `{}{"version"`, "follows"},
		{"charsmap", "t5", `"precompiled_charsmap":"`, `"precompiled_charsmap":"AAAA`, "charsmap"},
		{"unknown id", "t5", `"unk_id":2`, `"unk_id":9999`, "unk_id"},
		{"score", "t5", `["<pad>",`, `["<pad>",1e999,`, "range"},
		{"no score", "t5", `["<pad>",`, `["<pad>"],["x",`, "without its score"},
		{"bytes for Unigram", "t5", `"type":"Metaspace"`, `"type":"ByteLevel"`, "bytes"},
		{"growth", "gemma", `"content":"▁"`, `"content":"` + strings.Repeat("▁", 30) + `"`, "grow"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := tinyHF(t, c.of)
			if !bytes.Contains(file, []byte(c.old)) {
				t.Fatalf("no %s in %s", c.old, c.of)
			}
			h, err := parseHF(bytes.Replace(file, []byte(c.old), []byte(c.new), 1))
			if err == nil {
				t.Fatalf("taken: %v", h != nil)
			}
			if err.Place == "" || err.Remedy == "" || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %q does not say %q", err, c.says)
			}
		})
	}
}

func TestTruncatedFilesAreRefused(t *testing.T) {
	for _, name := range tinyNames(t) {
		file := tinyHF(t, name)
		for n := 0; n < len(file); n += 1 + n/64 {
			if _, err := parseHF(file[:n]); err == nil {
				t.Errorf("%s: taken without its last %d bytes", name, len(file)-n)
			}
		}
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	for name, file := range map[string]string{
		"nothing": "", "null": "null", "list": "[]", "empty": "{}", "text": `"x"`, "deep": strings.Repeat("[", 1<<20),
		"deep vocabulary": `{"model":{"vocab":` + strings.Repeat(`{"a":`, 1<<18), "deep config": `{"normalizer":` + strings.Repeat("[", 1<<20),
		"no merges": `{"model":{"type":"BPE","vocab":{}}}`, "no vocabulary": `{"model":{"type":"BPE","merges":[]}}`,
		"list vocabulary": `{"model":{"type":"BPE","vocab":[],"merges":[]}}`, "empty unigram": `{"model":{"type":"Unigram","vocab":[],"unk_id":0}}`,
		"null vocabulary": `{"model":{"type":"BPE","vocab":null,"merges":null}}`, "commas": `{"model":{"vocab":{,,,}}}`,
		"colons": `{"model":{"vocab":{"a"::1}}}`, "garbage": `{"model":@}`, "many keys": `{` + manyKeys(1000) + `"model":{}}`,
	} {
		if _, err := parseHF([]byte(file)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`"` + strings.Repeat("k", i+1) + `":0,`)
	}
	return b.String()
}

func FuzzParseHF(f *testing.F) {
	for _, name := range tinyNames(f) {
		f.Add(tinyHF(f, name), "Hello, wörld! 123\n\n <|start|> e\u0301")
	}
	f.Add([]byte(`{"model":{"type":"Unigram","unk_id":0,"vocab":[["a",0],["b",-1]]}}`), "ab ba")
	f.Fuzz(func(t *testing.T, file []byte, text string) {
		h, err := parseHF(file)
		if err != nil {
			if err.Place == "" || err.Problem == "" || err.Remedy == "" {
				t.Errorf("error %q", err)
			}
			return
		}
		plain := h.Append(nil, []byte(text))
		h.AppendSpecial(nil, []byte(text))
		if again := h.Append(nil, []byte(text)); len(again) != len(plain) {
			t.Error("other ids the second time")
		}
		for _, id := range plain {
			if id > maxHFID {
				t.Errorf("id %d", id)
			}
		}
	})
}
