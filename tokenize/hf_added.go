// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/json"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// addedTokens are the tokens that are cut out of a text before the model sees
// it: those looked for in the text as it came, and those looked for after the
// normalizers. Special or not makes no difference to encoding.
type addedTokens struct {
	raw, normalized addedSet
	ids             map[string]uint32
}

// addedSet finds tokens in a text, from left to right the longest at each place.
type addedSet struct {
	trie   prefixTrie
	tokens []addedToken
	begins [256]bool // bytes that a token begins with
}

// addedToken is an entry of the section added_tokens.
type addedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// readAdded reads the added tokens. The library gives them ids of its own: the
// model's id where the model has the token, else the next free one after the
// model's. A file that says something else is refused.
func (t *HFTokenizer) readAdded(section []byte, tokens *hfTokens) *HFError {
	var list []addedToken
	t.added.ids = make(map[string]uint32)
	if len(section) > maxHFConfig {
		return broken("added_tokens", "%d bytes", len(section))
	}
	if len(section) > 0 {
		if err := json.Unmarshal(section, &list); err != nil {
			return broken("added_tokens", "%v", err)
		}
	}
	if len(list) > maxHFAdded {
		return refused("added_tokens", "more than %d tokens", maxHFAdded)
	}
	var raw, normalized []addedToken
	var patterns []string
	next := uint32(len(tokens.list))
	for i, a := range list {
		place := fmt.Sprintf("added_tokens[%d]", i)
		id := next
		if n := tokens.find([]byte(a.Content)); n >= 0 {
			id = tokens.list[n].id
		}
		switch _, twice := t.added.ids[a.Content]; {
		case a.Content == "":
			return refused(place, "an empty token")
		case twice:
			return refused(place, "token %.40q twice", a.Content)
		case a.ID != id:
			return refused(place, "token %.40q has id %d, and the tokenizers library would give it %d", a.Content, a.ID, id)
		case id > maxHFID:
			return refused(place, "id %d", id)
		}
		next = max(next, id+1)
		t.added.ids[a.Content] = id
		if !a.Normalized {
			raw = append(raw, a)
			continue
		}
		pattern := string(t.normalized(new(hfScratch), []byte(a.Content)))
		if pattern == "" {
			return refused(place, "nothing is left of token %.40q when it is normalized", a.Content)
		}
		normalized = append(normalized, a)
		patterns = append(patterns, pattern)
	}
	contents := make([]string, len(raw))
	for i, a := range raw {
		contents[i] = a.Content
	}
	if err := t.added.raw.build(raw, contents); err != nil {
		return err
	}
	return t.added.normalized.build(normalized, patterns)
}

func (s *addedSet) build(tokens []addedToken, patterns []string) *HFError {
	if len(tokens) == 0 {
		return nil
	}
	s.tokens = tokens
	texts := &tokenTexts{}
	for _, p := range patterns {
		if len(p) > 255 {
			return refused("added_tokens", "a token of %d bytes", len(p))
		}
		texts.start = append(texts.start, uint32(len(texts.bytes)))
		texts.bytes = append(texts.bytes, p...)
		s.begins[p[0]] = true
	}
	texts.start = append(texts.start, uint32(len(texts.bytes)))
	if err := s.trie.build(texts, make([]uint32, len(patterns))); err != nil {
		return refused("added_tokens", "%v after normalization", err)
	}
	return nil
}

// split cuts the tokens out of text: it appends their ids, and for what is
// between them calls rest with the text and its place.
func (s *addedSet) split(dst []uint32, text []byte, rest func(dst []uint32, part []byte, at int) []uint32) []uint32 {
	done := 0
	if len(s.tokens) > 0 {
		for p := 0; p < len(text); {
			if !s.begins[text[p]] {
				p++
				continue
			}
			i, n, _ := s.trie.longest(text[p:])
			if i == noToken {
				p++
				continue
			}
			token := &s.tokens[i]
			start, end := p, p+n
			p = end
			if token.SingleWord && (endsWithWord(text[:start]) || beginsWithWord(text[end:])) {
				continue
			}
			if token.LStrip {
				start = max(trimSpaceRight(text[:start]), done)
			}
			if token.RStrip {
				end += spaceLeft(text[end:])
			}
			if done < start {
				dst = rest(dst, text[done:start], done)
			}
			dst = append(dst, token.ID)
			done = end
		}
	}
	if done < len(text) {
		dst = rest(dst, text[done:], done)
	}
	return dst
}

// trimSpaceRight returns the length of text without the white space at its end.
func trimSpaceRight(text []byte) int {
	for n := len(text); n > 0; {
		r, size := utf8.DecodeLastRune(text[:n])
		if !unicode.Is(unicode.White_Space, r) {
			return n
		}
		n -= size
	}
	return 0
}

// spaceLeft returns the length of the white space that text begins with.
func spaceLeft(text []byte) int {
	for n := 0; n < len(text); {
		r, size := utf8.DecodeRune(text[n:])
		if !unicode.Is(unicode.White_Space, r) {
			return n
		}
		n += size
	}
	return len(text)
}

func beginsWithWord(text []byte) bool {
	r, n := utf8.DecodeRune(text)
	return n > 0 && isWord(r)
}

func endsWithWord(text []byte) bool {
	r, n := utf8.DecodeLastRune(text)
	return n > 0 && isWord(r)
}

// isWord reports whether r is in \w of Unicode's Technical Standard 18, annex C.
func isWord(r rune) bool {
	switch class := runeClasses().of(r); {
	case class&classLetterOrMark != 0:
		return true
	case class&classNumber != 0:
		return !unicode.Is(unicode.No, r) // the later numbers are all digits
	}
	return unicode.In(r, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}
