// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
)

// Bounds of a tokenizer.json. The largest in use, of 262,144 tokens, takes 33 MB.
const (
	maxHFFile   = 256 << 20
	maxHFTokens = 1 << 20
	maxHFMerges = 8 << 20
	maxHFID     = 1<<31 - 1
	// maxHFConfig bounds the sections that describe and do not list. A
	// precompiled character map, the largest, takes 0.4 MB.
	maxHFConfig = 16 << 20
	maxHFAdded  = 1 << 16
	// maxHFToken is the longest token as the file writes it, in bytes.
	maxHFToken = 1024
)

// hfFile is a tokenizer.json whose large parts are still JSON.
type hfFile struct {
	added, normalizer, preTokenizer, postProcessor []byte
	model                                          hfModel
}

// hfModel is its model section.
type hfModel struct {
	kind          string
	vocab, merges []byte
	at            struct{ vocab, merges int } // where they stand in the file
	settings      map[string]json.RawMessage  // all else
}

// parseHF reads a tokenizer.json and builds its tokenizer.
func parseHF(file []byte) (*HFTokenizer, *HFError) {
	f, err := readSections(file)
	if err != nil {
		return nil, err
	}
	t := &HFTokenizer{}
	if t.normalizers, err = readNormalizers(f.normalizer); err != nil {
		return nil, err
	}
	tokens, err := buildModel(t, f)
	if err != nil {
		return nil, err
	}
	if err = t.readAdded(f.added, tokens); err != nil {
		return nil, err
	}
	if err = t.readFrame(f.postProcessor); err != nil {
		return nil, err
	}
	return t, nil
}

func readSections(file []byte) (*hfFile, *HFError) {
	f := &hfFile{}
	c := &jsonCursor{b: file}
	seen := make(map[string]bool)
	c.open('{')
	for first := true; c.more(first, '}'); first = false {
		key := string(c.key())
		if seen[key] {
			c.fail("key %.40q twice", key)
		}
		if seen[key] = true; len(seen) > 100 {
			c.fail("too many keys")
		}
		switch key {
		case "added_tokens":
			f.added = c.skip()
		case "normalizer":
			f.normalizer = c.config(key)
		case "pre_tokenizer":
			f.preTokenizer = c.config(key)
		case "post_processor":
			f.postProcessor = c.config(key)
		case "model":
			f.model.read(c)
		default:
			c.skip()
		}
	}
	if c.err == nil && skipSpace(file, c.i) < len(file) {
		c.fail("something follows the end")
	}
	if c.err == nil && f.model.vocab == nil {
		return nil, broken("model", "no vocabulary")
	}
	return f, c.err
}

// config passes over a section that is read with encoding/json later.
func (c *jsonCursor) config(name string) []byte {
	b := c.skip()
	if len(b) > maxHFConfig {
		c.fail("%s of %d bytes", name, len(b))
	}
	return b
}

func (m *hfModel) read(c *jsonCursor) {
	m.settings = make(map[string]json.RawMessage)
	seen := make(map[string]bool)
	c.open('{')
	for first := true; c.more(first, '}'); first = false {
		key := string(c.key())
		if seen[key] {
			c.fail("model key %.40q twice", key)
		}
		if seen[key] = true; len(seen) > 100 {
			c.fail("too many keys")
		}
		c.peek()
		switch key {
		case "type":
			m.kind = string(c.text())
		case "vocab":
			m.at.vocab = c.i
			m.vocab = c.skip()
		case "merges":
			m.at.merges = c.i
			m.merges = c.skip()
		default:
			m.settings[key] = c.config(key)
		}
	}
}

// hfToken is a token of the model as the file writes it.
type hfToken struct {
	text  []byte
	id    uint32
	score float64 // of Unigram
}

// hfTokens are the model's tokens with an index by text. It is open-addressing;
// an entry is one more than the token's place in the list.
type hfTokens struct {
	list  []hfToken
	index []uint32
	seed  maphash.Seed
	maxID uint32
}

// find returns the place of the token in the list, or -1.
func (t *hfTokens) find(text []byte) int {
	mask := uint64(len(t.index) - 1)
	for i := maphash.Bytes(t.seed, text) & mask; ; i = (i + 1) & mask {
		e := t.index[i]
		if e == 0 {
			return -1
		}
		if string(t.list[e-1].text) == string(text) {
			return int(e - 1)
		}
	}
}

