// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// realHF returns the real tokenizer.json files, by name.
func realHF(b *testing.B) map[string][]byte {
	b.Helper()
	directory := os.Getenv(realTokenizers)
	if directory == "" {
		b.Skip(realTokenizers + " is not set")
	}
	paths, err := filepath.Glob(filepath.Join(directory, "*.json"))
	if err != nil || len(paths) == 0 {
		b.Skip("no tokenizers in ", directory)
	}
	files := make(map[string][]byte)
	for _, path := range paths {
		file, err := os.ReadFile(path)
		if err != nil {
			b.Fatal(err)
		}
		files[strings.TrimSuffix(filepath.Base(path), ".json")] = file
	}
	return files
}

func BenchmarkHF(b *testing.B) {
	files := realHF(b)
	texts := encodeTexts(b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := parsedHF(b, files[name])
		for _, t := range texts {
			b.Run(name+"/"+t.name, func(b *testing.B) {
				b.SetBytes(int64(len(t.text)))
				b.ReportAllocs()
				ids := h.AppendSpecial(nil, t.text)
				for b.Loop() {
					ids = h.AppendSpecial(ids[:0], t.text)
				}
				perToken(b, len(ids))
			})
		}
	}
}

func BenchmarkHFLongRuns(b *testing.B) {
	files := realHF(b)
	for _, size := range []int{100 << 10, 16 << 20} {
		for _, name := range slices.Sorted(maps.Keys(files)) {
			h := parsedHF(b, files[name])
			for _, fragment := range []string{"a", " ", "\n", "\u4e2d"} {
				text := bytes.Repeat([]byte(fragment), size/len(fragment))
				b.Run(fmt.Sprintf("%s/%q/%dKB", name, fragment, size>>10), func(b *testing.B) {
					b.SetBytes(int64(len(text)))
					b.ReportAllocs()
					ids := make([]uint32, 0, size)
					for b.Loop() {
						ids = h.Append(ids[:0], text)
					}
				})
			}
		}
	}
}

func BenchmarkParseHF(b *testing.B) {
	files := realHF(b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(files[name])))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := parseHF(files[name]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
