// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"math"
	"slices"
)

// model is the index's rules without its structure: each upstream is a map of
// single blocks, and everything is looked for by going through all of it.
type model struct {
	holders []*modelCache // by Holder, nil where none
	clock   int           // order of releases
	tick    uint32        // the time
	ttl     uint32        // ticks that predicted blocks stay fresh
}

type modelKey struct{ ns, hash uint64 }

type modelBlock struct {
	pins int
	sure bool
	age  int // when it was released last; the least is the oldest
	at   int // blocks before it
	idle uint32

	unseen int    // running requests before their first token
	seen   uint32 // when one of them last had it, or was served
}

type modelOutput struct {
	behind modelKey
	n, age int
	idle   uint32
	kind   Content
}

type modelCache struct {
	limit, wanted int
	told, lesson  int

	proven, provenAt, doubted, doubts int // -1: nothing is proven

	blocks     map[modelKey]*modelBlock
	outputs    []*modelOutput
	generating int
	evicted    int
	reports    bool
}

type modelPath struct {
	cache *modelCache
	keys  []modelKey
	out   int
	seen  bool
	whole bool
	kind  Content

	// When it was pinned.
	before       Before
	busy, lesson int
}

func newModelCache(capacity int) *modelCache {
	return &modelCache{limit: capacity, wanted: capacity, told: capacity, proven: -1, blocks: map[modelKey]*modelBlock{}}
}

func (c *modelCache) stats() Stats {
	st := Stats{Capacity: c.limit, Generating: c.generating, Evicted: uint64(c.evicted)}
	for _, b := range c.blocks {
		if b.pins > 0 {
			st.Pinned++
		} else {
			st.Idle++
		}
	}
	for _, o := range c.outputs {
		st.Output += o.n
	}
	st.Blocks = st.Pinned + st.Idle + st.Generating + st.Output
	return st
}

func (c *modelCache) room() int { return max(0, c.wanted-c.stats().Pinned-c.generating) }

// evict frees the oldest block, one at a time, until limit is kept.
func (c *modelCache) evict(limit int) {
	for c.stats().Blocks > limit && c.evictOldest(math.MaxUint32) {
	}
}

// evictOldest frees the oldest block if it is idle at least since then.
func (c *modelCache) evictOldest(since uint32) bool {
	oldest := -1
	var idle uint32
	var key modelKey
	var output *modelOutput
	for k, b := range c.blocks {
		if b.pins == 0 && (oldest < 0 || b.age < oldest) {
			oldest, idle, key = b.age, b.idle, k
		}
	}
	for _, o := range c.outputs {
		if oldest < 0 || o.age < oldest {
			oldest, idle, output = o.age, o.idle, o
		}
	}
	switch {
	case oldest < 0 || idle > since:
		return false
	case output != nil:
		c.shrink(output, 1)
	default:
		delete(c.blocks, key)
	}
	c.evicted++
	return true
}

// missed is what an engine says that found only so many of the blocks.
func (m *model) missed(p *modelPath, blocks int) {
	if !m.alive(p) || blocks < p.busy || blocks >= p.before.Sure {
		return
	}
	c := p.cache
	since := c.blocks[p.keys[blocks]].idle
	if c.proven >= 0 && int(since) > c.proven {
		if c.doubted = int(since); c.doubts < doubts-1 {
			c.doubts++
			return
		}
		c.proven, c.doubted, c.doubts = -1, 0, 0
	}
	for c.evictOldest(since) {
	}
	if target := max(c.stats().Blocks, c.told/16); target < c.wanted && p.lesson == c.lesson {
		c.lesson++
		c.wanted -= max(1, (c.wanted-target)/8)
	}
	c.settle()
}

