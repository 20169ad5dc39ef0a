// SPDX-License-Identifier: Apache-2.0

package stream

// eventFacts gathers what an event says until the event is complete; what
// concerns a sequence waits in sequence.event.
type eventFacts struct {
	object   bool // the event is one object, not yet looked through
	failed   bool
	done     bool // [DONE]
	progress bool // of the prefill: its role is no output
	inner    bool // reasoning or a tool call
	end      string
	engine   Engine
	id       bool // objectFacts.id is that of a response
	total    int  // counter over all sequences
	sole     int  // the same from an event with a single choice, of several sequences
	usage    usage
}

func (e *eventFacts) seen(engine Engine) {
	// vLLM's fields are copied by relatives, so others' fields weigh more.
	if e.engine == EngineUnknown || e.engine == EngineVLLM {
		e.engine = engine
	}
}

// plainTexts are the root fields that hold generated text in events without a
// type, wholeTexts those of a whole response object.
const (
	plainTexts = 1<<fieldMessage | 1<<fieldResponse | 1<<fieldContent | 1<<fieldRootText |
		1<<fieldThinking | 1<<fieldTokens | 1<<fieldToken | 1<<fieldGeneratedText
	wholeTexts = 1 << fieldOutput
)

var kindTexts = [...]uint64{
	kindNone:         plainTexts,
	kindOther:        plainTexts,
	kindDelta:        1 << fieldDelta,
	kindBlockDelta:   1 << fieldDelta,
	kindBlockStart:   1 << fieldContentBlock,
	kindMessage:      1 << fieldContent,
	kindError:        0,
	kindCompleted:    0,
	kindIncomplete:   0,
	kindFailed:       0,
	kindResponse:     0,
	kindMessageStart: 0,
	kindMessageDelta: 0,
	kindMessageStop:  0,
}

// kind is the object's type, else what the event line says. The latter is
// trusted only for names of the protocols that use it.
func (o *Observer) kind() eventKind {
	if k := o.object.kind; k != kindNone || o.framing.typeLen == 0 {
		return k
	}
	k := kindOf(o.framing.typed[:o.framing.typeLen])
	if k == kindOther || k == kindMessage {
		return kindNone
	}
	return k
}

// choiceLeft books an element of choices with its sequence.
func (o *Observer) choiceLeft() {
	c, x := &o.choice, &o.object
	c.open = false
	o.chat = true
	o.event.failed = o.event.failed || c.failed || c.finish.is("error")
	x.choices++
	x.sole = c.index
	if c.idsStated && c.index != 0 {
		o.ids.lose()
	}
	q := o.sequence(c.index)
	e := &q.event
	if c.text || c.ids > 0 {
		e.deltas++
	}
	switch {
	case c.ids > 0:
		e.ids += c.ids
	case c.text && !(c.idsStated && q.exact):
		e.estimated++
	}
	if c.role && !c.text && c.finish.len == 0 {
		e.role = true
	}
	if c.usageStated {
		e.counter = c.usage.completion
		e.usage.add(&c.usage)
	}
	if c.finish.len > 0 {
		e.finished, e.finish = true, c.finish
	}
}

// objectLeft books what the object says beside its choices.
func (o *Observer) objectLeft() {
	x, e := &o.object, &o.event
	kind := o.kind()
	index := 0
	if s := &o.scanner; s.depth > 0 {
		index = int(s.nodes[s.depth-1].elements) - 1
	}
	engine := x.meta || e.engine == EngineLlamaCpp
	if engine && x.index >= 0 {
		index = x.index
	}
	e.progress = e.progress || x.progress
	o.protocol(kind)
	o.rootOutput(kind, index, engine)
	o.rootUsage(kind)
}

// protocol books ends, errors and marks.
func (o *Observer) protocol(kind eventKind) {
	x, e := &o.object, &o.event
	e.failed = e.failed || x.failed
	o.transferred = o.transferred || x.transferred
	switch kind {
	case kindError, kindFailed:
		e.failed = true
	case kindMessageStop:
		e.end = EndMessageStop
	case kindCompleted:
		e.end = EndCompleted
	case kindIncomplete:
		e.end = EndIncomplete
	case kindMessageStart:
		o.sequence(0).event.role = true
	}
	if e.end == EndCompleted || e.end == EndIncomplete || x.whole {
		o.sequence(0).event.finished = true
	}
	if x.done {
		e.end = EndDone
	}
	if x.done || x.unfinished {
		e.seen(EngineOllama)
	}
	if x.token {
		e.seen(EngineTGI)
	}
	e.id = x.idLen > 0 && (x.whole || x.nestedID)
}

