// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/binary"
	"math/rand/v2"
	"reflect"
	"runtime"
	"sync"
	"weak"

	"github.com/zeebo/xxh3"
)

// Cache remembers how prompts were encoded, so that a conversation that grows
// costs what is new in it. All requests share it.
//
// A prompt is cut into segments of about segmentBytes, at the ends of its pieces
// and inside long ones where its encoder's [CutRule] allows. Where the cuts lie
// depends only on what stands before them, so prompts that begin alike have the
// same first segments. Of each segment the cache holds the number of its tokens,
// the hashes of the blocks that end in it and the ids behind the last of those:
// with those of the segments before it, all that encoding the next one needs.
// The key is a hash under a secret, of 128 bits, of everything these follow
// from: encoder, block size, root of the chain and the whole prompt so far. Text
// is not kept.
//
// Any segment may be forgotten at any time; it is then encoded again. Memory is
// linear in the length of the prompts, however many turns a conversation had.
type Cache struct {
	secret  [2]uint64
	segment int   // in bytes
	shift   uint8 // leaves the index of a stripe of a key's first half
	layout  generationLayout
	stripes []stripe

	mu       sync.Mutex // guards what is below
	lastID   uint64
	encoders map[Encoder]weak.Pointer[CachedEncoder]
}

// segmentBytes is the length of body from which on a segment ends as soon as it
// can: short enough to be cheap to encode again, long enough for the hashes in
// an entry to outweigh the rest of it.
const segmentBytes = 4096

const (
	mostStripes = 64
	leastStripe = 1 << 20 // bytes below which more stripes do not pay
)

// NewCache returns a cache that keeps at most maxBytes. Memory is taken as it
// is needed and then kept. With less than a kilobyte or so it remembers nothing.
func NewCache(maxBytes int64) *Cache {
	c := &Cache{
		secret:   [2]uint64{rand.Uint64(), rand.Uint64()},
		segment:  segmentBytes,
		shift:    64,
		encoders: make(map[Encoder]weak.Pointer[CachedEncoder]),
	}
	n := int64(1)
	for n < mostStripes && maxBytes/(2*n) >= leastStripe {
		n *= 2
		c.shift--
	}
	c.stripes = make([]stripe, n)
	c.layout = newGenerationLayout(max(0, maxBytes) / n / 2)
	return c
}

// CacheStats are a [Cache]'s counters since its start and its present size.
type CacheStats struct {
	Hits    uint64 // segments that were known
	Misses  uint64 // segments that were not
	Evicted uint64 // segments forgotten to make room

	Entries int   // segments held
	Bytes   int64 // memory taken
}

// Stats returns the present counters. It locks one stripe after the other.
func (c *Cache) Stats() (sum CacheStats) {
	for i := range c.stripes {
		c.stripes[i].addTo(&sum)
	}
	return sum
}

// CachedEncoder is an encoder whose work a [Cache] remembers. [Reader.Chain]
// knows it; its Append encodes as the encoder itself does.
type CachedEncoder struct {
	Encoder
	cache *Cache
	id    uint64 // never given again, so that no other encoder is taken for this one
	cuts  CutRule
}

// Encoder returns enc with what it encodes remembered in c. Calls with the same
// enc give the same result as long as somebody holds it, so that it survives
// being configured anew. What has been remembered for an encoder that nobody
// holds any more is lost.
func (c *Cache) Encoder(enc Encoder) *CachedEncoder {
	if known, ok := enc.(*CachedEncoder); ok {
		if known.cache == c {
			return known
		}
		enc = known.Encoder
	}
	comparable := reflect.ValueOf(enc).Comparable()
	c.mu.Lock()
	defer c.mu.Unlock()
	if comparable {
		if known := c.encoders[enc].Value(); known != nil {
			return known
		}
	}
	c.lastID++
	e := &CachedEncoder{Encoder: enc, cache: c, id: c.lastID}
	if cutter, ok := enc.(SafeCutter); ok {
		e.cuts = cutter.SafeCuts()
	}
	if comparable {
		c.encoders[enc] = weak.Make(e)
		runtime.AddCleanup(e, c.forget, enc)
	}
	return e
}

// forget lets go of an encoder whose CachedEncoder is gone, unless there is
// another by now.
func (c *Cache) forget(enc Encoder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.encoders[enc].Value() == nil {
		delete(c.encoders, enc)
	}
}

// cacheKey is a hash of all that stands before a place in a prompt.
type cacheKey struct{ lo, hi uint64 }

// firstKey is the key before a prompt's first piece.
func (e *CachedEncoder) firstKey(root uint64, blockSize int) cacheKey {
	k := cacheKey{root, e.id}
	return e.cache.extend(k, cacheKey{lo: uint64(max(0, blockSize))}, 0)
}

// extend returns the key behind content with that hash.
func (c *Cache) extend(k, content cacheKey, kindAndLength uint64) cacheKey {
	var b [40]byte
	binary.LittleEndian.PutUint64(b[0:], k.lo)
	binary.LittleEndian.PutUint64(b[8:], k.hi)
	binary.LittleEndian.PutUint64(b[16:], content.lo)
	binary.LittleEndian.PutUint64(b[24:], content.hi)
	binary.LittleEndian.PutUint64(b[32:], kindAndLength)
	h := xxh3.Hash128Seed(b[:], c.secret[0])
	return cacheKey{h.Lo, h.Hi}
}

// extendByPiece returns the key behind a piece whose bytes are those of raw. They
// are hashed as they stand in the body: other spellings of a text are other keys.
func (c *Cache) extendByPiece(k cacheKey, p *piece, raw []byte) cacheKey {
	if p.kind == syntheticPiece {
		return c.extend(k, cacheKey{lo: p.seed}, uint64(p.end)<<8|uint64(p.kind))
	}
	h := xxh3.Hash128Seed(raw, c.secret[1])
	return c.extend(k, cacheKey{h.Lo, h.Hi}, uint64(len(raw))<<8|uint64(p.kind))
}
