// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var estimateCorpus = []string{
	"arabic_hebrew.txt", "cjk.txt", "code.txt", "controls.txt", "emoji_marks.txt", "english.txt",
	"european.txt", "indic_thai.txt", "json.txt", "log.txt",
}

func TestEstimatedCountsAreNearThoseOfO200K(t *testing.T) {
	o200k, e := encodingOf(t, "o200k_base"), NewEstimate(1)
	for name, off := range map[string]float64{
		"english.txt": 0.10, "code.txt": 0.10, "json.txt": 0.10, "log.txt": 0.10, "cjk.txt": 0.10,
		"arabic_hebrew.txt": 0.15, "indic_thai.txt": 0.15, "european.txt": 0.35,
	} {
		text := corpus(t, name)
		want, got := len(o200k.Append(nil, text)), len(e.Append(nil, text))
		if r := float64(got) / float64(want); r < 1-off || r > 1+off {
			t.Errorf("%s: %d units for %d tokens, off by more than %v", name, got, want, off)
		}
	}
}

// appendUnits appends the text of each unit by unitEnd alone.
func appendUnits(dst []string, e *Estimate, text []byte) []string {
	for p := 0; p < len(text); {
		end := unitEnd(e.classes, text, p)
		dst = append(dst, string(text[p:end]))
		p = end
	}
	return dst
}

func TestUnitsAreWordsAndTheLike(t *testing.T) {
	e := NewEstimate(1)
	for text, want := range map[string][]string{
		"The cat's  on it.\n":   {"The", " cat's", " ", " on", " it", ".\n"},
		"parseHTTPHeader(x, y)": {"parse", "HTTP", "Header", "(x", ",", " y", ")"},
		"if a {\n\t\treturn\n}": {"if", " a", " {\n", "\t", "\treturn", "\n", "}"},
		`{"n": 12345}`:          {`{"`, "n", `":`, " ", "123", "45", "}"},
		"x  \n\n  y":            {"x", "  \n\n", " ", " y"},
		"-----------------":     {"-----------------"},
		" internationalization": {" internationa", "lizatio", "n"},
		"Привет, мир":           {"Прив", "ет", ",", " мир"},
		"안녕 하세":                 {"안", "녕", " 하", "세"},
		"a\xff\xfe b":           {"a", "\xff", "\xfe", " b"},
	} {
		if got := appendUnits(nil, e, []byte(text)); !slices.Equal(got, want) {
			t.Errorf("%q:\n got %q\nwant %q", text, got, want)
		}
	}
}

// checkEstimate checks all that is promised of a text.
func checkEstimate(t *testing.T, e *Estimate, text []byte, cut int) {
	t.Helper()
	ids := e.Append(nil, text)
	units := appendUnits(nil, e, text)
	if len(ids) != len(units) {
		t.Fatalf("%d ids for %d units", len(ids), len(units))
	}
	var one []uint32
	for i, unit := range units {
		// Alone, a unit is near the end of the text, where no shortcut is taken.
		if one = e.Append(one[:0], []byte(unit)); len(one) != 1 || one[0] != ids[i] || ids[i] >= 1<<31 {
			t.Fatalf("unit %d, %q: id %#x, alone %#x", i, unit, ids[i], one)
		}
		if len(unit) > 2*runBytes+2*utf8.UTFMax {
			t.Fatalf("unit %d has %d bytes", i, len(unit))
		}
	}
	if !utf8.Valid(text) || len(text) == 0 {
		return
	}
	cut %= len(text) + 1
	for cut < len(text) && !utf8.RuneStart(text[cut]) {
		cut++
	}
	if part := e.Append(nil, text[:cut]); len(part) > 1 &&
		(len(ids) < len(part)-1 || !slices.Equal(part[:len(part)-1], ids[:len(part)-1])) {
		t.Fatalf("the first %d bytes of %q have other units", cut, text)
	}
	if cut == 0 || cut == len(text) {
		return
	}
	last, _ := utf8.DecodeLastRune(text[:cut])
	next, _ := utf8.DecodeRune(text[cut:])
	if !e.SafeCuts().between(characterOf(e.classes, last), characterOf(e.classes, next)) {
		return
	}
	if parts := e.Append(e.Append(nil, text[:cut]), text[cut:]); !slices.Equal(parts, ids) {
		t.Fatalf("%q cut between %q and %q has other units", text, last, next)
	}
}

