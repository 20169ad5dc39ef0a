// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// model is the rules of a holder without its structure: every key of the engine's is a
// whole prefix, and everything is looked for by going through all of it. It forgets
// nothing that is in no tier.
type model struct {
	rules  Rules
	page   int
	keys   map[kvevents.Key]*modelBlock
	parked []*modelParked
	cover  [kvevents.Tiers]int
}

type modelBlock struct {
	prefix string // root and tokens
	counts [kvevents.Tiers]int
}

type modelParked struct {
	event  kvevents.Event
	counts []int
}

func newModel(page int) *model {
	return &model{page: page, keys: map[kvevents.Key]*modelBlock{}}
}

func modelRoot(lora, salt string) string { return lora + "\x00" + salt + "\x00" }

func modelTokens(tokens []uint32) string {
	b := make([]byte, 0, 4*len(tokens))
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return string(b)
}

func (m *model) applyAll(events []kvevents.Event) {
	for i := range events {
		m.apply(&events[i])
	}
}

func (m *model) apply(e *kvevents.Event) {
	if e.Attention == kvevents.OtherAttention {
		return
	}
	switch e.Kind {
	case kvevents.Cleared:
		m.parked = nil
		if held := m.held(); m.rules.ClearsAll || held[kvevents.CPU]+held[kvevents.Disk] == 0 {
			clear(m.keys)
		}
		for _, b := range m.keys {
			b.counts[kvevents.GPU] = 0
		}
	case kvevents.Removed:
		for _, k := range e.Blocks {
			m.remove(k, e.Tier)
		}
	case kvevents.Stored:
		if len(e.Tokens) == 0 || e.Tier != kvevents.GPU && e.Group >= 0 {
			if m.cover[e.Tier] == 0 {
				m.cover[e.Tier] = 1
				if e.Tier != kvevents.GPU && len(e.Tokens) == 0 && m.page >= 16 && e.BlockSize > m.page && e.BlockSize%m.page == 0 {
					m.cover[e.Tier] = e.BlockSize / m.page
				}
			}
			for _, k := range e.Blocks {
				if b := m.keys[k]; b != nil {
					b.counts[e.Tier]++
				}
			}
			return
		}
		if m.cover[e.Tier] == 0 {
			m.cover[e.Tier] = 1
		}
		ones := slices.Repeat([]int{1}, len(e.Blocks))
		if e.HasParent && m.keys[e.Parent] == nil {
			c := *e
			c.Blocks, c.Tokens, c.Extra = slices.Clone(e.Blocks), slices.Clone(e.Tokens), slices.Clone(e.Extra)
			m.parked = append(m.parked, &modelParked{c, ones})
			return
		}
		m.store(e, ones)
		for again := true; again; {
			again = false
			for i, p := range m.parked {
				if m.keys[p.event.Parent] != nil {
					m.parked = slices.Delete(m.parked, i, i+1)
					m.store(&p.event, p.counts)
					again = true
					break
				}
			}
		}
	}
}

func (m *model) store(e *kvevents.Event, counts []int) {
	var prefix string
	if e.HasParent {
		prefix = m.keys[e.Parent].prefix
	} else {
		salt := ""
		if e.Extra != nil {
			salt = string(e.Extra[0].Salt)
		}
		prefix = modelRoot(string(e.LoRA), salt)
	}
	for i, k := range e.Blocks {
		if b := m.keys[k]; b != nil {
			prefix = b.prefix
			b.counts[e.Tier] += counts[i]
			continue
		}
		if e.Extra != nil && e.Extra[i].Other != 0 {
			prefix += "\xff"
		}
		prefix += modelTokens(e.Tokens[i*e.BlockSize : (i+1)*e.BlockSize])
		b := &modelBlock{prefix: prefix}
		b.counts[e.Tier] = counts[i]
		m.keys[k] = b
	}
}

func (m *model) remove(k kvevents.Key, t kvevents.Tier) {
	if b := m.keys[k]; b != nil {
		if b.counts[t] = max(0, b.counts[t]-1); m.rules.LastRemoval {
			b.counts[t] = 0
		}
		return
	}
	for _, p := range m.parked {
		for i, key := range p.event.Blocks {
			if key == k && p.event.Tier == t && p.counts[i] > 0 {
				if p.counts[i]--; !m.rules.LastRemoval {
					return
				}
			}
		}
	}
}

// has tells whether a tier has what a prefix ends with.
func (m *model) has(prefix string, t kvevents.Tier) bool {
	for _, b := range m.keys {
		if b.counts[t] == 0 {
			continue
		}
		if b.prefix == prefix {
			return true
		}
		for n := 1; n < m.cover[t]; n++ {
			if at := len(b.prefix) - 4*m.page*n; at >= 0 && b.prefix[:at] == prefix {
				return true
			}
		}
	}
	return false
}

// match returns the credit for a prompt.
func (m *model) match(root string, tokens []uint32, credit [kvevents.Tiers]float64) int32 {
	size := indexBlock(m.page)
	sum := 0.0
	for n := size; n <= len(tokens); n += size {
		prefix := root + modelTokens(tokens[:n])
		t := kvevents.Tier(0)
		for t < kvevents.Tiers && !m.has(prefix, t) {
			t++
		}
		if t == kvevents.Tiers {
			break
		}
		sum += credit[t]
	}
	return int32(math.Floor(sum + 1e-6))
}

// held returns how many keys each tier has.
func (m *model) held() (n [kvevents.Tiers]int) {
	for _, b := range m.keys {
		for t, c := range b.counts {
			if c > 0 {
				n[t]++
			}
		}
	}
	return n
}
