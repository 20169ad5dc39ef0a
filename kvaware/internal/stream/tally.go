// SPDX-License-Identifier: Apache-2.0

package stream

import "math"

// keepSequences bounds the sequences whose memory Reset keeps.
const keepSequences = 256

// sequence is what is known of one sequence.
type sequence struct {
	base      int // the engine's counter when last reported
	ids       int // token ids since
	estimated int // deltas without ids since
	counted   bool
	exact     bool // token ids were seen
	started   bool
	visible   bool
	finished  bool
	touched   bool // event holds something
	reported  int
	finish    reason
	usage     usage
	event     sequenceEvent
}

// sequenceEvent is what the event being read says of a sequence.
type sequenceEvent struct {
	deltas, estimated, ids int
	counter                int
	role, finished         bool
	finish                 reason
	usage                  usage
}

func (q *sequence) generated(perDelta float64) int {
	return q.base + q.ids + int(math.Round(min(float64(q.estimated)*perDelta, countMax)))
}

// recount takes the engine's running total in place of what was counted.
func (q *sequence) recount(counter int) {
	q.base, q.ids, q.estimated, q.counted = counter, 0, 0, true
}

// tally is the count over all sequences.
type tally struct {
	sequences []sequence
	touched   []int32 // sequences with an event, in order of appearance
	usage     usage   // stated for all
	finished  int

	spread        bool // a counter for all was seen
	soles, sole   int  // usage objects on events with a single choice; the last
	firstSequence [1]sequence
	firstTouched  [4]int32
}

// reuse takes over the memory of a tally that is done.
func (t *tally) reuse(old tally) {
	if cap(old.sequences) > 1 && cap(old.sequences) <= keepSequences {
		t.sequences = old.sequences[:0]
		t.touched = old.touched[:0]
	}
}

// sequence gives the sequence of the index for the event being read. The
// pointer is good until the next call.
func (o *Observer) sequence(index int) *sequence {
	t := &o.tally
	index = min(max(index, 0), o.options.Sequences-1)
	if t.sequences == nil {
		t.sequences, t.touched = t.firstSequence[:0], t.firstTouched[:0]
	}
	for len(t.sequences) <= index {
		t.sequences = append(t.sequences, sequence{})
	}
	q := &t.sequences[index]
	if !q.touched {
		q.touched = true
		t.touched = append(t.touched, int32(index))
	}
	return q
}

func (t *tally) untouch() {
	for _, i := range t.touched {
		q := &t.sequences[i]
		q.touched, q.event = false, sequenceEvent{}
	}
	t.touched = t.touched[:0]
}

// applyOutput books the event's output and tells the sink.
func (o *Observer) applyOutput() {
	t, e := &o.tally, &o.event
	output := false
	for _, i := range t.touched {
		q := &t.sequences[i]
		s := &q.event
		o.deltas += s.deltas
		output = output || s.deltas > 0
		o.start(int(i))
		q.ids += s.ids
		q.estimated += s.estimated
		q.exact = q.exact || s.ids > 0
		q.usage.add(&s.usage)
		if s.counter > 0 {
			q.recount(s.counter)
		}
	}
	if output {
		o.outputEvents++
	}
	if e.sole > 0 {
		t.soles++
		t.sole = e.sole
	}
	if e.total > 0 {
		t.spread = true
		o.spread(e.total)
	} else {
		for _, i := range t.touched {
			o.report(int(i))
		}
	}
	for _, i := range t.touched {
		q := &t.sequences[i]
		if q.event.finished && !q.finished {
			q.finished, q.finish = true, q.event.finish
			t.finished++
			o.sink.Finished(int(i))
		}
	}
}

// start tells the sink of a first output.
func (o *Observer) start(i int) {
	q := &o.tally.sequences[i]
	s := &q.event
	switch {
	case q.visible:
	case s.deltas > 0:
		q.started, q.visible = true, true
		o.sink.Started(i, true)
	case q.started:
	case s.counter > 0, s.role && o.options.RoleStarts && !o.event.progress:
		q.started = true
		o.sink.Started(i, false)
	}
}

func (o *Observer) report(i int) {
	q := &o.tally.sequences[i]
	if g := q.generated(o.options.TokensPerDelta); g != q.reported {
		q.reported = g
		o.sink.Generated(i, g)
	}
}

// spread shares a total out in proportion to what was counted, evenly if
// nothing was, so that the shares add up to it.
func (o *Observer) spread(total int) {
	t := &o.tally
	if len(t.sequences) == 0 {
		o.sequence(0)
	}
	per := o.options.TokensPerDelta
	weight := func(i int) int64 { return int64(t.sequences[i].generated(per)) }
	all := int64(0)
	for i := range t.sequences {
		all += weight(i)
	}
	if all == 0 {
		weight = func(int) int64 { return 1 }
		all = int64(len(t.sequences))
	}
	given, before := int64(0), int64(0)
	for i := range t.sequences {
		before += weight(i)
		upTo := int64(float64(total) * (float64(before) / float64(all)))
		if before == all {
			upTo = int64(total)
		}
		t.sequences[i].recount(int(upTo - given))
		given = upTo
		o.report(i)
	}
}

// reconcile decides at the end what a single usage object on an event with one
// choice meant: if other sequences ran too, it was the total.
func (o *Observer) reconcile() {
	t := &o.tally
	if t.spread || t.soles != 1 {
		return
	}
	running := 0
	for i := range t.sequences {
		if q := &t.sequences[i]; q.started {
			running++
			if q.usage.prompt > 0 {
				t.usage.add(&q.usage)
			}
		}
	}
	if running > 1 {
		o.spread(t.sole)
	}
}

// total sums the sequences.
func (t *tally) total(perDelta float64) (generated int, counted bool) {
	counted = true
	any := false
	for i := range t.sequences {
		q := &t.sequences[i]
		generated += q.generated(perDelta)
		counted = counted && q.estimated == 0
		any = any || q.counted || q.exact
	}
	return generated, counted && any
}

// prompt gives the prompt's tokens and how many of them were cached, as
// stated for all or else summed over the prompts, -1 if not stated. As many
// sequences as choices share a prompt; the first of them may find less of it
// cached than the others, so the least counts.
func (t *tally) prompt(choices int) (tokens, cached int) {
	reused := 0 // one more than stated, 0 if nothing is
	for i := 0; i < len(t.sequences); i += choices {
		most, least := 0, 0
		for j := i; j < min(i+choices, len(t.sequences)); j++ {
			u := &t.sequences[j].usage
			most = max(most, u.promptTokens())
			if u.cached > 0 && (least == 0 || u.cached < least) {
				least = u.cached
			}
		}
		tokens += most
		if least > 0 {
			reused = max(reused, 1) + least - 1
		}
	}
	if n := t.usage.promptTokens(); n > 0 {
		tokens = n
	}
	if t.usage.cached > 0 {
		reused = t.usage.cached
	}
	if tokens == 0 {
		tokens = -1
	}
	return tokens, reused - 1
}
