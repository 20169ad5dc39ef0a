// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// encodeSize is what each benchmark text is cut to: large enough for the words
// of a text not to be in a cache for its repetition alone.
const encodeSize = 64 << 10

type encodeText struct {
	name string
	text []byte
}

// encodeTexts are English (Newton's Opticks) and Go code out of Go's own tree,
// and JSON and Chinese put together from the corpus.
func encodeTexts(b *testing.B) []encodeText {
	b.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		b.Skip("no Go source tree: ", err)
	}
	source := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "src", filepath.FromSlash(name)))
		if err != nil {
			b.Skip("no Go source tree: ", err)
		}
		return text[len(text)/4:]
	}
	texts := []encodeText{
		{"english", source("testdata/Isaac.Newton-Opticks.txt")},
		{"code", source("net/http/server.go")},
		{"json", jsonText(source("testdata/Isaac.Newton-Opticks.txt"))},
		{"cjk", cjkText(corpus(b, "cjk.txt"))},
	}
	for i := range texts {
		texts[i].text = bytes.ToValidUTF8(texts[i].text[:encodeSize], nil)
	}
	return texts
}

// jsonText makes records of an API log that carry the lines of a text.
func jsonText(lines []byte) []byte {
	type usage struct {
		Prompt int     `json:"prompt_tokens"`
		Cached int     `json:"cached_tokens"`
		TTFT   float64 `json:"ttft_ms"`
	}
	type record struct {
		ID      string `json:"id"`
		Model   string `json:"model"`
		Created int    `json:"created"`
		Stream  bool   `json:"stream"`
		Content string `json:"content"`
		Usage   usage  `json:"usage"`
		Error   any    `json:"error"`
	}
	c := chance(8)
	var out []byte
	for line := range bytes.Lines(lines) {
		if len(out) > encodeSize {
			break
		}
		r := record{
			ID: fmt.Sprintf("chatcmpl-%08x%08x", c.next(1<<32), c.next(1<<32)), Model: []string{"gpt-4o", "qwen3-32b"}[c.next(2)],
			Created: 1700000000 + c.next(1e8), Stream: c.next(2) == 0, Content: string(bytes.TrimSpace(line)),
			Usage: usage{c.next(100000), c.next(1000), float64(c.next(1e6)) / 1000},
		}
		text, _ := json.Marshal(r)
		out = append(append(out, text...), '\n')
	}
	return out
}

// cjkText strings the clauses of a text together at random.
func cjkText(text []byte) []byte {
	clauses := strings.FieldsFunc(string(text), func(r rune) bool { return strings.ContainsRune("，。、；：\n", r) })
	c := chance(9)
	var out []byte
	for len(out) < encodeSize {
		out = append(out, clauses[c.next(len(clauses))]...)
		out = append(out, []string{"，", "。", "、"}[c.next(3)]...)
	}
	return out
}

func BenchmarkEncode(b *testing.B) {
	texts := encodeTexts(b)
	for _, name := range Encodings() {
		e := encodingOf(b, name)
		for _, t := range texts {
			b.Run(name+"/"+t.name+"/ours", func(b *testing.B) {
				b.SetBytes(int64(len(t.text)))
				b.ReportAllocs()
				ids := e.Append(nil, t.text)
				for b.Loop() {
					ids = e.Append(ids[:0], t.text)
				}
				perToken(b, len(ids))
			})
			if strings.HasSuffix(name, "50k_base") {
				continue // tiktoken-go's speed is the vocabulary's least concern
			}
			b.Run(name+"/"+t.name+"/tiktoken-go", func(b *testing.B) {
				r, text := reference(b, name), string(t.text)
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				var ids []int
				for b.Loop() {
					ids = r.EncodeOrdinary(text)
				}
				perToken(b, len(ids))
			})
		}
	}
}

func perToken(b *testing.B, ids int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(ids), "ns/token")
}

func BenchmarkEncodeLongRuns(b *testing.B) {
	for _, size := range []int{100 << 10, 1 << 20, 16 << 20} {
		texts := longTexts(size)
		for _, name := range []string{"cl100k_base", "o200k_base"} {
			e := encodingOf(b, name)
			for _, text := range slices.Sorted(maps.Keys(texts)) {
				b.Run(fmt.Sprintf("%s/%s/%dKB", name, text, size>>10), func(b *testing.B) {
					b.SetBytes(int64(size))
					b.ReportAllocs()
					ids := make([]uint32, 0, size)
					for b.Loop() {
						ids = e.Append(ids[:0], texts[text])
					}
				})
			}
		}
	}
}

func BenchmarkLoadEncoding(b *testing.B) {
	for _, name := range Encodings() {
		b.Run(name, func(b *testing.B) {
			file := rankFile(b, name)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := newEncoding(name, splitByGPT2, file); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
