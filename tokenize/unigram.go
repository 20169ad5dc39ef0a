// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"math"
	"slices"
)

// unigram finds the row of tokens with the highest sum of scores (T. Kudo,
// "Subword Regularization", 2018), with the sums taken from left to right as the
// tokenizers library takes them. It looks at each byte as often as the longest
// token is long. A piece longer than maxUnigramPiece bytes is cut there.
type unigram struct {
	trie     prefixTrie // for joins it has the bits of the tokens' scores
	unknown  uint32
	least    float64      // score of an unknown character
	fallback *[256]uint32 // ids of <0x00> to <0xFF> for unknown characters, or nil
}

const (
	// maxUnigramPiece is the longest piece, in bytes, whose ids are exact.
	maxUnigramPiece = 64 << 10

	unknownPenalty = 10
)

// unigramScratch is what one call works with.
type unigramScratch struct {
	paths  []unigramPath
	pieces []unigramPiece
	owner  *unigram // whose the pieces are
}

// unigramPiece is a piece of up to wholeMax bytes and its ids, 64 bytes together.
type unigramPiece struct {
	lo, hi uint64 // see wholeKey
	ids    [11]uint32
	length uint16 // of the piece, in bytes; 0: the entry is free
	count  uint16 // of ids
}

const unigramPieceBits = 13

// unigramPath is the best way to a place of the piece.
type unigramPath struct {
	score float64
	start int32 // of the last token; -1: there is no way yet
	id    uint32
}

func buildUnigram(t *HFTokenizer, m *hfModel, pre *preTokenizer) (*hfTokens, *HFError) {
	var set unigramSettings
	if err := m.readSettings(&set, "unk_id", "byte_fallback"); err != nil {
		return nil, err
	}
	if pre.byteLevel || pre.noSpaceCut {
		return nil, refused("pre_tokenizer", "bytes under a Unigram model")
	}
	tokens, err := m.readScores()
	if err != nil {
		return nil, err
	}
	n := len(tokens.list)
	if set.Unknown == nil || *set.Unknown < 0 || *set.Unknown >= n {
		return nil, refused("model.unk_id", "it is not one of the %d tokens", n)
	}
	u := &unigram{unknown: uint32(*set.Unknown)}
	texts := &tokenTexts{start: make([]uint32, 0, n+1)}
	u.least = math.Inf(1)
	for i := range tokens.list {
		text := tokens.list[i].text
		if len(text) == 0 || len(text) > 255 {
			return nil, refused("model.vocab", "token %d has %d bytes", i, len(text))
		}
		u.least = min(u.least, tokens.list[i].score)
		texts.start = append(texts.start, uint32(len(texts.bytes)))
		texts.bytes = append(texts.bytes, text...)
	}
	u.least -= unknownPenalty
	texts.start = append(texts.start, uint32(len(texts.bytes)))
	if err := u.trie.build(texts, make([]uint32, n)); err != nil {
		return nil, broken("model.vocab", "%v", err)
	}
	for i := range u.trie.nodes {
		if node := &u.trie.nodes[i]; node.token != noToken {
			node.joins = math.Float64bits(tokens.list[node.token].score)
		}
	}
	if set.ByteFallback {
		ids, missing := byteTokens(tokens, make(map[uint32]bool))
		if missing >= 0 {
			return nil, refused("model.byte_fallback", "the vocabulary has no <0x%02X>", missing)
		}
		u.fallback = ids
	}
	t.model = &wordModel{pre: pre, pieces: u}
	return tokens, nil
}

func (u *unigram) exact(text []byte) uint32 {
	if id, n, _ := u.trie.longest(text); n == len(text) {
		return id
	}
	return noToken
}

// appendPiece appends the ids of text[p:end], which pre-tokenization left
// together.
func (u *unigram) appendPiece(s *hfScratch, dst []uint32, text []byte, p, end int) []uint32 {
	k := &s.unigram
	if k.owner != u {
		k.owner, k.pieces = u, make([]unigramPiece, 1<<unigramPieceBits)
	}
	for end-p > maxUnigramPiece {
		cut := p + maxUnigramPiece
		for cut > p+maxUnigramPiece-4 && text[cut]&0xc0 == 0x80 {
			cut--
		}
		dst = u.best(k, dst, text[p:cut])
		p = cut
	}
	n := end - p
	if n == 0 {
		return dst
	}
	if n > wholeMax {
		return u.best(k, dst, text[p:end])
	}
	lo, hi := keyAt(text, p, end)
	known := &k.pieces[hashPair(lo, hi, n)>>(64-unigramPieceBits)]
	if known.lo == lo && known.hi == hi && int(known.length) == n {
		return append(dst, known.ids[:known.count]...)
	}
	from := len(dst)
	dst = u.best(k, dst, text[p:end])
	if ids := dst[from:]; len(ids) <= len(known.ids) {
		known.lo, known.hi, known.length, known.count = lo, hi, uint16(n), uint16(len(ids))
		copy(known.ids[:], ids)
	}
	return dst
}

// best appends the ids of a piece.
func (u *unigram) best(k *unigramScratch, dst []uint32, piece []byte) []uint32 {
	k.paths = slices.Grow(k.paths[:0], len(piece)+1)[:len(piece)+1]
	paths := k.paths
	for i := range paths {
		paths[i] = unigramPath{start: -1}
	}
	reach := func(end, start int, score float64, id uint32) {
		if p := &paths[end]; p.start < 0 || score > p.score {
			*p = unigramPath{score, int32(start), id}
		}
	}
	t := runeClasses()
	for start := 0; start < len(piece); {
		here := paths[start].score
		size := t.at(piece, start).bytes()
		single := false
		at, node := uint32(0), &u.trie.nodes[0]
		for i := start; i < len(piece); i++ {
			b := piece[i]
			if node.kids>>(b&31)&1 == 0 {
				break
			}
			next := node.base + uint32(b)
			if int(next) >= len(u.trie.nodes) {
				break
			}
			if node = &u.trie.nodes[next]; node.parent != at {
				break
			}
			at = next
			if node.token != noToken {
				reach(i+1, start, math.Float64frombits(node.joins)+here, node.token)
				single = single || i+1-start == size
			}
		}
		if !single {
			reach(start+size, start, u.least+here, u.unknown)
		}
		start += size
	}
	from := len(dst)
	for end := len(piece); end > 0; {
		p := paths[end]
		start := int(p.start)
		if p.id != u.unknown {
			dst = append(dst, p.id)
			end = start
			continue
		}
		// Unknown characters in a row are one token, or one row of bytes.
		for start > 0 && paths[start].id == u.unknown {
			start = int(paths[start].start)
		}
		dst = u.appendUnknown(dst, piece[start:end])
		end = start
	}
	slices.Reverse(dst[from:])
	return dst
}

// appendUnknown appends, from last to first, the ids of an unknown text.
func (u *unigram) appendUnknown(dst []uint32, text []byte) []uint32 {
	if id := u.exact(text); id != noToken {
		return append(dst, id)
	}
	if u.fallback == nil {
		return append(dst, u.unknown)
	}
	for _, b := range slices.Backward(text) {
		dst = append(dst, u.fallback[b])
	}
	return dst
}
