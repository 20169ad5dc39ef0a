// SPDX-License-Identifier: Apache-2.0

package chattemplate

// Reason says why a chat was not rendered. It never quotes the chat.
type Reason string

const (
	// ReasonJSON: a value is no JSON as Python's json module reads it.
	ReasonJSON Reason = "invalid JSON"
	// ReasonTooLarge: the input, its depth, the output or the work exceeds a bound.
	ReasonTooLarge Reason = "too large"
	// ReasonDeadline: rendering took longer than allowed.
	ReasonDeadline Reason = "deadline exceeded"
	// ReasonShape: the messages are not what an engine accepts.
	ReasonShape Reason = "unexpected shape"
	// ReasonRefused: the template called raise_exception; an engine answers 400.
	ReasonRefused Reason = "refused by the template"
	// ReasonUnsupported: the template or the chat needs what is not reproduced
	// exactly.
	ReasonUnsupported Reason = "unsupported"
	// ReasonTemplate: the template failed otherwise; an engine most likely
	// answers 400 as well.
	ReasonTemplate Reason = "template failed"
)

// Error is the error of [Load], [FromJSON] and [Template.Render].
type Error struct {
	Reason Reason
	Detail string // about the template or the shape, without any text of a chat
}

func (e *Error) Error() string {
	if e.Detail == "" {
		return "chat template: " + string(e.Reason)
	}
	return "chat template: " + string(e.Reason) + ": " + e.Detail
}

func fail(reason Reason, detail string) error {
	return &Error{Reason: reason, Detail: detail}
}
