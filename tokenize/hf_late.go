// SPDX-License-Identifier: Apache-2.0

package tokenize

// lateTokens are those that are made, if at all, after their place in the list,
// because they are the merge of a token that comes later: some 700 of Llama 3. A
// text is encoded without them first. That is right if in the course of it no
// pair was adjacent that merges into one of them: none across two neighbours in
// the result, none inside a token while it was made. The test looks at all
// tokens along the boundary, of whatever time, and so may say no too often; then
// the text is encoded by the list of merges.
type lateTokens struct {
	vocab *vocab
	ids   []uint32 // see byteModel
	pairs map[tokenPair]struct{}

	// By rank: the token ends (begins) with the left (right) half of such a pair,
	// and it may have been made with such a pair inside.
	ends, begins, inside []bool
}

func newLateTokens(v *vocab, r *ranking, merges []hfMerge) *lateTokens {
	n := r.texts.ids()
	l := &lateTokens{
		vocab: v, ids: r.ids, pairs: make(map[tokenPair]struct{}),
		ends: make([]bool, n), begins: make([]bool, n), inside: make([]bool, n),
	}
	for _, m := range merges {
		// Without late tokens none is made of them.
		if !r.has(v, m.result) && r.has(v, m.left) && r.has(v, m.right) {
			pair := tokenPair{r.rank[m.left], r.rank[m.right]}
			l.pairs[pair] = struct{}{}
			l.ends[pair.left], l.begins[pair.right] = true, true
		}
	}
	for rank, halves := range v.merges.halves {
		if halves.left == noToken {
			continue
		}
		l.ends[rank] = l.ends[rank] || l.ends[halves.right]
		l.begins[rank] = l.begins[rank] || l.begins[halves.left]
		l.inside[rank] = l.inside[halves.left] || l.inside[halves.right] || l.across(halves.left, halves.right)
	}
	return l
}

// across reports whether one of the tokens at the end of left and one of those
// at the beginning of right are a pair.
func (l *lateTokens) across(left, right uint32) bool {
	if !l.ends[left] || !l.begins[right] {
		return false
	}
	halves := l.vocab.merges.halves
	for ; left != noToken && l.ends[left]; left = halves[left].right {
		for b := right; b != noToken && l.begins[b]; b = halves[b].left {
			if _, ok := l.pairs[tokenPair{left, b}]; ok {
				return true
			}
		}
	}
	return false
}

// append appends the ids of a piece, or nothing and false if late tokens may be
// among them.
func (l *lateTokens) append(dst []uint32, piece []byte) ([]uint32, bool) {
	k := l.vocab.getScratch()
	defer l.vocab.putScratch(k)
	from := len(dst)
	dst = l.vocab.appendPiece(k, dst, piece)
	for i, rank := range dst[from:] {
		if l.inside[rank] || i > 0 && l.across(dst[from+i-1], rank) {
			return dst[:from], false
		}
	}
	if l.ids != nil {
		for i, rank := range dst[from:] {
			dst[from+i] = l.ids[rank]
		}
	}
	return dst, true
}
