// SPDX-License-Identifier: Apache-2.0

package engine

// decodes are the sequences that generate one token in every step. Since all of
// them advance together, what a step must know of them is kept as sums and in
// order of the step in which it matters, and nothing is visited in between.
type decodes struct {
	steps   uint64 // completed by the engine
	n       int
	context int64 // sum over the sequences of prompt and generated tokens: the KV tokens the next step reads

	// slots holds each sequence at the steps, modulo the block size, at whose
	// beginning its last block is full.
	slots [][]*Sequence
	// ends is a binary heap, the sequence that ends first on top.
	ends []*Sequence
}

// join adds a sequence that has just generated its first token since it was last
// prefilled, and has more to generate.
func (d *decodes) join(s *Sequence) {
	s.decoding = true
	s.joined = d.steps
	s.end = d.steps + uint64(s.Output-s.done)
	d.n++
	d.context += int64(s.Prompt + s.done)

	slot := &d.slots[d.slotOf(s)]
	s.slotAt = len(*slot)
	*slot = append(*slot, s)

	s.heapAt = len(d.ends)
	d.ends = append(d.ends, s)
	d.up(s.heapAt)
}

// leave takes a sequence out and keeps its count.
func (d *decodes) leave(s *Sequence) {
	slotOf := d.slotOf(s)
	s.done = s.Generated()
	s.decoding = false
	d.n--
	d.context -= int64(s.Prompt + s.done)

	slot := d.slots[slotOf]
	last := len(slot) - 1
	slot[s.slotAt] = slot[last]
	slot[s.slotAt].slotAt = s.slotAt
	slot[last] = nil
	d.slots[slotOf] = slot[:last]

	last = len(d.ends) - 1
	at := s.heapAt
	d.swap(at, last)
	d.ends[last] = nil
	d.ends = d.ends[:last]
	if at < last {
		d.down(at)
		d.up(at)
	}
}

// step counts one more token for every sequence.
func (d *decodes) step() {
	d.steps++
	d.context += int64(d.n)
}

// ended returns a sequence whose output is complete, nil if there is none.
func (d *decodes) ended() *Sequence {
	if len(d.ends) > 0 && d.ends[0].end <= d.steps {
		return d.ends[0]
	}
	return nil
}

// slotOf solves (KV tokens held at step x) = 0 modulo the block size for x.
func (d *decodes) slotOf(s *Sequence) int {
	size := uint64(len(d.slots))
	held := uint64(s.Prompt + s.done - 1)
	return int((s.joined%size + size - held%size) % size)
}

// before orders ends, and equal ends by arrival, so that runs are alike.
func (d *decodes) before(i, j int) bool {
	a, b := d.ends[i], d.ends[j]
	return a.end < b.end || a.end == b.end && a.serial < b.serial
}

func (d *decodes) swap(i, j int) {
	d.ends[i], d.ends[j] = d.ends[j], d.ends[i]
	d.ends[i].heapAt, d.ends[j].heapAt = i, j
}

func (d *decodes) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !d.before(i, parent) {
			return
		}
		d.swap(i, parent)
		i = parent
	}
}

func (d *decodes) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(d.ends); child++ {
			if d.before(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		d.swap(i, least)
		i = least
	}
}
