// SPDX-License-Identifier: Apache-2.0

package stream

const (
	// maxOutputIDs bounds the ids that are gathered of an answer, 4 MiB of them: no
	// model's context is longer.
	maxOutputIDs = 1 << 20
	// keptOutputIDs bounds those whose memory Reset keeps.
	keptOutputIDs = 1 << 14
)

// outputIDs gathers the token ids of an answer, of as many events as they come in.
//
// vLLM and SGLang send choices[].token_ids where the request has return_token_ids:
// those of the event in a stream, all in a whole answer (vllm-project/vllm pull
// request 22587, sgl-project/sglang 30917).
type outputIDs struct {
	wanted bool
	lost   bool     // it is no longer known what all ids are
	ids    []uint32 // those from whole on are of the event being read
	whole  int
}

func (x *outputIDs) reuse(old outputIDs) {
	if cap(old.ids) <= keptOutputIDs {
		x.ids = old.ids[:0]
	}
}

// begin: a list begins. Of several in one event the last counts.
func (x *outputIDs) begin() { x.drop() }

func (x *outputIDs) add(id int) {
	switch {
	case !x.wanted || x.lost:
	case len(x.ids) == maxOutputIDs:
		x.lose()
	default:
		x.ids = append(x.ids, uint32(id))
	}
}

// end: the list has ended, and had so many elements.
func (x *outputIDs) end(elements int) {
	if len(x.ids)-x.whole != elements {
		x.lose() // some are no ids
	}
}

// lose gives up on the answer.
func (x *outputIDs) lose() {
	x.lost = true
	x.ids, x.whole = x.ids[:0], 0
	if cap(x.ids) > keptOutputIDs {
		x.ids = nil
	}
}

// keep: the event is complete.
func (x *outputIDs) keep() { x.whole = len(x.ids) }

// drop takes back what an event said that is not complete.
func (x *outputIDs) drop() { x.ids = x.ids[:x.whole] }

// OutputIDs gives, after End, the ids of all tokens of the output, the one that
// ended it included, if Options.OutputIDs asked for them and the response says them
// all: nil if not. It is good until Reset.
//
// They are as many as the engine's own counter says. vLLM's streams lose some where
// a parser holds text back (vllm-project/vllm issue 27482), so without such a
// counter nothing is said of reasoning and tool calls.
func (o *Observer) OutputIDs() []uint32 {
	x := &o.ids
	if x.lost || x.whole == 0 || len(o.tally.sequences) != 1 {
		return nil
	}
	q := &o.tally.sequences[0]
	if q.estimated > 0 || q.generated(1) != x.whole || o.inner && !q.counted {
		return nil
	}
	return x.ids[:x.whole]
}
