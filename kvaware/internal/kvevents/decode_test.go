// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bytes"
	"math"
	"reflect"
	"testing"

	"github.com/tinylib/msgp/msgp"
	"github.com/zeebo/xxh3"
)

// object is a map that is written in its order.
type object []any

// pack writes v as msgpack: nil, bool, int, int64, uint64, float64, string,
// []byte, []any, object.
func pack(dst []byte, v any) []byte {
	switch v := v.(type) {
	case []any:
		dst = msgp.AppendArrayHeader(dst, uint32(len(v)))
		for _, e := range v {
			dst = pack(dst, e)
		}
		return dst
	case object:
		dst = msgp.AppendMapHeader(dst, uint32(len(v)/2))
		for _, e := range v {
			dst = pack(dst, e)
		}
		return dst
	}
	dst, err := msgp.AppendIntf(dst, v)
	if err != nil {
		panic(err)
	}
	return dst
}

type list = []any

func decoded(t *testing.T, message any) *Batch {
	t.Helper()
	var d Decoder
	b := new(Batch)
	if err := d.Decode(pack(nil, message), b); err != nil {
		t.Fatal(err)
	}
	return b
}

// event decodes a batch of one event that is not skipped.
func event(t *testing.T, e any) *Event {
	t.Helper()
	b := decoded(t, list{1.0, list{e}})
	if len(b.Events) != 1 || b.Skipped != 0 {
		t.Fatalf("%d events, %d skipped, want 1, 0", len(b.Events), b.Skipped)
	}
	return &b.Events[0]
}

// store is a map event with two blocks of two tokens, and more fields.
func store(more ...any) object {
	return append(object{
		"type", "BlockStored", "block_hashes", list{10, 11}, "parent_block_hash", nil,
		"token_ids", list{1, 2, 3, 4}, "block_size", 2, "lora_id", nil,
	}, more...)
}

