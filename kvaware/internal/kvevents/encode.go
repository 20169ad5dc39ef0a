// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/tinylib/msgp/msgp"
)

// Shape says how AppendBatch writes a batch; flags combine. Without any it
// writes what vLLM since 0.25 and SGLang since 0.5.20 publish: an array batch
// of map events.
type Shape uint8

const (
	// ArrayEvents writes events as arrays, trailing defaults left out, as
	// vLLM to 0.22 and SGLang to 0.5.18 do.
	ArrayEvents Shape = 1 << iota
	// MapBatch writes the batch as a map.
	MapBatch
	// Short leaves out all that came after the first version: a store ends
	// with its LoRA's number, a removal with its hashes.
	Short
	// SignedKeys writes hashes as signed integers, as SGLang does.
	SignedKeys
	// ByteKeys writes hashes as 32 bytes, as vLLM does on request. They are
	// read back as other Keys; equal ones stay equal.
	ByteKeys
	// TokenPairs writes each token id together with the next, as SGLang does
	// for EAGLE.
	TokenPairs
	// SaltField writes the salt as a field of the event, as SGLang does.
	SaltField
)

// AppendBatch appends b as one message of the given shape to dst. Of an
// Extra's Other, whose origin is not known, it writes a multimodal item made
// from it. An adapter's name of digits alone is written as its number.
func AppendBatch(dst []byte, b *Batch, s Shape) []byte {
	ranked := b.Rank >= 0
	if s&MapBatch != 0 {
		dst = msgp.AppendMapHeader(dst, 2+one(ranked))
		dst = msgp.AppendFloat64(msgp.AppendString(dst, "ts"), b.Time)
		dst = msgp.AppendString(dst, "events")
	} else {
		dst = msgp.AppendArrayHeader(dst, 2+one(ranked))
		dst = msgp.AppendFloat64(dst, b.Time)
	}
	dst = msgp.AppendArrayHeader(dst, uint32(len(b.Events)))
	for i := range b.Events {
		dst = appendEvent(dst, &b.Events[i], s)
	}
	if !ranked {
		return dst
	}
	if s&MapBatch != 0 {
		dst = msgp.AppendString(dst, "data_parallel_rank")
	}
	return msgp.AppendInt(dst, b.Rank)
}

func one(is bool) uint32 {
	if is {
		return 1
	}
	return 0
}

// value is a field to write: nil write stands for null.
type value struct {
	name  string
	set   bool // else it may be left out at the end of an array, and of a map
	write func([]byte) []byte
}

func appendEvent(dst []byte, e *Event, s Shape) []byte {
	var tag string
	var values []value
	switch e.Kind {
	case Stored:
		tag, values = "BlockStored", stored(e, s)
	case Removed:
		tag, values = "BlockRemoved", removed(e, s)
	default:
		tag = "AllBlocksCleared"
	}
	if s&ArrayEvents != 0 {
		for len(values) > 0 && !values[len(values)-1].set {
			values = values[:len(values)-1]
		}
		dst = msgp.AppendArrayHeader(dst, uint32(1+len(values)))
		dst = msgp.AppendString(dst, tag)
		for _, v := range values {
			dst = v.append(dst)
		}
		return dst
	}
	n := uint32(1)
	for _, v := range values {
		n += one(v.set)
	}
	dst = msgp.AppendMapHeader(dst, n)
	dst = msgp.AppendString(msgp.AppendString(dst, "type"), tag)
	for _, v := range values {
		if v.set {
			dst = v.append(msgp.AppendString(dst, v.name))
		}
	}
	return dst
}

func (v value) append(dst []byte) []byte {
	if v.write == nil {
		return msgp.AppendNil(dst)
	}
	return v.write(dst)
}

func stored(e *Event, s Shape) []value {
	number, name := adapter(e.LoRA)
	values := []value{
		hashesValue(e, s),
		{name: "parent_block_hash", set: true},
		{name: "token_ids", set: true, write: func(dst []byte) []byte { return appendTokens(dst, e.Tokens, s) }},
		{name: "block_size", set: true, write: func(dst []byte) []byte { return msgp.AppendInt(dst, e.BlockSize) }},
		{name: "lora_id", set: true},
	}
	if e.HasParent {
		values[1].write = func(dst []byte) []byte { return appendKey(dst, e.Parent, s) }
	}
	if number > 0 {
		values[4].write = func(dst []byte) []byte { return msgp.AppendUint64(dst, number) }
	}
	if s&Short != 0 {
		return values
	}
	values = append(values, mediumValue(e))
	salt := rootSalt(e)
	if s&SaltField != 0 && len(salt) > 0 && s&ArrayEvents != 0 {
		return append(values, value{name: "metadata", set: true, write: func(dst []byte) []byte {
			dst = msgp.AppendString(msgp.AppendMapHeader(dst, 1), "cache_salt")
			return msgp.AppendStringFromBytes(dst, salt)
		}})
	}
	values = append(values, stringValue("lora_name", name))
	if s&SaltField != 0 {
		return append(values, stringValue("cache_salt", salt))
	}
	kind := ""
	switch e.Attention {
	case FullAttention:
		kind = "full_attention"
	case OtherAttention:
		kind = "mamba"
	}
	extra := value{name: "extra_keys", set: e.Extra != nil}
	if extra.set {
		extra.write = func(dst []byte) []byte { return appendExtra(dst, e, name) }
	}
	return append(values, extra, groupValue(e), stringValue("kv_cache_spec_kind", []byte(kind)))
}

