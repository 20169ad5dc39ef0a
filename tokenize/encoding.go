// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"fmt"
	"strings"
	"sync"

	"github.com/pkoukk/tiktoken-go-loader/assets"
)

// Encoding turns text into the token ids of one of OpenAI's tiktoken encodings.
// It is immutable and safe for concurrent use.
type Encoding struct {
	name    string
	split   splitRule
	classes *classTable
	vocab   *vocab
}

// encodings are the known encodings by the names tiktoken gives them. Each is
// loaded at its first use and kept for the life of the process.
var encodings = []struct {
	name string
	load func() (*Encoding, error)
}{
	{"cl100k_base", lazily("cl100k_base", splitByCL100K)},
	{"o200k_base", lazily("o200k_base", splitByO200K)},
	{"p50k_base", lazily("p50k_base", splitByGPT2)},
	{"r50k_base", lazily("r50k_base", splitByGPT2)},
}

// Encodings returns the names that LoadEncoding knows.
func Encodings() []string {
	names := make([]string, len(encodings))
	for i, e := range encodings {
		names[i] = e.name
	}
	return names
}

// LoadEncoding returns the encoding of that name. Its ranks are embedded in the
// program; the first call takes 25 to 150 milliseconds and keeps 6 to 26 MB,
// later ones return the same Encoding. An unknown name is an error that lists
// the known ones.
func LoadEncoding(name string) (*Encoding, error) {
	for _, e := range encodings {
		if e.name == name {
			return e.load()
		}
	}
	return nil, fmt.Errorf("unknown encoding %q; known are %s", name, strings.Join(Encodings(), ", "))
}

func lazily(name string, split splitRule) func() (*Encoding, error) {
	return sync.OnceValues(func() (*Encoding, error) {
		file, err := assets.Assets.ReadFile(name + ".tiktoken")
		if err != nil {
			return nil, fmt.Errorf("loading encoding %s: %w", name, err)
		}
		e, err := newEncoding(name, split, file)
		if err != nil {
			return nil, fmt.Errorf("loading encoding %s: %w", name, err)
		}
		return e, nil
	})
}

// newEncoding makes an encoding of a rank file (see readRanks).
func newEncoding(name string, split splitRule, ranks []byte) (*Encoding, error) {
	texts, err := readRanks(ranks)
	if err != nil {
		return nil, err
	}
	v, err := newVocab(texts)
	if err != nil {
		return nil, err
	}
	return &Encoding{name: name, split: split, classes: runeClasses(), vocab: v}, nil
}

// Name returns the encoding's name.
func (e *Encoding) Name() string { return e.name }

// Append appends the ids of text to dst and returns it. The ids are those of
// tiktoken's encode_ordinary: what looks like a special token is plain text.
// Text should be valid UTF-8; bytes that are not are split as U+FFFD would be
// and encoded as they are. The time is linear in the text, whatever it holds,
// and only dst is allocated, where it has to grow.
func (e *Encoding) Append(dst []uint32, text []byte) []uint32 {
	v := e.vocab
	s := v.getScratch()
	for p := 0; p < len(text); {
		end := e.split.pieceEnd(e.classes, text, p)
		dst = v.appendKnown(s, dst, text, p, end)
		p = end
	}
	v.putScratch(s)
	return dst
}