// rootOutput books output, counter, finish and prompt of interfaces without
// choices.
func (o *Observer) rootOutput(kind eventKind, index int, engine bool) {
	x, e := &o.object, &o.event
	texts := kindTexts[kind]
	if x.whole {
		texts |= wholeTexts
	}
	text := x.texts&texts != 0 || x.token || x.meta && x.outputIDs > 0
	counter := max(x.metaCompletion, x.predicted, x.evalCount, x.generated)
	finished := x.finish.len > 0 && (x.meta || x.done || kind == kindMessageDelta || kind == kindMessage)
	switch {
	case x.done, x.stop && e.engine == EngineLlamaCpp:
		finished = true
	case x.texts&(1<<fieldGeneratedText) != 0, x.token && (x.finish.len > 0 || x.generated > 0):
		finished = true
	}
	if !text && counter == 0 && !finished && !x.meta && x.evaluated == 0 {
		return
	}
	q := o.sequence(index)
	s := &q.event
	if x.meta && counter > 0 {
		// SGLang repeats the whole text in each event.
		text = text && counter > max(q.base, s.counter)
	}
	switch {
	case !text:
	case x.token:
		s.deltas++
		s.ids++
	default:
		s.deltas++
		s.estimated++
	}
	if counter > 0 {
		s.counter = counter
	}
	if finished {
		s.finished, s.finish = true, x.finish
		switch {
		case x.token || x.texts&(1<<fieldGeneratedText) != 0:
			e.end = EndGeneratedText
		case x.stop:
			e.end = EndStop
		}
	}
	if !engine || x.choices > 0 {
		return
	}
	u := usage{prompt: x.metaPrompt, cached: x.metaCached}
	if !x.meta {
		u = x.llamaUsage()
	}
	s.usage.add(&u)
}

// llamaUsage reads llama.cpp's timings. Its tokens_cached is what the slot
// holds in the end, not what was reused.
func (x *objectFacts) llamaUsage() usage {
	u := usage{prompt: x.evaluated, cached: x.cacheN}
	if u.prompt == 0 && x.cacheN > 0 {
		u.prompt = x.promptN + x.cacheN - 1
	}
	return u
}

// rootUsage books the usage object, and what stands for it.
func (o *Observer) rootUsage(kind eventKind) {
	x, e := &o.object, &o.event
	if !x.counts && x.prefill == 0 {
		return
	}
	if kind == kindMessageStart {
		// Its output_tokens are a placeholder, repeated in later totals.
		x.usage.completion = 0
	}
	u := x.usage
	if x.choices > 0 || x.usageStated {
		l := x.llamaUsage()
		l.add(&u)
		l.completion = u.completion
		u = l
		if u.completion == 0 {
			u.completion = x.predictedN
		}
	}
	if u.prompt == 0 {
		u.prompt = max(x.inputLength, x.prefill)
	}
	if x.choices == 1 {
		// With continuous usage this is the choice's own count; whether it is
		// the count of all instead shows at the end.
		s := &o.sequence(x.sole).event
		if u.completion > 0 {
			s.counter, e.sole = u.completion, u.completion
		}
		s.usage.add(&u)
		return
	}
	if u.completion > 0 {
		e.total = u.completion
	}
	e.usage.add(&u)
}

// dispatch takes an event that is complete.
func (o *Observer) dispatch() {
	o.events++
	if o.scanner.state == complete && !o.refused() {
		if o.event.object {
			o.objectLeft()
		}
		o.apply()
	}
	o.discard()
}

// discard drops what was gathered of an event.
func (o *Observer) discard() {
	o.tally.untouch()
	if o.ids.wanted {
		o.ids.drop()
	}
	o.event = eventFacts{}
	o.choice.open = false
	o.scanner.restart()
}

// apply makes the event's facts count.
func (o *Observer) apply() {
	e := &o.event
	if e.engine != EngineUnknown && (o.engine == EngineUnknown || o.engine == EngineVLLM) {
		o.engine = e.engine
	}
	if e.id && o.responseID == "" {
		o.responseID = string(o.id[:o.object.idLen])
	}
	if o.ids.wanted {
		o.ids.keep()
	}
	o.failed = o.failed || e.failed
	o.inner = o.inner || e.inner
	switch {
	case e.done:
		o.end = EndDone
	case e.end != "" && !o.options.Pooling:
		o.end = e.end
	}
	o.tally.usage.add(&e.usage)
	if o.options.Pooling {
		for _, i := range o.tally.touched {
			q := &o.tally.sequences[i]
			q.usage.add(&q.event.usage)
		}
		return
	}
	o.applyOutput()
	if e.end == EndStop || e.end == EndGeneratedText {
		if o.tally.finished < o.options.Sequences {
			o.end = "" // others are still running
		}
	}
}
