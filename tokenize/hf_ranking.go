// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"cmp"
	"slices"
)

// ranking is a byte-level vocabulary in the order of its merges.
//
// The library looks for the adjacent pair whose merge comes first in the list; a
// vocab for the pair that makes the token of lowest rank. They are the same if
// each token's merges stand together in the list, which gives the token its
// rank, and the merge that newVocab finds for it is one of them. For when all
// merges of lower rank are done, the text of a token stands merged in one way
// wherever it is a row of whole tokens: as that one pair. It is merged then, so
// that the token's other pairs are never seen, not even those of tokens that
// come later in the list. Tokens that have only such pairs are left out.
type ranking struct {
	texts *tokenTexts
	ids   []uint32 // by rank; nil if the ranks are the ids
	rank  []uint32 // by place in the list of tokens, or noUnit
	late  bool     // some tokens that a text may have are without a rank; see lateTokens
}

// newRanking returns the ranking, or nil if the merges give none.
func newRanking(set *bpeSettings, tokens *hfTokens, merges []hfMerge, all *tokenTexts, written []bool, singles *[256]uint32) *ranking {
	r := &ranking{rank: make([]uint32, len(tokens.list))}
	for i := range r.rank {
		r.rank[i] = noUnit
	}
	late := make([]bool, len(tokens.list))
	idOf := func(i uint32) uint32 { return tokens.list[i].id }
	order := slices.Clone(singles[:]) // places in the list, by rank
	slices.SortFunc(order, func(a, b uint32) int { return cmp.Compare(idOf(a), idOf(b)) })
	for n, i := range order {
		r.rank[i] = uint32(n)
	}
	for n := 0; n < len(merges); {
		first := n
		inOrder := false // the token has a merge of two before it
		for ; n < len(merges) && merges[n].result == merges[first].result; n++ {
			inOrder = inOrder || r.rank[merges[n].left] < noUnit && r.rank[merges[n].right] < noUnit
		}
		token := merges[first].result
		switch {
		case r.rank[token] != noUnit || late[token]:
			return nil
		case !inOrder:
			late[token] = true
			r.late = true
			continue
		}
		r.rank[token] = uint32(len(order))
		order = append(order, token)
	}
	byID := true
	for n, i := range order {
		if len(all.of(i)) > 255 {
			return nil
		}
		byID = byID && (n == 0 || idOf(order[n-1]) < idOf(i))
	}
	last := idOf(order[len(order)-1])
	byID = byID && last < maxTokens-1 && int(last) < 2*len(order)
	for i := range r.rank {
		// With ignore_merges a piece may be a token that the list does not make,
		// such as the text of a special token.
		if set.IgnoreMerges && written[i] && r.rank[i] == noUnit {
			r.late = true
		}
	}
	r.texts = &tokenTexts{bytes: make([]byte, 0, len(all.bytes)), start: make([]uint32, 0, len(order)+1)}
	for _, i := range order {
		if byID {
			// Ids that have no rank are left out.
			for uint32(len(r.texts.start)) < idOf(i) {
				r.texts.start = append(r.texts.start, uint32(len(r.texts.bytes)))
			}
			r.rank[i] = idOf(i)
		} else {
			r.ids = append(r.ids, idOf(i))
		}
		r.texts.start = append(r.texts.start, uint32(len(r.texts.bytes)))
		r.texts.bytes = append(r.texts.bytes, all.of(i)...)
	}
	r.texts.start = append(r.texts.start, uint32(len(r.texts.bytes)))
	return r
}

// has reports whether v encodes to the token at a place of the list.
func (r *ranking) has(v *vocab, place uint32) bool {
	return r.rank[place] != noUnit && !v.isOrphan(r.rank[place])
}

// explains reports whether the merges that v found are all in the list.
func (r *ranking) explains(v *vocab, merges []hfMerge) bool {
	found := true
	for n, m := range merges {
		if !r.has(v, m.result) {
			continue
		}
		if n == 0 || m.result != merges[n-1].result {
			if !found {
				return false
			}
			found = false
		}
		if v.merges.halves[r.rank[m.result]] == (tokenPair{r.rank[m.left], r.rank[m.right]}) {
			found = true
		}
	}
	return found
}
