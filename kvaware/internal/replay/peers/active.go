// SPDX-License-Identifier: Apache-2.0

package peers

import "slices"

// active counts the blocks that the requests in flight at one replica hold: those
// of shared prompts once, each with the weight of its fraction.
//
// Prompts are paths of a compressed tree, as in dynamo:lib/kv-router/src/sequences
// (block_tracker.rs): a request costs the spans it passes, not its blocks.
type active struct {
	spans  map[uint64]*span // by first block, which tells all before it
	prompt float64          // weighted blocks of the spans
	output float64          // weighted blocks of the outputs
	// outputs counts the blocks in output. When none is left, output is 0 and no
	// sum of rounded parts.
	outputs int
}

// span is a run of blocks that the same requests hold.
type span struct {
	parent   *span
	blocks   []uint64
	owners   int // requests whose prompts end with it
	children int
	fraction float64
}

// holding is what one request holds.
type holding struct {
	end      *span // nil if the prompt has no block
	outputs  int
	fraction float64 // of each of outputs
}

func newActive() *active { return &active{spans: make(map[uint64]*span)} }

func (a *active) blocks() float64 { return a.prompt + a.output }

// missing returns how many blocks of the prompt are held by no request.
func (a *active) missing(blocks []uint64) int {
	for len(blocks) > 0 {
		s := a.spans[blocks[0]]
		if s == nil {
			break
		}
		n := common(s.blocks, blocks)
		blocks = blocks[n:]
		if n < len(s.blocks) {
			break
		}
	}
	return len(blocks)
}

func (a *active) acquire(blocks []uint64) holding {
	var end *span
	for len(blocks) > 0 {
		s := a.spans[blocks[0]]
		if s == nil {
			s = &span{parent: end, blocks: slices.Clone(blocks), fraction: 1}
			if end != nil {
				end.children++
			}
			a.spans[blocks[0]] = s
			a.prompt += float64(len(blocks))
			end = s
			break
		}
		n := common(s.blocks, blocks)
		if n < len(s.blocks) {
			s = a.split(s, n)
		}
		end, blocks = s, blocks[n:]
	}
	if end != nil {
		end.owners++
	}
	return holding{end: end, fraction: 1}
}

// split makes the first n blocks of a span one of their own and returns it. The
// rest stays the span that requests end with.
func (a *active) split(s *span, n int) *span {
	head := &span{parent: s.parent, blocks: s.blocks[:n:n], children: 1, fraction: s.fraction}
	a.spans[head.blocks[0]] = head
	s.parent, s.blocks = head, s.blocks[n:]
	a.spans[s.blocks[0]] = s
	return head
}

// grow adds n blocks of output.
func (a *active) grow(h *holding, n int) {
	h.outputs += n
	a.outputs += n
	a.output += float64(n) * h.fraction
}

// decay sets the weight of what only this request holds: its outputs, and its
// prompt up from the end to where another request's joins it.
func (a *active) decay(h *holding, fraction float64) {
	a.output += float64(h.outputs) * (fraction - h.fraction)
	h.fraction = fraction
	for s := h.end; s != nil && s.owners+s.children == 1; s = s.parent {
		a.prompt += float64(len(s.blocks)) * (fraction - s.fraction)
		s.fraction = fraction
	}
}

func (a *active) release(h *holding) {
	a.outputs -= h.outputs
	if a.output -= float64(h.outputs) * h.fraction; a.outputs == 0 {
		a.output = 0
	}
	s := h.end
	*h = holding{}
	if s == nil {
		return
	}
	for s.owners--; s != nil && s.owners == 0 && s.children == 0; s = s.parent {
		delete(a.spans, s.blocks[0])
		a.prompt -= float64(len(s.blocks)) * s.fraction
		if s.parent != nil {
			s.parent.children--
		}
	}
	if len(a.spans) == 0 {
		a.prompt = 0
	}
}
