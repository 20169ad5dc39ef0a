// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"encoding/json"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// safePlaces returns where a rule allows text to be cut.
func safePlaces(rule CutRule, text string) (places []int) {
	t := runeClasses()
	var before character
	for i, r := range text {
		after := characterOf(t, r)
		if i > 0 && rule.between(before, after) {
			places = append(places, i)
		}
		before = after
	}
	return places
}

// checkCuts checks that text cut at each safe place, and at all of them, encodes
// as the whole, and returns how many there are.
func checkCuts(t *testing.T, e *Encoding, text string) int {
	t.Helper()
	b := []byte(text)
	want := e.Append(nil, b)
	places := safePlaces(e.SafeCuts(), text)
	var all []uint32
	last := 0
	for _, p := range places {
		all = e.Append(all, b[last:p])
		last = p
	}
	if all = e.Append(all, b[last:]); !slices.Equal(all, want) {
		t.Fatalf("%s of %q cut at %v:\n got %v\nwant %v", e.Name(), text, places, all, want)
	}
	if len(text) > 2000 {
		return len(places)
	}
	for _, p := range places {
		if got := e.Append(e.Append(nil, b[:p]), b[p:]); !slices.Equal(got, want) {
			t.Fatalf("%s of %q cut at %d:\n got %v\nwant %v", e.Name(), text, p, got, want)
		}
	}
	return len(places)
}

func TestTextCutAtSafePlacesEncodesAsTheWhole(t *testing.T) {
	g := goldenOf(t)
	eachEncoding(t, func(t *testing.T, e *Encoding) {
		for _, name := range []string{"english.txt", "european.txt", "code.txt", "json.txt", "cjk.txt", "controls.txt"} {
			text := strings.ToValidUTF8(string(corpus(t, name)), "\ufffd")
			if n := checkCuts(t, e, text); n == 0 && name != "controls.txt" {
				t.Errorf("%s has no safe place", name)
			} else {
				t.Logf("%s: one of %d bytes", name, len(text)/max(1, n))
			}
		}
		c := chance(11)
		length, fuzzed := 4, 3000
		if raceEnabled {
			length, fuzzed = 2, 100 // as encoding is slow then
		}
		for range fuzzed {
			checkCuts(t, e, strings.ToValidUTF8(fuzzedText(&c, g.Fragments), "\ufffd"))
		}
		// All short texts of the characters that the patterns treat differently.
		alphabet := []rune("aA1 \n\t'/.s中\u0301\u00a0")
		text := make([]rune, length)
		for n := range int(math.Pow(float64(len(alphabet)), float64(length))) {
			for i := range text {
				text[i] = alphabet[n%len(alphabet)]
				n /= len(alphabet)
			}
			checkCuts(t, e, string(text))
			checkCuts(t, e, "x"+string(text)+"\n\nb")
		}
	})
}

func TestNoTextIsCutAfterLinesByGPT2sPattern(t *testing.T) {
	e := encodingOf(t, "r50k_base")
	text := []byte("a\n\nb")
	whole := e.Append(nil, text)
	if parts := e.Append(e.Append(nil, text[:3]), text[3:]); slices.Equal(parts, whole) {
		t.Error("the example shows nothing")
	}
	if places := safePlaces(e.SafeCuts(), string(text)); !slices.Equal(places, []int{1}) {
		t.Errorf("cut at %v", places)
	}
}

func FuzzSafeCuts(f *testing.F) {
	g := goldenOf(f)
	c := chance(12)
	for range 100 {
		f.Add(fuzzedText(&c, g.Fragments))
	}
	for _, seed := range []string{"a'll 's\n\n/b", "1234 5\r\n\u0301x", "ſ'ſ t", "中文，字。\n中"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "\ufffd")
		if len(text) > 2000 {
			t.Skip("every place is tried")
		}
		for _, name := range Encodings() {
			checkCuts(t, encodingOf(t, name), text)
		}
	})
}

// manySlashes hide where an escape begins.
var manySlashes = regexp.MustCompile(`\\\\{50,}`)

