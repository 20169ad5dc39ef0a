// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/rand/v2"
	"testing"
)

func TestTheTableIsAMap(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		got, want := newTable(), map[uint64]int32{}
		// Few keys meet often, and those that differ in the low bits only, or in the
		// high ones only, meet in the probing.
		keys := make([]uint64, 1+rng.IntN(600))
		for i := range keys {
			keys[i] = rng.Uint64() >> (4 * rng.IntN(16)) << (4 * rng.IntN(8))
		}
		for range 20_000 {
			key := keys[rng.IntN(len(keys))]
			switch rng.IntN(5) {
			case 0, 1:
				id := int32(rng.IntN(1000))
				got.put(key, id)
				want[key] = id
			case 2, 3:
				got.remove(key)
				delete(want, key)
			default:
				if rng.IntN(2000) == 0 {
					got.clear()
					clear(want)
				}
			}
			id, ok := got.get(key)
			if w, has := want[key]; ok != has || ok && id != w || got.n != len(want) {
				t.Fatalf("key %x: %d %v of %d, want %d %v of %d", key, id, ok, got.n, w, has, len(want))
			}
		}
		for _, key := range keys {
			id, ok := got.get(key)
			if w, has := want[key]; ok != has || ok && id != w {
				t.Fatalf("key %x: %d %v, want %d %v", key, id, ok, w, has)
			}
		}
	}
}
