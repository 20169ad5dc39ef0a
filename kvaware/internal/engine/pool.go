// SPDX-License-Identifier: Apache-2.0

package engine

// block is one KV block. It is in use while ref > 0; else it is in the free list,
// where it stays findable by its hash until it is taken.
type block struct {
	hash       uint64
	ref        int32
	prev, next int32 // free list
	// Copies of one content form a ring, the oldest of which the table names.
	prevCopy, nextCopy int32
	// after is a block that followed this one in a chain, or any: a guess that
	// spares most lookups in the table.
	after  int32
	hashed bool
}

// none stands for the block before a chain's first.
const none = -1

// pool holds the KV blocks. Its free list is in order of eviction: blocks that
// hold nothing first, then the least recently used.
type pool struct {
	blocks []block // and one more, the free list's sentinel
	table  table
	free   int
	// gains counts what may add to the blocks in use that some chain's beginning
	// finds: each adds one at most.
	gains int
	watch BlockSink // nil if nobody listens
}

// BlockSink is told what the prefix cache holds, within calls of the engine's
// methods. It must not call the engine.
type BlockSink interface {
	// Stored: a block of that content can be found, and none could before. It is the
	// i-th of by, and Block(i-1) of that is what it is chained to.
	Stored(hash uint64, by *Sequence, i int)
	Removed(hash uint64) // the last block of that content is gone
	Cleared()            // none can be found any more
}

// WatchBlocks has a sink told of changes from now on; nil ends that.
func (e *Engine) WatchBlocks(sink BlockSink) { e.pool.watch = sink }

func newPool(blocks int) pool {
	p := pool{blocks: make([]block, blocks+1), table: newTable(), free: blocks}
	for i := range p.blocks {
		p.blocks[i].prev = int32((i + blocks) % (blocks + 1))
		p.blocks[i].next = int32((i + 1) % (blocks + 1))
	}
	return p
}

func (p *pool) sentinel() int32 { return int32(len(p.blocks) - 1) }

// find returns the block of that hash which the table names, a copy of before
// being the one before it in the chain.
func (p *pool) find(hash uint64, before int32) (int32, bool) {
	if before == none {
		return p.table.get(hash)
	}
	after := p.blocks[before].after
	if b := &p.blocks[after]; b.hashed && b.hash == hash && b.nextCopy == after {
		return after, true
	}
	id, ok := p.table.get(hash)
	if ok {
		p.blocks[before].after = id
	}
	return id, ok
}

// take evicts the first free block and hands it out. One must be free.
func (p *pool) take() int32 {
	id := p.blocks[p.sentinel()].next
	p.unlink(id)
	b := &p.blocks[id]
	if b.hashed {
		p.forget(id)
	}
	b.ref = 1
	return id
}

// pin takes a cached block into use once more.
func (p *pool) pin(id int32) {
	b := &p.blocks[id]
	if b.ref == 0 {
		p.unlink(id)
		p.gains++
	}
	b.ref++
}

// release gives blocks up, the last first: so a chain loses its tail before its
// head, which more requests share.
func (p *pool) release(ids []int32) {
	for i := len(ids) - 1; i >= 0; i-- {
		b := &p.blocks[ids[i]]
		if b.ref--; b.ref > 0 {
			continue
		}
		end := p.sentinel()
		b.prev, b.next = p.blocks[end].prev, end
		p.blocks[b.prev].next = ids[i]
		p.blocks[end].prev = ids[i]
		p.free++
	}
}

func (p *pool) unlink(id int32) {
	b := &p.blocks[id]
	p.blocks[b.prev].next = b.next
	p.blocks[b.next].prev = b.prev
	p.free--
}

// name makes a full block findable, behind the one before it, and tells whether
// none of its content could be found. Equal blocks computed at the same time are
// kept side by side, as block tables of running requests never change.
func (p *pool) name(id int32, hash uint64, before int32) (novel bool) {
	if before != none {
		p.blocks[before].after = id
	}
	p.gains++
	b := &p.blocks[id]
	b.hash, b.hashed = hash, true
	b.prevCopy, b.nextCopy = id, id
	oldest, ok := p.table.get(hash)
	if !ok {
		p.table.put(hash, id)
		return true
	}
	o := &p.blocks[oldest]
	b.prevCopy, b.nextCopy = o.prevCopy, oldest
	p.blocks[b.prevCopy].nextCopy = id
	o.prevCopy = id
	return false
}

func (p *pool) forget(id int32) {
	b := &p.blocks[id]
	b.hashed = false
	if b.nextCopy == id {
		p.table.remove(b.hash)
		if p.watch != nil {
			p.watch.Removed(b.hash)
		}
		return
	}
	p.blocks[b.prevCopy].nextCopy = b.nextCopy
	p.blocks[b.nextCopy].prevCopy = b.prevCopy
	if oldest, _ := p.table.get(b.hash); oldest == id {
		p.gains++ // the next copy may be in use
		p.table.put(b.hash, b.nextCopy)
	}
}

func (p *pool) reset() {
	p.table.clear()
	for i := range p.blocks {
		p.blocks[i].hashed = false
	}
	if p.watch != nil {
		p.watch.Cleared()
	}
}
