// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
	"slices"
)

// prefixTrie finds the longest token that a text begins with. It is a double
// array: the child of node s by byte b is the node base(s)+b, if that node's
// parent is s. Node 0 is the root.
type prefixTrie struct {
	nodes []trieNode
	wide  []uint32 // see wideEntry
}

// trieNode is 24 bytes: what a step needs is in one place in memory.
type trieNode struct {
	base   uint32
	parent uint32 // noNode: the place is free
	token  uint32 // the token that ends here, or noToken
	kids   uint32 // bit b&31 is set if there is a child by byte b
	joins  uint64 // of the token that ends here; see vocab.markJoins
}

const noNode = ^uint32(0)

// longest returns the longest token that text begins with, or noToken, and the
// token's length and joins.
func (t *prefixTrie) longest(text []byte) (token uint32, n int, joins uint64) {
	token = noToken
	at, node := uint32(0), &t.nodes[0]
	i := 0
	if len(text) > 2 && text[0]&0xf0 == 0xe0 && t.wide != nil {
		if e := t.wide[wideIndex(text)]; e != 0 && text[1]^0x80 < 64 && text[2]^0x80 < 64 {
			at = e >> 2
			node = &t.nodes[at]
			token, n, joins = node.token, int(e&3), node.joins
			if n < 3 {
				return token, n, joins
			}
			i = 3
		}
	}
	for ; i < len(text); i++ {
		b := text[i]
		// Most bytes that end the walk end it here, without a look elsewhere.
		if node.kids>>(b&31)&1 == 0 {
			break
		}
		next := node.base + uint32(b)
		if int(next) >= len(t.nodes) {
			break
		}
		node = &t.nodes[next]
		if node.parent != at {
			break
		}
		at = next
		if node.token != noToken {
			token, n, joins = node.token, i+1, node.joins
		}
	}
	return token, n, joins
}

// Characters of three bytes, those of most scripts that are not Latin, have a
// table of their own: a walk is three steps, each of which waits for memory.
//
// An entry is 0 where the walk has to be made, or node<<2 | n: the first three
// bytes of a text tell that its longest token ends at the node, after n < 3
// bytes, or that at least n = 3 bytes are a token, which ends at the node.
const wideEntries = 1 << 16

// wideIndex returns the place of the character that text begins with.
func wideIndex(text []byte) uint32 {
	return uint32(text[0]&15)<<12 | uint32(text[1]&63)<<6 | uint32(text[2]&63)
}

// buildWide fills the table, once the nodes have their tokens.
func (t *prefixTrie) buildWide() {
	t.wide = make([]uint32, wideEntries)
	for lead := range uint32(16) {
		first := t.child(0, byte(0xe0|lead))
		if first == noNode {
			continue
		}
		for b1 := range uint32(64) {
			second := t.child(first, byte(0x80|b1))
			for b2 := range uint32(64) {
				third := noNode
				if second != noNode {
					third = t.child(second, byte(0x80|b2))
				}
				e := &t.wide[lead<<12|b1<<6|b2]
				switch {
				case third != noNode && t.nodes[third].token != noToken:
					*e = third<<2 | 3
				case third != noNode && t.nodes[third].kids != 0:
				case second != noNode && t.nodes[second].token != noToken:
					*e = second<<2 | 2
				case t.nodes[first].token != noToken:
					*e = first<<2 | 1
				}
			}
		}
	}
}

// child returns the node that b leads to from the node at place at, or noNode.
func (t *prefixTrie) child(at uint32, b byte) uint32 {
	node := &t.nodes[at]
	next := node.base + uint32(b)
	if node.kids>>(b&31)&1 == 0 || int(next) >= len(t.nodes) || t.nodes[next].parent != at {
		return noNode
	}
	return next
}

// build makes the trie of all tokens and fills shorter, by id, with the longest
// token that is a proper prefix of the token.
func (t *prefixTrie) build(texts *tokenTexts, shorter []uint32) error {
	sorted := sortedTokens(texts)
	for i := 1; i < len(sorted); i++ {
		if sorted[i].head == sorted[i-1].head && bytes.Equal(texts.of(sorted[i].id), texts.of(sorted[i-1].id)) {
			return errors.New("two tokens of the same bytes")
		}
	}

	// Nodes are placed level by level: a node's place is what its children name
	// as their parent. span is a node whose tokens, sorted[lo:hi], share their
	// first depth bytes.
	type span struct {
		lo, hi, node uint32
		depth        uint32
		longest      uint32 // token that ends at the node or above
	}
	type child struct {
		lo, hi uint32
		label  byte
	}
	places := placer{}
	t.nodes = make([]trieNode, 0, len(texts.bytes)*3/8) // as many as these vocabularies need
	t.grow(1)
	places.take(0)
	t.nodes[0].parent = noNode - 1
	level := []span{{hi: uint32(len(sorted)), longest: noToken}}
	var next []span
	var children []child
	for len(level) > 0 {
		next = next[:0]
		for _, s := range level {
			lo := s.lo
			if id := sorted[lo].id; uint32(sorted[lo].length) == s.depth {
				shorter[id] = s.longest
				t.nodes[s.node].token = id
				s.longest = id
				lo++
			}
			children = children[:0]
			for lo < s.hi {
				label := sorted[lo].byteAt(s.depth, texts)
				from := lo
				for lo++; lo < s.hi && sorted[lo].byteAt(s.depth, texts) == label; lo++ {
				}
				children = append(children, child{from, lo, label})
			}
			if len(children) == 0 {
				continue
			}
			var labels [256]byte
			for i, c := range children {
				labels[i] = c.label
			}
			base := places.fit(labels[:len(children)])
			t.nodes[s.node].base = base
			for _, c := range children {
				t.nodes[s.node].kids |= 1 << (c.label & 31)
			}
			t.grow(int(base) + int(labels[len(children)-1]) + 1)
			for _, c := range children {
				at := base + uint32(c.label)
				t.nodes[at].parent = s.node
				next = append(next, span{c.lo, c.hi, at, s.depth + 1, s.longest})
			}
		}
		level, next = next, level
	}
	return nil
}

