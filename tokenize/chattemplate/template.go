// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options are what [Load] may be told. The zero value is fit for use.
type Options struct {
	Form Form
	// Arguments are chat_template_kwargs that the engine was started with (a
	// JSON object); a request's own come before them.
	Arguments []byte
	// MaxInput bounds the request's values in bytes; 16 MiB if 0.
	MaxInput int
	// MaxOutput bounds the text in bytes; 64 MiB if 0.
	MaxOutput int
	// MaxTime bounds one rendering in the Jinja engine; 250 ms if 0.
	MaxTime time.Duration
	// Now is the clock of strftime_now; time.Now if nil.
	Now func() time.Time
	// NoBuiltin leaves every chat to the Jinja engine.
	NoBuiltin bool
}

const (
	defaultMaxInput  = 16 << 20
	defaultMaxOutput = 64 << 20
	defaultMaxTime   = 250 * time.Millisecond
)

// Template is a model's chat template. It is never changed and safe for
// concurrent use.
type Template struct {
	plain, tools source
	special      []member
	arguments    Value
	options      Options
}

// source is one of a model's templates.
type source struct {
	program *program
	builtin builtin
}

// Input holds a request's values as they stand in its body.
type Input struct {
	Messages  []byte // a list
	Tools     []byte // a list; null or empty for none
	Documents []byte // a list; null or empty for none
	Arguments []byte // chat_template_kwargs, an object; null or empty for none

	ToolChoice []byte // null or empty for none; only SGLang's form reads it

	AddGenerationPrompt  bool // true unless the request says otherwise
	ContinueFinalMessage bool

	// Strings are strings in Messages that were read already, in order; all others
	// are found by reading. They must be what [FromJSON] would find.
	Strings []Span
	// Starts is memory for the output's, which may be nil.
	Starts []int
}

// Output is what the engine would tokenize, without adding special tokens: the
// template writes them as text, to be recognised by the tokenizer.
type Output struct {
	Text []byte // what Render was given to append to, and the rendering behind it
	// Starts holds, for each message of the request, the offset in the rendering
	// where it begins; an empty stretch for one that is written into another. It is
	// nil where the Jinja engine rendered, which cannot tell, and where messages were
	// made one.
	Starts []int
	// Apart is the offset in the rendering from which on it is to be encoded by
	// itself, with the tokenizer's special tokens, the first one dropped if it is
	// the beginning of a sequence; 0 for none.
	Apart int
	// Builtin tells that a built-in renderer wrote the text.
	Builtin bool
}

// Form returns the form that the template was loaded for.
func (t *Template) Form() Form { return t.options.Form }

// Render renders a chat and appends the text to dst, which may be nil. The
// input must not change meanwhile. The error is an [*Error]; a template that
// refuses the chat gives [ReasonRefused], as the engine would answer 400.
func (t *Template) Render(ctx context.Context, dst []byte, in Input) (Output, error) {
	if len(in.Messages)+len(in.Tools)+len(in.Documents)+len(in.Arguments)+len(in.ToolChoice) > t.options.MaxInput {
		return Output{}, fail(ReasonTooLarge, "input")
	}
	deadline := time.Now().Add(t.options.MaxTime)
	memory := renderings.Get().(*rendering)
	defer memory.release()
	c := &memory.chat
	open, err := t.read(memory, &in)
	if err != nil {
		return Output{}, err
	}
	s := &t.plain
	if t.tools.program != nil && c.tools.kind != Null {
		s = &t.tools
	}
	open, apart, err := t.prepare(memory, s, &in, open)
	if err != nil {
		return Output{}, err
	}
	final := ""
	if open {
		if c.generate {
			return Output{}, fail(ReasonRefused, "add_generation_prompt with continue_final_message")
		}
		if final, err = memory.markFinal(); err != nil {
			return Output{}, err
		}
	}
	memory.writer = writer{most: t.options.MaxOutput, base: len(dst), text: dst, starts: in.Starts[:0]}
	out, err := s.render(ctx, memory, deadline)
	if err != nil && t.options.Form == SGLang && c.tools.kind == List {
		c.tools = sglang{&memory.arena}.bare(c.tools)
		memory.writer = writer{most: t.options.MaxOutput, base: len(dst), text: dst, starts: in.Starts[:0]}
		out, err = s.render(ctx, memory, deadline)
	}
	if err != nil {
		return Output{}, err
	}
	switch {
	case !out.Builtin || len(c.messages) == len(memory.given):
	case t.options.Form == SGLang: // the last one is taken out
		out.Starts = append(out.Starts, len(out.Text)-len(dst))
	default: // some are made one
		out.Starts = nil
	}
	if apart != "" {
		out.Apart = len(out.Text) - len(dst)
		out.Text = append(out.Text, apart...)
	}
	if !open {
		return out, nil
	}
	keep, err := cutFinal(textOver(out.Text[len(dst):]), final)
	if err != nil {
		return Output{}, err
	}
	out.Text = out.Text[:len(dst)+keep]
	for i := range out.Starts {
		out.Starts[i] = min(out.Starts[i], keep)
	}
	return out, nil
}

