// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

var _ Encoder = (*HFTokenizer)(nil)

func tinyHF(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(hfDir, "tiny", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func tinyNames(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(hfDir, "tiny", "*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatal("no tiny tokenizers: ", err)
	}
	for i := range paths {
		paths[i] = strings.TrimSuffix(filepath.Base(paths[i]), ".json")
	}
	return paths
}

func parsedHF(t testing.TB, file []byte) *HFTokenizer {
	t.Helper()
	h, err := parseHF(file)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func eachTiny(t *testing.T, f func(t *testing.T, h *HFTokenizer)) {
	for _, name := range tinyNames(t) {
		t.Run(name, func(t *testing.T) { f(t, parsedHF(t, tinyHF(t, name))) })
	}
}

func writeFile(t testing.TB, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFilesOfTheSameContentShareOneTokenizer(t *testing.T) {
	file := append(tinyHF(t, "qwen"), '\n') // content that no other test loads
	a, b := writeFile(t, "a.json", file), writeFile(t, "b.json", file)
	var wg sync.WaitGroup
	var got [8]*HFTokenizer
	for i := range got {
		wg.Go(func() { got[i], _ = LoadHF([]string{a, b}[i%2]) })
	}
	wg.Wait()
	for _, h := range got {
		if h == nil || h != got[0] {
			t.Fatalf("different tokenizers: %v", got)
		}
	}
	runtime.KeepAlive(&got)
}

func TestATokenizerThatNobodyKeepsIsForgotten(t *testing.T) {
	before := loadedCount()
	path := writeFile(t, "a.json", append(tinyHF(t, "gpt2"), ' ', '\n'))
	func() {
		h := loadHF(t, path)
		if n := loadedCount(); n != before+1 {
			t.Fatalf("%d tokenizers kept, want %d", n, before+1)
		}
		runtime.KeepAlive(h)
	}()
	for range 100 {
		runtime.GC()
		if loadedCount() <= before {
			return
		}
		runtime.Gosched()
	}
	t.Error("it is still there")
}

func loadedCount() int {
	loaded.Lock()
	defer loaded.Unlock()
	return len(loaded.byContent)
}

func TestTheFrameIsToldAndNotApplied(t *testing.T) {
	h := parsedHF(t, tinyHF(t, "llama2"))
	if before, after := h.Frame(); !slices.Equal(before, []uint32{1}) || len(after) != 0 {
		t.Errorf("frame %v %v, want [1] []", before, after)
	}
	h = parsedHF(t, tinyHF(t, "t5"))
	if before, after := h.Frame(); !slices.Equal(after, []uint32{1}) || len(before) != 0 {
		t.Errorf("frame %v %v, want [] [1]", before, after)
	}
	if ids := h.AppendSpecial(nil, []byte("the")); slices.Contains(ids, 1) {
		t.Errorf("it was applied: %v", ids)
	}
}

func TestAddedTokensAreTextUnlessAskedFor(t *testing.T) {
	h := parsedHF(t, tinyHF(t, "qwen"))
	text := []byte("a<|start|>b")
	id := h.added.ids["<|start|>"]
	if ids := h.Append(nil, text); slices.Contains(ids, id) {
		t.Errorf("Append found it: %v", ids)
	}
	if ids := h.AppendSpecial(nil, text); len(ids) != 3 || ids[1] != id {
		t.Errorf("AppendSpecial gives %v", ids)
	}
}

func TestEmptyTextsHaveNoIDs(t *testing.T) {
	eachTiny(t, func(t *testing.T, h *HFTokenizer) {
		if ids := h.AppendSpecial(h.Append(nil, nil), nil); len(ids) > 0 {
			t.Errorf("ids %v", ids)
		}
	})
}

func TestConcurrentHFCallsGiveTheSameIDs(t *testing.T) {
	text := slices.Concat(corpus(t, "cjk.txt"), corpus(t, "code.txt"), bytes.Repeat([]byte("-"), 3000))
	eachTiny(t, func(t *testing.T, h *HFTokenizer) {
		want := h.AppendSpecial(nil, text)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				var ids []uint32
				for range 5 {
					if ids = h.AppendSpecial(ids[:0], text); !slices.Equal(ids, want) {
						t.Error("different ids")
					}
				}
			})
		}
		wg.Wait()
	})
}

func TestHFEncodingIntoRoomAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("sync.Pool drops at random under the race detector")
	}
	text := slices.Concat(corpus(t, "english.txt"), corpus(t, "cjk.txt"), bytes.Repeat([]byte("-"), 3000))
	eachTiny(t, func(t *testing.T, h *HFTokenizer) {
		ids := h.Append(nil, text)
		if n := leastAllocs(func() { ids = h.Append(ids[:0], text) }); n >= 1 {
			t.Errorf("%v allocations", n)
		}
	})
}

