// SPDX-License-Identifier: Apache-2.0

package tokenize

// Encoder turns text into token ids. Implementations must be safe for
// concurrent use, as one encoder serves all readers.
type Encoder interface {
	// Append appends the ids of text to dst and returns it. Text is valid UTF-8
	// and must neither be kept nor changed. Ids are below 1<<31: the upper half
	// is taken by ids that stand for template tokens and media.
	Append(dst []uint32, text []byte) []uint32
}