// prepare makes of the chat what the engine hands to the template. Open is
// whether the template must leave the last message open; apart is text to be
// encoded by itself behind the rendering.
func (t *Template) prepare(memory *rendering, s *source, in *Input, open bool) (_ bool, apart string, err error) {
	c := &memory.chat
	switch t.options.Form {
	case VLLM:
		form := vllm{&memory.arena}
		if c.messages, err = form.messages(c.messages, s.program); err == nil {
			c.tools, err = form.tools(c.tools)
		}
	case SGLang:
		form := sglang{&memory.arena}
		choice, err := memory.arena.parse(textOver(in.ToolChoice), nil)
		if err != nil {
			return false, "", err
		}
		if c.arguments.Has("add_generation_prompt") || c.arguments.Has("continue_final_message") {
			return false, "", fail(ReasonRefused, "an argument given twice")
		}
		if c.messages, err = form.messages(c.messages, s.program.parts.sglang); err != nil {
			return false, "", err
		}
		if c.tools, err = form.tools(c.tools, choice); err != nil {
			return false, "", err
		}
		if s == &t.tools && c.tools.kind != List {
			return false, "", fail(ReasonUnsupported, "a template for tools that tool_choice leaves none of")
		}
		c.messages, apart = form.lastTurn(c.messages, open)
		c.generate = true
		return false, apart, nil
	}
	return open, "", err
}

// rendering is the memory of one rendering.
type rendering struct {
	arena  arena
	given  []Value // the request's messages
	chat   chat
	writer writer
}

var renderings = sync.Pool{New: func() any { return new(rendering) }}

func (r *rendering) release() {
	r.arena.reset()
	r.given, r.chat, r.writer = nil, chat{}, writer{}
	renderings.Put(r)
}

func (s *source) render(ctx context.Context, memory *rendering, deadline time.Time) (Output, error) {
	c, w := &memory.chat, &memory.writer
	dst, most := w.text, w.most
	if s.builtin.takes(c) {
		w.text = slices.Grow(dst, c.size())
		w.starts = slices.Grow(w.starts, len(c.messages))
		if s.builtin.render(w, c) {
			if w.full {
				return Output{}, fail(ReasonTooLarge, "output")
			}
			return Output{Text: w.text, Starts: w.starts, Builtin: true}, nil
		}
	}
	text, err := s.program.render(ctx, c, deadline, most)
	if err != nil {
		return Output{}, err
	}
	return Output{Text: append(dst, text...)}, nil
}

// size estimates a rendering's length.
func (c *chat) size() int {
	n := 4096
	for i := range c.messages {
		n += 64 + len(c.messages[i].Get("content").text)
	}
	return n
}

