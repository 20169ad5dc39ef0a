// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"context"
	"slices"
	"strings"
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

	AddGenerationPrompt  bool // true unless the request says otherwise
	ContinueFinalMessage bool
}

// Output is what the engine would tokenize, without adding special tokens: the
// template writes them as text, to be recognised by the tokenizer.
type Output struct {
	Text []byte // what Render was given to append to, and the rendering behind it
	// Starts holds, for each message of the request, the offset in the rendering
	// where it begins; an empty stretch for one that is written into another. It is
	// nil where the Jinja engine rendered, which cannot tell.
	Starts []int
	// Builtin tells that a built-in renderer wrote the text.
	Builtin bool
}

// Family names the built-in renderer that stands for the template; "" if none.
func (t *Template) Family() string { return t.plain.builtin.family }

// Render renders a chat and appends the text to dst, which may be nil. The error is an [*Error]; a template that refuses the
// chat gives [ReasonRefused], as the engine would answer 400.
func (t *Template) Render(ctx context.Context, dst []byte, in Input) (Output, error) {
	if len(in.Messages)+len(in.Tools)+len(in.Documents)+len(in.Arguments) > t.options.MaxInput {
		return Output{}, fail(ReasonTooLarge, "input")
	}
	deadline := time.Now().Add(t.options.MaxTime)
	c, open, err := t.chat(&in)
	if err != nil {
		return Output{}, err
	}
	s := &t.plain
	if t.tools.program != nil && c.tools.kind != Null {
		s = &t.tools
	}
	if t.options.Form == VLLM {
		messages, err := vllmMessages(Value{kind: List, items: c.messages}, s.program.parts)
		if err != nil {
			return Output{}, err
		}
		c.messages = messages.items
		if c.tools, err = vllmTools(c.tools); err != nil {
			return Output{}, err
		}
	}
	final := ""
	if open {
		if c.generate {
			return Output{}, fail(ReasonRefused, "add_generation_prompt with continue_final_message")
		}
		if final, err = c.markFinal(); err != nil {
			return Output{}, err
		}
	}
	out, err := s.render(ctx, dst, c, deadline, t.options.MaxOutput)
	if err != nil || !open {
		return out, err
	}
	keep, err := cutFinal(string(out.Text[len(dst):]), final)
	if err != nil {
		return Output{}, err
	}
	out.Text = out.Text[:len(dst)+keep]
	for i := range out.Starts {
		out.Starts[i] = min(out.Starts[i], keep)
	}
	return out, nil
}

func (s *source) render(ctx context.Context, dst []byte, c *chat, deadline time.Time, most int) (Output, error) {
	if s.builtin.takes(c) {
		w := writer{most: most, base: len(dst), text: slices.Grow(dst, c.size()), starts: make([]int, 0, len(c.messages))}
		if s.builtin.render(&w, c) {
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

// chat reads a request's values; open is continue_final_message.
func (t *Template) chat(in *Input) (c *chat, open bool, err error) {
	var values [4]Value
	for i, raw := range [...][]byte{in.Messages, in.Tools, in.Documents, in.Arguments} {
		if values[i], err = FromJSON(raw); err != nil {
			return nil, false, err
		}
		if i > 0 && values[i].kind == Undefined {
			values[i].kind = Null
		}
	}
	messages, arguments := values[0], values[3]
	if messages.kind != List {
		return nil, false, fail(ReasonShape, "messages is no list")
	}
	for i := range messages.items {
		if messages.items[i].kind != Dict {
			return nil, false, fail(ReasonShape, "a message is no object")
		}
	}
	if k := values[1].kind; k != Null && k != List {
		return nil, false, fail(ReasonShape, "tools is no list")
	}
	if arguments.kind != Null && arguments.kind != Dict {
		return nil, false, fail(ReasonShape, "chat_template_kwargs is no object")
	}
	c = &chat{
		messages: messages.items, tools: values[1], documents: values[2],
		special: t.special, generate: in.AddGenerationPrompt,
		clock: clock{now: t.options.Now},
	}
	open = in.ContinueFinalMessage
	c.arguments = Value{kind: Dict}
	for _, from := range [...]Value{arguments, t.arguments} {
		for i, key := range from.keys {
			v := from.items[i]
			switch key {
			case "add_generation_prompt", "continue_final_message", "documents":
				if c.arguments.Has(key) {
					continue
				}
			case "messages", "tools", "conversation", "chat_template", "tokenize", "self":
				return nil, false, fail(ReasonRefused, "an argument that is not one of the template's")
			}
			if !c.arguments.Has(key) {
				c.arguments.set(key, v)
			}
		}
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
	return c, open, nil
}

// finalTag marks the end of the message to be continued, as transformers does.
const finalTag = "CONTINUE_FINAL_MESSAGE_TAG "

// markFinal puts the mark behind the last message's content, or its last text.
func (c *chat) markFinal() (final string, err error) {
	missing := fail(ReasonRefused, "no text to continue")
	if len(c.messages) == 0 {
		return "", missing
	}
	messages := make([]Value, len(c.messages))
	copy(messages, c.messages)
	last := &messages[len(messages)-1]
	content := last.Get("content")
	switch content.kind {
	case String:
		final = content.text
		*last = last.with("content", Text(final+finalTag))
	case List:
		at := -1
		for i, part := range content.items {
			if part.Get("text").kind == String {
				at = i
			}
		}
		if at < 0 {
			return "", missing
		}
		parts := make([]Value, len(content.items))
		copy(parts, content.items)
		final = parts[at].Get("text").text
		parts[at] = parts[at].with("text", Text(final+finalTag))
		*last = last.with("content", Value{kind: List, items: parts})
	default:
		return "", missing
	}
	c.messages = messages
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
