// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// cutTokenizers are the tiny tokenizers, as they are; with such added tokens only
// as take in nothing around them; with those of them that are found in the raw
// text; and with all but words, and more that begin or end like others. Real ones
// too, if they are there.
func cutTokenizers(t testing.TB) map[string]*HFTokenizer {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(hfDir, "tiny", "*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatal("no tokenizers: ", err)
	}
	all := map[string]*HFTokenizer{}
	for _, name := range []string{"chatml", "deepseek", "metaspace"} {
		all["exact/"+name] = loadHF(t, filepath.Join(exactDir, name+".json"))
	}
	if directory := os.Getenv(realTokenizers); directory != "" {
		files, _ := filepath.Glob(filepath.Join(directory, "*.json"))
		for _, path := range files {
			all["real/"+filepath.Base(path)] = loadHF(t, path)
		}
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		all[name] = loadHF(t, path)
		all[name+"/plain"] = loadHF(t, withTokens(t, path, isPlainToken))
		all[name+"/raw"] = loadHF(t, withTokens(t, path, isRawToken))
		all[name+"/strip"] = loadHF(t, withTokens(t, path, func(a map[string]any) bool { return a["single_word"] == false }, "[nl]"))
		all[name+"/inside"] = loadHF(t, withTokens(t, path, isRawToken, "x<think>", "\n\n", "[nl]"))
	}
	return all
}

func isPlainToken(a map[string]any) bool {
	return a["single_word"] == false && a["lstrip"] == false && a["rstrip"] == false
}

func isRawToken(a map[string]any) bool { return isPlainToken(a) && a["normalized"] == false }