// makeIndex fills the index. Texts and ids must be unique.
func (t *hfTokens) makeIndex() *HFError {
	t.seed = maphash.MakeSeed()
	t.index = make([]uint32, 1<<(64-tableShift(len(t.list))))
	mask := uint64(len(t.index) - 1)
	ids := make(map[uint32]struct{})
	dense := make([]bool, 2*len(t.list)+1024)
	for n := range t.list {
		token := &t.list[n]
		for i := maphash.Bytes(t.seed, token.text) & mask; ; i = (i + 1) & mask {
			if t.index[i] == 0 {
				t.index[i] = uint32(n) + 1
				break
			}
			if string(t.list[t.index[i]-1].text) == string(token.text) {
				return broken("model.vocab", "token %.40q twice", token.text)
			}
		}
		// Ids that are far apart, which real files do not have, go to the map.
		_, twice := ids[token.id]
		if int64(token.id) < int64(len(dense)) {
			twice = dense[token.id]
			dense[token.id] = true
		} else {
			ids[token.id] = struct{}{}
		}
		if twice {
			return broken("model.vocab", "id %d twice, the second time of token %.40q", token.id, token.text)
		}
		t.maxID = max(t.maxID, token.id)
	}
	return nil
}

// readVocab reads the vocabulary of a BPE model: an object of ids by token.
func (m *hfModel) readVocab() (*hfTokens, *HFError) {
	t := &hfTokens{list: make([]hfToken, 0, len(m.vocab)/20)}
	c := &jsonCursor{b: m.vocab}
	c.open('{')
	for first := true; c.more(first, '}'); first = false {
		text := c.key()
		t.add(c, hfToken{text: text, id: c.id()})
	}
	if c.err != nil {
		return nil, moved(c, "model.vocab", m.at.vocab)
	}
	return t, t.makeIndex()
}

// readScores reads the vocabulary of a Unigram model: an array of pairs of a
// token and its score. The place is the id.
func (m *hfModel) readScores() (*hfTokens, *HFError) {
	t := &hfTokens{list: make([]hfToken, 0, len(m.vocab)/24)}
	c := &jsonCursor{b: m.vocab}
	c.open('[')
	for first := true; c.more(first, ']'); first = false {
		c.open('[')
		text := c.text()
		if !c.more(false, ']') {
			c.fail("a token without its score")
		}
		score := c.number()
		if c.more(false, ']') {
			c.fail("more than a token and its score")
		}
		t.add(c, hfToken{text, uint32(len(t.list)), score})
	}
	if c.err != nil {
		return nil, moved(c, "model.vocab", m.at.vocab)
	}
	return t, t.makeIndex()
}

func (t *hfTokens) add(c *jsonCursor, token hfToken) {
	switch {
	case c.err != nil:
	case len(token.text) > maxHFToken:
		c.fail("a token of %d bytes", len(token.text))
	case len(t.list) == maxHFTokens:
		c.fail("more than %d tokens", maxHFTokens)
	default:
		t.list = append(t.list, token)
	}
}

// moved gives the error of a section's cursor its place in the file.
func moved(c *jsonCursor, section string, at int) *HFError {
	c.err.Place = fmt.Sprintf("%s, byte %d", section, at+c.i)
	return c.err
}

// hfMerge is a merge by places in the token list.
type hfMerge struct{ left, right, result uint32 }

// readMerges reads the merges, each a string with a space between the two tokens
// or an array of two strings. Each must make a token, and only one.
func (m *hfModel) readMerges(tokens *hfTokens) ([]hfMerge, *HFError) {
	merges := make([]hfMerge, 0, len(m.merges)/16)
	c := &jsonCursor{b: m.merges}
	var joined []byte
	c.open('[')
	for first := true; c.more(first, ']'); first = false {
		left, right := c.mergePair()
		if c.err != nil {
			break
		}
		joined = append(append(joined[:0], left...), right...)
		l, r, t := tokens.find(left), tokens.find(right), tokens.find(joined)
		switch {
		case len(merges) == maxHFMerges:
			c.fail("more than %d merges", maxHFMerges)
		case l < 0 || r < 0:
			c.fail("merge %d is of an unknown token", len(merges))
		case len(left) == 0 || len(right) == 0:
			c.fail("merge %d is of an empty token", len(merges))
		case t < 0:
			c.fail("merge %d makes an unknown token", len(merges))
		default:
			merges = append(merges, hfMerge{uint32(l), uint32(r), uint32(t)})
		}
	}
	if c.err != nil {
		return nil, moved(c, "model.merges", m.at.merges)
	}
	return merges, nil
}

func (c *jsonCursor) mergePair() (left, right []byte) {
	if c.peek() == '[' {
		c.i++
		left = c.text()
		if !c.more(false, ']') {
			c.fail("a merge of one token")
		}
		right = c.text()
		if c.more(false, ']') {
			c.fail("a merge of three tokens")
		}
		return left, right
	}
	text := c.text()
	space := -1
	for i, b := range text {
		if b == ' ' {
			if space >= 0 {
				c.fail("a merge with two spaces")
			}
			space = i
		}
	}
	if space < 0 {
		c.fail("a merge without a space")
		return nil, nil
	}
	return text[:space], text[space+1:]
}