// Beyond the longest piece ids are not the library's, but the same each time,
// and those of the part before are.
func TestAbsurdlyLongPiecesAreCutAtTheSamePlaces(t *testing.T) {
	eachTiny(t, func(t *testing.T, h *HFTokenizer) {
		for _, fragment := range []string{"a", " ", "\n", "ab", "\u4e2d", "e\u0301", "\u0301", "\x00", "\u25c6"} {
			long := []byte(strings.Repeat(fragment, (256<<10)/len(fragment)))
			ids := h.Append(nil, long)
			if again := h.Append(nil, long); !slices.Equal(ids, again) {
				t.Errorf("%q: different ids the second time", fragment)
			}
			short := h.Append(nil, long[:len(fragment)*1024])
			if n := len(short) - 600; n > 0 && !slices.Equal(ids[:n], short[:n]) {
				t.Errorf("%q: other ids at the beginning of a long run", fragment)
			}
		}
	})
}

func TestBytesThatAreNoUTF8AreEncoded(t *testing.T) {
	c := chance(3)
	texts := [][]byte{[]byte("\xff"), []byte("a\xe4\xbd"), []byte("\xed\xa0\x80"), bytes.Repeat([]byte{0x80}, 300)}
	for range 300 {
		b := make([]byte, 1+c.next(100))
		for i := range b {
			b[i] = byte(c.next(256))
		}
		texts = append(texts, b)
	}
	eachTiny(t, func(t *testing.T, h *HFTokenizer) {
		for _, text := range texts {
			if ids := h.AppendSpecial(nil, text); len(ids) > 8*len(text)+8 {
				t.Errorf("%q: %d ids", text, len(ids))
			}
		}
	})
}

func TestAnErrorNamesFilePlaceAndRemedy(t *testing.T) {
	path := writeFile(t, "some.json", []byte(`{"model": {"type": "WordPiece", "vocab": {}}}`))
	_, err := LoadHF(path)
	var refusal *HFError
	if !errors.As(err, &refusal) {
		t.Fatalf("error %v", err)
	}
	for _, part := range []string{path, "model.type", "WordPiece", remedyRefused} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if _, err = LoadHF(filepath.Join(t.TempDir(), "none.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a missing file: %v", err)
	}
	if _, err = LoadHF(t.TempDir()); !errors.As(err, &refusal) {
		t.Errorf("of a directory: %v", err)
	}
}

func TestAHugeFileIsRefusedUnread(t *testing.T) {
	path := writeFile(t, "huge.json", nil)
	if err := os.Truncate(path, 1<<30); err != nil {
		t.Skip("no sparse files: ", err)
	}
	var refusal *HFError
	if _, err := LoadHF(path); !errors.As(err, &refusal) {
		t.Errorf("error %v", err)
	}
}

// The tiny tokenizers take each of the ways to merge; what they give is compared
// with the library's elsewhere.
func TestTinyTokenizersTakeEveryWayOfMerging(t *testing.T) {
	for name, want := range map[string]string{"llama3": "ranks", "qwen": "ranks", "late": "ranks first", "outoforder": "ranks first"} {
		m := parsedHF(t, tinyHF(t, name)).model.(*byteModel)
		got := "list"
		switch {
		case m.vocab != nil:
			got = "ranks"
		case m.slow.late != nil:
			got = "ranks first"
		}
		if got != want {
			t.Errorf("%s goes by %s, want %s", name, got, want)
		}
	}
}