// checkRawCuts checks that the cuts found in the raw bytes of a string are the
// safe places of its text, and returns how many there are.
func checkRawCuts(t *testing.T, raw []byte, rule CutRule) int {
	t.Helper()
	text := string(appendValid(nil, appendUnescaped(nil, raw)))
	places := safePlaces(rule, text)
	var rawPlaces []int
	var before character
	for i := 0; i < len(raw); {
		after, n := runeClasses().characterAt(raw, i)
		if i > 0 && rule.between(before, after) {
			rawPlaces = append(rawPlaces, i)
		}
		before = after
		i += n
	}
	if len(rawPlaces) != len(places) {
		t.Fatalf("%q has cuts at %v, its text at %v", raw, rawPlaces, places)
	}
	found := map[int]bool{}
	for at := range len(raw) + 1 {
		cut := rule.find(raw, at)
		next, _ := slices.BinarySearch(rawPlaces, at)
		if want := append(rawPlaces, 0)[next]; cut != want && want < at+cutWindow && !manySlashes.Match(raw) {
			t.Fatalf("%q is cut at %d from %d on, want %d", raw, cut, at, want)
		}
		if cut == 0 {
			continue
		}
		if cut < at || cut >= at+cutWindow || cut >= len(raw) {
			t.Fatalf("%q is cut at %d, from %d on", raw, cut, at)
		}
		found[cut] = true
		left := appendValid(nil, appendUnescaped(nil, raw[:cut]))
		right := appendValid(nil, appendUnescaped(nil, raw[cut:]))
		if string(left)+string(right) != text {
			t.Fatalf("%q cut at %d reads %q and %q, not %q", raw, cut, left, right, text)
		}
		if !slices.Contains(places, len(left)) {
			t.Fatalf("%q is cut at %d, which is not safe", text, len(left))
		}
		if again := rule.find(raw[:cut+min(12, len(raw)-cut)], at); again != cut {
			t.Fatalf("%q is cut at %d, but at %d if less follows", raw, cut, again)
		}
	}
	return len(found)
}

func TestCutsInEscapedTextAreSafePlacesOfTheText(t *testing.T) {
	rule := CutAfterWords | CutAfterLines
	for raw, want := range map[string]int{
		`one two`:                         1,
		`one\ntwo`:                        2,
		`one\\ntwo`:                       1, // a backslash and no newline
		`one\\\ntwo`:                      2,
		`on\u0065\u0020two`:               1,
		`on\u0065\u0301 two`:              0,
		`\u4e2d\u6587\uff0c\u4e2d`:        1,
		`中文，中文。`:                          2,
		`x\ud835\udc00 y`:                 1, // a letter in two surrogates
		`x\ud83d\ude80`:                   1,
		`don't can\u0027t`:                1,
		`a\n/b`:                           1,
		"a\xff b":                         1,
		strings.Repeat(`\\`, 20) + `a b`:  1,
		strings.Repeat(`\\`, 300) + `a b`: 0, // too far to tell where the escapes begin
		strings.Repeat("a", cutWindow*2):  0,
		``:                                0,
	} {
		if got := checkRawCuts(t, []byte(raw), rule); got != want {
			t.Errorf("%q has %d cuts, want %d", raw, got, want)
		}
	}
	g := goldenOf(t)
	c := chance(13)
	for range 300 {
		raw, _ := json.Marshal(strings.ToValidUTF8(fuzzedText(&c, g.Fragments), ""))
		checkRawCuts(t, raw[1:len(raw)-1], rule)
	}
}

func FuzzCutsInRawStrings(f *testing.F) {
	for _, seed := range []string{`one\ntwo`, `\\\\\n \u00e9\ud83d\ude80 x`, "a\xe4\xb8 b\xf0\x9f\\u0041 ", `\u4e2d\u6587\uff0c`} {
		f.Add([]byte(seed), uint8(3))
	}
	f.Fuzz(func(t *testing.T, raw []byte, rule uint8) {
		if end, _, reason := skipString(append(bytes.Clone(raw), '"'), 0); reason != "" || end != len(raw) || len(raw) > 1000 {
			t.Skip("not the inside of a string")
		}
		checkRawCuts(t, raw, CutRule(rule&3))
	})
}

func TestRunsOfNumbersMayBeCutAtTheirCuts(t *testing.T) {
	for _, run := range []string{
		"1,22,333", " 1 , 2.0 ,3e2 , 4", "1,\n\t2\r\n,3", "-1,-2", "1", "", "12345678901234567890,1",
	} {
		want := appendIDs(nil, []byte(run))
		for at := range len(run) {
			cut := numbersCut([]byte(run), at)
			if cut == 0 {
				continue
			}
			if got := appendIDs(appendIDs(nil, []byte(run[:cut])), []byte(run[cut:])); !slices.Equal(got, want) {
				t.Errorf("%q cut at %d: %v, want %v", run, cut, got, want)
			}
		}
	}
	if cut := numbersCut([]byte("15043, 15044, 15045"), 7); cut != 14 {
		t.Errorf("cut at %d, want 14", cut)
	}
}

func BenchmarkFindCut(b *testing.B) {
	for _, t := range append(encodeTexts(b), encodeText{"letters", bytes.Repeat([]byte("x"), encodeSize)}) {
		b.Run(t.name, func(b *testing.B) {
			b.ReportAllocs()
			found := 0
			for i := 0; b.Loop(); i++ {
				at := i * 2048 % (len(t.text) - 4096)
				for !utf8.RuneStart(t.text[at]) {
					at++
				}
				if (CutAfterWords|CutAfterLines).find(t.text, at) > 0 {
					found++
				}
			}
			b.ReportMetric(float64(found)/float64(b.N), "found/op")
		})
	}
}
