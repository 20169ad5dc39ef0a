// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bytes"
	"slices"

	"github.com/tinylib/msgp/msgp"
	"github.com/zeebo/xxh3"
)

// extras sets the event's Extra from its extra_keys and its own salt.
func (d *Decoder) extras(f *fields) Reason {
	e := &f.event
	if len(e.Blocks) == 0 {
		return 0
	}
	if len(f.extra) > 0 {
		n, m, r := array(f.extra)
		if r != 0 {
			return r
		}
		for i := 0; i < n && i < len(e.Blocks); i++ {
			if msgp.IsNil(m) {
				m = m[1:]
				continue
			}
			if m, r = d.blockKeys(m, f, i); r != 0 {
				return r
			}
		}
	}
	if len(f.salt) > 0 && !e.HasParent {
		d.extraOf(e, 0).Salt = d.own(f.salt)
	}
	return 0
}

// extraOf returns the place of block i's Extra.
func (d *Decoder) extraOf(e *Event, i int) *Extra {
	if e.Extra == nil {
		start, n := len(d.extra), len(e.Blocks)
		d.extra = slices.Grow(d.extra, n)[:start+n]
		e.Extra = d.extra[start : start+n : start+n]
		clear(e.Extra)
	}
	return &e.Extra[i]
}

// blockKeys reads the extra keys of block i: an array of keys, or one key by
// itself.
func (d *Decoder) blockKeys(m []byte, f *fields, i int) ([]byte, Reason) {
	n := 1
	if msgp.NextType(m) == msgp.ArrayType {
		var r Reason
		if n, m, r = array(m); r != 0 {
			return m, r
		}
	}
	adapter, salted := len(f.event.LoRA) > 0, false
	for at := range n {
		rest, r := skip(m)
		if r != 0 {
			return m, r
		}
		one := m[:len(m)-len(rest)]
		m = rest
		switch kind, value := classify(one); {
		case kind == keyLoRA, kind == keyString && at == 0 && adapter && bytes.Equal(value, f.event.LoRA):
		case (kind == keySalt || kind == keyString) && i == 0 && !f.event.HasParent && !salted:
			if salted = len(value) > 0; salted {
				d.extraOf(&f.event, i).Salt = d.own(value)
			}
		default:
			x := d.extraOf(&f.event, i)
			if x.Other = x.Other*0x9e3779b97f4a7c15 ^ xxh3.Hash(value); x.Other == 0 {
				x.Other = 1
			}
		}
	}
	return m, 0
}

type keyKind uint8

const (
	keyOpaque keyKind = iota
	keyString
	keyLoRA
	keySalt
)

// classify tells what an extra key is, and what of it counts. vLLM publishes
// the LoRA's name and the salt as bare strings, a multimodal item as
// (identifier, offset within the block), prompt embeddings as their digest's
// bytes, and keeps for itself the same tagged as ("lora", name, path),
// ("cache_salt", salt), ("mm", identifier, offset), ("prompt_embeds", digest);
// tagged and bare count alike.
func classify(one []byte) (keyKind, []byte) {
	switch msgp.NextType(one) {
	case msgp.StrType:
		s, _, _ := text(one)
		return keyString, s
	case msgp.ArrayType:
		n, m, _ := array(one)
		if n < 2 || msgp.NextType(m) != msgp.StrType {
			return keyOpaque, one
		}
		// A tag is told from a multimodal item's identifier, which a client
		// may choose, by what follows it.
		tag, within, _ := text(m)
		next := msgp.NextType(within)
		switch {
		case string(tag) == "lora" && next == msgp.StrType:
			return keyLoRA, nil
		case string(tag) == "cache_salt" && next == msgp.StrType:
			s, _, _ := text(within)
			return keySalt, s
		case string(tag) == "mm" && next == msgp.StrType,
			string(tag) == "prompt_embeds" && next == msgp.BinType:
			return keyOpaque, within
		}
		return keyOpaque, m
	}
	return keyOpaque, one
}
