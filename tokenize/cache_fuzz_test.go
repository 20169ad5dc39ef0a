// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"slices"
	"strings"
	"testing"
)

// The caches live as long as the fuzzing, so that inputs meet what others left.
func FuzzChainWithCache(f *testing.F) {
	for _, c := range loadCases(f) {
		for i, path := range fuzzPaths {
			if path == c.Path && len(c.body) < 4<<10 {
				f.Add(uint8(i), uint8(16), c.body)
			}
		}
	}
	g := goldenOf(f)
	c := chance(15)
	for i := range 30 {
		f.Add(uint8(0), uint8(i), []byte(fuzzedText(&c, g.Fragments)))
	}
	f.Add(uint8(1), uint8(3), []byte(`{"prompt":["`+strings.Repeat(`\u00e9 \\n\n`, 40)+`",["1, 2,  3 , 4e0,5"],[1, 2,  3 , 4e0,5, 66666666666 ,7,8,9]]}`))
	encoders := testEncoders(f, []*Cache{newTestCache(1<<20, 16), newTestCache(1<<16, 40), newTestCache(900, 24)})
	f.Fuzz(func(t *testing.T, which, blockSize uint8, body []byte) {
		sameChains(t, fuzzPaths[int(which)%len(fuzzPaths)], body, int(blockSize), encoders...)
		// The same bytes as a conversation of two messages that grow.
		for n := 1; n <= 3; n++ {
			text := strings.ToValidUTF8(string(body[:len(body)*n/3]), "\ufffd")
			chat := marshal(t, map[string]any{"messages": []any{
				map[string]any{"role": "user", "content": text},
				map[string]any{"role": "assistant", "content": text + " " + text},
			}})
			sameChains(t, "/v1/chat/completions", chat, int(blockSize), encoders...)
		}
	})
}

// A stripe is compared with a map: what it finds is what was put there, and it
// finds what was put last.
func FuzzStripe(f *testing.F) {
	f.Add([]byte{1, 2, 3, 1, 200, 3, 7, 7, 7}, uint16(400))
	f.Add(slices.Repeat([]byte{9, 8, 7, 250, 6, 5, 4}, 30), uint16(2000))
	f.Add(slices.Repeat([]byte{0, 1}, 300), uint16(65535))
	type entry struct {
		tokens int
		blocks []uint64
		ids    []uint32
	}
	f.Fuzz(func(t *testing.T, steps []byte, maxBytes uint16) {
		c := NewCache(int64(maxBytes))
		c.secret = [2]uint64{1, 2}
		known := map[cacheKey]entry{}
		for i, step := range steps {
			k := c.extend(cacheKey{}, cacheKey{lo: uint64(step)}, 0)
			if step < 32 {
				k.hi = uint64(step) // tags that are all alike
			}
			blocks, ids, tokens, ok := c.take(k, []uint64{1}, []uint32{2, 3})
			if ok {
				want := known[k]
				if len(want.blocks) == 0 {
					ids = ids[2:]
				}
				if !slices.Equal(blocks[1:], want.blocks) || !slices.Equal(ids, want.ids) || tokens != want.tokens {
					t.Fatalf("step %d: %d tokens, %v, %v, want %+v", i, tokens, blocks, ids, want)
				}
				continue
			}
			e := entry{tokens: i, blocks: make([]uint64, step%19), ids: make([]uint32, int(step)*7%33)}
			for j := range e.blocks {
				e.blocks[j] = uint64(i)<<8 + uint64(j)
			}
			for j := range e.ids {
				e.ids[j] = uint32(i)<<8 + uint32(j)
			}
			c.put(k, e.tokens, e.blocks, e.ids)
			known[k] = e
			if s := c.Stats(); s.Bytes > int64(maxBytes) || s.Entries > len(known) || s.Entries < 0 {
				t.Fatalf("step %d: %+v of %d bytes, %d entries", i, s, maxBytes, len(known))
			}
			if maxBytes > 4000 {
				if _, _, _, ok := c.take(k, nil, nil); !ok {
					t.Fatalf("step %d: what was just put is not known", i)
				}
			}
		}
	})
}