func TestUnitsStayWhereTextIsContinuedOrSafelyCut(t *testing.T) {
	e := NewEstimate(1)
	for _, name := range estimateCorpus {
		text := corpus(t, name)
		text = []byte(strings.ToValidUTF8(string(text[:min(len(text), 700)]), ""))
		for cut := range len(text) {
			checkEstimate(t, e, text, cut)
		}
	}
	g := goldenOf(t)
	for c, i := chance(3), 0; i < 5000; i++ {
		checkEstimate(t, e, []byte(fuzzedText(&c, g.Fragments)), c.next(1<<20))
	}
}

func TestIDsOfUnitsHangOnTheSecretAlone(t *testing.T) {
	text := corpus(t, "english.txt")
	ids := NewEstimate(1).Append(nil, text)
	if again := NewEstimate(1).Append(nil, text); !slices.Equal(ids, again) {
		t.Error("one secret gives different ids")
	}
	same := 0
	for i, id := range NewEstimate(2).Append(nil, text) {
		if id == ids[i] {
			same++
		}
	}
	if same > 0 {
		t.Errorf("two secrets give %d of %d ids alike", same, len(ids))
	}
}

func TestUnitsThatDifferHaveDifferentIDs(t *testing.T) {
	e := NewEstimate(1)
	seen := make(map[uint32]string)
	g := goldenOf(t)
	var texts []string
	for _, name := range estimateCorpus {
		texts = append(texts, string(corpus(t, name)))
	}
	for c, i := chance(4), 0; i < 2000; i++ {
		texts = append(texts, fuzzedText(&c, g.Fragments))
	}
	for n := range 20 {
		texts = append(texts, strings.Repeat("\x00", n))
	}
	collisions := 0
	for _, text := range texts {
		for _, unit := range appendUnits(nil, e, []byte(text)) {
			id := e.Append(nil, []byte(unit))[0]
			if other, ok := seen[id]; ok && other != unit {
				collisions++
			}
			seen[id] = unit
		}
	}
	// Of n ids about n²/2³² collide.
	if limit := 2 + len(seen)*len(seen)>>31; collisions > limit {
		t.Errorf("%d collisions of %d units", collisions, len(seen))
	}
}

func TestAnEstimateAllocatesNothing(t *testing.T) {
	e := NewEstimate(1)
	text := append(corpus(t, "cjk.txt"), corpus(t, "code.txt")...)
	ids := e.Append(nil, text)
	if n := testing.AllocsPerRun(10, func() { ids = e.Append(ids[:0], text) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzEstimate(f *testing.F) {
	for _, name := range estimateCorpus {
		text, err := os.ReadFile(tokensDir + "/corpus/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text[:min(len(text), 300)], 150)
	}
	f.Add([]byte("don't  \r\n\r\n\t x ((((((((-\u3000한국 語言\xff\xfe"), 7)
	e := NewEstimate(1)
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		checkEstimate(t, e, text, int(uint32(cut)))
	})
}

func BenchmarkEstimate(b *testing.B) {
	e := NewEstimate(1)
	for _, t := range encodeTexts(b) {
		b.Run(t.name, func(b *testing.B) {
			b.SetBytes(int64(len(t.text)))
			b.ReportAllocs()
			ids := e.Append(nil, t.text)
			for b.Loop() {
				ids = e.Append(ids[:0], t.text)
			}
			perToken(b, len(ids))
		})
	}
}

func BenchmarkEstimateLongRuns(b *testing.B) {
	e := NewEstimate(1)
	for _, size := range []int{1 << 20, 16 << 20} {
		for _, run := range []string{"a", "A", " ", "\n", " \n", "-", "-_", "7", "語", "é", "\xff", "\u00a0"} {
			b.Run(fmt.Sprintf("%q/%dMB", run, size>>20), func(b *testing.B) {
				text := []byte(strings.Repeat(run, size/len(run)))
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				ids := e.Append(nil, text)
				for b.Loop() {
					ids = e.Append(ids[:0], text)
				}
			})
		}
	}
}
