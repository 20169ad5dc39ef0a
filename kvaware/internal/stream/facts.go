// SPDX-License-Identifier: Apache-2.0

package stream

import "bytes"

// eventKind is what the type of an event says: a field of the same name, else
// the name on the SSE event line.
type eventKind uint8

const (
	kindNone eventKind = iota
	kindDelta
	kindCompleted
	kindIncomplete
	kindFailed
	kindResponse // other events of the responses API
	kindMessageStart
	kindBlockStart
	kindBlockDelta
	kindMessageDelta
	kindMessageStop
	kindMessage // a whole Anthropic message
	kindError
	kindOther
)

func kindOf(name []byte) eventKind {
	switch string(name) {
	case "message_start":
		return kindMessageStart
	case "content_block_start":
		return kindBlockStart
	case "content_block_delta":
		return kindBlockDelta
	case "message_delta":
		return kindMessageDelta
	case "message_stop":
		return kindMessageStop
	case "message":
		return kindMessage
	case "error":
		return kindError
	case "response.completed":
		return kindCompleted
	case "response.incomplete":
		return kindIncomplete
	case "response.failed", "response.cancelled":
		return kindFailed
	}
	switch {
	case bytes.HasSuffix(name, []byte(".delta")):
		return kindDelta
	case bytes.HasPrefix(name, []byte("response.")), bytes.HasSuffix(name, []byte(".done")):
		return kindResponse
	}
	return kindOther
}

// innerType reports whether events of a type of the responses API carry
// reasoning or a tool call.
func innerType(name []byte) bool {
	return bytes.HasPrefix(name, []byte("response.")) && bytes.HasSuffix(name, []byte(".delta")) &&
		!bytes.HasPrefix(name, []byte("response.output_text.")) && !bytes.HasPrefix(name, []byte("response.refusal."))
}

// usage holds one usage object. Zero: not stated or stated as zero, but for
// cached, which is one more than stated.
type usage struct {
	completion, prompt, input, cacheRead, cacheCreation int
	cached                                              int
}

// promptTokens follows the two conventions: OpenAI's count includes what was
// cached, Anthropic's input_tokens leave it out.
func (u *usage) promptTokens() int {
	if u.prompt > 0 {
		return u.prompt
	}
	return u.input + u.cacheRead + u.cacheCreation
}

// add takes what later states; zeros never erase.
func (u *usage) add(later *usage) {
	if *later == (usage{}) {
		return
	}
	take := func(to *int, v int) {
		if v > 0 {
			*to = v
		}
	}
	take(&u.prompt, later.prompt)
	take(&u.input, later.input)
	take(&u.cacheRead, later.cacheRead)
	take(&u.cacheCreation, later.cacheCreation)
	if later.cached > 1 || u.cached == 0 {
		u.cached = later.cached
	}
}

// objectFacts is what one event object says, in whatever order.
type objectFacts struct {
	kind             eventKind
	texts            uint64 // root fields that held generated text
	done, unfinished bool   // Ollama: done true, done false
	stop             bool
	progress         bool
	failed           bool
	whole            bool // object: "response"
	counts           bool // some counter was stated
	transferred      bool
	choices          int
	sole             int // the sequence of the only choice so far
	index            int // -1 if none
	outputIDs        int
	prefill          int
	usage            usage
	usageStated      bool
	evalCount        int
	predicted        int
	predictedN       int
	evaluated        int
	promptN, cacheN  int // cacheN and metaCached: one more than stated
	meta             bool
	metaCompletion   int
	metaPrompt       int
	metaCached       int
	generated        int
	inputLength      int
	token            bool
	finish           reason
	idLen            int  // of Observer.id
	nestedID         bool // it is that of a response object within the event
}

// choiceFacts is what one element of choices says.
type choiceFacts struct {
	open        bool
	index       int
	text        bool
	role        bool
	failed      bool
	ids         int
	idsStated   bool
	usage       usage
	usageStated bool
	finish      reason
}

// reason is a finish reason as the engine spells it.
type reason struct {
	len  uint8
	name [23]byte
}

func (r *reason) set(b []byte) { r.len = uint8(copy(r.name[:], b)) }

func (r *reason) is(s string) bool { return string(r.name[:r.len]) == s }

// text: a value that is generated text is not empty.
func (o *Observer) text() {
	switch o.scanner.field {
	case fieldError:
		if o.choice.open {
			o.choice.failed = true
		} else {
			o.object.failed = true
		}
	case fieldRole:
		o.choice.role = true
	case fieldInner, fieldInnerParts, fieldThinking, fieldArguments:
		o.event.inner = true
		o.wrote()
	default:
		o.wrote()
	}
}

func (o *Observer) wrote() {
	if o.choice.open {
		o.choice.text = true
		return
	}
	o.object.texts |= 1 << o.scanner.root
}

