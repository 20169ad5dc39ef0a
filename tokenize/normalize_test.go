// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

func nfcOf(text string) string {
	var buf []byte
	return string(nfc{}.normalize(&buf, []byte(text)))
}

// Where all characters are old and runs of marks are short, the two agree, and
// so do the quick and the thorough way.
func TestNFCIsUnicodesForOldCharacters(t *testing.T) {
	fragments := []string{
		"a", "e\u0301", "\u0301", "\u0316", "\u0327", "\u1100", "\u1161", "\u11a8", "\uac00", "\u212b", "\u0958", "\u0f43", "\u2adc",
		"\u0344", "\U0001d15e", "\u09c7", "\u09be", "\u0b47", "\u1025", "\u102e", "\u30ab\u3099", "\uf900", "\u1e9b\u0323", "z", "\u0345",
	}
	c := chance(5)
	for range 20000 {
		var b strings.Builder
		for range 1 + c.next(8) {
			b.WriteString(fragments[c.next(len(fragments))])
		}
		text := b.String()
		want := norm.NFC.String(text)
		if got := nfcOf(text); got != want {
			t.Fatalf("%+q becomes %+q, want %+q", text, got, want)
		}
		if got := string(appendComposed(nil, decomposed([]byte(text)))); got != want {
			t.Fatalf("%+q becomes %+q the thorough way, want %+q", text, got, want)
		}
	}
}

func TestLongRunsOfMarksAreNotBrokenUp(t *testing.T) {
	marks := strings.Repeat("\u0316", 40) + strings.Repeat("\u0301", 40)
	if got, want := nfcOf("e"+marks), "\u00e9"+marks[:80]+marks[82:]; got != want {
		t.Errorf("got %+q, want %+q", got, want)
	}
}

func TestLaterCharactersTakeNoPartInNFC(t *testing.T) {
	for _, text := range []string{"a\u07fd\u0316", "\U00011935\U00011930", "q\u0316\u1abf"} {
		if got := nfcOf(text); got != text {
			t.Errorf("%+q becomes %+q", text, got)
		}
	}
	if got, want := nfcOf("e\u0301\u07fde\u0301"), "\u00e9\u07fd\u00e9"; got != want {
		t.Errorf("got %+q, want %+q", got, want)
	}
}

func TestCharacterMapsThatLieAreHarmless(t *testing.T) {
	c := chance(6)
	var buf []byte
	for range 2000 {
		b := make([]byte, 4+4*(1+c.next(600)))
		for i := range b {
			b[i] = byte(c.next(256))
		}
		b[0], b[1], b[2], b[3] = byte(len(b)/2&^3), byte(len(b)/2>>8), 0, 0
		for i := 4 + len(b)/2&^3; i < len(b); i++ {
			b[i] &= 0x7f
		}
		m, err := newCharacterMap(b)
		if err != nil {
			continue
		}
		m.normalize(&buf, []byte("a\r\nb e\u0301 \uff21\u0600x \xff"))
	}
}

// Each place is the end of a cluster as Unicode Standard Annex 29 has it.
func TestClustersEndWhereUnicodeSays(t *testing.T) {
	for _, clusters := range []string{
		"a|b", "a\u0301|b", "\r\n|a", "\n|\r|a", "\u0600a|b", "\u0600\u0301|b", "\u00a9\ufe0f|a", "\u0e01\u0e33|a", "a\u200d|b", "a|\u200b|b",
		"\u0903|a", "\u0301|a", "\u00ad|\u0301|a",
	} {
		text := []byte(strings.ReplaceAll(clusters, "|", ""))
		p := 0
		for _, want := range strings.Split(clusters, "|") {
			end := endOfCluster(text, p)
			if string(text[p:end]) != want && utf8.RuneCountInString(want) < 3 {
				t.Errorf("%+q: cluster %+q, want %+q", clusters, text[p:end], want)
			}
			p = end
		}
	}
}

func TestCharactersThatAreAloneShareNoClusterWithEachOther(t *testing.T) {
	alone := runesAlone()
	neighbours := []string{"a", "\n", " ", "\u00a9", "\u0915", "\u3042", "\uac00", "\uac01", "\u2764", "\u0e01"}
	for r := range rune(0x10000) {
		if !alone.has(r) {
			continue
		}
		for _, n := range neighbours {
			if text := string(r) + n; endOfCluster([]byte(text), 0) != len(text)-len(n) {
				t.Fatalf("%+q is a cluster", text)
			}
			if text := n + string(r); endOfCluster([]byte(text), 0) != len(n) {
				t.Fatalf("%+q is a cluster", text)
			}
		}
	}
	if !alone.has('é') || !alone.has('中') || !alone.has('한') || alone.has('\u0301') || alone.has('\u200d') {
		t.Error("the usual characters are not alone, or those that join are")
	}
}

// A span takes each character of a text as the table says, whatever its bytes.
func TestASpanEndsAtTheFirstCharacterThatIsNotInTheSet(t *testing.T) {
	fragments := []string{"a", "\r", "é", "\u0301", "中", "\u3000", "한", "\u200d", "😀", "\xff", "\xe4\xb8", "\xe0\x80\x80", "\xc0\x80", "\xed\xa0\x80", "\u0600", "\ufffd"}
	alone := runesAlone()
	for c, n := chance(21), 0; n < 20000; n++ {
		var text []byte
		for range c.next(9) {
			text = append(text, fragments[c.next(len(fragments))]...)
		}
		end, last := 0, 0
		for end < len(text) && alone.begins(text, end) {
			_, n := utf8.DecodeRune(text[end:])
			last, end = end, end+n
		}
		if e, l := alone.span(text, 0); e != end || l != last {
			t.Fatalf("%+q: %d and %d, want %d and %d", text, e, l, end, last)
		}
	}
}