func removed(e *Event, s Shape) []value {
	if s&Short != 0 {
		return []value{hashesValue(e, s)}
	}
	return []value{hashesValue(e, s), mediumValue(e), groupValue(e)}
}

func hashesValue(e *Event, s Shape) value {
	return value{name: "block_hashes", set: true, write: func(dst []byte) []byte {
		dst = msgp.AppendArrayHeader(dst, uint32(len(e.Blocks)))
		for _, k := range e.Blocks {
			dst = appendKey(dst, k, s)
		}
		return dst
	}}
}

func mediumValue(e *Event) value {
	media := [Tiers]string{GPU: "GPU", CPU: "CPU", Disk: "STORAGE"}
	return stringValue("medium", []byte(media[min(e.Tier, Disk)]))
}

func groupValue(e *Event) value {
	v := value{name: "group_idx", set: e.Group >= 0}
	if v.set {
		v.write = func(dst []byte) []byte { return msgp.AppendInt(dst, e.Group) }
	}
	return v
}

func stringValue(name string, s []byte) value {
	v := value{name: name, set: len(s) > 0}
	if v.set {
		v.write = func(dst []byte) []byte { return msgp.AppendStringFromBytes(dst, s) }
	}
	return v
}

// rootSalt is the salt of a prompt's first block, if e has it.
func rootSalt(e *Event) []byte {
	if e.HasParent || len(e.Extra) == 0 {
		return nil
	}
	return e.Extra[0].Salt
}

// adapter tells a LoRA's number from its name.
func adapter(lora []byte) (number uint64, name []byte) {
	if len(lora) == 0 || len(lora) > 18 || lora[0] == '0' {
		return 0, lora
	}
	for _, c := range lora {
		if c < '0' || c > '9' {
			return 0, lora
		}
		number = number*10 + uint64(c-'0')
	}
	return number, nil
}

func appendKey(dst []byte, k Key, s Shape) []byte {
	switch {
	case s&ByteKeys != 0:
		dst = msgp.AppendBytesHeader(dst, 32)
		dst = append(dst, make([]byte, 24)...)
		return binary.BigEndian.AppendUint64(dst, k)
	case s&SignedKeys != 0:
		return msgp.AppendInt64(dst, int64(k))
	}
	return msgp.AppendUint64(dst, k)
}

func appendTokens(dst []byte, tokens []uint32, s Shape) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(tokens)))
	for i, id := range tokens {
		if s&TokenPairs != 0 {
			dst = msgp.AppendUint32(msgp.AppendArrayHeader(dst, 2), id)
			id = tokens[(i+1)%len(tokens)]
		}
		dst = msgp.AppendUint32(dst, id)
	}
	return dst
}

// appendExtra writes each block's extra keys in vLLM's order: the LoRA's name,
// multimodal items, the salt.
func appendExtra(dst []byte, e *Event, name []byte) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(e.Extra)))
	for i := range e.Extra {
		x := &e.Extra[i]
		n := one(len(name) > 0) + one(x.Other != 0) + one(len(x.Salt) > 0)
		if n == 0 {
			dst = msgp.AppendNil(dst)
			continue
		}
		dst = msgp.AppendArrayHeader(dst, n)
		if len(name) > 0 {
			dst = msgp.AppendStringFromBytes(dst, name)
		}
		if x.Other != 0 {
			id := hex.AppendEncode(nil, binary.BigEndian.AppendUint64(nil, x.Other))
			dst = msgp.AppendStringFromBytes(msgp.AppendArrayHeader(dst, 2), id)
			dst = msgp.AppendInt(dst, 0)
		}
		if len(x.Salt) > 0 {
			dst = msgp.AppendStringFromBytes(dst, x.Salt)
		}
	}
	return dst
}
