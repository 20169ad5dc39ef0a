// SPDX-License-Identifier: Apache-2.0

package prefix

const (
	segmentBits = 10
	segmentSize = 1 << segmentBits
)

// table is the bucket array of a hash table whose entries are chained through
// a link of their own. It grows by linear hashing (Litwin 1980): one bucket is
// split per entry added, so no insertion ever rehashes the whole table.
// It keeps its size when entries leave.
type table struct {
	segments []*[segmentSize]uint32
	buckets  uint32
	mask     uint32 // the least 2^k-1 that covers all buckets
	entries  int
}

// linker gives a table access to its entries.
type linker interface {
	hashOf(id uint32) uint32
	link(id uint32) *uint32
}

// bucket returns the head of the chain for a hash, nil in an empty table.
func (t *table) bucket(hash uint32) *uint32 {
	if t.buckets == 0 {
		return nil
	}
	i := hash & t.mask
	if i >= t.buckets {
		i &= t.mask >> 1
	}
	return t.head(i)
}

func (t *table) head(i uint32) *uint32 {
	return &t.segments[i>>segmentBits][i%segmentSize]
}

func insert[L linker](t *table, l L, id uint32) {
	t.entries++
	if t.entries > int(t.buckets) {
		splitBucket(t, l)
	}
	head := t.bucket(l.hashOf(id))
	*l.link(id) = *head
	*head = id
}

func remove[L linker](t *table, l L, id uint32) {
	at := t.bucket(l.hashOf(id))
	for *at != id {
		at = l.link(*at)
	}
	*at = *l.link(id)
	t.entries--
}

// splitBucket adds a bucket and moves into it its share of the one it splits.
func splitBucket[L linker](t *table, l L) {
	added := t.buckets
	if int(added>>segmentBits) == len(t.segments) {
		t.segments = append(t.segments, new([segmentSize]uint32))
	}
	t.buckets++
	if added == 0 {
		return
	}
	if added > t.mask {
		t.mask = t.mask<<1 | 1
	}
	from, to := t.head(added&(t.mask>>1)), t.head(added)
	id := *from
	*from, *to = 0, 0
	for id != 0 {
		next := *l.link(id)
		head := t.bucket(l.hashOf(id))
		*l.link(id) = *head
		*head = id
		id = next
	}
}

// mix64 is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
func mix64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
