// SPDX-License-Identifier: Apache-2.0

package route

// Reports tell what engines say that they hold.
type Reports interface {
	// Match raises dst[slot] to the leading blocks of the chain that the upstream of
	// that slot is to be credited with, where its blocks are of that many tokens.
	// Slots beyond dst's end are left out.
	Match(blockSize int, chain []uint64, dst []int32)
}

// ReportedChains are a request's chains in blocks of one size, for Reports.
type ReportedChains struct {
	BlockSize int        // tokens
	Chains    [][]uint64 // as Request.Chains
}

// reported is what engines say of a request's prompts, in blocks of the request's
// size: rows of one number by slot, one row for each prompt.
type reported struct {
	rows    []int32
	stride  int
	prompts int
	other   []int32 // by slot: a match in blocks of another size
}

// ask looks up what engines say that they hold. It goes on outside of the ledger's
// lock: events come when they come, and what is charged in between is known to the
// predicted index.
func (r *Router) ask(c *Choice, q *Request) {
	s := &c.said
	s.prompts = 0
	if q.Reports == nil || !q.Reuses {
		return
	}
	slots := r.Index.Slots()
	s.stride = slots + slots/2
	if n := s.stride * len(q.Chains); cap(s.rows) < n {
		s.rows = make([]int32, n)
	}
	s.prompts = len(q.Chains)
	for prompt := range q.Chains {
		row := s.rows[:cap(s.rows)][prompt*s.stride : (prompt+1)*s.stride]
		clear(row)
		for i := range q.Reported {
			s.match(q, &q.Reported[i], prompt, row)
		}
	}
}

func (s *reported) match(q *Request, r *ReportedChains, prompt int, row []int32) {
	if prompt >= len(r.Chains) || len(r.Chains[prompt]) == 0 {
		return
	}
	if r.BlockSize == q.BlockSize {
		q.Reports.Match(r.BlockSize, r.Chains[prompt], row)
		return
	}
	if cap(s.other) < s.stride {
		s.other = make([]int32, s.stride)
	}
	other := s.other[:s.stride]
	clear(other)
	q.Reports.Match(r.BlockSize, r.Chains[prompt], other)
	for slot, blocks := range other {
		row[slot] = max(row[slot], int32(int(blocks)*r.BlockSize/q.BlockSize))
	}
}

// raise takes in what is said of a prompt: the better of it and what is predicted
// counts.
func (s *reported) raise(prompt int, held []int32) {
	if prompt >= s.prompts {
		return
	}
	row := s.rows[:cap(s.rows)][prompt*s.stride : (prompt+1)*s.stride]
	for slot := range min(len(row), len(held)) {
		held[slot] = max(held[slot], row[slot])
	}
}
