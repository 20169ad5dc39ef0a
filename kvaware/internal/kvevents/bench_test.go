// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"math/rand/v2"
	"testing"
)

// engineBatch is a step of an engine: stores of blocks of 16 tokens from a
// vocabulary of 150,000, a few blocks each, and as many removals of one block.
func engineBatch(s Shape, stores int) []byte {
	const perStore = 32
	r := rand.New(rand.NewPCG(1, 2))
	b := &Batch{Time: 1.76e9, Rank: 0}
	for range stores {
		e := Event{Kind: Stored, HasParent: true, Parent: r.Uint64(), BlockSize: 16, Group: 0, Attention: FullAttention}
		for range perStore {
			e.Blocks = append(e.Blocks, r.Uint64())
			for range 16 {
				e.Tokens = append(e.Tokens, uint32(float64(150_000)*r.Float64()*r.Float64()))
			}
		}
		b.Events = append(b.Events, e, Event{Kind: Removed, Blocks: []Key{r.Uint64()}, Group: 0})
	}
	return AppendBatch(nil, b, s)
}

// BenchmarkDecode's blocks/s are stored blocks on one core.
func BenchmarkDecode(b *testing.B) {
	for name, s := range map[string]Shape{
		"maps":       0,
		"arrays":     ArrayEvents,
		"signed":     ArrayEvents | SignedKeys,
		"byte-keys":  ByteKeys,
		"eagle":      TokenPairs | SignedKeys,
		"map-batch":  MapBatch,
		"short":      ArrayEvents | Short | SignedKeys,
		"salt-field": SaltField | SignedKeys,
	} {
		b.Run(name, func(b *testing.B) {
			const stores = 64
			m := engineBatch(s, stores)
			var d Decoder
			var batch Batch
			b.SetBytes(int64(len(m)))
			b.ReportAllocs()
			for b.Loop() {
				if err := d.Decode(m, &batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*stores*32/b.Elapsed().Seconds(), "blocks/s")
		})
	}
}

func BenchmarkAppendBatch(b *testing.B) {
	var d Decoder
	var batch Batch
	if err := d.Decode(engineBatch(0, 64), &batch); err != nil {
		b.Fatal(err)
	}
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendBatch(dst[:0], &batch, 0)
	}
}
