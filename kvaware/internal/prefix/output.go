// SPDX-License-Identifier: Apache-2.0

package prefix

// Content says of what kind a finished request's output is.
type Content uint8

// The contents. Inner output holds reasoning or tool calls.
const (
	UnknownContent Content = iota
	PlainText
	Inner
	Contents = 3
)

// Output is the newest output of finished requests behind a prompt: what a longer
// prompt may go on with, as far as it has the same tokens.
type Output struct {
	Blocks  int32 // whole ones; the engine caches all of the output but its last token
	Content Content
}

// Answered tells what the output of a running request is. Of several choices it is
// not told, since only one of them goes on.
func (x *Index) Answered(p *Path, content Content) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p.content = content
}

// outputBehind returns the newest output behind a span.
func (x *Index) outputBehind(s *span) Output {
	if s.outs == 0 {
		return Output{}
	}
	// Its room is ⌈t/B⌉ blocks for t tokens, of which t−1 are cached.
	o := x.spans.at(s.outs)
	return Output{Blocks: int32(o.n) - 1, Content: o.content}
}
