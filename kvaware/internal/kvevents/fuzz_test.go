// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"
)

func FuzzDecode(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, s := range shapes() {
		f.Add(AppendBatch(nil, anyBatch(r), s))
	}
	for name, m := range hostile() {
		if name != "nested" {
			f.Add(m)
		}
	}
	f.Add(pack(nil, list{1.0, list{store("extra_keys", list{
		list{"sql", list{"image", -1}, "salt", []byte("digest")}, list{list{"mm", "image", 2}},
	}, "lora_name", "sql", "medium", "CPU_PINNED", "cache_salt", "salt")}, 1}))
	f.Fuzz(func(t *testing.T, m []byte) {
		var d Decoder
		var b Batch
		if err := d.Decode(bytes.Clone(m), &b); err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Reason == 0 || int(e.Reason) >= len(reasons) {
				t.Fatalf("%v is no Error", err)
			}
			return
		}
		if len(d.keys) > len(m) || len(d.tokens) > len(m) || len(d.extra) > len(m) || len(b.Events) > len(m) {
			t.Fatal("more was read than the message has bytes")
		}
		for i := range b.Events {
			if e := &b.Events[i]; e.Extra != nil && len(e.Extra) != len(e.Blocks) || e.Tier >= Tiers {
				t.Fatalf("event %+v", e)
			}
		}
		// What was read can be written and read again, in every shape.
		for _, s := range shapes() {
			var again Decoder
			var c Batch
			if err := again.Decode(AppendBatch(nil, &b, s), &c); err != nil {
				t.Fatalf("shape %b: %v", s, err)
			}
			if len(c.Events) != len(b.Events) || c.Rank != b.Rank {
				t.Fatalf("shape %b: %+v, want %+v", s, c, b)
			}
			for i := range c.Events {
				if !reflect.DeepEqual(c.Events[i].Tokens, b.Events[i].Tokens) && len(b.Events[i].Tokens) > 0 {
					t.Fatalf("shape %b: tokens %v, want %v", s, c.Events[i].Tokens, b.Events[i].Tokens)
				}
			}
		}
	})
}
