// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
)

// noToken is the id of no token. Ids take 21 bits at most, so that a merge fits
// a word (see mergeTable).
const (
	noToken   = 1<<21 - 1
	maxTokens = noToken
)

// vocab is what the encoder needs of a byte-level BPE vocabulary whose ids are
// its merge ranks. Its tables are immutable after newVocab.
type vocab struct {
	whole  wholeTable
	trie   prefixTrie
	merges mergeTable

	length  []uint8  // bytes of the token, by id; 0: the id is not in use
	shorter []uint32 // the longest token that is a proper prefix, by id, or noToken

	scratches sync.Pool // of *scratch
}

// tokenTexts holds the tokens' bytes while a vocabulary is built.
type tokenTexts struct {
	bytes []byte
	start []uint32 // by id, one more than ids
}

func (t *tokenTexts) of(id uint32) []byte { return t.bytes[t.start[id]:t.start[id+1]] }
func (t *tokenTexts) ids() int            { return len(t.start) - 1 }

// readRanks reads a .tiktoken file: a line for each token, its bytes in base64,
// a space and its rank. The lines must be in the order of their ranks; ranks
// may be left out.
func readRanks(file []byte) (*tokenTexts, error) {
	t := &tokenTexts{
		bytes: make([]byte, 0, len(file)/2),
		start: make([]uint32, 0, len(file)/16),
	}
	for line := 1; len(file) > 0; line++ {
		space := 0
		for space < len(file) && file[space] > ' ' {
			space++
		}
		text := file[:space]
		rank, p := 0, space+1
		for ; p < len(file) && file[p] >= '0' && file[p] <= '9' && rank < maxTokens; p++ {
			rank = 10*rank + int(file[p]-'0')
		}
		if space == 0 || space >= len(file) || file[space] != ' ' || p == space+1 || p < len(file) && file[p] != '\n' {
			return nil, fmt.Errorf("rank file: line %d: not a token and a rank", line)
		}
		if rank < len(t.start) || rank >= maxTokens || rank > len(t.start)+len(file) {
			return nil, fmt.Errorf("rank file: line %d: rank %d out of order", line, rank)
		}
		for len(t.start) <= rank {
			t.start = append(t.start, uint32(len(t.bytes)))
		}
		before := len(t.bytes)
		var err error
		if t.bytes, err = base64.StdEncoding.AppendDecode(t.bytes, text); err != nil {
			return nil, fmt.Errorf("rank file: line %d: %w", line, err)
		}
		if n := len(t.bytes) - before; n == 0 || n > 255 {
			return nil, fmt.Errorf("rank file: line %d: token of %d bytes", line, n)
		}
		file = file[min(p+1, len(file)):]
	}
	t.start = append(t.start, uint32(len(t.bytes)))
	return t, nil
}

// newVocab builds the tables. Every byte must be a token by itself, and every
// longer token the merge of two of lower rank, as in every vocabulary made by
// byte-pair training; others are refused, for the encoder relies on it.
func newVocab(texts *tokenTexts) (*vocab, error) {
	v, orphans, err := newVocabWithOrphans(texts)
	if err == nil && orphans != nil {
		return nil, fmt.Errorf("token %d is no merge of two tokens of lower rank", orphans[0])
	}
	return v, err
}

// newVocabWithOrphans is newVocab, but takes tokens that are no merge of two of
// lower rank. It returns them, and the vocabulary never encodes to them unless
// they are looked up as a whole.
func newVocabWithOrphans(texts *tokenTexts) (v *vocab, orphans []uint32, err error) {
	n := texts.ids()
	if n > maxTokens {
		return nil, nil, fmt.Errorf("%d tokens", n)
	}
	v = &vocab{length: make([]uint8, n), shorter: make([]uint32, n)}
	bytes := 0
	for id := range v.length {
		v.length[id] = uint8(len(texts.of(uint32(id))))
		if v.length[id] == 1 {
			bytes++
		}
	}
	if bytes != 256 {
		return nil, nil, errors.New("the vocabulary does not hold every byte")
	}
	var wg sync.WaitGroup
	wg.Go(func() { v.whole = newWholeTable(texts) })
	err = v.trie.build(texts, v.shorter)
	wg.Wait()
	if err != nil {
		return nil, nil, err
	}
	v.merges = newMergeTable(n)
	for id := range uint32(n) {
		if v.length[id] < 2 {
			continue
		}
		if !v.addMerge(id, texts.of(id)) {
			orphans = append(orphans, id)
		}
	}
	if orphans != nil {
		v.hideOrphans()
	}
	v.markJoins(texts)
	return v, orphans, nil
}

// markJoins tells, for every token, which first bytes the next token may have
// for the two to merge in some way: bit b&63 of joins stands for byte b. A token
// that begins with another byte stays apart, and nothing need be looked up. It
// settles four of five pairs of Chinese characters, few of Latin letters.
func (v *vocab) markJoins(texts *tokenTexts) {
	joins := make([]uint64, texts.ids())
	for _, pair := range v.merges.halves {
		if pair.left != noToken {
			joins[pair.left] |= 1 << (texts.of(pair.right)[0] & 63)
		}
	}
	// Taking a merge back leaves its right half at the boundary. Halves are of
	// lower rank, so theirs are complete.
	for id, pair := range v.merges.halves {
		if pair.left != noToken {
			joins[id] |= joins[pair.right]
		}
	}
	for i := range v.trie.nodes {
		if node := &v.trie.nodes[i]; node.token != noToken {
			node.joins = joins[node.token]
		}
	}
	v.trie.buildWide()
}

// addMerge finds the one merge that makes the token: among the pairs of tokens
// of lower rank that spell it, the one that merging by the lower ranks alone
// leaves apart.
func (v *vocab) addMerge(id uint32, text []byte) bool {
	for left := v.shorter[id]; left != noToken; left = v.shorter[left] {
		if left > id || v.isOrphan(left) {
			continue
		}
		right := v.exact(text[v.length[left]:])
		if right < id && !v.isOrphan(right) && v.staysApart(left, right) {
			v.merges.add(left, right, id)
			return true
		}
	}
	return false
}

// isOrphan reports whether no merge makes the token, which is no single byte.
func (v *vocab) isOrphan(id uint32) bool {
	return v.length[id] > 1 && v.merges.halves[id].left == noToken
}

// hideOrphans takes the tokens that no merge makes out of the search for the
// longest token.
func (v *vocab) hideOrphans() {
	for id, shorter := range v.shorter {
		for v.length[id] > 0 && shorter != noToken && v.isOrphan(shorter) {
			shorter = v.shorter[shorter]
		}
		v.shorter[id] = shorter
	}
	for i := range v.trie.nodes {
		if node := &v.trie.nodes[i]; node.token != noToken && v.isOrphan(node.token) {
			node.token = noToken
		}
	}
}

// exact returns the token that is text, or noToken.
func (v *vocab) exact(text []byte) uint32 {
	if len(text) <= wholeMax {
		lo, hi := wholeKey(text)
		return v.whole.find(lo, hi, len(text))
	}
	if id, n, _ := v.trie.longest(text); n == len(text) {
		return id
	}
	return noToken
}
