// SPDX-License-Identifier: Apache-2.0

package residency

// leastBlock is the least index block size, in tokens. Engines whose pages are smaller
// are indexed by several pages at a time.
const leastBlock = 16

// indexBlock returns the index block size for an engine's.
func indexBlock(page int) int {
	if page >= leastBlock {
		return page
	}
	return (leastBlock + page - 1) / page * page
}

// pages keeps what is needed of the pages inside of index blocks: their tokens, and
// what is before them. Each has 1 + tokens words; the first is a ref, of refPage with
// the page's place in its index block.
type pages struct {
	size   int // tokens of a page
	chunks [][]uint32
	next   uint32 // number never used; 0 is none
	free   uint32 // its first word is the next free one
	roots  map[uint32]uint64
}

const (
	pageChunkBits = 8
	pageChunkSize = 1 << pageChunkBits

	placeShift = 26 // above a page's number in the ref to it in a page
	maxPages   = 1 << placeShift
)

func (p *pages) at(n uint32) []uint32 {
	words := 1 + p.size
	i := int(n%pageChunkSize) * words
	return p.chunks[n>>pageChunkBits][i : i+words]
}

// add returns the number of a new page behind another, 0 if there are too many. Place
// counts the pages before it in its index block.
func (p *pages) add(before ref, place int, root uint64, tokens []uint32) uint32 {
	n := p.free
	switch {
	case n != 0:
		p.free = p.at(n)[0]
	case p.next == maxPages:
		return 0
	default:
		if p.next == 0 {
			p.next = 1
		}
		n = p.next
		p.next++
		if int(n>>pageChunkBits) == len(p.chunks) {
			p.chunks = append(p.chunks, make([]uint32, pageChunkSize*(1+p.size)))
		}
	}
	page := p.at(n)
	switch before.kind() {
	case refPage:
		before |= ref(place) << placeShift
	case refRoot:
		if p.roots == nil {
			p.roots = make(map[uint32]uint64)
		}
		p.roots[n] = root
	}
	page[0] = uint32(before)
	copy(page[1:], tokens)
	return n
}

func (p *pages) remove(n uint32) {
	page := p.at(n)
	if ref(page[0]).kind() == refRoot {
		delete(p.roots, n)
	}
	page[0], p.free = p.free, n
}

// place returns how many pages are before this one in its index block.
func (p *pages) place(n uint32) int {
	if r := ref(p.at(n)[0]); r.kind() == refPage {
		return int(r.number() >> placeShift)
	}
	return 0
}

// gather writes the tokens of a page and those before it in its index block, of which
// there are place, into tokens, and returns what the block is behind: a ref, and for a
// root the root. It fails if a page before is gone, which no radix tree lets go first.
func (p *pages) gather(n uint32, place int, tokens []uint32) (before ref, root uint64, ok bool) {
	for ; ; place-- {
		page := p.at(n)
		copy(tokens[place*p.size:], page[1:])
		r := ref(page[0])
		if r.kind() != refPage {
			return r, p.roots[n], place == 0
		}
		if place == 0 {
			return 0, 0, false
		}
		n = r.number() & (maxPages - 1)
	}
}