func TestArraysAndMapsTellTheSame(t *testing.T) {
	want := Event{
		Kind: Stored, Blocks: []Key{10, 11}, Parent: 9, HasParent: true, Tokens: []uint32{1, 2, 3, 4},
		BlockSize: 2, Tier: CPU, LoRA: []byte("sql"), Group: 1, Attention: FullAttention,
	}
	asArray := list{
		"BlockStored", list{10, 11}, 9, list{1, 2, 3, 4}, 2, 7, "CPU", "sql", nil, 1, "full_attention", nil,
		"LOCAL", "a field to come",
	}
	asMap := object{
		"kv_cache_spec_kind", "full_attention", "group_idx", 1, "lora_name", "sql", "medium", "CPU", "lora_id", 7,
		"block_size", 2, "token_ids", list{1, 2, 3, 4}, "parent_block_hash", 9, "block_hashes", list{10, 11},
		"a field to come", object{"x", list{1, 2}}, "type", "BlockStored",
	}
	for name, e := range map[string]any{"array": asArray, "map": asMap} {
		if got := *event(t, e); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func TestArraysMayEndEarly(t *testing.T) {
	e := event(t, list{"BlockStored", list{-5}, nil, list{1, 2}, 2, nil})
	if e.Blocks[0] != math.MaxUint64-4 || e.Tier != GPU || e.Group != -1 || e.HasParent {
		t.Errorf("store without medium: %+v", e)
	}
	if e := event(t, list{"BlockRemoved", list{1, 2}}); len(e.Blocks) != 2 || e.Tier != GPU || e.Group != -1 {
		t.Errorf("removal without medium: %+v", e)
	}
	if e := event(t, list{"AllBlocksCleared"}); e.Kind != Cleared {
		t.Errorf("clear: %+v", e)
	}
}

func TestBatchesAreArraysOrMaps(t *testing.T) {
	cleared := object{"type", "AllBlocksCleared"}
	for _, c := range []struct {
		name    string
		message any
		time    float64
		rank    int
	}{
		{"array", list{1.5, list{cleared}}, 1.5, -1},
		{"array with rank", list{1.5, list{cleared}, 3}, 1.5, 3},
		{"array with null rank", list{1.5, list{cleared}, nil}, 1.5, -1},
		{"array with fields to come", list{1.5, list{cleared}, 3, object{"x", 1}}, 1.5, 3},
		{"integer time", list{2, list{cleared}}, 2, -1},
		{"no time", list{nil, list{cleared}}, 0, -1},
		{"time is not a number", list{math.NaN(), list{cleared}}, 0, -1},
		{"negative rank", list{1.5, list{cleared}, -2}, 1.5, -1},
		{"rank of another type", list{1.5, list{cleared}, "x"}, 1.5, -1},
		{"map", object{"ts", 1.5, "events", list{cleared}, "data_parallel_rank", 2}, 1.5, 2},
		{"map of SGLang", object{"attn_dp_rank", 2, "events", list{cleared}, "ts", 1.5, "x", nil}, 1.5, 2},
	} {
		if b := decoded(t, c.message); b.Time != c.time || b.Rank != c.rank || len(b.Events) != 1 {
			t.Errorf("%s: %+v", c.name, b)
		}
	}
}

func TestUnknownEventsAreSkippedAndCounted(t *testing.T) {
	b := decoded(t, list{1.0, list{
		list{"BlockMoved", list{1}, object{"deep", list{list{1}}}},
		object{"type", "BlockMoved", "block_hashes", "of another type"},
		object{"block_hashes", list{1}},        // no type
		list{}, 7, nil, list{list{}}, object{}, // no events
		list{"BlockStored"}, store("group_idx", -1), // fields missing or impossible
		object{"type", "BlockStored", "block_hashes", list{1, 2.5}},
		object{"type", "BlockStored", "block_hashes", list{1}, "token_ids", list{1, "x"}},
		object{"type", "BlockStored", "block_hashes", list{1}, "token_ids", list{list{}}},
		object{"type", "BlockRemoved", "block_hashes", object{}},
		object{"type", "BlockStored", "block_hashes", list{1}, "block_size", -1},
		object{"type", "BlockRemoved", "block_hashes", list{12}},
	}})
	if b.Skipped != 15 || len(b.Events) != 1 || b.Events[0].Blocks[0] != 12 {
		t.Errorf("%d skipped, events %+v", b.Skipped, b.Events)
	}
}

func TestKeysAreIntegersByTheirBitsAndBytesByHash(t *testing.T) {
	digest := bytes.Repeat([]byte{7}, 32)
	long := bytes.Repeat([]byte{8}, 100_000)
	keys := event(t, list{"BlockRemoved", list{
		0, 300, -1, uint64(math.MaxUint64), int64(math.MinInt64), digest, digest[:8], "text", long, []byte{},
	}}).Blocks
	want := []Key{
		0, 300, math.MaxUint64, math.MaxUint64, 1 << 63, xxh3.Hash(digest), xxh3.Hash(digest[:8]),
		xxh3.HashString("text"), xxh3.Hash(long), xxh3.Hash(nil),
	}
	if !reflect.DeepEqual(keys, want) {
		t.Errorf("keys %x, want %x", keys, want)
	}
	e := event(t, store("parent_block_hash", digest))
	if !e.HasParent || e.Parent != xxh3.Hash(digest) {
		t.Errorf("parent %x", e.Parent)
	}
}

func TestAParentOfZeroIsNone(t *testing.T) {
	for _, parent := range []any{0, nil, int64(0)} {
		if e := event(t, store("parent_block_hash", parent)); e.HasParent || e.Parent != 0 {
			t.Errorf("%v: %+v", parent, e)
		}
	}
}

func TestTokenIdsOutsideOf32BitsAreNoVocabularys(t *testing.T) {
	in := list{0, 127, 128, 65535, 65536, int64(math.MaxUint32), -1, int64(1) << 32, int64(math.MinInt64), uint64(math.MaxUint64)}
	got := event(t, object{"type", "BlockStored", "block_hashes", list{}, "token_ids", in}).Tokens
	for i, want := range []uint32{0, 127, 128, 65535, 65536, math.MaxUint32} {
		if got[i] != want {
			t.Errorf("token %d: %d, want %d", i, got[i], want)
		}
	}
	for i, id := range got[6:] {
		if id < 1<<31 {
			t.Errorf("token %v reads as %d, which a vocabulary may have", in[6+i], id)
		}
	}
}

func TestTheFirstOfAPairOfTokensCounts(t *testing.T) {
	e := event(t, store("token_ids", list{list{1, 2}, list{70000, 3}, list{3, 4}, list{4}}))
	if want := []uint32{1, 70000, 3, 4}; !reflect.DeepEqual(e.Tokens, want) || !e.Whole() {
		t.Errorf("tokens %v, want %v", e.Tokens, want)
	}
}

func TestMediaAreTiers(t *testing.T) {
	for medium, want := range map[string]Tier{
		"GPU": GPU, "gpu": GPU, "": GPU, "CPU": CPU, "cpu": CPU, "CPU_PINNED": CPU, "Cpu_Pinned": CPU,
		"STORAGE": Disk, "DISK": Disk, "EXTERNAL": Disk, "FS": Disk, "a medium to come": Disk,
	} {
		if e := event(t, store("medium", medium)); e.Tier != want {
			t.Errorf("medium %q: tier %d, want %d", medium, e.Tier, want)
		}
		if e := event(t, list{"BlockRemoved", list{1}, medium}); e.Tier != want {
			t.Errorf("removal from medium %q: tier %d, want %d", medium, e.Tier, want)
		}
	}
}

func TestKindsOfGroupsAreKindsOfAttention(t *testing.T) {
	for kind, want := range map[string]Attention{
		"full_attention": FullAttention, "mla_attention": FullAttention, "sink_full_attention": FullAttention,
		"sliding_window": OtherAttention, "sliding_window_mla": OtherAttention, "mamba": OtherAttention,
		"chunked_local_attention": OtherAttention, "cross_attention": OtherAttention,
		"encoder_only_attention": OtherAttention, "unknown": AttentionUnknown, "to come": AttentionUnknown,
	} {
		if e := event(t, store("kv_cache_spec_kind", kind)); e.Attention != want {
			t.Errorf("%q: %d, want %d", kind, e.Attention, want)
		}
	}
	if e := event(t, store("kv_cache_spec_sliding_window", 128)); e.Attention != OtherAttention {
		t.Errorf("a window alone: %d", e.Attention)
	}
	if e := event(t, store("kv_cache_spec_sliding_window", 128, "kv_cache_spec_kind", "full_attention")); e.Attention != FullAttention {
		t.Errorf("full attention's layers with a window: %d", e.Attention)
	}
}

func TestAdaptersGoByNameElseByNumber(t *testing.T) {
	for _, c := range []struct {
		more object
		want string
	}{
		{object{}, ""},
		{object{"lora_id", 0}, ""},
		{object{"lora_id", -3}, ""},
		{object{"lora_id", 12}, "12"},
		{object{"lora_id", 12, "lora_name", "sql"}, "sql"},
		{object{"lora_id", 12, "lora_name", ""}, "12"},
		{object{"lora_name", "sql"}, "sql"},
	} {
		if e := event(t, store(c.more...)); string(e.LoRA) != c.want {
			t.Errorf("%v: %q, want %q", c.more, e.LoRA, c.want)
		}
	}
}

func TestExtraKeysAreSaltsAndTheRest(t *testing.T) {
	digest := bytes.Repeat([]byte{5}, 32)
	image := func(more ...any) list { return append(list{"image hash", -3}, more...) }
	other := func(keys any) uint64 { // what a second block with these keys has
		e := event(t, store("extra_keys", list{nil, keys}))
		if len(e.Extra) != 2 || e.Extra[1].Salt != nil || e.Extra[0].Other != 0 {
			t.Fatalf("extra %+v", e.Extra)
		}
		return e.Extra[1].Other
	}
	for _, c := range []struct {
		name  string
		event any
		salt  string
		other uint64
	}{
		{"none", store("extra_keys", list{nil, nil}), "", 0},
		{"empty", store("extra_keys", list{list{}, list{}}), "", 0},
		{"salt", store("extra_keys", list{list{"s"}, nil}), "s", 0},
		{"salt by itself", store("extra_keys", list{"s"}), "s", 0},
		{"adapter", store("extra_keys", list{list{"sql"}, list{"sql"}}, "lora_name", "sql"), "", 0},
		{"adapter and salt", store("extra_keys", list{list{"sql", "s"}}, "lora_name", "sql"), "s", 0},
		{"adapter and salt alike", store("extra_keys", list{list{"sql", "sql"}}, "lora_name", "sql"), "sql", 0},
		{"image and salt", store("extra_keys", list{list{image(), "s"}}), "s", other(list{image()})},
		{"digest and salt", store("extra_keys", list{list{"s", digest}}), "s", other(list{digest})},
		{"tagged", store("extra_keys", list{list{
			list{"lora", "sql", "/adapters/sql"}, append(list{"mm"}, image()...), list{"cache_salt", "s"},
			list{"prompt_embeds", digest},
		}}), "s", other(list{image(), digest})},
		{"an image by a tag's name", store("extra_keys", list{list{list{"lora", 1}}}), "", other(list{list{"lora", 1}})},
		{"what TensorRT-LLM's publisher tells of images", store("block_mm_infos", list{object{"mm_hash", 5}, nil}), "", other(object{"mm_hash", 5})},
		{"a string in a later block", store("extra_keys", list{list{"s"}}, "parent_block_hash", 9), "", other(list{"s"})},
		{"the event's own salt", store("cache_salt", "s"), "s", 0},
		{"the event's own salt in a later block", store("cache_salt", "s", "parent_block_hash", 9), "", 0},
		{"a salt in metadata", list{
			"BlockStored", list{1}, nil, list{}, 1, nil, "GPU", object{"x", 1, "cache_salt", "s"},
		}, "s", 0},
	} {
		e := event(t, c.event)
		var got Extra
		if e.Extra != nil {
			got = e.Extra[0]
			if len(e.Extra) != len(e.Blocks) {
				t.Errorf("%s: %d entries for %d blocks", c.name, len(e.Extra), len(e.Blocks))
			}
		}
		if string(got.Salt) != c.salt || got.Other != c.other {
			t.Errorf("%s: %q %x, want %q %x", c.name, got.Salt, got.Other, c.salt, c.other)
		}
	}
	if other(list{image()}) == other(list{list{"image hash", -2}}) {
		t.Error("the offset does not count")
	}
	if e := event(t, store("extra_keys", list{nil, nil, list{"more than blocks"}})); e.Extra != nil {
		t.Errorf("keys of no block: %+v", e.Extra)
	}
}

func TestWholeEventsTellEachBlocksTokens(t *testing.T) {
	for _, c := range []struct {
		event object
		want  bool
	}{
		{store(), true},
		{store("block_size", 4), false},
		{store("block_size", 0), false},
		{store("token_ids", list{}), false},
		{store("token_ids", list{1, 2, 3, 4, 5, 6}), false},
		{store("block_hashes", list{}), false},
	} {
		if got := event(t, c.event).Whole(); got != c.want {
			t.Errorf("%v: %v", c.event, got)
		}
	}
}

func TestDecodingAgainTakesNoMemory(t *testing.T) {
	messages := [][]byte{
		engineBatch(ArrayEvents|SignedKeys, 8),
		engineBatch(0, 8),
		pack(nil, list{1.0, list{store("extra_keys", list{list{"salt", list{"image", 1}}}, "lora_id", 12345)}, 1}),
	}
	var d Decoder
	var b Batch
	if n := testing.AllocsPerRun(100, func() {
		for _, m := range messages {
			if err := d.Decode(m, &b); err != nil {
				t.Fatal(err)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNothingOfTheMessageIsKept(t *testing.T) {
	m := pack(nil, list{1.0, list{store("extra_keys", list{list{"salt"}}, "lora_name", "sql")}})
	var d Decoder
	var b Batch
	if err := d.Decode(m, &b); err != nil {
		t.Fatal(err)
	}
	clear(m)
	if e := b.Events[0]; string(e.LoRA) != "sql" || string(e.Extra[0].Salt) != "salt" || e.Blocks[1] != 11 || e.Tokens[3] != 4 {
		t.Errorf("after the message's memory was used again: %+v", e)
	}
}
