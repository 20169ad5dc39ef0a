// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"encoding/base64"
	"slices"
	"testing"
	"time"
)

// merge is byte-pair encoding by the book: the pair of lowest rank first, the
// leftmost of several.
func merge(ranks map[string]uint32, piece []byte) []uint32 {
	parts := make([]string, len(piece))
	for i, b := range piece {
		parts[i] = string([]byte{b})
	}
	for {
		best, at := uint32(noToken), 0
		for i := range len(parts) - 1 {
			if rank, ok := ranks[parts[i]+parts[i+1]]; ok && rank < best {
				best, at = rank, i
			}
		}
		if best == noToken {
			break
		}
		parts = slices.Replace(parts, at, at+2, parts[at]+parts[at+1])
	}
	ids := make([]uint32, len(parts))
	for i, part := range parts {
		ids[i] = ranks[part]
	}
	return ids
}

func ranksOf(t testing.TB, name string) map[string]uint32 {
	texts := tokensOf(t, name)
	ranks := make(map[string]uint32, texts.ids())
	for id := range uint32(texts.ids()) {
		if len(texts.of(id)) > 0 {
			ranks[string(texts.of(id))] = id
		}
	}
	return ranks
}

func TestPiecesEncodeAsByMerging(t *testing.T) {
	eachEncoding(t, func(t *testing.T, e *Encoding) {
		texts, ranks := tokensOf(t, e.Name()), ranksOf(t, e.Name())
		c := chance(4)
		s := new(scratch)
		var piece []byte
		for range 3000 {
			piece = piece[:0]
			switch c.next(4) {
			case 0: // few letters, many ties and much going back
				for range 2 + c.next(40) {
					piece = append(piece, "ab -\n="[c.next(6)])
				}
			case 1: // any bytes
				for range 2 + c.next(20) {
					piece = append(piece, byte(c.next(256)))
				}
			case 2: // parts of tokens
				for range 2 + c.next(6) {
					token := texts.of(uint32(c.next(texts.ids())))
					piece = append(piece, token[:c.next(len(token)+1)]...)
				}
			default: // runs
				for range 1 + c.next(3) {
					token := texts.of(uint32(c.next(2000)))
					piece = append(piece, bytes.Repeat(token, 1+c.next(9))...)
				}
			}
			if len(piece) == 0 {
				continue
			}
			got := e.vocab.appendPiece(s, nil, piece)
			if want := merge(ranks, piece); !slices.Equal(got, want) {
				t.Fatalf("%q:\n got %v\nwant %v", piece, got, want)
			}
		}
	})
}

// The encoder rests on it.
func TestMergingTheBytesOfATokenMakesTheToken(t *testing.T) {
	eachEncoding(t, func(t *testing.T, e *Encoding) {
		texts, ranks := tokensOf(t, e.Name()), ranksOf(t, e.Name())
		for id := uint32(256); id < uint32(texts.ids()); id += 7 {
			if text := texts.of(id); len(text) > 0 && !slices.Equal(merge(ranks, text), []uint32{id}) {
				t.Errorf("%q: id %d, merging makes %d", text, id, merge(ranks, text))
			}
		}
	})
}

// longTexts are texts on which merging or splitting step by step is quadratic,
// or which make the encoder go back as often as it can.
func longTexts(size int) map[string][]byte {
	c := chance(5)
	random := make([]byte, size)
	for i := range random {
		random[i] = byte(c.next(256))
	}
	texts := map[string][]byte{
		"base64": []byte(base64.StdEncoding.EncodeToString(random))[:size],
		"noise":  random,
	}
	letters := make([]byte, size)
	for i := range letters {
		letters[i] = 'a' + random[i]%26
	}
	texts["letters"] = letters
	for name, fragment := range map[string]string{
		"a": "a", "spaces": " ", "newlines": "\n", "tabs": "\t", "dashes": "-", "zeros": "0", "blank lines": " \n", "indents": "\n ",
		"spaced newlines": "  \n\n ", "marks": "\u0301", "upper then Han": "A\u4e2d", "Han": "\u4e2d", "words": "the", "apostrophes": "'",
		"slashes": "/", "wide spaces": " \u3000", "aab": "aaaaaab", "equals": "=",
	} {
		texts[name] = bytes.Repeat([]byte(fragment), size/len(fragment))
	}
	return texts
}

// Linear, each of these takes milliseconds; a quadratic step would take minutes.
func TestLongRunsAreEncodedInLinearTime(t *testing.T) {
	texts := longTexts(256 << 10)
	eachEncoding(t, func(t *testing.T, e *Encoding) {
		for name, text := range texts {
			begin := time.Now()
			e.Append(nil, text)
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("%s: %v for 256 KiB", name, took)
			}
		}
	})
}
