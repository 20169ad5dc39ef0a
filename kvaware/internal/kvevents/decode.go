// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"math"
	"slices"

	"github.com/tinylib/msgp/msgp"
)

// keep is how many elements of each kind a Decoder holds memory for between
// messages. An engine's step fills a fraction of it; a replay's messages are
// the steps again.
const keep = 1 << 20

// Decoder reads messages into memory that it uses again. The zero value is
// ready; one goroutine at a time uses it.
type Decoder struct {
	keys   []Key
	tokens []uint32
	extra  []Extra
	bytes  []byte
}

// Decode reads one message into b, whose memory it uses again. What b's events
// refer to is valid until the next Decode; of payload nothing is kept. A
// payload of n bytes makes at most about 30 n bytes of memory. The error is an
// *Error, and b is then empty.
func (d *Decoder) Decode(payload []byte, b *Batch) error {
	d.keys = reuse(d.keys)
	d.tokens = reuse(d.tokens)
	d.extra = reuse(d.extra)
	d.bytes = reuse(d.bytes)
	*b = Batch{Rank: -1, Events: reuse(b.Events)}
	rest, r := d.batch(payload, b)
	if r == 0 && len(rest) > 0 {
		r = Trailing
	}
	if r != 0 {
		*b = Batch{Rank: -1, Events: b.Events[:0]}
		if r == reasonless {
			r = NotBatch
		}
		return failures[r]
	}
	return nil
}

func reuse[T any](s []T) []T {
	if cap(s) > keep {
		return nil
	}
	return s[:0]
}

// batch reads [time, events, rank, …] or {"ts": …, "events": …, …}.
func (d *Decoder) batch(m []byte, b *Batch) ([]byte, Reason) {
	var n int
	var r Reason
	switch msgp.NextType(m) {
	case msgp.ArrayType:
		if n, m, r = array(m); r != 0 {
			return m, r
		}
		if n < 2 {
			return m, NotBatch
		}
		for i := range n {
			if m, r = d.batchField(i, m, b); r != 0 {
				return m, r
			}
		}
	case msgp.MapType:
		if n, m, r = pairs(m); r != 0 {
			return m, r
		}
		told := false
		for range n {
			var name []byte
			if name, m, r = text(m); r != 0 {
				return m, r
			}
			field := -1
			switch string(name) {
			case "ts":
				field = 0
			case "events":
				field, told = 1, true
			case "data_parallel_rank", "attn_dp_rank", "dp_rank":
				field = 2
			}
			if m, r = d.batchField(field, m, b); r != 0 {
				return m, r
			}
		}
		if !told {
			return m, NotBatch
		}
	default:
		return m, mismatch(m)
	}
	return m, 0
}

// batchField reads the field at an array batch's position.
func (d *Decoder) batchField(position int, m []byte, b *Batch) ([]byte, Reason) {
	switch {
	case position == 0 && !msgp.IsNil(m):
		time, rest, r := number(m)
		if !math.IsNaN(time) && !math.IsInf(time, 0) {
			b.Time = time
		}
		return rest, r
	case position == 1:
		n, m, r := array(m)
		if r != 0 {
			return m, r
		}
		for range n {
			if m, r = d.event(m, b); r != 0 {
				return m, r
			}
		}
		return m, 0
	case position == 2 && !msgp.IsNil(m):
		bits, negative, rest, r := integer(m)
		if r == 0 && !negative && bits <= math.MaxInt32 {
			b.Rank = int(bits)
		}
		if r == reasonless {
			return skip(m)
		}
		return rest, r
	}
	return skip(m)
}

// event reads one event and appends it to b, or counts it as skipped.
func (d *Decoder) event(m []byte, b *Batch) ([]byte, Reason) {
	keys, tokens, extra, bytes := len(d.keys), len(d.tokens), len(d.extra), len(d.bytes)
	rest, r := d.readEvent(m, b)
	if r != reasonless {
		return rest, r
	}
	d.keys, d.tokens, d.extra, d.bytes = d.keys[:keys], d.tokens[:tokens], d.extra[:extra], d.bytes[:bytes]
	b.Skipped++
	return skip(m)
}

func (d *Decoder) readEvent(m []byte, b *Batch) ([]byte, Reason) {
	f := fields{}
	var n int
	var r Reason
	switch msgp.NextType(m) {
	case msgp.ArrayType:
		if n, m, r = array(m); r != 0 {
			return m, r
		}
		if n == 0 {
			return m, reasonless
		}
		var tag []byte
		if tag, m, r = text(m); r != 0 {
			return m, r
		}
		order := f.tagged(tag)
		if !f.known {
			return m, reasonless
		}
		for i := range n - 1 {
			if i >= len(order) {
				m, r = skip(m)
			} else {
				m, r = d.field(order[i], m, &f)
			}
			if r != 0 {
				return m, r
			}
		}
	case msgp.MapType:
		if n, m, r = pairs(m); r != 0 {
			return m, r
		}
		for range n {
			var name []byte
			if name, m, r = text(m); r != 0 {
				return m, r
			}
			if m, r = d.field(named(name), m, &f); r != 0 {
				return m, r
			}
		}
	default:
		return m, mismatch(m)
	}
	if r = d.finish(&f); r != 0 {
		return m, r
	}
	b.Events = append(b.Events, f.event)
	return m, 0
}

// finish gives f's event the fields that depend on others, and takes away
// those that its kind does not have.
func (d *Decoder) finish(f *fields) Reason {
	e := &f.event
	if !f.known {
		return reasonless
	}
	e.Group = f.group - 1
	if e.Kind == Cleared {
		*e = Event{Kind: Cleared, Group: -1}
		return 0
	}
	if !f.hashes {
		return reasonless
	}
	if e.Kind == Removed {
		*e = Event{Kind: Removed, Blocks: e.Blocks, Tier: e.Tier, Group: e.Group}
		return 0
	}
	if f.window && e.Attention == AttentionUnknown {
		e.Attention = OtherAttention
	}
	if len(e.LoRA) == 0 && f.adapter != 0 {
		e.LoRA = d.decimal(f.adapter)
	}
	return d.extras(f)
}

// own copies s into memory that lives until the next Decode.
func (d *Decoder) own(s []byte) []byte {
	if len(s) == 0 {
		return nil
	}
	start := len(d.bytes)
	d.bytes = append(d.bytes, s...)
	return slices.Clip(d.bytes[start:])
}
