// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"reflect"
	"sync"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// specialCuts names the places at which a text in which added tokens are
// recognised may be cut so that its parts, encoded alone, give the ids of the
// whole.
//
// One is where an added token begins. The tokenizer looks for the tokens from
// left to right before anything else, and encodes what is between two of them
// alone. So a match parts the text, whatever the model is, if it is one in any
// case: if its first byte is inside no other token, none that begins before it
// reaches over it. It must not be one that takes in the white space before it,
// and none may ask for what is around it (single_word).
//
// The other are those of a [CutRule], where no added token reaches over the
// place, and none takes in what is around it.
type specialCuts struct {
	added   *addedTokens
	begins  [256]bool // bytes with which tokens begin, and which none has inside
	inText  CutRule
	nfc     bool // the text is normalized before the rule's patterns see it
	longest int  // bytes of an added token
}

func newSpecialCuts(t *HFTokenizer) specialCuts {
	x := specialCuts{added: &t.added}
	raw := t.added.raw.tokens
	plain, words := true, false
	for _, set := range [...][]addedToken{raw, t.added.normalized.tokens} {
		for i := range set {
			plain = plain && !set[i].SingleWord && !set[i].LStrip && !set[i].RStrip
			words = words || set[i].SingleWord
			x.longest = max(x.longest, len(set[i].Content))
		}
	}
	if words {
		return x
	}
	for i := range raw {
		// No white space, which others may take in.
		if b := raw[i].Content[0]; b > ' ' && b < 0x7f {
			x.begins[b] = true
		}
	}
	for i := range raw {
		for _, b := range []byte(raw[i].Content[1:]) {
			x.begins[b] = false
		}
	}
	if plain {
		x.inText, x.nfc = t.patternCuts()
		if x.nfc && len(t.added.normalized.tokens) > 0 {
			x.inText = 0 // as those are not found in the text as it came
		}
	}
	return x
}

// find returns the first safe place at or after at, which is above 0, or 0 if
// there is none near.
func (x *specialCuts) find(text []byte, at int) int {
	for at < len(text) && !utf8.RuneStart(text[at]) {
		at++
	}
	end := len(text)
	if x.inText != 0 {
		end = min(end, at+cutWindow)
	}
	t := runeClasses()
	r, size := utf8.DecodeLastRune(text[:at])
	before := characterOf(t, r)
	for i := at; i < end; {
		if x.begins[text[i]] && x.tokenAt(text[i:]) {
			return i
		}
		if x.inText == 0 {
			i++
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		after := characterOf(t, r)
		if x.inText.between(before, after) && x.steady(text[i-size:i]) && !x.inToken(text, i) {
			return i
		}
		before, size = after, n
		i += n
	}
	return 0
}

// tokenAt tells whether text begins with a token that takes in nothing before it.
func (x *specialCuts) tokenAt(text []byte) bool {
	i, _, _ := x.added.raw.trie.longest(text)
	return i != noToken && !x.added.raw.tokens[i].LStrip
}

// steady tells whether the character before a place stays what the rule takes it
// for: some letters' normal form is a letter and a mark.
func (x *specialCuts) steady(character []byte) bool {
	return !x.nfc || character[0] < utf8.RuneSelf || norm.NFC.IsNormal(character)
}

// inToken tells whether an added token may reach over a place.
func (x *specialCuts) inToken(text []byte, at int) bool {
	for p := max(0, at-x.longest+1); p < at; p++ {
		for _, set := range [...]*addedSet{&x.added.raw, &x.added.normalized} {
			if !set.begins[text[p]] {
				continue
			}
			if i, n, _ := set.trie.longest(text[p:]); i != noToken && p+n > at {
				return true
			}
		}
	}
	return false
}

// SafeCuts returns the rules that hold for the texts of Append.
func (t *HFTokenizer) SafeCuts() CutRule {
	rule, nfc := t.patternCuts()
	if nfc {
		// The normal form of some letters ends with a mark, which the patterns may
		// join to what follows.
		rule &= CutAfterLines
	}
	return rule
}

// patternCuts returns the rules that the pre-tokenizer's patterns allow; with
// nfc they hold for the text's normal form. The normal form of two parts is that
// of the whole: what the rules let stand behind a letter or number combines with
// nothing before it, and nothing combines with the end of a line.
func (t *HFTokenizer) patternCuts() (rule CutRule, nfc bool) {
	model, ok := t.model.(*byteModel)
	if !ok || model.pre.prefixSpace || len(t.normalizers) > 1 {
		return 0, false
	}
	if len(t.normalizers) == 1 {
		if nfc = isNFC(t.normalizers[0]); !nfc {
			return 0, false
		}
	}
	return stageCuts(model.pre.stages), nfc
}

func isNFC(n normalizer) bool {
	_, ok := n.(nfc)
	return ok
}

// stageCuts returns the rules that hold for cuts in a row. Each of the patterns
// must end a match at the place. The other stages part runs of numbers or of
// kana and Han from what is between: there the place is between two pieces, or
// inside one whose rest is a piece again.
func stageCuts(stages []splitStage) CutRule {
	rule, patterns := CutAfterWords|CutAfterLines, 0
	numbers := false // are alone
	for _, stage := range stages {
		s, ok := knownStages()[stagePointer(stage)]
		if !ok {
			return 0
		}
		numbers = numbers || s.numbers
		if s.rule == 0 {
			continue
		}
		patterns++
		rule &= s.rule
		if s.gaps && !numbers {
			// A number is in no match of its own.
			rule &^= CutAfterWords
		}
	}
	if patterns == 0 {
		return 0
	}
	return rule
}

// knownStage is what is known of a stage; rule is 0 for one that parts runs.
type knownStage struct {
	rule          CutRule
	numbers, gaps bool
}

// knownStages are the stages by their code, as functions cannot be compared.
var knownStages = sync.OnceValue(func() map[uintptr]knownStage {
	both := CutAfterWords | CutAfterLines
	return map[uintptr]knownStage{
		stagePointer(endGPT2):                 {rule: CutAfterWords},
		stagePointer(endCL100K):               {rule: both},
		stagePointer(endQwen):                 {rule: both},
		stagePointer(endQwenMarks):            {rule: both},
		stagePointer(endO200K):                {rule: both},
		stagePointer(endTekken):               {rule: both},
		stagePointer(endDeepSeek):             {rule: both, gaps: true},
		stagePointer(endOfThreeNumbersOrNone): {numbers: true},
		stagePointer(endOfNumberOrNone):       {numbers: true},
		stagePointer(endOfDigitsOrNone):       {numbers: true},
		stagePointer(endOfKanaOrNone):         {},
	}
})

func stagePointer(stage splitStage) uintptr { return reflect.ValueOf(stage).Pointer() }
