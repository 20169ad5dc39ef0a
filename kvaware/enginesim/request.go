// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"reflect"
	"strconv"
)

// Bounds of what one request may cost.
const (
	maxBody      = 64 << 20 // bytes
	maxSequences = 1024     // prompts times choices
)

// api is the dialect of a request and its answer.
type api uint8

const (
	chat api = iota
	completions
)

// body is what the engine looks at in a request; the rest is read over.
type body struct {
	Model               string          `json:"model"`
	Messages            json.RawMessage `json:"messages"`
	Tools               json.RawMessage `json:"tools"`
	Prompt              json.RawMessage `json:"prompt"`
	N                   *count          `json:"n"`
	MaxTokens           *count          `json:"max_tokens"`
	MaxCompletionTokens *count          `json:"max_completion_tokens"`
	MinTokens           *count          `json:"min_tokens"`
	IgnoreEOS           bool            `json:"ignore_eos"`
	Stream              bool            `json:"stream"`
	StreamOptions       *struct {
		IncludeUsage         bool `json:"include_usage"`
		ContinuousUsageStats bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	Echo                 bool            `json:"echo"`
	Logprobs             json.RawMessage `json:"logprobs"`
	PromptLogprobs       *count          `json:"prompt_logprobs"`
	CacheSalt            string          `json:"cache_salt"`
	AddGenerationPrompt  *bool           `json:"add_generation_prompt"`
	ContinueFinalMessage bool            `json:"continue_final_message"`
}

// count is a whole number, which may be written as 100.0.
type count int

func (c *count) UnmarshalJSON(text []byte) error {
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<40 {
		return &json.UnmarshalTypeError{Value: "a value that is no whole number", Type: reflect.TypeFor[int]()}
	}
	*c = count(f)
	return nil
}

func (c *count) or(otherwise int) int {
	if c == nil {
		return otherwise
	}
	return int(*c)
}

// call is a request that was read: prompts with their tokens hashed, and how each
// is to be answered.
type call struct {
	api             api
	model           string
	salt            string
	prompts         []prompt
	choices         int // of each prompt
	maxTokens       int // of each choice; 0 if the request does not say
	minTokens       int
	ignoreEOS       bool
	stream          bool
	includeUsage    bool
	continuousUsage bool
	noReuse         bool // prompt logprobs need the whole prompt computed
}

// readCall reads a request within its bounds. The error is to be answered with,
// unless it is the body's own.
func (as reading) readCall(dialect api, from io.Reader) (*call, error) {
	b, err := as.readBody(from)
	if err != nil {
		return nil, err
	}
	if b.StreamOptions != nil && !b.Stream {
		return nil, badRequest("Stream options can only be defined when `stream=True`.", "stream_options")
	}
	c := &call{
		api:       dialect,
		model:     b.Model,
		salt:      b.CacheSalt,
		choices:   b.N.or(1),
		minTokens: b.MinTokens.or(0),
		ignoreEOS: b.IgnoreEOS,
		stream:    b.Stream,
		noReuse:   b.PromptLogprobs != nil || b.Echo && given(b.Logprobs),
	}
	if b.StreamOptions != nil {
		c.includeUsage = b.StreamOptions.IncludeUsage
		c.continuousUsage = c.includeUsage && b.StreamOptions.ContinuousUsageStats
	}
	limit := b.MaxTokens
	if dialect == chat && b.MaxCompletionTokens != nil {
		limit = b.MaxCompletionTokens
	}
	if dialect == completions && limit == nil {
		sixteen := count(16) // the API's default
		limit = &sixteen
	}
	if limit != nil {
		if c.maxTokens = int(*limit); c.maxTokens < 1 {
			return nil, badRequest(fmt.Sprintf("max_tokens must be at least 1, got %d.", c.maxTokens), "max_tokens")
		}
	}
	if c.choices < 1 {
		return nil, badRequest(fmt.Sprintf("n must be at least 1, got %d.", c.choices), "n")
	}
	if dialect == chat {
		err = c.readChat(b, as)
	} else {
		err = c.readCompletions(b, as)
	}
	if err != nil {
		return nil, err
	}
	if len(c.prompts) > maxSequences/c.choices {
		return nil, badRequest(fmt.Sprintf("%d prompts with n=%d: at most %d sequences", len(c.prompts), c.choices, maxSequences), "n")
	}
	return c, nil
}

// readBody decodes a request within its bounds.
func (as reading) readBody(from io.Reader) (*body, error) {
	raw, err := io.ReadAll(io.LimitReader(from, maxBody+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxBody {
		return nil, &apiError{
			Message: fmt.Sprintf("Request body is larger than %d bytes", maxBody),
			Type:    "Request Entity Too Large",
			Code:    http.StatusRequestEntityTooLarge,
		}
	}
	b := new(body)
	if err := unmarshal(raw, b, ""); err != nil {
		return nil, err
	}
	if b.Model == "" {
		b.Model = as.model
	}
	return b, nil
}

// message is one of a chat. Content and tool calls are rendered as they stand.
type message struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Name      string          `json:"name"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

func (c *call) readChat(b *body, as reading) error {
	if !given(b.Messages) {
		return missing("messages")
	}
	p := as.newPrompt(b.Model, b.CacheSalt)
	if given(b.Tools) {
		p.push(tokenTools)
		p.bytes(b.Tools)
		p.push(tokenEnd)
	}
	messages := 0
	err := each(b.Messages, "messages", func(next *json.Decoder) error {
		var m message
		if err := next.Decode(&m); err != nil {
			return err
		}
		if messages++; messages > 1 {
			p.push(tokenEnd) // of the one before
		}
		p.push(tokenStart)
		p.text(m.Role)
		if m.Name != "" {
			p.text(m.Name)
		}
		p.push(tokenBody)
		if err := p.content(m.Content); err != nil {
			return err
		}
		if given(m.ToolCalls) {
			p.bytes(m.ToolCalls)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !b.ContinueFinalMessage {
		if messages > 0 {
			p.push(tokenEnd)
		}
		if b.AddGenerationPrompt == nil || *b.AddGenerationPrompt {
			p.push(tokenStart)
			p.text("assistant")
			p.push(tokenBody)
		}
	}
	c.prompts = []prompt{p}
	return nil
}

func (c *call) readCompletions(b *body, as reading) error {
	if !given(b.Prompt) {
		return missing("prompt")
	}
	add := func(fill func(*prompt)) error {
		if len(c.prompts) == maxSequences {
			return badRequest(fmt.Sprintf("more than %d prompts", maxSequences), "prompt")
		}
		p := as.newPrompt(b.Model, b.CacheSalt)
		fill(&p)
		if p.tokens == 0 {
			return badRequest("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
		}
		c.prompts = append(c.prompts, p)
		return nil
	}
	text := func(from func(any) error) error {
		var text string
		if err := from(&text); err != nil {
			return err
		}
		return add(func(p *prompt) { p.text(text) })
	}
	ids := func(from func(any) error) error {
		var ids []uint32
		if err := from(&ids); err != nil {
			return err
		}
		return add(func(p *prompt) {
			for _, id := range ids {
				p.push(id)
			}
		})
	}
	whole := func(into any) error { return unmarshal(b.Prompt, into, "prompt") }

	// A text, token ids, or a list of either; the first item decides about all.
	kind := bytes.TrimLeft(b.Prompt, " \t\r\n")
	if kind[0] == '"' {
		return text(whole)
	}
	if kind[0] != '[' {
		return invalid("value_error", "'prompt'", "Input should be a string, a list of strings, a list of token ids or a list of those")
	}
	switch kind = bytes.TrimLeft(kind[1:], " \t\r\n"); kind[0] {
	case '"':
		return each(b.Prompt, "prompt", func(next *json.Decoder) error { return text(next.Decode) })
	case '[':
		return each(b.Prompt, "prompt", func(next *json.Decoder) error { return ids(next.Decode) })
	default:
		return ids(whole)
	}
}

// unmarshal decodes JSON and words what is wrong with it.
func unmarshal(raw []byte, into any, field string) error {
	return worded(json.Unmarshal(raw, into), field)
}

// each decodes a list item by item: a body of many small items would take many
// times its size as a slice.
func each(raw []byte, field string, decode func(next *json.Decoder) error) error {
	items := json.NewDecoder(bytes.NewReader(raw))
	if start, err := items.Token(); err != nil || start != json.Delim('[') {
		return invalid("list_type", fmt.Sprintf("%.60q", field), "Input should be a valid list")
	}
	for items.More() {
		if err := decode(items); err != nil {
			return worded(err, field)
		}
	}
	return nil
}

// worded turns an error of encoding/json into one to answer with.
func worded(err error, field string) error {
	var answer *apiError
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &answer):
		return err
	case errors.As(err, &syntax):
		return invalid("json_invalid", strconv.FormatInt(syntax.Offset, 10), "JSON decode error")
	case errors.As(err, &mismatch):
		if mismatch.Field != "" {
			field = mismatch.Field
		}
		return invalid("type_error", fmt.Sprintf("%.60q", field), "Input has the wrong type: "+mismatch.Value)
	default:
		return invalid("json_invalid", "0", "JSON decode error")
	}
}

// given tells a value from none and from null.
func given(raw json.RawMessage) bool {
	return len(raw) > 0 && string(raw) != "null"
}
