// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"

	"github.com/kvaware/caddy-kvaware/tokenize/chattemplate"
)

// chatInput gathers what the template is given, in memory where it needs some. Ok
// is false for what cannot be rendered as the engine does: a template of the
// request's own, media that are no known images. Exact is false if the tokens of
// an image are a guess.
func (rd *Reader) chatInput(req *Request, e *Exact, memory *exactMemory) (in chattemplate.Input, exact, ok bool) {
	var f fields
	rd.collect(0, &f)
	if !rd.isNull(f[keyChatTemplate]) || !rd.isNull(f[keyInputIDs]) || req.Audio+req.Video+req.Files > 0 {
		return in, false, false
	}
	memory.images, exact, ok = rd.exactImages(memory.images[:0], e, &f)
	if !ok || len(memory.images) != req.Images {
		return in, false, false
	}
	memory.strings = rd.appendStrings(memory.strings[:0], f[keyMessages])
	in = chattemplate.Input{
		Messages:             rd.span(f[keyMessages]),
		Tools:                rd.spanOrNil(f[keyTools]),
		Documents:            rd.spanOrNil(f[keyDocuments]),
		AddGenerationPrompt:  !rd.isFalse(f[keyAddGenerationPrompt]),
		ContinueFinalMessage: rd.isTrue(f[keyContinueFinalMessage]),
		Strings:              memory.strings,
		Starts:               memory.starts,
	}
	if e.template.Form() == chattemplate.SGLang {
		return in, exact, rd.sglangMembers(&f, &in)
	}
	in.Arguments = rd.templateMembers(&f, &in)
	return in, exact, true
}

func (rd *Reader) spanOrNil(n uint32) []byte {
	if rd.isNull(n) {
		return nil
	}
	return rd.span(n)
}

// appendStrings appends what is known of the strings of the messages, so
// that the template's reader need not look for their ends.
func (rd *Reader) appendStrings(dst []chattemplate.Span, messages uint32) []chattemplate.Span {
	nodes := rd.scanner.nodes
	base := nodes[messages].start
	for i := messages + 1; i < nodes[messages].next; i++ {
		if n := &nodes[i]; n.kind == stringValue {
			dst = append(dst, chattemplate.Span{
				Start: n.start - base, End: n.end - base,
				Escaped: n.flags&escaped != 0, NonASCII: n.flags&nonASCII != 0,
			})
		}
	}
	return dst
}

// templateMembers returns chat_template_kwargs with what members of the request
// put there: these win, unless they are null or "auto". An effort turns thinking
// on or off where chat_template_kwargs says nothing of it. Source: vLLM's
// build_chat_params and merge_kwargs.
func (rd *Reader) templateMembers(f *fields, in *chattemplate.Input) []byte {
	given := rd.spanOrNil(f[keyChatTemplateKwargs])
	if given != nil && rd.kindOf(f[keyChatTemplateKwargs]) != objectValue {
		return given // refused by the template's reader
	}
	var more []byte
	add := func(name string, value []byte) {
		more = append(append(append(append(more, ",\""...), name...), "\":"...), value...)
	}
	truth := func(b bool) []byte {
		if b {
			return []byte("true")
		}
		return []byte("false")
	}
	mentions := func(name string) bool { return bytes.Contains(given, []byte(name)) }
	// Of those that are arguments of the call as well, the call's would lose.
	if mentions("add_generation_prompt") {
		add("add_generation_prompt", truth(in.AddGenerationPrompt))
	}
	if mentions("continue_final_message") {
		add("continue_final_message", truth(in.ContinueFinalMessage))
	}
	if in.Documents != nil && mentions("documents") {
		add("documents", in.Documents)
	}
	effort := f[keyReasoningEffort]
	if text := rd.stringOf(effort); text != nil && string(text) != "auto" {
		thinks := truth(string(text) != "none")
		add("reasoning_effort", quoted(rd.span(effort)))
		if !mentions("enable_thinking") {
			add("enable_thinking", thinks)
		}
	}
	return withMembers(given, more)
}

// sglangMembers sets what SGLang takes from members of the request. It has no
// documents nor a choice of the generation prompt, and an effort that is given as
// an argument wins. Source: ChatCompletionRequest's validators in SGLang's
// protocol.py, and _apply_jinja_template.
func (rd *Reader) sglangMembers(f *fields, in *chattemplate.Input) bool {
	in.Documents, in.AddGenerationPrompt = nil, true
	in.ToolChoice = rd.spanOrNil(f[keyToolChoice])
	if rd.kindOf(f[keyToolChoice]) == stringValue {
		in.ToolChoice = quoted(in.ToolChoice)
	}
	in.Arguments = rd.spanOrNil(f[keyChatTemplateKwargs])
	// Other ways to say an effort.
	if rd.kindOf(f[keyReasoning]) == objectValue {
		return false
	}
	effort := f[keyReasoningEffort]
	if rd.isNull(effort) {
		return true
	}
	if rd.kindOf(effort) != stringValue {
		return false
	}
	thinks := []byte("true")
	if string(rd.stringOf(effort)) == "none" {
		thinks = []byte("false")
	}
	var more []byte
	for _, member := range [...]struct {
		name  string
		value []byte
	}{{"reasoning_effort", quoted(rd.span(effort))}, {"thinking", thinks}, {"enable_thinking", thinks}} {
		if !bytes.Contains(in.Arguments, []byte(`"`+member.name+`"`)) {
			more = append(append(append(append(more, `,"`...), member.name...), `":`...), member.value...)
		}
	}
	in.Arguments = withMembers(in.Arguments, more)
	return true
}

func quoted(raw []byte) []byte { return append(append([]byte{'"'}, raw...), '"') }

// withMembers returns an object with more members, which begin with a comma.
func withMembers(given, more []byte) []byte {
	switch {
	case more == nil:
		return given
	case given == nil:
		more[0] = '{'
		return append(more, '}')
	}
	// Given ends with its closing bracket; the last of members of one name counts.
	head := given[:len(given)-1]
	if len(bytes.TrimSpace(head)) == 1 {
		more[0] = ' '
	}
	return append(append(bytes.Clone(head), more...), '}')
}
