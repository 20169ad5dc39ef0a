// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"
)

// bpeSettings are the settings of a BPE model beside its vocabulary and merges.
type bpeSettings struct {
	Dropout      *float64 `json:"dropout"`
	Unknown      *string  `json:"unk_token"`
	Prefix       string   `json:"continuing_subword_prefix"`
	Suffix       string   `json:"end_of_word_suffix"`
	FuseUnknown  bool     `json:"fuse_unk"`
	ByteFallback bool     `json:"byte_fallback"`
	IgnoreMerges bool     `json:"ignore_merges"`
}

// unigramSettings are those of a Unigram model.
type unigramSettings struct {
	Unknown      *int `json:"unk_id"`
	ByteFallback bool `json:"byte_fallback"`
}

// readSettings decodes the model's settings and refuses those it does not know.
func (m *hfModel) readSettings(into any, known ...string) *HFError {
	for key := range m.settings {
		if !slices.Contains(known, key) {
			return refused("model", "the setting %.40q is not known", key)
		}
	}
	b, err := json.Marshal(m.settings)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		return broken("model", "settings: %v", err)
	}
	return nil
}

// buildModel gives t its model, and returns the model's tokens.
func buildModel(t *HFTokenizer, f *hfFile) (*hfTokens, *HFError) {
	pre, err := readPreTokenizer(f.preTokenizer)
	if err != nil {
		return nil, err
	}
	switch f.model.kind {
	case "BPE", "":
		if f.model.kind == "" && f.model.merges == nil {
			return nil, refused("model", "no type and no merges")
		}
		return buildBPE(t, &f.model, pre)
	case "Unigram":
		return buildUnigram(t, &f.model, pre)
	}
	return nil, refused("model.type", "%.40q is none of BPE and Unigram", f.model.kind)
}

func buildBPE(t *HFTokenizer, m *hfModel, pre *preTokenizer) (*hfTokens, *HFError) {
	var set bpeSettings
	if err := m.readSettings(&set, "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
		"fuse_unk", "byte_fallback", "ignore_merges"); err != nil {
		return nil, err
	}
	switch {
	case set.Dropout != nil && *set.Dropout != 0:
		return nil, refused("model.dropout", "ids are left to chance")
	case set.Prefix != "" || set.Suffix != "":
		return nil, refused("model", "a prefix or suffix of parts of words")
	case m.merges == nil:
		return nil, broken("model", "no merges")
	}
	tokens, err := m.readVocab()
	if err != nil {
		return nil, err
	}
	merges, err := m.readMerges(tokens)
	if err != nil {
		return nil, err
	}
	if pre.byteLevel {
		return tokens, t.buildByteLevel(&set, pre, tokens, merges)
	}
	return tokens, t.buildCharacters(&set, pre, tokens, merges)
}

// newMerger makes the tables of a merger but for those of its units.
func newMerger(tokens *hfTokens, merges []hfMerge) (*merger, *HFError) {
	g := &merger{pairs: newPairTable(len(merges)), neighbours: newPairFilter(), unknown: noUnit}
	for rank, m := range merges {
		if !g.pairs.add(tokens.list[m.left].id, tokens.list[m.right].id, uint32(rank), tokens.list[m.result].id) {
			return nil, refused(fmt.Sprintf("model.merges[%d]", rank), "a pair that stands in the list before")
		}
	}
	return g, nil
}

// buildCharacters makes a model whose merges begin with characters, and with
// bytes written <0x..> where a character is no token.
func (t *HFTokenizer) buildCharacters(set *bpeSettings, pre *preTokenizer, tokens *hfTokens, merges []hfMerge) *HFError {
	g, err := newMerger(tokens, merges)
	if err != nil {
		return err
	}
	apart := make(map[uint32]bool) // tokens that stand for other characters
	if set.ByteFallback {
		ids, missing := byteTokens(tokens, apart)
		if missing >= 0 {
			return refused("model.byte_fallback", "the vocabulary has no <0x%02X>", missing)
		}
		g.fallback = ids
	} else {
		if set.Unknown == nil {
			return refused("model.unk_token", "without it and byte_fallback, characters are dropped")
		}
		i := tokens.find([]byte(*set.Unknown))
		if i < 0 {
			return broken("model.unk_token", "%.40q is not in the vocabulary", *set.Unknown)
		}
		g.unknown, g.fuse = tokens.list[i].id, set.FuseUnknown
		apart[uint32(i)] = true
	}
	g.byRune = make(runeTable, (utf8.MaxRune+1)>>8)
	for i := range tokens.list {
		if r, n := utf8.DecodeRune(tokens.list[i].text); n > 0 && n == len(tokens.list[i].text) && (r != utf8.RuneError || n > 1) {
			g.byRune.add(r, tokens.list[i].id)
		}
	}
	for i, m := range merges {
		if apart[m.left] || apart[m.right] {
			return refused(fmt.Sprintf("model.merges[%d]", i), "a merge of a token that stands for other characters")
		}
		before := noUnit
		for _, r := range string(tokens.list[m.result].text) {
			if before != noUnit {
				g.neighbours.add(before, uint32(r))
			}
			before = uint32(r)
		}
	}
	if set.IgnoreMerges {
		texts := &tokenTexts{start: make([]uint32, 0, len(tokens.list)+1)}
		for i := range tokens.list {
			texts.start = append(texts.start, uint32(len(texts.bytes)))
			texts.bytes = append(texts.bytes, tokens.list[i].text...)
		}
		texts.start = append(texts.start, uint32(len(texts.bytes)))
		g.setWhole(tokens, texts)
	}
	if pre.noSpaceCut && !leavesNoSpace(t.normalizers) {
		return refused("pre_tokenizer", "a cut at spaces that the normalizer leaves")
	}
	t.model = &wordModel{pre: pre, pieces: g}
	return nil
}

// byteTokens returns the ids of <0x00> to <0xFF>, adding their places to apart,
// and the first byte that has none, or -1.
func byteTokens(tokens *hfTokens, apart map[uint32]bool) (ids *[256]uint32, missing int) {
	ids = new([256]uint32)
	for b := range ids {
		i := tokens.find(fmt.Appendf(nil, "<0x%02X>", b))
		if i < 0 {
			return nil, b
		}
		ids[b] = tokens.list[i].id
		apart[uint32(i)] = true
	}
	return ids, -1
}