// read reads a request's values; open is continue_final_message.
func (t *Template) read(memory *rendering, in *Input) (open bool, err error) {
	var values [4]Value
	for i, raw := range [...][]byte{in.Messages, in.Tools, in.Documents, in.Arguments} {
		var known []Span
		if i == 0 {
			known = in.Strings
		}
		if values[i], err = memory.arena.parse(textOver(raw), known); err != nil {
			return false, err
		}
		if i > 0 && values[i].kind == Undefined {
			values[i].kind = Null
		}
	}
	messages, arguments := values[0], values[3]
	if messages.kind != List {
		return false, fail(ReasonShape, "messages is no list")
	}
	for i := range messages.items {
		if messages.items[i].kind != Dict {
			return false, fail(ReasonShape, "a message is no object")
		}
	}
	if k := values[1].kind; k != Null && k != List {
		return false, fail(ReasonShape, "tools is no list")
	}
	if arguments.kind != Null && arguments.kind != Dict {
		return false, fail(ReasonShape, "chat_template_kwargs is no object")
	}
	memory.given = messages.items
	c := &memory.chat
	*c = chat{
		messages: messages.items, tools: values[1], documents: values[2],
		special: t.special, generate: in.AddGenerationPrompt,
		clock: clock{now: t.options.Now},
	}
	open = in.ContinueFinalMessage
	if c.arguments, err = memory.arena.argumentsOf(&arguments, &t.arguments); err != nil {
		return false, err
	}
	// These three are arguments of the call as well, which a request may set here.
	if v := c.arguments.Get("add_generation_prompt"); v.kind != Undefined {
		c.generate = v.truthy()
	}
	if v := c.arguments.Get("continue_final_message"); v.kind != Undefined {
		open = v.truthy()
	}
	if v := c.arguments.Get("documents"); v.kind != Undefined {
		c.documents = v
	}
	return open, nil
}

// argumentsOf joins the request's arguments with those that the engine was
// started with.
func (a *arena) argumentsOf(request, engine *Value) (Value, error) {
	out := a.open()
	for _, from := range [...]*Value{request, engine} {
		for i, key := range from.keys {
			switch key {
			case "messages", "tools", "conversation", "chat_template", "tokenize", "self":
				return Value{}, fail(ReasonRefused, "an argument that is not one of the template's")
			}
			if !out.has(key) {
				out.add(key, from.items[i])
			}
		}
	}
	return out.close(), nil
}

// finalTag marks the end of the message to be continued, as transformers does.
const finalTag = "CONTINUE_FINAL_MESSAGE_TAG "

// markFinal puts the mark behind the last message's content, or its last text.
func (r *rendering) markFinal() (final string, err error) {
	a, messages := &r.arena, r.chat.messages
	missing := fail(ReasonRefused, "no text to continue")
	if len(messages) == 0 {
		return "", missing
	}
	messages = copied(&a.items, messages)
	last := &messages[len(messages)-1]
	content := last.Get("content")
	switch content.kind {
	case String:
		final = content.text
		*last = a.with(last, "content", Text(final+finalTag))
	case List:
		at := -1
		for i := range content.items {
			if content.items[i].Get("text").kind == String {
				at = i
			}
		}
		if at < 0 {
			return "", missing
		}
		parts := copied(&a.items, content.items)
		final = parts[at].Get("text").text
		parts[at] = a.with(&parts[at], "text", Text(final+finalTag))
		*last = a.with(last, "content", Value{kind: List, items: parts})
	default:
		return "", missing
	}
	r.chat.messages = messages
	return final, nil
}

// cutFinal returns how much of a rendering is before the mark.
func cutFinal(text, final string) (int, error) {
	at := strings.LastIndex(text, strings.TrimSpace(finalTag))
	if at < 0 || !strings.Contains(text, trimSpace(final)) {
		return 0, fail(ReasonRefused, "the template drops the final message")
	}
	if strings.HasPrefix(text[at:], finalTag) {
		return at, nil
	}
	return len(strings.TrimRightFunc(text[:at], isSpace)), nil
}