// met is an engine that found all that was sure.
func (m *model) met(p *modelPath) {
	if m.alive(p) && p.before.Sure > p.busy {
		c := p.cache
		since := int(c.blocks[p.keys[p.before.Sure-1]].idle)
		if since <= c.doubted {
			c.doubts = 0
		}
		if c.proven < 0 || since <= c.proven || c.evicted-c.provenAt > c.wanted/8 {
			c.proven, c.provenAt = since, c.evicted
		}
	}
}

// exceeded is what an engine says that found more than is explained.
func (m *model) exceeded(p *modelPath) {
	if !m.alive(p) || p.cache.evicted == 0 || p.lesson != p.cache.lesson {
		return
	}
	c := p.cache
	if c.stats().Blocks < c.wanted-c.wanted/8 {
		return
	}
	c.lesson++
	if c.wanted < c.told {
		c.wanted += max(1, (c.told-c.wanted)/8)
	} else {
		c.wanted = min(c.wanted+max(1, c.wanted/32), 4*c.told)
	}
	c.settle()
}

func (c *modelCache) shrink(o *modelOutput, n int) {
	o.n -= n
	if o.n > 0 {
		return
	}
	for i := range c.outputs {
		if c.outputs[i] == o {
			c.outputs = append(c.outputs[:i], c.outputs[i+1:]...)
			return
		}
	}
}

func (c *modelCache) settle() {
	c.evict(c.wanted)
	c.limit = max(c.wanted, c.stats().Blocks)
}

func (m *model) forget(h Holder) {
	c := newModelCache(m.holders[h].wanted)
	c.evicted, c.reports = m.holders[h].evicted, m.holders[h].reports
	c.told, c.lesson = m.holders[h].told, m.holders[h].lesson
	m.holders[h] = c
}

func (m *model) match(ns uint64, chain []uint64) []int32 {
	dst := make([]int32, len(m.holders))
	for h, c := range m.holders {
		if c == nil {
			continue
		}
		for _, hash := range chain {
			if c.blocks[modelKey{ns, hash}] == nil {
				break
			}
			dst[h]++
		}
	}
	return dst
}

// matchFresh is match without what is stale of upstreams that report.
func (m *model) matchFresh(ns uint64, chain []uint64) []int32 {
	dst := m.match(ns, chain)
	for h, c := range m.holders {
		if c == nil || !c.reports {
			continue
		}
		for i, hash := range chain[:dst[h]] {
			if b := c.blocks[modelKey{ns, hash}]; b.unseen == 0 && m.tick-b.seen > m.ttl {
				dst[h] = int32(i)
				break
			}
		}
	}
	return dst
}

func (m *model) pin(h Holder, ns uint64, chain []uint64) *modelPath {
	c := m.holders[h]
	p := &modelPath{cache: c, busy: c.pinnedPart(ns, chain), lesson: c.lesson}
	p.whole = len(chain) <= p.busy+c.room()
	chain = chain[:min(len(chain), p.busy+c.room())]
	first := true
	for i, hash := range chain {
		k := modelKey{ns, hash}
		b := c.blocks[k]
		if b != nil && p.before.Held == i {
			p.before.Held++
		}
		if b != nil && b.sure && p.before.Sure == i {
			p.before.Sure++
		}
		if b == nil {
			if first && i > 0 {
				p.before.Output = c.takeOver(p.keys[i-1], len(chain)-i)
			}
			first = false
			b = &modelBlock{at: i}
			c.blocks[k] = b
		}
		b.pins++
		b.unseen++
		p.keys = append(p.keys, k)
	}
	c.settle()
	return p
}

// pinned returns how many of the chain's leading blocks are pinned there.
func (c *modelCache) pinnedPart(ns uint64, chain []uint64) int {
	for i, hash := range chain {
		if b := c.blocks[modelKey{ns, hash}]; b == nil || b.pins == 0 {
			return i
		}
	}
	return len(chain)
}

