// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

const tokensDir = "../testdata/tokens"

// golden is what tiktoken itself makes of the texts; see testdata/tokens.
type golden struct {
	Fragments []string `json:"fragments"`
	Runs      []run    `json:"runs"`
	Fuzzed    int      `json:"fuzzed"`
	Batch     int      `json:"batch"`
	Stretch   rune     `json:"stretch"`
	Stretches []rune   `json:"stretches"`
	Encodings map[string]struct {
		Samples    map[string][]uint32 `json:"samples"`
		Files      map[string]string   `json:"files"`
		Runs       []string            `json:"runs"`
		Fuzzed     []string            `json:"fuzzed"`
		Characters []string            `json:"characters"`
	} `json:"encodings"`
}

type run struct {
	fragment string
	times    int
}

func (r *run) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&r.fragment, &r.times})
}

var readGolden = sync.OnceValues(func() (*golden, error) {
	b, err := os.ReadFile(filepath.Join(tokensDir, "golden.json"))
	if err != nil {
		return nil, err
	}
	var g golden
	return &g, json.Unmarshal(b, &g)
})

func goldenOf(t testing.TB) *golden {
	t.Helper()
	g, err := readGolden()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func corpus(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(tokensDir, "corpus", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func encodingOf(t testing.TB, name string) *Encoding {
	t.Helper()
	e, err := LoadEncoding(name)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// digest hashes rows of ids as make.py does.
type digest struct {
	hash.Hash
	row []byte
}

func newDigest() *digest { return &digest{Hash: sha256.New()} }

func (d *digest) add(ids []uint32) {
	d.row = binary.LittleEndian.AppendUint32(d.row[:0], uint32(len(ids)))
	for _, id := range ids {
		d.row = binary.LittleEndian.AppendUint32(d.row, id)
	}
	d.Write(d.row)
}

func (d *digest) String() string { return hex.EncodeToString(d.Sum(nil))[:12] }

// chance is splitmix64, as in make.py.
type chance uint64

func (c *chance) next(n int) int {
	*c += 0x9e3779b97f4a7c15
	z := uint64(*c)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int((z ^ z>>31) % uint64(n))
}

// fuzzedText is fuzzed of make.py.
func fuzzedText(c *chance, fragments []string) string {
	var b strings.Builder
	for range 1 + c.next(40) {
		switch c.next(20) {
		case 0:
			b.WriteRune(rune(c.next(0xd800)))
		case 1:
			b.WriteRune(rune(0x10000 + c.next(0x20000)))
		case 2:
			f := fragments[c.next(len(fragments))]
			b.WriteString(strings.Repeat(f, 1+c.next(30)))
		default:
			b.WriteString(fragments[c.next(len(fragments))])
		}
	}
	return b.String()
}

func eachEncoding(t *testing.T, f func(t *testing.T, e *Encoding)) {
	for _, name := range Encodings() {
		t.Run(name, func(t *testing.T) { f(t, encodingOf(t, name)) })
	}
}

func TestIDsOfTheCorpusEqualTiktokens(t *testing.T) {
	g := goldenOf(t)
	eachEncoding(t, func(t *testing.T, e *Encoding) {
		want := g.Encodings[e.Name()]
		if len(want.Files) == 0 {
			t.Fatal("no golden files")
		}
		for name, sum := range want.Files {
			text := corpus(t, name)
			sample := string([]rune(string(text))[:min(400, utf8.RuneCount(text))])
			if got := e.Append(nil, []byte(sample)); !slices.Equal(got, want.Samples[name]) {
				t.Errorf("first characters of %s:\n got %v\nwant %v", name, got, want.Samples[name])
			}
			d := newDigest()
			if d.add(e.Append(nil, text)); d.String() != sum {
				t.Errorf("%s: ids hash to %s, want %s", name, d, sum)
			}
		}
	})
}

func TestIDsOfLongRunsEqualTiktokens(t *testing.T) {
	g := goldenOf(t)
	eachEncoding(t, func(t *testing.T, e *Encoding) {
		for i, r := range g.Runs {
			d := newDigest()
			d.add(e.Append(nil, []byte(strings.Repeat(r.fragment, r.times))))
			if want := g.Encodings[e.Name()].Runs[i]; d.String() != want {
				t.Errorf("%d times %q: ids hash to %s, want %s", r.times, r.fragment, d, want)
			}
		}
	})
}

func TestIDsOfFuzzedStringsEqualTiktokens(t *testing.T) {
	g := goldenOf(t)
	eachEncoding(t, func(t *testing.T, e *Encoding) {
		c := chance(1)
		var ids []uint32
		for i, want := range g.Encodings[e.Name()].Fuzzed {
			d := newDigest()
			for range g.Batch {
				ids = e.Append(ids[:0], []byte(fuzzedText(&c, g.Fragments)))
				d.add(ids)
			}
			if d.String() != want {
				t.Errorf("batch %d: ids hash to %s, want %s", i, d, want)
			}
		}
	})
}

// Every character stands among others that tell its class.
func TestEveryCharacterIsClassedAsByTiktoken(t *testing.T) {
	if raceEnabled {
		t.Skip("a million short texts, and scratch memory made anew for many of them")
	}
	g := goldenOf(t)
	eachEncoding(t, func(t *testing.T, e *Encoding) {
		if e.Name() == "p50k_base" {
			t.Skip("splits as r50k_base does")
		}
		var ids []uint32
		var text []byte
		for i, want := range g.Encodings[e.Name()].Characters {
			d := newDigest()
			first := g.Stretches[i]
			for c := first; c < first+g.Stretch; c++ {
				if !utf8.ValidRune(c) {
					continue
				}
				text = text[:0]
				for _, b := range []byte("aA1 !\n's") {
					text = append(text, b)
					text = utf8.AppendRune(text, c)
				}
				ids = e.Append(ids[:0], text)
				d.add(ids)
			}
			if d.String() != want {
				t.Errorf("U+%04X to U+%04X: ids hash to %s, want %s", first, first+g.Stretch-1, d, want)
			}
		}
	})
}
