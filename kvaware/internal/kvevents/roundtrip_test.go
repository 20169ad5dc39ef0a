// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/tinylib/msgp/msgp"
	"github.com/zeebo/xxh3"
)

// shapes are all that AppendBatch writes.
func shapes() []Shape {
	var all []Shape
	for s := range Shape(1 << 7) {
		if s&SignedKeys == 0 || s&ByteKeys == 0 {
			all = append(all, s)
		}
	}
	return all
}

// anyBatch makes a batch as engines do, its byte slices nil where empty.
func anyBatch(r *rand.Rand) *Batch {
	b := &Batch{Time: float64(r.Int64N(1 << 40)), Rank: r.IntN(5) - 1}
	for range r.IntN(6) {
		e := Event{Kind: Kind(r.IntN(3)), Group: -1}
		if e.Kind == Cleared {
			b.Events = append(b.Events, e)
			continue
		}
		e.Tier, e.Group = Tier(r.IntN(Tiers)), r.IntN(4)-1
		e.Blocks = []Key{}
		for range r.IntN(5) {
			e.Blocks = append(e.Blocks, r.Uint64()>>(r.IntN(8)*8))
		}
		if e.Kind == Stored {
			anyStore(r, &e)
		}
		b.Events = append(b.Events, e)
	}
	return b
}

func anyStore(r *rand.Rand, e *Event) {
	e.Attention = Attention(r.IntN(3))
	if e.HasParent = r.IntN(2) == 0; e.HasParent {
		e.Parent = r.Uint64()
	}
	e.BlockSize = r.IntN(20)
	e.Tokens = []uint32{}
	for range len(e.Blocks) * e.BlockSize {
		e.Tokens = append(e.Tokens, r.Uint32()>>(r.IntN(4)*8))
	}
	switch r.IntN(3) {
	case 0:
		e.LoRA = fmt.Append(nil, 1+r.IntN(1000))
	case 1:
		e.LoRA = fmt.Appendf(nil, "adapter-%d", r.IntN(3))
	}
	if r.IntN(2) == 0 || len(e.Blocks) == 0 {
		return
	}
	e.Extra = make([]Extra, len(e.Blocks))
	for i := range e.Extra {
		if r.IntN(2) == 0 {
			e.Extra[i].Other = 1 + r.Uint64N(1<<62)
		}
	}
	if !e.HasParent && r.IntN(2) == 0 {
		e.Extra[0].Salt = fmt.Appendf(nil, "salt %d", r.Uint64())
	}
}

// read is b as a message of shape s tells it.
func read(b *Batch, s Shape) *Batch {
	out := *b
	out.Events = make([]Event, 0, len(b.Events))
	for _, e := range b.Events {
		e.Blocks = mapped(e.Blocks, s)
		if e.HasParent {
			e.Parent = mapped([]Key{e.Parent}, s)[0]
		}
		if s&Short != 0 && e.Kind != Cleared {
			e = Event{
				Kind: e.Kind, Blocks: e.Blocks, Parent: e.Parent, HasParent: e.HasParent,
				Tokens: e.Tokens, BlockSize: e.BlockSize, LoRA: e.LoRA, Group: -1,
			}
			if number, _ := adapter(e.LoRA); number == 0 {
				e.LoRA = nil
			}
		}
		e.Extra = readExtra(e.Extra, s)
		if e.Kind == Stored && s&SaltField != 0 {
			e.Attention, e.Group = AttentionUnknown, -1
			if number, _ := adapter(e.LoRA); number == 0 && rootSalt(&e) != nil && s&ArrayEvents != 0 {
				e.LoRA = nil
			}
		}
		out.Events = append(out.Events, e)
	}
	return &out
}

func readExtra(extra []Extra, s Shape) []Extra {
	var out []Extra
	for i, x := range extra {
		if s&SaltField != 0 {
			x.Other = 0
		} else if x.Other != 0 {
			id := hex.EncodeToString(binary.BigEndian.AppendUint64(nil, x.Other))
			x.Other = xxh3.Hash(msgp.AppendInt(msgp.AppendString(nil, id), 0))
		}
		if x.Other == 0 && x.Salt == nil {
			continue
		}
		if out == nil {
			out = make([]Extra, len(extra))
		}
		out[i] = x
	}
	return out
}

func mapped(keys []Key, s Shape) []Key {
	if s&ByteKeys == 0 || keys == nil {
		return keys
	}
	out := []Key{}
	for _, k := range keys {
		out = append(out, xxh3.Hash(binary.BigEndian.AppendUint64(make([]byte, 24), k)))
	}
	return out
}

func TestEveryShapeReadsBackAsWritten(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 2))
	var d Decoder
	var got Batch
	for range 300 {
		b := anyBatch(r)
		for _, s := range shapes() {
			want := read(b, s)
			if err := d.Decode(AppendBatch(nil, b, s), &got); err != nil {
				t.Fatalf("shape %b: %v", s, err)
			}
			if len(want.Events) == 0 && len(got.Events) == 0 {
				got.Events = want.Events
			}
			if !reflect.DeepEqual(&got, want) {
				t.Fatalf("shape %b: read\n%+v\nwritten\n%+v", s, &got, want)
			}
		}
	}
}
