// SPDX-License-Identifier: Apache-2.0

package tokenize

import "fmt"

// Reason says in one word why no prompt was read. It is fit for a metric label:
// the set is closed and holds nothing of the body.
type Reason string

// The reasons of an [Error].
const (
	ReasonEmpty         Reason = "empty"           // no bytes, or white space only
	ReasonNotJSON       Reason = "not_json"        // a byte that JSON does not allow there
	ReasonTruncated     Reason = "truncated"       // the body ends inside the root value
	ReasonTrailingData  Reason = "trailing_data"   // something follows the root value
	ReasonNotObject     Reason = "not_object"      // the root is no object
	ReasonTooDeep       Reason = "too_deep"        // nested deeper than maxDepth
	ReasonTooManyValues Reason = "too_many_values" // more values or prompts than a real request has
	ReasonTooLarge      Reason = "too_large"       // 2 GiB or more
	ReasonNoPrompt      Reason = "no_prompt"       // an object without the prompt its path asks for
	ReasonUnlisted      Reason = "unlisted"        // not a request whose prompt is read
)

// Error tells why a body was not read and where. It never holds text of it.
type Error struct {
	Reason Reason
	Offset int // in bytes from the body's start; 0 where no place can be named
}

func (e *Error) Error() string {
	return fmt.Sprintf("reading request body: %s at byte %d", string(e.Reason), e.Offset)
}
