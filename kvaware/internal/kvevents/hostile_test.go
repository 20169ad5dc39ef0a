// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"
)

func TestBrokenMessagesSayWhy(t *testing.T) {
	for name, c := range map[string]struct {
		message []byte
		want    Reason
	}{
		"empty":                       {nil, Truncated},
		"a string":                    {pack(nil, "events"), NotBatch},
		"a short array":               {pack(nil, list{1.0}), NotBatch},
		"no events":                   {pack(nil, object{"ts", 1.0}), NotBatch},
		"events are a map":            {pack(nil, list{1.0, object{}}), NotBatch},
		"time is a string":            {pack(nil, list{"x", list{}}), NotBatch},
		"trailing byte":               {append(pack(nil, list{1.0, list{}}), 0xc0), Trailing},
		"a byte of no meaning":        {[]byte{0x92, 0x01, 0x91, 0xc1}, Invalid},
		"batch longer than message":   {[]byte{0xdd, 0xff, 0xff, 0xff, 0xff, 0x01}, TooLong},
		"events longer than message":  {[]byte{0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff, 0xc0}, TooLong},
		"map longer than message":     {[]byte{0xdf, 0xff, 0xff, 0xff, 0xff, 0xa2, 't', 's'}, TooLong},
		"unknown longer than message": {[]byte{0x93, 0x01, 0x91, 0xdf, 0xff, 0xff, 0xff, 0xff, 0x01, 0x01}, TooLong},
		"string longer than message":  {[]byte{0x92, 0x01, 0x91, 0x91, 0xdb, 0xff, 0xff, 0xff, 0xff, 'B'}, Truncated},
		"hashes longer than message":  {append(pack([]byte{0x92, 0x01, 0x91, 0x92}, "BlockRemoved"), 0xdd, 0x7f, 0xff, 0xff, 0xff, 1), TooLong},
	} {
		var d Decoder
		b := Batch{Time: 7, Events: make([]Event, 3), Skipped: 2}
		err := d.Decode(c.message, &b)
		var e *Error
		if !errors.As(err, &e) || e.Reason != c.want {
			t.Errorf("%s: %v, want %v", name, err, failures[c.want])
			continue
		}
		if !strings.HasPrefix(e.Error(), "kv events: ") || len(b.Events) != 0 || b.Skipped != 0 || b.Rank != -1 || b.Time != 0 {
			t.Errorf("%s: %q leaves %+v", name, e, b)
		}
	}
}

func TestEveryBeginningOfAMessageIsBroken(t *testing.T) {
	whole := pack(nil, list{1.0, list{
		store("extra_keys", list{list{"salt", list{"image", 1}}}, "lora_name", "sql", "group_idx", 300),
		list{"BlockRemoved", list{1, -70000, []byte("0123456789")}, "CPU", 1},
		object{"unknown", object{"f", 1.5, "t", true}},
	}, 1})
	var d Decoder
	var b Batch
	for n := range whole {
		var e *Error
		if err := d.Decode(whole[:n], &b); !errors.As(err, &e) {
			t.Fatalf("%d of %d bytes: %v", n, len(whole), err)
		}
	}
}

// hostile are messages that promise or nest as much as they can.
func hostile() map[string][]byte {
	nested := append([]byte{0x92, 0x01}, bytes.Repeat([]byte{0x91}, 1<<20)...)
	removed := pack([]byte{0x92, 0x01, 0x91, 0x92}, "BlockRemoved")
	tokens := pack([]byte{0x92, 0x01, 0x91, 0x95}, "BlockStored")
	tokens = append(pack(tokens, list{1}), 0xc0)
	return map[string][]byte{
		"hashes":  append(removed, 0xdd, 0xff, 0xff, 0xff, 0xff),
		"tokens":  append(tokens, 0xdd, 0xff, 0xff, 0xff, 0xff),
		"events":  {0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"unknown": {0x93, 0x01, 0x90, 0xdf, 0xff, 0xff, 0xff, 0xff},
		"string":  {0x92, 0x01, 0x91, 0x82, 0xdb, 0xff, 0xff, 0xff, 0xff},
		"nested":  nested,
	}
}

func TestHostileLengthsTakeNoMemory(t *testing.T) {
	var d Decoder
	var b Batch
	for name, m := range hostile() {
		if n := testing.AllocsPerRun(10, func() {
			if d.Decode(m, &b) == nil {
				t.Errorf("%s: no error", name)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestMemoryIsBoundedByTheMessage(t *testing.T) {
	const n = 1 << 20
	one := make(list, n)
	none := make(list, n)
	for i := range one {
		one[i] = 1
	}
	none[n-1] = list{list{"image", 0}}
	clears := make(list, n/16)
	for i := range clears {
		clears[i] = list{"AllBlocksCleared"}
	}
	for name, message := range map[string]any{
		"keys with extra": list{1.0, list{object{"type", "BlockStored", "block_hashes", one, "extra_keys", none}}},
		"tokens":          list{1.0, list{object{"type", "BlockStored", "block_hashes", list{}, "token_ids", one}}},
		"events":          list{1.0, clears},
	} {
		m := pack(nil, message)
		var d Decoder
		var b Batch
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := d.Decode(m, &b); err != nil {
			t.Fatal(name, err)
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 60*uint64(len(m)) {
			t.Errorf("%s: %d bytes for a message of %d", name, took, len(m))
		}
		for range 2 {
			if err := d.Decode(pack(nil, list{1.0, list{}}), &b); err != nil {
				t.Fatal(err)
			}
		}
		if held := 8*cap(d.keys) + 4*cap(d.tokens) + 32*cap(d.extra) + cap(d.bytes); held > 64*keep {
			t.Errorf("%s: %d bytes are held afterwards", name, held)
		}
	}
}
