// SPDX-License-Identifier: Apache-2.0

package trace

import "time"

// row is a request of a file that names blocks of its own size, equal ids meaning
// that all up to there is equal.
type row struct {
	at             time.Duration
	prompt, output int
	ids            []uint64
	size           int // tokens in a block
	next           *row
	session        uint64
	tenant, bound  int
	whole          bool
	update         bool
	follows        bool // belongs to the session of the row before it
	think          time.Duration
	serial         uint64
}

// A linker finds for each row the later one that repeats its output: the first that
// goes on behind the row's last whole block, which no row before had. The tail of
// the prompt, which has an id of its own as long as its block is not full, and the
// output are then named as they are in that row.
type linker struct {
	window []*row // not yet given out
	ids    int    // of the window
	open   map[uint64]*row
	// seen holds the ids of rows of late, in two generations, the older of which
	// is dropped when the newer is full.
	seen, older map[uint64]struct{}
	serial      uint64
}

const (
	linkWindow = 8192    // rows for which a successor is awaited
	linkIDs    = 1 << 22 // and no more if they have so many ids
	linkSeen   = 1 << 19 // ids of a generation
)

func newLinker() *linker {
	return &linker{open: make(map[uint64]*row), seen: make(map[uint64]struct{}), older: make(map[uint64]struct{})}
}

func (l *linker) full() bool { return len(l.window) >= linkWindow || l.ids >= linkIDs }

func (l *linker) add(r *row) {
	l.serial++
	r.serial = l.serial
	l.window = append(l.window, r)
	l.ids += len(r.ids)
	for k, id := range r.ids {
		if p := l.open[id]; p != nil && len(r.ids) > k+1 && r.prompt >= p.prompt+p.output && p.wholeBlocks() == k+1 {
			p.next = r
			delete(l.open, id)
		}
	}
	if n := r.wholeBlocks(); n > 0 && !l.known(r.ids[n-1]) {
		l.open[r.ids[n-1]] = r
	}
	for _, id := range r.ids {
		if !l.known(id) {
			l.seen[id] = struct{}{}
		}
	}
	if len(l.seen) >= linkSeen {
		l.older, l.seen = l.seen, make(map[uint64]struct{})
	}
}

func (l *linker) known(id uint64) bool {
	_, ok := l.seen[id]
	if !ok {
		_, ok = l.older[id]
	}
	return ok
}

// take gives out the oldest row; nil if there is none.
func (l *linker) take() *row {
	if len(l.window) == 0 {
		return nil
	}
	r := l.window[0]
	l.window[0] = nil
	l.window = l.window[1:]
	l.ids -= len(r.ids)
	if n := r.wholeBlocks(); n > 0 && l.open[r.ids[n-1]] == r {
		delete(l.open, r.ids[n-1])
	}
	return r
}

func (r *row) wholeBlocks() int { return min(r.prompt/r.size, len(r.ids)) }

func (r *row) turn() Turn {
	t := Turn{Think: r.think, Prompt: r.prompt, Output: r.output, MaxTokens: r.bound, Whole: r.whole}
	named := r
	for named.next != nil { // it repeats all of this one, and its tail may be named anew as well
		named = named.next
	}
	if named == r {
		t.Text = pad(runs(nil, r.ids, r.size), r.prompt, mix(r.serial, r.session, 1))
	} else {
		need := min((r.prompt+r.output+r.size-1)/r.size, len(named.ids))
		t.Text = runs(nil, named.ids[:need], r.size)
	}
	r.next = nil
	return t
}

// runs appends segments for blocks, those with consecutive ids as one. Prompts that
// begin with the same ids then begin with the same segments.
func runs(text []Segment, ids []uint64, size int) []Segment {
	for i := 0; i < len(ids); {
		n := 1
		for i+n < len(ids) && ids[i+n] == ids[i]+uint64(n) {
			n++
		}
		text = append(text, Segment{Seed: ids[i], Tokens: n * size})
		i += n
	}
	return text
}

// pad fills a text up to the prompt's length with some that no other prompt has.
func pad(text []Segment, prompt int, seed uint64) []Segment {
	if have := tokens(text); have < prompt {
		text = append(text, Segment{Seed: seed | 1<<63, Tokens: prompt - have})
	}
	return text
}