// price is what n more blocks would cost, for a prompt whose own blocks stay.
func (m *model) price(c *modelCache, n int, e *Eviction, chance func(idle uint32) float64) float64 {
	type victim struct {
		age     int
		seconds float64
	}
	var victims []victim
	for k, b := range c.blocks {
		if b.pins > 0 || k.ns == e.Namespace && b.at < len(e.Chain) && e.Chain[b.at] == k.hash {
			continue
		}
		from := int64(b.at * e.BlockSize)
		victims = append(victims, victim{b.age, e.Pace.Recompute(from, from+int64(e.BlockSize)) * chance(m.tick-b.idle)})
	}
	for _, o := range c.outputs {
		for range o.n {
			victims = append(victims, victim{age: o.age})
		}
	}
	slices.SortFunc(victims, func(a, b victim) int { return a.age - b.age })
	sum := 0.0
	for _, v := range victims[:min(len(victims), max(0, c.stats().Blocks+n-c.limit))] {
		sum += v.seconds
	}
	return sum
}

// newestOutput returns the newest output behind a block, or nil.
func (c *modelCache) newestOutput(behind modelKey) (newest *modelOutput) {
	for _, o := range c.outputs {
		if o.behind == behind && (newest == nil || o.age > newest.age) {
			newest = o
		}
	}
	return newest
}

// takeOver hands output over, and returns what there was.
func (c *modelCache) takeOver(behind modelKey, n int) (output Output) {
	if o := c.newestOutput(behind); o != nil {
		output = Output{Blocks: int32(o.n) - 1, Content: o.kind}
		c.shrink(o, min(n, o.n))
	}
	return output
}

// outputs is the output behind what each upstream holds of a chain.
func (m *model) outputs(ns uint64, chain []uint64) []Output {
	outs := make([]Output, len(m.holders))
	for h, held := range m.match(ns, chain) {
		if held == 0 || int(held) == len(chain) || m.holders[h].reports {
			continue
		}
		if o := m.holders[h].newestOutput(modelKey{ns, chain[held-1]}); o != nil {
			outs[h] = Output{Blocks: int32(o.n) - 1, Content: o.kind}
		}
	}
	return outs
}

func (m *model) alive(p *modelPath) bool {
	for _, c := range m.holders {
		if c != nil && c == p.cache {
			return true
		}
	}
	return false
}

func (m *model) grow(p *modelPath, n int) {
	if !m.alive(p) {
		return
	}
	n = max(n, 0)
	if n > p.out {
		n = min(n, p.out+p.cache.room())
	}
	p.cache.generating += n - p.out
	p.out = n
	p.cache.settle()
}

func (m *model) confirm(p *modelPath) {
	if m.alive(p) {
		for _, k := range p.keys {
			p.cache.blocks[k].sure = true
		}
		m.see(p, true)
	}
}

// see ends a request's time before its first token.
func (m *model) see(p *modelPath, served bool) {
	if p.seen {
		return
	}
	p.seen = true
	for _, k := range p.keys {
		b := p.cache.blocks[k]
		b.unseen--
		if served {
			b.seen = m.tick
		}
	}
}

func (m *model) finish(p *modelPath, served bool) {
	if !m.alive(p) {
		return
	}
	m.see(p, served)
	c := p.cache
	p.cache = nil
	c.generating -= p.out
	if served && p.out > 0 {
		m.clock++
		o := &modelOutput{n: p.out, age: m.clock, idle: m.tick, kind: p.kind}
		if len(p.keys) > 0 {
			o.behind = p.keys[len(p.keys)-1]
		}
		c.outputs = append(c.outputs, o)
	}
	for i := len(p.keys) - 1; i >= 0; i-- {
		b := c.blocks[p.keys[i]]
		b.pins--
		b.sure = b.sure || served
		m.clock++
		switch {
		case b.pins > 0:
		case b.sure:
			b.age, b.idle = m.clock, m.tick
		default:
			delete(c.blocks, p.keys[i])
		}
	}
	c.settle()
}