// withTokens writes a tokenizer with some of its added tokens and some more.
func withTokens(t testing.TB, path string, keep func(map[string]any) bool, more ...string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	var config map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(b, &config)
	}
	var added []map[string]any
	var model struct{ Vocab json.RawMessage }
	if err == nil {
		err = json.Unmarshal(config["added_tokens"], &added)
	}
	if err == nil {
		err = json.Unmarshal(config["model"], &model)
	}
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]float64{}
	if json.Unmarshal(model.Vocab, &known) != nil {
		var list [][2]any
		if err := json.Unmarshal(model.Vocab, &list); err != nil {
			t.Fatal(err)
		}
		for i, piece := range list {
			known[piece[0].(string)] = float64(i)
		}
	}
	next := float64(len(known))
	var kept []any
	for _, content := range more {
		added = append(added, map[string]any{"content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
	}
	for _, a := range added {
		if !keep(a) {
			continue
		}
		id, ok := known[a["content"].(string)]
		if !ok {
			id = next
			next++
		}
		a["id"] = id
		kept = append(kept, a)
	}
	config["added_tokens"] = marshal(t, kept)
	to := filepath.Join(t.TempDir(), filepath.Base(path))
	if err := os.WriteFile(to, marshal(t, config), 0o600); err != nil {
		t.Fatal(err)
	}
	return to
}

// checkSpecialCuts checks that a text cut where find says encodes as the whole,
// in two and in many, and returns the number of places.
func checkSpecialCuts(t *testing.T, name string, h *HFTokenizer, text []byte) (places int) {
	t.Helper()
	x := newSpecialCuts(h)
	want := h.AppendSpecial(nil, text)
	last := 0
	var all []uint32
	for at := 1; at < len(text); at++ {
		cut := x.find(text, at)
		if cut == 0 {
			continue
		}
		if cut < at || cut >= len(text) {
			t.Fatalf("%s: place %d for %d of %q", name, cut, at, text)
		}
		if cut <= last {
			continue
		}
		places++
		if got := h.AppendSpecial(h.AppendSpecial(nil, text[:cut]), text[cut:]); !slices.Equal(got, want) {
			t.Fatalf("%s: %q cut at %d:\n got %v\nwant %v", name, text, cut, got, want)
		}
		all = h.AppendSpecial(all, text[last:cut])
		last = cut
	}
	if all = h.AppendSpecial(all, text[last:]); !slices.Equal(all, want) {
		t.Fatalf("%s: %q cut at all places:\n got %v\nwant %v", name, text, all, want)
	}
	return places
}

// cutFragments are what the cuts must not be fooled by.
var cutFragments = []string{
	"<|start|>", "<|start|>x", "<think>", "norm al", "<", "<|", "|>", "<|start", "word", " word ", "<left>", " ", "\n", "\r\n\n", "/",
	"<both>", "<right>", "'s", "12", "x", "é", "e\u0301", "\u0958", "\u0958.", "\u2126", "\u037e", "中文", "。", "・", "\u0301", "한", "ᄀ", "ᅡ", "\u00a0",
	"x<think>", "[nl]", "\n\n", "[nl", "<|im_start|>", "<|im_end|>", "user\n", "<｜User｜>", "[INST]", "</s>", "!", "_",
}

func TestTextWithAddedTokensCutAtSafePlacesEncodesAsTheWhole(t *testing.T) {
	g := goldenOf(t)
	rounds := 400
	if raceEnabled {
		rounds = 20 // as encoding is slow then
	}
	for name, h := range cutTokenizers(t) {
		r := rand.New(rand.NewPCG(3, 4))
		c := chance(41)
		places := 0
		for range rounds {
			var b strings.Builder
			for range 1 + r.IntN(12) {
				b.WriteString(cutFragments[r.IntN(len(cutFragments))])
				if r.IntN(8) == 0 {
					b.WriteString(strings.ToValidUTF8(fuzzedText(&c, g.Fragments), "\ufffd"))
				}
			}
			places += checkSpecialCuts(t, name, h, []byte(b.String()))
		}
		words := slices.ContainsFunc(h.added.raw.tokens, func(a addedToken) bool { return a.SingleWord })
		if (places == 0) != words && !strings.HasPrefix(name, "real/") {
			t.Errorf("%s: %d places", name, places)
		}
	}
}

func TestPlainTextCutAtSafePlacesEncodesAsTheWhole(t *testing.T) {
	g := goldenOf(t)
	rounds := 1500
	if raceEnabled {
		rounds = 50 // as encoding is slow then
	}
	for name, h := range cutTokenizers(t) {
		rule := h.SafeCuts()
		r := rand.New(rand.NewPCG(5, 4))
		c := chance(42)
		for range rounds {
			var b strings.Builder
			for range r.IntN(12) {
				b.WriteString(cutFragments[r.IntN(len(cutFragments))])
			}
			b.WriteString(strings.ToValidUTF8(fuzzedText(&c, g.Fragments), "\ufffd"))
			text := b.String()
			want := h.Append(nil, []byte(text))
			var all []uint32
			last := 0
			for _, p := range safePlaces(rule, text) {
				all = h.Append(all, []byte(text[last:p]))
				last = p
			}
			if all = h.Append(all, []byte(text[last:])); !slices.Equal(all, want) {
				t.Fatalf("%s: %q:\n got %v\nwant %v", name, text, all, want)
			}
		}
	}
}

func TestPatternsAllowTheCutsThatAreProvenForThem(t *testing.T) {
	both := CutAfterWords | CutAfterLines
	for name, want := range map[string]CutRule{
		"gpt2": CutAfterWords, "starcoder": CutAfterWords, "digits": CutAfterWords, "llama3": both, "outoforder": both,
		"o200k": both, "tekken": both, "deepseek": both, "qwen": CutAfterLines,
		"roberta": 0, "llama2": 0, "gemma": 0, "mistral": 0, "metaspace": 0, "t5": 0,
	} {
		if got := loadHF(t, filepath.Join(hfDir, "tiny", name+".json")).SafeCuts(); got != want {
			t.Errorf("%s: rules %b, want %b", name, got, want)
		}
	}
	for name, want := range map[string]CutRule{
		"gpt2": CutAfterWords, "qwen": both, "llama3": both, "deepseek": both, "roberta": 0, "llama2": 0, "t5": 0,
	} {
		path := filepath.Join(hfDir, "tiny", name+".json")
		if x := newSpecialCuts(loadHF(t, withTokens(t, path, isRawToken))); x.inText != want {
			t.Errorf("%s with plain tokens: rules %b, want %b", name, x.inText, want)
		}
		if x := newSpecialCuts(loadHF(t, path)); x.inText != 0 {
			t.Errorf("%s: rules %b although tokens take in what is around them", name, x.inText)
		}
	}
	// A token of the normal form may be written in other characters.
	if x := newSpecialCuts(loadHF(t, withTokens(t, filepath.Join(hfDir, "tiny", "qwen.json"), isPlainToken))); x.inText != 0 {
		t.Errorf("rules %b although tokens are found in the normal form", x.inText)
	}
	x := newSpecialCuts(loadHF(t, filepath.Join(exactDir, "chatml.json")))
	for text, want := range map[string]int{"ab क.": 6, "ab \u0958.": 0, "ab é.": 5, "ab \u2126.": 0} {
		if cut := x.find([]byte(text), 4); cut != want {
			t.Errorf("%+q is cut at %d, want %d", text, cut, want)
		}
	}
	if stageCuts(nil) != 0 || stageCuts([]splitStage{endOfDigitsOrNone}) != 0 {
		t.Error("cuts without a pattern")
	}
	if got := stageCuts([]splitStage{endDeepSeek}); got != CutAfterLines {
		t.Errorf("a pattern that leaves numbers in gaps allows %b", got)
	}
	if got := stageCuts([]splitStage{endCL100K, func(*classTable, []byte, int) int { return 0 }}); got != 0 {
		t.Errorf("an unknown stage allows %b", got)
	}
}

// What the cuts of normalized text rest on, for every character.
func TestNormalFormsOfPartsCutAtSafePlacesAreThatOfTheWhole(t *testing.T) {
	table := runeClasses()
	n := nfc{}
	var scratch [3][]byte
	normal := func(i int, text string) string { return string(n.normalize(&scratch[i], []byte(text))) }
	rule := CutAfterWords | CutAfterLines
	letter := characterOf(table, 'a')
	newline := characterOf(table, '\n')
	for r := rune(0); r <= utf8.MaxRune; r++ {
		if !utf8.ValidRune(r) {
			continue
		}
		after := characterOf(table, r)
		text := string(r)
		alone := normal(0, text)
		first, _ := utf8.DecodeRuneInString(alone)
		if rule.between(letter, after) {
			if !rule.between(letter, characterOf(table, first)) {
				t.Errorf("U+%04X may begin a part, and U+%04X that it becomes may not", r, first)
			}
			for _, before := range []string{"a", "가", "ᄀ", "1"} {
				if normal(1, before+text) != before+alone {
					t.Errorf("U+%04X combines with %q", r, before)
				}
			}
		}
		if rule.between(newline, after) && !rule.between(newline, characterOf(table, first)) {
			t.Errorf("U+%04X may begin a line, and U+%04X that it becomes may not", r, first)
		}
		if normal(2, "\n"+text) != "\n"+alone {
			t.Errorf("U+%04X combines with the end of a line", r)
		}
		if after.class&(classLetter|classNumber) != 0 && norm.NFC.IsNormalString(text) {
			for _, before := range []string{"", "e", "가", "ᄀ"} {
				last, _ := utf8.DecodeLastRuneInString(normal(1, before+text))
				if table.of(last)&(classLetter|classNumber) == 0 {
					t.Errorf("U+%04X ends a word, and U+%04X that it becomes does not", r, last)
				}
			}
		}
	}
}
