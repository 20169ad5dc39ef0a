// SPDX-License-Identifier: Apache-2.0

package enginesim

import "strings"

// whole is an answer in one piece, of either dialect.
type whole struct {
	ID      string        `json:"id"`
	Object  string        `json:"object"`
	Created int64         `json:"created"`
	Model   string        `json:"model"`
	Choices []wholeChoice `json:"choices"`
	Usage   usage         `json:"usage"`
}

// wholeChoice has a message (chat) or a text (completions).
type wholeChoice struct {
	Index        int           `json:"index"`
	Message      *wholeMessage `json:"message,omitempty"`
	Text         *string       `json:"text,omitempty"`
	Logprobs     *struct{}     `json:"logprobs"`
	FinishReason string        `json:"finish_reason"`
	StopReason   *string       `json:"stop_reason"`
}

type wholeMessage struct {
	Role      string     `json:"role"`
	Content   string     `json:"content"`
	Refusal   *string    `json:"refusal"`
	ToolCalls []struct{} `json:"tool_calls"`
}

// whole returns the answer, all of whose tokens were observed.
func (j *job) whole() whole {
	answer := whole{
		ID: j.id, Object: "chat.completion", Created: j.created, Model: j.call.model,
		Choices: make([]wholeChoice, len(j.choices)),
		Usage:   j.usage(),
	}
	if j.call.api == completions {
		answer.Object = "text_completion"
	}
	for i := range j.choices {
		c := &j.choices[i]
		var text strings.Builder
		for k := range c.answer.tokens {
			text.WriteString(c.answer.text(k))
		}
		out := &answer.Choices[i]
		out.Index = i
		out.FinishReason = finishReasons[c.finish]
		content := text.String()
		if j.call.api == completions {
			out.Text = &content
		} else {
			out.Message = &wholeMessage{Role: "assistant", Content: content, ToolCalls: []struct{}{}}
		}
	}
	return answer
}
