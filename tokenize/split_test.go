// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func pieces(rule splitRule, text string) []string {
	var all []string
	for p := 0; p < len(text); {
		end := rule.pieceEnd(runeClasses(), []byte(text), p)
		all = append(all, text[p:end])
		p = end
	}
	return all
}

func TestTextsAreCutAsThePatternsSay(t *testing.T) {
	for _, c := range []struct {
		rule splitRule
		want string // pieces with | between
	}{
		{splitByGPT2, "It|'s| a| test|,|  | isn|'t| it|?"},
		{splitByGPT2, "'|S| '|LL|'ll"},
		{splitByGPT2, "x|12345| 67½"},
		{splitByGPT2, "a|\n |\n|b"},
		{splitByGPT2, "a|  \n  "},
		{splitByGPT2, "e|\u0301|x| \u0301"},
		{splitByCL100K, "It|'s| a|'S|,|  | isn|'T|x"},
		{splitByCL100K, "'ſ|x|'re|'RE|'lx|'l"},
		{splitByCL100K, "x|123|45| |678|901"},
		{splitByCL100K, "a| \n\n \n| | b"},
		{splitByCL100K, "a|!!\n\n| | b"},
		{splitByCL100K, "a|\n|   "},
		{splitByCL100K, "\ta|\t|\tb|\t\t"},
		{splitByCL100K, "(foo|).|bar|((|baz"},
		{splitByCL100K, "中文|，你好|。"},
		{splitByO200K, "HTTPServer|Error"},
		{splitByO200K, "camel|Case|ABC|123|4"},
		{splitByO200K, "don't|DON'T|it'ſ|x"},
		{splitByO200K, "中A文|B|1"},
		{splitByO200K, "\u0301|AB|1"},
		{splitByO200K, "\u0301Ab|1"},
		{splitByO200K, "!\u0301|!!\u0301"},
		{splitByO200K, "a|//\n/\n| b"},
		{splitByO200K, "'tis| '|s"},
		{splitByO200K, "ǅungla|ǅ|1"},
	} {
		text := strings.ReplaceAll(c.want, "|", "")
		if got := pieces(c.rule, text); !slices.Equal(got, strings.Split(c.want, "|")) {
			t.Errorf("rule %d, %q:\n got %q\nwant %q", c.rule, text, got, strings.Split(c.want, "|"))
		}
	}
}

// Runs of one class are scanned by words of eight bytes: every length and place
// must end where a scan by characters ends.
func TestRunsEndWhereTheirClassEnds(t *testing.T) {
	for n := range 40 {
		for _, unit := range []string{"a", "Z", "中", "한", "é", "ば", "ß"} {
			run := strings.Repeat(unit, n+1)
			for _, after := range []string{"", " ", "1", "[", "`", "{", "@", "\x00", "\x7f", "\u0080", "。", "\xe4\xbd", "\xff", "\xe0\x9a\x80\xe0\x9a\x80abcd"} {
				text := []byte(run + after)
				for _, rule := range []splitRule{splitByGPT2, splitByCL100K, splitByO200K} {
					if end := rule.pieceEnd(runeClasses(), text, 0); end != len(run) {
						t.Fatalf("rule %d, %q: ends at %d, want %d", rule, text, end, len(run))
					}
				}
			}
		}
	}
}

// The two-stage table and the reading of UTF-8 agree with each other, for
// invalid bytes too.
func TestClassesAreReadAsTheLibraryDecodes(t *testing.T) {
	table := runeClasses()
	check := func(text []byte) {
		r, n := utf8.DecodeRune(text)
		if got := table.at(text, 0); got != table.of(r)|runeClass(n)<<classBits {
			t.Errorf("%q: class %b", text, got)
		}
	}
	var b [utf8.UTFMax]byte
	for r := range rune(utf8.MaxRune + 1) {
		check(utf8.AppendRune(b[:0], r))
	}
	c := chance(7)
	for range 100000 {
		check([]byte{byte(c.next(256)), byte(128 + c.next(64)), byte(128 + c.next(64)), byte(c.next(256))})
		check([]byte{byte(192 + c.next(64)), byte(c.next(256))})
	}
}

func FuzzPieces(f *testing.F) {
	for _, fragment := range goldenOf(f).Fragments {
		f.Add([]byte(fragment))
	}
	f.Add([]byte("\xe0\x9a\x80\xe0\x9a\x80\xe0\x9a"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, rule := range []splitRule{splitByGPT2, splitByCL100K, splitByO200K} {
			for p := 0; p < len(text); {
				end := rule.pieceEnd(runeClasses(), text, p)
				if end <= p || end > len(text) {
					t.Fatalf("rule %d, %q: piece from %d to %d", rule, text, p, end)
				}
				// No pattern looks back.
				if alone := p + rule.pieceEnd(runeClasses(), text[p:], 0); alone != end {
					t.Fatalf("rule %d, %q: piece from %d ends at %d, alone at %d", rule, text, p, end, alone)
				}
				p = end
			}
		}
	})
}

// endOfWide may stop early, but never passes what is not of the classes.
func TestARunOfWideCharactersHoldsNoOthers(t *testing.T) {
	table := runeClasses()
	fragments := []string{"中", "文", "あ", "ア", "゙", "・", "한", "ก", "ั", "\u0e01", "，", "Ａ", "ａ", "é", "a", "\xe0\x80\x80", "\xed\xa0\x80", "\xe4\xb8", "\xff", "😀", "\u1e00", "\u10d0"}
	for c, n := chance(31), 0; n < 20000; n++ {
		var text []byte
		for range c.next(12) {
			text = append(text, fragments[c.next(len(fragments))]...)
		}
		for _, classes := range []runeClass{classLetter, classLower, classUpper | classLower} {
			end := table.endOfWide(text, 0, classes)
			for p := 0; p < end; {
				class := table.at(text, p)
				if class&classes != classes || class.bytes() != 3 {
					t.Fatalf("%+q: passed %+q", text, text[p:])
				}
				p += class.bytes()
			}
		}
	}
}
