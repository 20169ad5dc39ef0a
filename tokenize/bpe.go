// SPDX-License-Identifier: Apache-2.0

package tokenize

// Byte-pair encoding merges, again and again, the adjacent pair that makes the
// token of lowest rank, the leftmost of several. appendPiece gets the same ids
// without merging. It rests on a property of such vocabularies: a row of tokens
// is the encoding of its text if and only if each two neighbours are the
// encoding of theirs, so every prefix of a text has one last token, and the
// encoding can be found left to right (H. van Antwerpen, A. Neubeck, "So many
// tokens, so little time", GitHub, 2024). It takes the longest token that goes
// with the one before, and goes back where none does; a position given up once
// is never tried again, which makes it linear for every input.

// mergeTable finds the token that two adjacent tokens merge into. A token has
// exactly one such pair. Open-addressing; an entry is left<<42 | right<<21 | id,
// and 0 is free (no merge makes token 0 of itself).
type mergeTable struct {
	entries []uint64
	shift   uint8
	halves  []tokenPair // by id; of single bytes, noToken twice
}

type tokenPair struct{ left, right uint32 }

func newMergeTable(n int) mergeTable {
	m := mergeTable{shift: tableShift(n), halves: make([]tokenPair, n)}
	m.entries = make([]uint64, 1<<(64-m.shift))
	for i := range m.halves {
		m.halves[i] = tokenPair{noToken, noToken}
	}
	return m
}

func (m *mergeTable) add(left, right, id uint32) {
	key := uint64(left)<<21 | uint64(right)
	i := key * oddA >> m.shift
	for m.entries[i] != 0 {
		i = (i + 1) & uint64(len(m.entries)-1)
	}
	m.entries[i] = key<<21 | uint64(id)
	m.halves[id] = tokenPair{left, right}
}

// find returns the token that left and right merge into, or noToken.
func (m *mergeTable) find(left, right uint32) uint32 {
	key := uint64(left)<<21 | uint64(right)
	for i := key * oddA >> m.shift; ; i = (i + 1) & uint64(len(m.entries)-1) {
		e := m.entries[i]
		if e == 0 {
			return noToken
		}
		if e>>21 == key {
			return uint32(e & noToken)
		}
	}
}

// staysApart reports whether the text of the two tokens encodes to just them.
// It takes the merges that made both back, the latest first, and looks at each
// step whether the tokens then at the boundary would have merged before the one
// of them that did.
func (v *vocab) staysApart(left, right uint32) bool {
	before := uint32(noToken) // merges of this rank and above came too late
	for {
		if v.merges.find(left, right) < before {
			return false
		}
		l, r := v.merges.halves[left].right, v.merges.halves[right].left
		switch {
		case l == noToken && r == noToken:
			return true
		case r == noToken || l != noToken && left > right:
			// A merge of the same rank at the boundary lies right of this one,
			// so it came later.
			before, left = left, l
		default:
			// Here it lies left of it and came first.
			before, right = right+1, r
		}
	}
}

// scratch is what one call of Append works with. It belongs to one vocabulary.
type scratch struct {
	// verdicts remembers what staysApart said, by a hash of the pair: the pair
	// <<2, the verdict <<1, and 1. Texts repeat their pairs, runs most of all.
	verdicts [1 << verdictBits]uint64
	// pieces remembers the ids of pieces of up to wholeMax bytes, by a hash of
	// their bytes: few words make most of a text.
	pieces [1 << pieceBits]knownPiece
	// dead are the positions of the piece that its encoding cannot pass.
	dead positionSet
	// guessed are the positions where the last token is tried once more before
	// longer ones. Without it a run of dashes goes back at every position. Any
	// order of trying ends in the same ids.
	guessed positionSet
}

const (
	verdictBits = 11
	pieceBits   = 13
)

// knownPiece is a piece and its ids, 32 bytes together.
type knownPiece struct {
	lo, hi uint64 // see wholeKey
	ids    [3]uint32
	length uint16 // of the piece, in bytes; 0: the entry is free
	count  uint16 // of ids
}

func (v *vocab) getScratch() *scratch {
	if s, ok := v.scratches.Get().(*scratch); ok {
		return s
	}
	return new(scratch)
}

func (v *vocab) putScratch(s *scratch) {
	if cap(s.dead) > positionsKept {
		s.dead, s.guessed = nil, nil
	}
	v.scratches.Put(s)
}

