// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// fuzzEvents makes events of bytes: of few keys and tokens, so that they meet.
func fuzzEvents(data []byte) (b kvevents.Batch) {
	next := func() int {
		if len(data) == 0 {
			return 0
		}
		n := data[0]
		data = data[1:]
		return int(n)
	}
	for len(data) > 0 {
		n := next()
		e := kvevents.Event{
			Kind: kvevents.Kind(n % 4 % 3), Tier: kvevents.Tier(n / 4 % 8 % 3), Group: n/32%3 - 1,
			Attention: kvevents.Attention(next() % 3), HasParent: n >= 128,
		}
		if e.HasParent {
			e.Parent = kvevents.Key(next() % 32)
		}
		for range next() % 8 {
			e.Blocks = append(e.Blocks, kvevents.Key(next()%32))
		}
		switch size := next(); size % 4 {
		case 0:
			e.BlockSize = size / 4
		case 1:
			e.BlockSize, e.Extra = 1+size/4%40, make([]kvevents.Extra, len(e.Blocks))
			for i := range e.Extra {
				e.Extra[i].Other = uint64(next() % 2)
			}
			fallthrough
		default:
			if e.BlockSize == 0 {
				e.BlockSize = []int{1, 5, 16, 48}[size/4%4]
			}
			e.Tokens = make([]uint32, e.BlockSize*len(e.Blocks))
			for i := range e.Blocks {
				e.Tokens[i*e.BlockSize] = uint32(next() % 3)
			}
			if size > 250 {
				e.Tokens = e.Tokens[:len(e.Tokens)/2]
			}
		}
		b.Events = append(b.Events, e)
	}
	return b
}

func FuzzApplyKeepsTheTablesConsistent(f *testing.F) {
	f.Add([]byte{32, 1, 4, 1, 2, 3, 4, 10, 0, 1, 2, 0, 33, 1, 1, 2, 0}, byte(0))
	f.Add([]byte{32, 1, 7, 1, 2, 3, 4, 5, 6, 7, 2, 1, 1, 1, 1, 1, 1, 1, 36, 0, 2, 3, 4, 128, 2, 0, 0}, byte(1))
	f.Add([]byte{160, 1, 9, 2, 11, 12, 6, 1, 1, 160, 1, 8, 1, 9, 6, 1, 32, 1, 1, 8, 6, 1, 33, 0, 1, 11, 0}, byte(2))
	f.Fuzz(func(t *testing.T, data []byte, mode byte) {
		if len(data) > 4000 {
			return
		}
		x := New(Options{Chains: testChains, MaxBlocks: 12 + int(mode)})
		x.remember = int(mode % 8)
		a, b := x.Open(0), x.Open(1)
		a.SetRules(Rules{LastRemoval: mode&1 != 0, ClearsAll: mode&2 != 0})
		half := len(data) / 2
		for _, part := range [][]byte{data[:half], data[half:], data} {
			batch := fuzzEvents(part)
			a.Apply(&batch)
			b.Apply(&batch)
			if err := x.check(a, b); err != nil {
				t.Fatal(err)
			}
			dst := make([]int32, 2)
			for _, size := range x.BlockSizes(nil) {
				x.Match(size, chainOf(testChains.Root("", ""), make([]uint32, 20*size), size), dst)
			}
			if mode&64 != 0 {
				a.Forget()
			}
		}
		a.Close()
		b.Close()
		if sz := x.Size(); sz.Blocks != 0 {
			t.Fatalf("%+v is left", sz)
		}
	})
}
