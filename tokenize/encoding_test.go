// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pkoukk/tiktoken-go-loader/assets"
)

var _ Encoder = (*Encoding)(nil)

func rankFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := assets.Assets.ReadFile(name + ".tiktoken")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func tokensOf(t testing.TB, name string) *tokenTexts {
	t.Helper()
	texts, err := readRanks(rankFile(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

func TestUnknownEncodingIsAnErrorThatListsTheKnownOnes(t *testing.T) {
	_, err := LoadEncoding("cl200k_base")
	if err == nil {
		t.Fatal("no error")
	}
	for _, name := range append(Encodings(), "cl200k_base") {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%q does not name %s", err, name)
		}
	}
}

func TestAnEncodingIsLoadedOnce(t *testing.T) {
	var wg sync.WaitGroup
	var got [4]*Encoding
	for i := range got {
		wg.Go(func() { got[i], _ = LoadEncoding("r50k_base") })
	}
	wg.Wait()
	for _, e := range got {
		if e == nil || e != got[0] {
			t.Fatalf("different encodings: %v", got)
		}
	}
}

// What was encoded can be read back, whatever the bytes: nothing is dropped or
// put in.
func TestIDsSpellTheText(t *testing.T) {
	texts := [][]byte{
		nil, []byte("a"), []byte("\xff"), []byte("\xc3"), []byte("a\xe4\xbd"), []byte("\xe4\xbd\xe4\xbd\xa0"),
		[]byte("'\xc5"), []byte("x'\xc5\xbf"), []byte("\xed\xa0\x80 surrogate"), []byte("\xe0\x9a\x80\xe0\x9a\x80 overlong"),
		[]byte("\xf4\x90\x80\x80"), []byte("\xf0\x9f\x98"), bytes.Repeat([]byte{0x80}, 300), bytes.Repeat([]byte("\xf0\xff \n"), 100),
	}
	c := chance(2)
	for range 500 {
		b := make([]byte, c.next(200))
		for i := range b {
			b[i] = byte(c.next(256))
		}
		texts = append(texts, b)
	}
	eachEncoding(t, func(t *testing.T, e *Encoding) {
		tokens := tokensOf(t, e.Name())
		for _, text := range texts {
			var got []byte
			for _, id := range e.Append(nil, text) {
				got = append(got, tokens.of(id)...)
			}
			if !bytes.Equal(got, text) {
				t.Errorf("%q comes back as %q", text, got)
			}
		}
	})
}

func TestAppendKeepsWhatIsThere(t *testing.T) {
	e := encodingOf(t, "cl100k_base")
	ids := e.Append([]uint32{7, 8}, []byte("hello world"))
	if want := []uint32{7, 8, 15339, 1917}; !slices.Equal(ids, want) {
		t.Errorf("got %v, want %v", ids, want)
	}
}

func TestSpecialTokensInATextAreText(t *testing.T) {
	e := encodingOf(t, "cl100k_base")
	for _, id := range e.Append(nil, []byte("<|endoftext|><|fim_prefix|>")) {
		if id > 100255 {
			t.Errorf("special token %d", id)
		}
	}
}

func TestConcurrentCallsGiveTheSameIDs(t *testing.T) {
	text := slices.Concat(corpus(t, "cjk.txt"), corpus(t, "code.txt"), bytes.Repeat([]byte("-"), 3000))
	eachEncoding(t, func(t *testing.T, e *Encoding) {
		want := e.Append(nil, text)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				var ids []uint32
				for range 5 {
					if ids = e.Append(ids[:0], text); !slices.Equal(ids, want) {
						t.Error("different ids")
					}
				}
			})
		}
		wg.Wait()
	})
}

func TestEncodingIntoRoomAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("sync.Pool drops at random under the race detector")
	}
	text := slices.Concat(corpus(t, "english.txt"), corpus(t, "cjk.txt"), bytes.Repeat([]byte("-"), 3000))
	eachEncoding(t, func(t *testing.T, e *Encoding) {
		ids := e.Append(nil, text)
		if n := leastAllocs(func() { ids = e.Append(ids[:0], text) }); n >= 1 {
			t.Errorf("%v allocations", n)
		}
	})
}

// leastAllocs gives the allocations of f at the best of a few tries: a garbage
// collection in between empties the pools that f takes its memory from.
func leastAllocs(f func()) float64 {
	least := testing.AllocsPerRun(20, f)
	for range 4 {
		least = min(least, testing.AllocsPerRun(20, f))
	}
	return least
}
