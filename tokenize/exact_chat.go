// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"

	"github.com/kvaware/caddy-kvaware/tokenize/chattemplate"
)

// chatInput gathers what the template is given, in memory where it needs some.
// It is false for what cannot be exact: a template of the request's own, media.
func (rd *Reader) chatInput(req *Request, memory *exactMemory) (in chattemplate.Input, ok bool) {
	var f fields
	rd.collect(0, &f)
	// Where a medium's placeholder goes, and how many ids it becomes, is the
	// model's affair.
	media := req.Images + req.Audio + req.Video + req.Files
	if !rd.isNull(f[keyChatTemplate]) || media > 0 || !rd.onlyText(f[keyMessages]) {
		return in, false
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
	in.Arguments = rd.templateMembers(&f, &in)
	return in, true
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

// onlyText tells whether all content is text, or a list of parts that are text
// by their type and name no medium.
func (rd *Reader) onlyText(messages uint32) bool {
	nodes := rd.scanner.nodes
	for m, end := rd.elements(messages); m < end; m = nodes[m].next {
		for part, end := rd.elements(rd.member(m, keyContent)); part < end; part = nodes[part].next {
			if nodes[part].kind == stringValue {
				continue
			}
			// With a uuid, another member than the type tells what it is.
			if !rd.isNull(rd.member(part, keyUUID)) {
				return false
			}
			switch string(rd.stringOf(rd.member(part, keyType))) {
			case "text", "input_text", "output_text", "refusal", "thinking":
			default:
				return false
			}
		}
	}
	return true
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
		add("reasoning_effort", append(append([]byte{'"'}, rd.span(effort)...), '"'))
		if !mentions("enable_thinking") {
			add("enable_thinking", thinks)
		}
	}
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
