// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"sync/atomic"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// life is what a holder has from when its engine's cache was empty to when it is
// lost. It ends at once, by hiding its member; its blocks are given back after that.
type life struct {
	member member
	blocks *blocks // nil until the block size is known
	keys   keyTable
	pages  pages
	memory memory
	held   [kvevents.Tiers]int // keys by tier

	// more counts, by entry, what has the entry in a plane besides the first:
	// other keys of the engine's for what looks the same, and offloaded blocks
	// that cover it. Mostly empty.
	more map[uint32][planeCount]uint32
	// moves remembers from which set to which one it went.
	moves [8]move
}

// op is a change of the shared tables. Operations are gathered, so that the mutex is
// held seldom and shortly, and memory is at hand when it is.
type op struct {
	hash    uint64 // of the block, where the entry is to be found or made
	key     uint64 // whose slot has a pending ref to this op; 0: none
	entry   uint32 // 0: by pending, or by hash
	pending int32  // the operation that finds the entry, -1: none
	parent  ref    // of an entry to be made
	cover   int32  // how many blocks before are changed in tiers as well
	on, off planes
}

// maxOps is how many operations are done under one lock.
const maxOps = 256

type move struct {
	from, to         uint32
	fromHash, toHash uint64
	on, off          planes
}

// run does what was gathered, and has the slots and pages that waited for entries
// refer to them. What it returns says nothing.
func (l *life) run(ops []op, waiting []uint32) (warmed uint64) {
	if len(ops) == 0 {
		return 0
	}
	b := l.blocks
	// What is read here is in the caches when the lock is held. Reads that do not wait
	// for each other take little longer than one.
	var near [maxOps]*hashPlace
	n := 0
	for i := range ops {
		switch o := &ops[i]; {
		case o.entry == 0 && o.pending < 0:
			near[n] = b.places.near(o.hash)
			n++
		case o.entry != 0 && o.on == 0:
			near[n] = b.places.near(b.hash(o.entry))
			n++
		case o.entry != 0:
			warmed += uint64(b.set(o.entry))
		}
	}
	for _, p := range near[:n] {
		warmed += p[0].Load() + p[len(p)-1].Load()
	}
	b.mu.Lock()
	for i := range ops {
		l.do(ops, &ops[i])
	}
	b.mu.Unlock()
	for i := range ops {
		if o := &ops[i]; o.key != 0 {
			if slot := l.keys.find(o.key); slot != nil && slot.ref == refPending|ref(i) {
				slot.ref = refEntry | ref(o.entry)
			}
		}
	}
	for _, page := range waiting {
		p := l.pages.at(page)
		if before := ref(p[0]); before.kind() == refPending {
			p[0] = uint32(refEntry | ref(ops[before.number()].entry))
		}
	}
	return warmed
}

func (l *life) do(ops []op, o *op) {
	b := l.blocks
	if o.pending >= 0 {
		o.entry = ops[o.pending].entry
	}
	if o.entry == 0 {
		var at *atomic.Uint64
		if o.entry, at = b.places.place(o.hash, b); o.entry == 0 {
			parent := o.parent.number()
			if o.parent.kind() == refPending {
				parent = ops[parent].entry
			}
			o.entry = b.add(o.hash, parent, at)
		}
	}
	if o.cover > 0 {
		at := b.before(o.entry)
		for range o.cover {
			if at == 0 {
				break
			}
			before := b.before(at)
			l.move(at, o.on&inTier, o.off&inTier)
			at = before
		}
	}
	l.move(o.entry, o.on, o.off)
}

// move changes in which planes the member has an entry. An entry that nobody has any
// more is freed.
func (l *life) move(entry uint32, on, off planes) {
	b := l.blocks
	c := b.chunk(entry)
	i := entry % chunkSize
	from := c.sets[i].Load()
	fromHash := b.sets.at(from).hash
	var to uint32
	cached := &l.moves[(from^uint32(on)^uint32(off)<<1)%uint32(len(l.moves))]
	if cached.from == from && cached.on == on && cached.off == off && cached.fromHash == fromHash &&
		b.sets.at(cached.to).hash == cached.toHash && len(l.more) == 0 {
		to = cached.to
	} else {
		p := l.changes(entry, from, on, off)
		if p == 0 {
			return
		}
		to = b.sets.toggled(from, &l.member, p)
		if p == on|off {
			*cached = move{from, to, fromHash, b.sets.at(to).hash, on, off}
		}
	}
	if to != 0 {
		b.sets.at(to).refs++
	}
	c.sets[i].Store(to)
	b.sets.drop(from)
	if to == 0 {
		b.remove(entry)
	}
}

// changes tells in which planes an entry's set changes: where it is not had by
// something else too.
func (l *life) changes(entry, from uint32, on, off planes) (p planes) {
	had := l.blocks.sets.has(from, &l.member)
	var more [planeCount]uint32
	if len(l.more) > 0 {
		more = l.more[entry]
	}
	was := more
	for i := range more {
		plane := planes(1) << i
		gains, loses := on&plane != 0, off&plane != 0
		switch {
		case gains && had&plane != 0:
			more[i]++
		case gains:
			p |= plane
		case loses && more[i] > 0:
			more[i]--
		case loses:
			p |= had & plane
		}
	}
	switch {
	case more == was:
	case more == [planeCount]uint32{}:
		delete(l.more, entry)
	default:
		if l.more == nil {
			l.more = make(map[uint32][planeCount]uint32)
		}
		l.more[entry] = more
	}
	return p
}
