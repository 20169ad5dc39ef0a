// SPDX-License-Identifier: Apache-2.0

package prefix

// node is a run of blocks that all paths through it share. At least one span
// holds it. Its hashes carry the namespace already, see seedOf.
type node struct {
	key    uint64   // the run's first hash
	rest   []uint64 // the hashes after it; the array is this node's own
	parent uint32   // node id, 0 at a prompt's start
	before uint32   // blocks of the prompt before the run
	chain  uint32   // next node of the bucket, or next free node
	// Its spans. Holders that stop here stand before those that go deeper, as
	// far as can be known cheaply: Match looks for the former, and relies on
	// that order for speed only.
	first, last uint32
	holders     uint32 // how many they are
}

func (n *node) blocks() int { return 1 + len(n.rest) }

// common returns how many leading blocks of the run a chain has whose first
// hash is known to be the run's. As hashes are chained, blocks that are equal
// have equal ones before them.
func (n *node) common(seed uint64, chain []uint64) int {
	lo, hi := 0, min(len(n.rest), len(chain)-1)
	if hi == 0 || n.rest[hi-1] == chain[hi]^seed {
		return 1 + hi
	}
	hi--
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if n.rest[mid] == chain[mid+1]^seed {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return 1 + lo
}

// seedOf returns what every hash of a namespace is xored with before it enters
// the trie, so that namespaces share nodes only if hashes collide.
func seedOf(ns uint64) uint64 { return mix64(ns + 0x9e3779b97f4a7c15) }

// nodeTable is the table of nodes by first hash and parent.
type nodeTable struct {
	arena[node]
	table
	free   uint32
	blocks int // over all nodes
}

func nodeHash(key uint64, parent uint32) uint32 {
	return uint32((key ^ uint64(parent)*0x9e3779b97f4a7c15) * 0xd6e8feb86659fd93 >> 32)
}

func (t *nodeTable) hashOf(id uint32) uint32 {
	n := t.at(id)
	return nodeHash(n.key, n.parent)
}

func (t *nodeTable) link(id uint32) *uint32 { return &t.at(id).chain }

// find returns the child of parent that begins with key, or 0.
func (t *nodeTable) find(key uint64, parent uint32) uint32 {
	head := t.bucket(nodeHash(key, parent))
	if head == nil {
		return 0
	}
	for id := *head; id != 0; {
		n := t.at(id)
		if n.key == key && n.parent == parent {
			return id
		}
		id = n.chain
	}
	return 0
}

// add makes a node without spans: the caller gives it one at once.
func (t *nodeTable) add(key uint64, rest []uint64, parent uint32) uint32 {
	id := t.free
	if id != 0 {
		t.free = t.at(id).chain
	} else {
		id = t.extend()
	}
	before := uint32(0)
	if parent != 0 {
		p := t.at(parent)
		before = p.before + uint32(p.blocks())
	}
	*t.at(id) = node{key: key, rest: rest, parent: parent, before: before}
	insert(&t.table, t, id)
	t.blocks += 1 + len(rest)
	return id
}

// addRun makes a node of a chain's hashes.
func (t *nodeTable) addRun(seed uint64, chain []uint64, parent uint32) uint32 {
	var rest []uint64
	if len(chain) > 1 {
		rest = make([]uint64, len(chain)-1)
		for i, h := range chain[1:] {
			rest[i] = h ^ seed
		}
	}
	return t.add(chain[0]^seed, rest, parent)
}

func (t *nodeTable) drop(id uint32) {
	remove(&t.table, t, id)
	n := t.at(id)
	t.blocks -= n.blocks()
	*n = node{chain: t.free}
	t.free = id
}

// shorten cuts the run to its first n blocks, n > 0.
func (t *nodeTable) shorten(id uint32, n int) {
	nd := t.at(id)
	t.blocks -= nd.blocks() - n
	nd.rest = nd.rest[:n-1]
	if len(nd.rest) <= cap(nd.rest)/2 {
		nd.rest = clone(nd.rest)
	}
}

// cut parts the run after n blocks, 0 < n < its length. The tail keeps the id,
// because spans and children refer to it; the head is a new node without spans.
// Both get arrays of their own: the tail may be evicted long before the head.
func (t *nodeTable) cut(id uint32, n int) (head uint32) {
	nd := t.at(id)
	head = t.add(nd.key, clone(nd.rest[:n-1]), nd.parent)
	remove(&t.table, t, id)
	nd.key, nd.rest, nd.parent = nd.rest[n-1], clone(nd.rest[n:]), head
	nd.before += uint32(n)
	insert(&t.table, t, id)
	t.blocks -= n
	return head
}

// clone copies into an array of just that size, none for an empty one.
func clone(s []uint64) []uint64 {
	if len(s) == 0 {
		return nil
	}
	c := make([]uint64, len(s))
	copy(c, s)
	return c
}
