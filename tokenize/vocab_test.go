// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestRankFilesThatMakeNoSenseAreRefused(t *testing.T) {
	for name, file := range map[string]string{
		"no rank":        "IQ==\n",
		"no token":       " 0\n",
		"rank no number": "IQ== x\n",
		"rank twice":     "IQ== 0\nIg== 0\n",
		"rank backwards": "IQ== 5\nIg== 3\n",
		"rank huge":      "IQ== 99999999999999999999\n",
		"rank far away":  "IQ== 2000000\n",
		"no base64":      "I*== 0\n",
		"trailing words": "IQ== 0 more\n",
		"empty token":    "==== 0\n",
		"long token":     base64.StdEncoding.EncodeToString(make([]byte, 256)) + " 0\n",
		"blank line":     "IQ== 0\n\nIg== 1\n",
	} {
		if _, err := readRanks([]byte(file)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// byteRanks is a rank file of the 256 bytes and these tokens.
func byteRanks(tokens ...string) []byte {
	var b bytes.Buffer
	for i := range 256 {
		fmt.Fprintf(&b, "%s %d\n", base64.StdEncoding.EncodeToString([]byte{byte(i)}), i)
	}
	for i, token := range tokens {
		fmt.Fprintf(&b, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(token)), 256+i)
	}
	return b.Bytes()
}

func TestVocabulariesThatAreNotMadeByMergingAreRefused(t *testing.T) {
	whole := byteRanks("ab", "abc")
	if _, err := newEncoding("test", splitByGPT2, whole); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string][]byte{
		"a byte is missing":     whole[bytes.IndexByte(whole, '\n')+1:],
		"empty":                 nil,
		"no merge makes it":     byteRanks("abc"),
		"its half comes later":  byteRanks("abc", "ab"),
		"token twice":           byteRanks("ab", "ab"),
		"merging goes past it":  byteRanks("bc", "ab", "abcd", "cd", "xab"),
		"byte as a second rank": byteRanks("a"),
	} {
		if _, err := newEncoding("test", splitByGPT2, file); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzRankFile(f *testing.F) {
	f.Add(byteRanks("ab", "abc"))
	f.Add([]byte("IQ== 0\nIg== 1\n"))
	f.Add([]byte("IQ== 2000000"))
	f.Add([]byte(strings.Repeat("A", 400) + " 1\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		e, err := newEncoding("test", splitByO200K, file)
		if err != nil {
			return
		}
		texts, _ := readRanks(file)
		text := file[:min(len(file), 500)]
		var got []byte
		for _, id := range e.Append(nil, text) {
			got = append(got, texts.of(id)...)
		}
		if !bytes.Equal(got, text) {
			t.Errorf("%q comes back as %q", text, got)
		}
	})
}

// The longest token that begins a text is the same as found by trying all.
func TestTheTrieFindsTheLongestToken(t *testing.T) {
	eachEncoding(t, func(t *testing.T, e *Encoding) {
		texts := tokensOf(t, e.Name())
		known := make(map[string]uint32)
		for id := range uint32(texts.ids()) {
			known[string(texts.of(id))] = id
		}
		c := chance(3)
		for range 20000 {
			var text []byte
			for range 3 {
				text = append(text, texts.of(uint32(c.next(texts.ids())))...)
			}
			want, length := uint32(noToken), 0
			for n := min(len(text), 128); n > 0; n-- {
				if id, ok := known[string(text[:n])]; ok {
					want, length = id, n
					break
				}
			}
			if id, n, _ := e.vocab.trie.longest(text); id != want || n != length {
				t.Fatalf("%q: got %d of %d bytes, want %d of %d", text, id, n, want, length)
			}
		}
	})
}

// The table for characters of three bytes is a shortcut to the same tokens.
func TestTheLongestTokenIsTheSameWithoutTheTableOfWideCharacters(t *testing.T) {
	for _, name := range Encodings() {
		quick := encodingOf(t, name).vocab.trie
		walk := prefixTrie{nodes: quick.nodes}
		followers := [][]byte{nil, []byte("a"), []byte("的"), []byte("\u3042"), []byte("한"), {0xe4, 0xb8}, {0x80}}
		for e := range uint32(wideEntries) {
			text := []byte{0xe0 | byte(e>>12), 0x80 | byte(e>>6&63), 0x80 | byte(e&63)}
			text = append(text, followers[e%uint32(len(followers))]...)
			if e%5 == 0 {
				text[2] ^= 0x80 // no character, but with its place in the table
			}
			token, n, joins := quick.longest(text)
			wantToken, wantN, wantJoins := walk.longest(text)
			if token != wantToken || n != wantN || joins != wantJoins {
				t.Fatalf("%s: %x: token %d of %d bytes, want %d of %d", name, text, token, n, wantToken, wantN)
			}
		}
	}
}

// Vocabularies that fit badly into one array, as one that lies may be made to, are
// built in a time that grows with their size. Were each search to begin at the
// first free place, it would be minutes.
func TestATrieOfTokensThatFitBadlyIsBuiltInBoundedTimeAndPlace(t *testing.T) {
	if raceEnabled {
		t.Skip("the time is another")
	}
	c := chance(9)
	texts := &tokenTexts{start: []uint32{0}}
	known := make(map[string]uint32)
	for prefix := range 20_000 {
		for label := c.next(20); label < 256; label += 1 + c.next(20) {
			text := []byte{byte(prefix >> 8), byte(prefix), byte(label)}
			known[string(text)] = uint32(texts.ids())
			texts.bytes = append(texts.bytes, text...)
			texts.start = append(texts.start, uint32(len(texts.bytes)))
		}
	}
	var trie prefixTrie
	begin := time.Now()
	if err := trie.build(texts, make([]uint32, texts.ids())); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	t.Logf("%d tokens: %v, %d nodes", texts.ids(), took, len(trie.nodes))
	if took > 20*time.Second || len(trie.nodes) > 20*texts.ids() {
		t.Errorf("%d tokens: %v, %d nodes", texts.ids(), took, len(trie.nodes))
	}
	for text, id := range known {
		if got, n, _ := trie.longest([]byte(text)); got != id || n != len(text) {
			t.Fatalf("%q: got %d of %d bytes, want %d", text, got, n, id)
		}
	}
}