func (s *scratch) staysApart(v *vocab, left, right uint32) bool {
	key := uint64(left)<<21 | uint64(right)
	known := &s.verdicts[key*oddA>>(64-verdictBits)]
	if *known>>2 == key && *known&1 != 0 {
		return *known&2 != 0
	}
	if v.staysApart(left, right) {
		*known = key<<2 | 3
		return true
	}
	*known = key<<2 | 1
	return false
}

// appendPiece appends the ids of a piece.
func (v *vocab) appendPiece(s *scratch, dst []uint32, piece []byte) []uint32 {
	token, n, joins := v.trie.longest(piece)
	from, at := len(dst), 0
	before := uint64(0) // joins of the last token, or more
	wentBack := false   // only then are dead and guessed in use
	for {
		if !(wentBack && s.dead.has(at+n)) && (before>>(piece[at]&63)&1 == 0 || s.staysApart(v, dst[len(dst)-1], token)) {
			dst = append(dst, token)
			at += n
			if at == len(piece) {
				return dst
			}
			before = joins
			token, n, joins = v.trie.longest(piece[at:])
			if last := dst[len(dst)-1]; wentBack && v.hasPrefix(token, last) {
				token, n, joins = last, int(v.length[last]), anyByte
				s.guessed.add(at)
			}
			continue
		}
		if wentBack && s.guessed.take(at) {
			token, n, joins = v.trie.longest(piece[at:])
			continue
		}
		token = v.shorter[token]
		for token == noToken {
			if len(dst) == from {
				// Not reached: single bytes are tokens, and a text has an encoding.
				return dst
			}
			if !wentBack {
				wentBack = true
				s.dead.reset(len(piece))
				s.guessed.reset(len(piece))
			}
			s.dead.add(at)
			last := dst[len(dst)-1]
			dst = dst[:len(dst)-1]
			at -= int(v.length[last])
			before = anyByte
			if at == 0 {
				before = 0
			}
			if token = v.shorter[last]; s.guessed.take(at) {
				token, _, _ = v.trie.longest(piece[at:])
			}
		}
		n, joins = int(v.length[token]), anyByte
	}
}

// anyByte stands for joins that are not at hand.
const anyByte = ^uint64(0)

// hasPrefix reports whether token begins with the shorter token prefix.
func (v *vocab) hasPrefix(token, prefix uint32) bool {
	for v.length[token] > v.length[prefix] {
		if token = v.shorter[token]; token == prefix {
			return true
		}
		if token == noToken {
			return false
		}
	}
	return false
}

// positionSet holds positions of a piece, a bit each.
type positionSet []uint64

// positionsKept bounds, in words, what goes back to the pool: pieces of half a
// megabyte.
const positionsKept = 8192

// reset empties the set and makes room for positions up to n.
func (p *positionSet) reset(n int) {
	words := n>>6 + 1
	if cap(*p) < words {
		*p = make([]uint64, words)
		return
	}
	*p = (*p)[:words]
	clear(*p)
}

func (p positionSet) has(i int) bool { return p[i>>6]&(1<<(i&63)) != 0 }
func (p positionSet) add(i int)      { p[i>>6] |= 1 << (i & 63) }

// take removes i and reports whether it was there.
func (p positionSet) take(i int) bool {
	was := p.has(i)
	p[i>>6] &^= 1 << (i & 63)
	return was
}

// appendKnown appends the ids of the piece text[p:end].
func (v *vocab) appendKnown(s *scratch, dst []uint32, text []byte, p, end int) []uint32 {
	n := end - p
	if n > wholeMax {
		return v.appendPiece(s, dst, text[p:end])
	}
	lo, hi := keyAt(text, p, end)
	known := &s.pieces[hashPair(lo, hi, n)>>(64-pieceBits)]
	if known.lo == lo && known.hi == hi && int(known.length) == n {
		switch known.count {
		case 1:
			return append(dst, known.ids[0])
		case 2:
			return append(dst, known.ids[0], known.ids[1])
		}
		return append(dst, known.ids[0], known.ids[1], known.ids[2])
	}
	from := len(dst)
	if id := v.whole.find(lo, hi, n); id != noToken {
		dst = append(dst, id)
	} else if dst = v.appendPiece(s, dst, text[p:end]); len(dst)-from > len(known.ids) {
		return dst
	}
	*known = knownPiece{lo: lo, hi: hi, length: uint16(n), count: uint16(len(dst) - from)}
	copy(known.ids[:], dst[from:])
	return dst
}