func (t *prefixTrie) grow(n int) {
	for len(t.nodes) < n {
		t.nodes = append(t.nodes, trieNode{parent: noNode, token: noToken})
	}
}

// placer keeps which places of a double array are taken, a bit each.
type placer struct {
	taken []uint64
	from  int // no word before this one is worth a look
}

func (p *placer) take(i uint32) {
	for int(i>>6) >= len(p.taken) {
		p.taken = append(p.taken, 0)
	}
	p.taken[i>>6] |= 1 << (i & 63)
}

// window returns the 64 places that begin at i.
func (p *placer) window(i uint32) uint64 {
	word := func(w uint32) uint64 {
		if int(w) < len(p.taken) {
			return p.taken[w]
		}
		return 0
	}
	return word(i>>6)>>(i&63) | word(i>>6+1)<<(64-i&63)
}

// lookedAt is in how many words fit looks for places before it takes new ones.
// Vocabularies of merged bytes need fewer.
const lookedAt = 1 << 10

// fit takes places for children with these labels, in ascending order, and
// returns their base, which is at least 1.
func (p *placer) fit(labels []byte) uint32 {
	first := uint32(labels[0])
	var masks [4]uint64
	for _, b := range labels {
		d := uint32(b) - first
		masks[d>>6] |= 1 << (d & 63)
	}
	spread := int(labels[len(labels)-1]-labels[0])>>6 + 1
	if len(labels) == 1 {
		spread = 0 // any free place will do
	}
	// Words that are nearly full are given up, lest each search begins with all
	// of them.
	for p.from < len(p.taken) && bits.OnesCount64(p.taken[p.from]) >= 62 {
		p.from++
	}
	for w, looked := p.from, 0; ; w, looked = w+1, looked+1 {
		if looked == lookedAt {
			// It may be so of all that follow: time is worth more than these places.
			p.from += lookedAt / 16
			w = max(w, len(p.taken))
		}
		free := ^uint64(0)
		if w < len(p.taken) {
			free = ^p.taken[w]
		}
		for ; free != 0; free &= free - 1 {
			at := uint32(w<<6 + bits.TrailingZeros64(free))
			if at <= first {
				continue
			}
			fits := true
			for i, m := range masks[:spread] {
				if m != 0 && p.window(at+uint32(i<<6))&m != 0 {
					fits = false
					break
				}
			}
			if fits {
				for _, b := range labels {
					p.take(at + uint32(b) - first)
				}
				return at - first
			}
		}
	}
}

// sortKey is a token by its first eight bytes, the first one on top.
type sortKey struct {
	head   uint64
	id     uint32
	length uint8
}

// byteAt returns the token's byte i, mostly without a look at its text.
func (k *sortKey) byteAt(i uint32, texts *tokenTexts) byte {
	if i < 8 {
		return byte(k.head >> (56 - 8*i))
	}
	return texts.bytes[texts.start[k.id]+i]
}

// sortedTokens returns the tokens in the order of their bytes: by the first
// eight with a radix sort, which orders all but the long ones, then by the rest.
func sortedTokens(texts *tokenTexts) []sortKey {
	keys := make([]sortKey, 0, texts.ids())
	var counts [8][256]uint32
	for id := range uint32(texts.ids()) {
		text := texts.of(id)
		if len(text) == 0 {
			continue
		}
		var b [8]byte
		copy(b[:], text)
		for i, c := range b {
			counts[i][c]++
		}
		keys = append(keys, sortKey{binary.BigEndian.Uint64(b[:]), id, uint8(len(text))})
	}
	other := make([]sortKey, len(keys))
	for i := 7; i >= 0; i-- {
		at := uint32(0)
		for c, n := range counts[i] {
			counts[i][c] = at
			at += n
		}
		for _, k := range keys {
			c := byte(k.head >> (56 - 8*i))
			other[counts[i][c]] = k
			counts[i][c]++
		}
		keys, other = other, keys
	}
	for lo := 0; lo < len(keys); {
		hi := lo + 1
		for hi < len(keys) && keys[hi].head == keys[lo].head {
			hi++
		}
		slices.SortFunc(keys[lo:hi], func(a, b sortKey) int {
			return bytes.Compare(texts.of(a.id), texts.of(b.id))
		})
		lo = hi
	}
	return keys
}
