// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/tinylib/msgp/msgp"
	"github.com/zeebo/xxh3"
)

// maxBlockSize bounds a block's length in tokens; engines' are 1 to a few
// thousand.
const maxBlockSize = 1 << 20

// field is a field of an event.
type field uint8

const (
	fieldOther field = iota // not needed, or unknown
	fieldType
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoRAID
	fieldMedium
	fieldLoRAName // SGLang 0.5.18 has a map with the salt in this place
	fieldExtraKeys
	fieldGroup
	fieldAttention
	fieldWindow
	fieldSalt
)

// storedOrder and removedOrder are the fields' places in an array event after
// the tag.
var (
	storedOrder = [...]field{
		fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoRAID, fieldMedium,
		fieldLoRAName, fieldExtraKeys, fieldGroup, fieldAttention, fieldWindow,
	}
	removedOrder = [...]field{fieldHashes, fieldMedium, fieldGroup}
)

// named returns the field of a map event by its name.
func named(name []byte) field {
	switch string(name) {
	case "type":
		return fieldType
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoRAID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLoRAName
	case "extra_keys", "block_mm_infos": // the second from TensorRT-LLM's publisher in Dynamo
		return fieldExtraKeys
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldAttention
	case "kv_cache_spec_sliding_window":
		return fieldWindow
	case "cache_salt":
		return fieldSalt
	}
	return fieldOther
}

// fields is what was read of an event so far. Its byte slices lie in the
// message.
type fields struct {
	event   Event
	known   bool   // the type
	hashes  bool   // block_hashes were told
	window  bool   // a sliding window was told
	group   int    // 0, or the group's number and one
	adapter uint64 // lora_id
	salt    []byte
	extra   []byte // extra_keys as they stand
}

// tagged sets the event's kind and returns the order of its fields.
func (f *fields) tagged(tag []byte) []field {
	f.known = true
	switch string(tag) {
	case "BlockStored":
		f.event.Kind = Stored
		return storedOrder[:]
	case "BlockRemoved":
		f.event.Kind = Removed
		return removedOrder[:]
	case "AllBlocksCleared":
		f.event.Kind = Cleared
		return nil
	}
	f.known = false
	return nil
}

// field reads one field's value. The result reasonless means that the value
// cannot be what it should be.
func (d *Decoder) field(which field, m []byte, f *fields) (rest []byte, r Reason) {
	if len(m) == 0 {
		return m, Truncated
	}
	if which == fieldOther || msgp.IsNil(m) {
		return skip(m)
	}
	e := &f.event
	var s []byte
	var bits uint64
	var negative bool
	switch which {
	case fieldType:
		if s, rest, r = text(m); r == 0 {
			f.tagged(s)
		}
	case fieldHashes:
		f.hashes = true
		e.Blocks, rest, r = d.hashes(m)
	case fieldParent:
		if e.Parent, rest = key(m); rest == nil {
			return m, mismatch(m)
		}
		// llm-d's simulator writes 0 where there is none.
		e.HasParent = e.Parent != 0
	case fieldTokens:
		e.Tokens, rest, r = d.tokenIDs(m)
	case fieldBlockSize:
		bits, negative, rest, r = integer(m)
		if negative || bits > maxBlockSize {
			return m, reasonless
		}
		e.BlockSize = int(bits)
	case fieldLoRAID:
		bits, negative, rest, r = integer(m)
		if !negative {
			f.adapter = bits
		}
	case fieldMedium:
		if s, rest, r = text(m); r == 0 {
			e.Tier = tier(s)
		}
	case fieldLoRAName:
		if msgp.NextType(m) == msgp.MapType {
			return metadata(m, f)
		}
		if s, rest, r = text(m); r == 0 {
			e.LoRA = d.own(s)
		}
	case fieldExtraKeys:
		if rest, r = skip(m); r == 0 {
			f.extra = m[:len(m)-len(rest)]
		}
	case fieldGroup:
		bits, negative, rest, r = integer(m)
		if negative || bits > maxGroup {
			return m, reasonless
		}
		f.group = int(bits) + 1
	case fieldAttention:
		if s, rest, r = text(m); r == 0 {
			e.Attention = attention(s)
		}
	case fieldWindow:
		f.window = true
		rest, r = skip(m)
	case fieldSalt:
		f.salt, rest, r = text(m)
	}
	if r != 0 {
		return m, r
	}
	return rest, 0
}

// maxGroup bounds the number of a KV-cache group; models have a few.
const maxGroup = 1 << 16

// metadata reads the map that SGLang 0.5.18 puts behind medium.
func metadata(m []byte, f *fields) ([]byte, Reason) {
	n, m, r := pairs(m)
	for ; n > 0 && r == 0; n-- {
		var name []byte
		if name, m, r = text(m); r != 0 {
			break
		}
		if named(name) == fieldSalt && !msgp.IsNil(m) {
			f.salt, m, r = text(m)
		} else {
			m, r = skip(m)
		}
	}
	return m, r
}

// tier knows the media of vLLM (GPU, CPU, STORAGE; cpu from its Mooncake
// store) and SGLang (GPU, CPU_PINNED, DISK, EXTERNAL). Any other is taken for
// the slowest: fast memory goes by these names, and an event left out would
// leave its blocks' later removal without a store.
func tier(medium []byte) Tier {
	switch {
	case len(medium) == 0, folds(medium, "GPU"):
		return GPU
	case folds(medium, "CPU"), folds(medium, "CPU_PINNED"):
		return CPU
	}
	return Disk
}

func folds(s []byte, name string) bool {
	return len(s) == len(name) && bytes.EqualFold(s, []byte(name))
}

// attention knows vLLM's KVCacheSpecKind. [vllm/v1/kv_cache_interface.py]
func attention(kind []byte) Attention {
	switch string(kind) {
	case "full_attention", "mla_attention", "sink_full_attention":
		return FullAttention
	case "sliding_window", "sliding_window_mla", "mamba", "chunked_local_attention",
		"encoder_only_attention", "cross_attention":
		return OtherAttention
	}
	return AttentionUnknown
}

// hashes reads an array of block hashes.
func (d *Decoder) hashes(m []byte) ([]Key, []byte, Reason) {
	n, m, r := array(m)
	if r != 0 {
		return nil, m, r
	}
	start := len(d.keys)
	keys := slices.Grow(d.keys, n)
	for range n {
		k, rest := key(m)
		if rest == nil {
			return nil, m, mismatch(m)
		}
		m, keys = rest, append(keys, k)
	}
	d.keys = keys
	return slices.Clip(keys[start:]), m, 0
}

// key reads one block hash; rest is nil if there is none.
func key(m []byte) (k Key, rest []byte) {
	switch {
	case len(m) >= 9 && (m[0] == 0xcf || m[0] == 0xd3): // uint64, int64
		return binary.BigEndian.Uint64(m[1:]), m[9:]
	case len(m) >= 34 && m[0] == 0xc4 && m[1] == 32: // bin 8, SHA-256
		return xxh3.Hash(m[2:34]), m[34:]
	}
	if bits, _, rest, r := integer(m); r == 0 {
		return bits, rest
	}
	if s, rest, r := text(m); r == 0 {
		return xxh3.Hash(s), rest
	}
	return 0, nil
}

// decimal writes an adapter's number.
func (d *Decoder) decimal(id uint64) []byte {
	start := len(d.bytes)
	d.bytes = strconv.AppendUint(d.bytes, id, 10)
	return slices.Clip(d.bytes[start:])
}
