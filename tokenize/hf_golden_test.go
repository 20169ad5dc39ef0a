// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// realTokenizers names the directory of the real tokenizer.json files, which are
// too large for the repository; see testdata/tokens/hf/README.md.
const realTokenizers = "KVAWARE_TOKENIZERS"

const hfDir = tokensDir + "/hf"

// hfVectors is what the tokenizers library makes of the texts; see make.py.
type hfVectors struct {
	Batch      int                 `json:"batch"`
	Tiny, Real map[string]hfVector `json:"-"`
}

type hfVector struct {
	SHA256     string            `json:"sha256"`
	Contents   []string          `json:"contents"`
	Frame      int               `json:"frame"`
	Sample     []uint32          `json:"sample"`
	Files      map[string]string `json:"files"`
	Runs       []string          `json:"runs"`
	Fuzzed     []string          `json:"fuzzed"`
	Special    []string          `json:"special"`
	Characters []string          `json:"characters"`
}

var readHFVectors = sync.OnceValues(func() (*hfVectors, error) {
	b, err := os.ReadFile(filepath.Join(hfDir, "vectors.json"))
	if err != nil {
		return nil, err
	}
	var v hfVectors
	all := struct {
		*hfVectors
		Tiny *map[string]hfVector `json:"tiny"`
		Real *map[string]hfVector `json:"real"`
	}{&v, &v.Tiny, &v.Real}
	return &v, json.Unmarshal(b, &all)
})

// eachHF calls f for every tokenizer that has vectors and whose file is there.
func eachHF(t *testing.T, f func(t *testing.T, h *HFTokenizer, want *hfVector)) {
	t.Helper()
	v, err := readHFVectors()
	if err != nil {
		t.Fatal(err)
	}
	if len(v.Tiny) == 0 || len(v.Real) == 0 {
		t.Fatal("no vectors")
	}
	run := func(directory string, vectors map[string]hfVector) {
		for _, name := range slices.Sorted(maps.Keys(vectors)) {
			t.Run(name, func(t *testing.T) {
				path := filepath.Join(directory, name+".json")
				want := vectors[name]
				h := loadHFOfSum(t, path, want.SHA256)
				f(t, h, &want)
			})
		}
	}
	run(hfDir+"/tiny", v.Tiny)
	directory := os.Getenv(realTokenizers)
	if directory == "" {
		t.Log(realTokenizers + " is not set: real tokenizers are not tested")
		return
	}
	run(directory, v.Real)
}

func loadHFOfSum(t *testing.T, path, sum string) *HFTokenizer {
	t.Helper()
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := sha256.Sum256(b); hex.EncodeToString(got[:]) != sum {
		t.Fatalf("%s is not the file that the vectors are of", path)
	}
	return loadHF(t, path)
}

func loadHF(t testing.TB, path string) *HFTokenizer {
	t.Helper()
	h, err := LoadHF(path)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestIDsOfTheCorpusEqualHuggingFaces(t *testing.T) {
	eachHF(t, func(t *testing.T, h *HFTokenizer, want *hfVector) {
		sample := "Hello, wörld! 你好 123\n\n  e\u0301"
		if got := h.Append(nil, []byte(sample)); !slices.Equal(got, want.Sample) {
			t.Errorf("%q:\n got %v\nwant %v", sample, got, want.Sample)
		}
		for name, sum := range want.Files {
			d := newDigest()
			if d.add(h.Append(nil, corpus(t, name))); d.String() != sum {
				t.Errorf("%s: ids hash to %s, want %s", name, d, sum)
			}
		}
		if before, after := h.Frame(); len(before)+len(after) != want.Frame {
			t.Errorf("%d ids around a text, want %d", len(before)+len(after), want.Frame)
		}
	})
}

func TestIDsOfLongRunsEqualHuggingFaces(t *testing.T) {
	g := goldenOf(t)
	eachHF(t, func(t *testing.T, h *HFTokenizer, want *hfVector) {
		for i, r := range g.Runs {
			d := newDigest()
			d.add(h.Append(nil, []byte(strings.Repeat(r.fragment, r.times))))
			if d.String() != want.Runs[i] {
				t.Errorf("%d times %q: ids hash to %s, want %s", r.times, r.fragment, d, want.Runs[i])
			}
		}
	})
}

func TestIDsOfFuzzedStringsEqualHuggingFaces(t *testing.T) {
	g := goldenOf(t)
	eachHF(t, func(t *testing.T, h *HFTokenizer, want *hfVector) {
		v, _ := readHFVectors()
		c := chance(1)
		for i, sum := range want.Fuzzed {
			d := newDigest()
			for range v.Batch {
				d.add(h.Append(nil, []byte(fuzzedText(&c, g.Fragments))))
			}
			if d.String() != sum {
				t.Errorf("batch %d: ids hash to %s, want %s", i, d, sum)
			}
		}
	})
}

func TestIDsOfFuzzedStringsWithAddedTokensEqualHuggingFaces(t *testing.T) {
	g := goldenOf(t)
	eachHF(t, func(t *testing.T, h *HFTokenizer, want *hfVector) {
		v, _ := readHFVectors()
		c := chance(2)
		for i, sum := range want.Special {
			d := newDigest()
			for range v.Batch {
				d.add(h.AppendSpecial(nil, []byte(fuzzedSpecial(&c, g.Fragments, want.Contents))))
			}
			if d.String() != sum {
				t.Errorf("batch %d: ids hash to %s, want %s", i, d, sum)
			}
		}
	})
}

// fuzzedSpecial is fuzzed_special of make.py.
func fuzzedSpecial(c *chance, fragments, contents []string) string {
	var b strings.Builder
	for range 1 + c.next(5) {
		if c.next(2) == 0 {
			b.WriteString(contents[c.next(len(contents))])
		} else {
			b.WriteString(fuzzedText(c, fragments))
		}
	}
	return b.String()
}

// Every character stands among others that tell its class.
func TestEveryCharacterIsTreatedAsByHuggingFace(t *testing.T) {
	if raceEnabled {
		t.Skip("a million short texts, and scratch memory made anew for many of them")
	}
	g := goldenOf(t)
	eachHF(t, func(t *testing.T, h *HFTokenizer, want *hfVector) {
		var ids []uint32
		var text []byte
		for i, sum := range want.Characters {
			d := newDigest()
			first := g.Stretches[i]
			for c := first; c < first+g.Stretch; c++ {
				if utf8.ValidRune(c) {
					for _, b := range []byte("aA1 !\n's") {
						text = append(text, b)
						text = utf8.AppendRune(text, c)
					}
				}
				if (c+1)%32 == 0 {
					ids = h.Append(ids[:0], text)
					d.add(ids)
					text = text[:0]
				}
			}
			if d.String() != sum {
				t.Errorf("U+%04X to U+%04X: ids hash to %s, want %s", first, first+g.Stretch-1, d, sum)
			}
		}
	})
}