func (o *Observer) captured(b []byte) {
	if len(b) == 0 {
		return
	}
	x := &o.object
	switch o.scanner.field {
	case fieldType:
		x.kind = kindOf(b)
		o.event.inner = o.event.inner || innerType(b)
	case fieldObject:
		switch string(b) {
		case "response":
			x.whole = true
		case "error":
			x.failed = true
		}
	case fieldID, fieldResponseID:
		nested := o.scanner.field == fieldResponseID
		if o.responseID == "" && !o.chat && len(b) < captureMax && (nested || !x.nestedID) {
			x.idLen, x.nestedID = copy(o.id[:], b), nested
		}
	case fieldChoiceFinish:
		o.choice.finish.set(b)
	case fieldDoneReason:
		o.event.seen(EngineOllama)
		x.finish.set(b)
	case fieldMetaFinish, fieldStopReason, fieldStopType:
		x.finish.set(b)
	}
}

func (o *Observer) boolean(v bool) {
	switch o.scanner.field {
	case fieldDone:
		o.object.done, o.object.unfinished = v, !v
	case fieldStop:
		o.object.stop = v
	case fieldError:
		o.object.failed = o.object.failed || v
	}
}

// count takes a whole number that is not negative.
func (o *Observer) count(v int) {
	x, u := &o.object, &o.usage
	switch o.scanner.field {
	case fieldNone:
		return
	case fieldOutputID:
		o.ids.add(v)
		return
	case fieldIndex:
		x.index = v
		return
	case fieldChoiceIndex:
		o.choice.index = v
		return
	case fieldCompletionTokens:
		u.completion = v
	case fieldPromptTokens:
		u.prompt = v
	case fieldInputTokens:
		u.input = v
	case fieldCachedTokens:
		u.cached = max(u.cached, v+1)
	case fieldCacheRead:
		u.cacheRead = v
		u.cached = max(u.cached, v+1)
	case fieldCacheCreation:
		u.cacheCreation = v
	case fieldEvalCount:
		o.event.seen(EngineOllama)
		x.evalCount = v
	case fieldPromptEvalCount:
		o.event.seen(EngineOllama)
		x.usage.prompt = v
	case fieldPredicted:
		o.event.seen(EngineLlamaCpp)
		x.predicted = v
	case fieldPredictedN:
		x.predictedN = v
	case fieldEvaluated, fieldProgressTotal:
		x.evaluated = v
	case fieldPromptN:
		x.promptN = v
	case fieldCacheN, fieldProgressCache:
		x.cacheN = v + 1
	case fieldMetaCompletion:
		x.metaCompletion = v
	case fieldMetaPrompt:
		x.metaPrompt = v
	case fieldMetaCached:
		x.metaCached = v + 1
	case fieldGeneratedTokens:
		x.generated += v
	case fieldInputLength:
		x.inputLength = v
	}
	x.counts = true
}

// opened: a value of the field is an object or array.
func (o *Observer) opened(f field, array bool) {
	x := &o.object
	switch f {
	case fieldError:
		if o.choice.open {
			o.choice.failed = true
		} else {
			x.failed = true
		}
	case fieldArguments:
		o.event.inner = true
		o.wrote()
	case fieldInnerParts, fieldToolCall:
		o.event.inner = true
	case fieldProgress:
		x.progress = true
		o.event.seen(EngineLlamaCpp)
	case fieldTimings:
		o.event.seen(EngineLlamaCpp)
	case fieldMetaInfo:
		x.meta = true
		o.event.seen(EngineSGLang)
	case fieldToken:
		x.token = !array
	case fieldTransfer:
		x.transferred = true
	case fieldTokenIDs:
		o.ids.begin()
	}
}

// entered resets what the container is going to fill.
func (o *Observer) entered(n node) {
	switch n {
	case nodeRoot:
		o.object = objectFacts{index: -1}
		o.scanner.root = fieldNone
	case nodeChoice:
		s := &o.scanner
		o.choice = choiceFacts{open: true, index: int(s.nodes[s.depth-2].elements) - 1}
	case nodeUsage:
		o.usage = usage{}
	}
}

// left notes what the container held.
func (o *Observer) left(f frame) {
	switch f.node {
	case nodeOutputIDs:
		n := int(f.elements)
		if f.field == fieldTokenIDs {
			o.choice.ids, o.choice.idsStated = n, true
			o.event.seen(EngineVLLM)
		}
		if o.ids.wanted {
			o.ids.end(n)
		}
	case nodeIDs:
		n := int(f.elements)
		switch f.field {
		case fieldOutputIDs:
			o.object.outputIDs = n
		case fieldPrefill:
			o.object.prefill = n
		case fieldTokens:
			if n > 0 {
				o.wrote()
			}
		}
	case nodeUsage:
		if o.choice.open {
			o.choice.usage, o.choice.usageStated = o.usage, true
		} else {
			o.object.usage, o.object.usageStated = o.usage, true
		}
	case nodeChoice:
		o.choiceLeft()
	case nodeRoot:
		if o.scanner.depth > 0 {
			o.objectLeft()
		} else {
			// The event line that names its kind may come after the data.
			o.event.object = true
		}
	}
}
