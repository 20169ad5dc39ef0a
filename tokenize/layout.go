// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"context"
	"unicode/utf8"
)

// Layout is a prompt token by token, for people to look at.
type Layout struct {
	// IDs are the prompt's token ids. Those from 1<<31 on are no encoder's: they
	// stand for what a template adds, or for media. They belong to the reader and
	// are valid until its next use.
	IDs []uint32
	// Messages are the messages of a conversation in order, from its system prompt
	// on; results of tools that are parts of another message count as messages of
	// their own. Nil where there is none, or where it is not known where they begin.
	Messages []Message
}

// Message is where one message stands in its prompt, in tokens.
type Message struct {
	// Role is system, developer, user, assistant, tool or function; "other" for
	// every other word, as that may be anything.
	Role string
	// Start is how many tokens come before it. If it begins inside a token, that
	// token is its first.
	Start int
	// Tokens are its own, up to where the next message begins; the last one's go
	// up to the end of the prompt and include what asks for the answer. 0 for a
	// message that a template leaves out or writes into another.
	Tokens int
}

const otherRole = "other"

var knownRoles = [...]string{"system", "developer", "user", "assistant", "tool", "function"}

func knownRole(role string) string {
	for _, known := range knownRoles {
		if role == known {
			return known
		}
	}
	return otherRole
}

// Layout encodes one prompt of req, which must be the reader's last one, without
// any cache, in the way in which [Reader.ChainExact] with e and enc, or [Reader.Chain]
// with enc, chained it before. It is not ok if that cannot be done again, as a
// rendering may fail once and succeed another time. Blocks of the prompts stay as
// they are.
//
// Its time is linear in the prompt, its memory a small multiple.
func (rd *Reader) Layout(ctx context.Context, req *Request, prompt int, e *Exact, enc Encoder) (l Layout, ok bool) {
	p := &req.Prompts[prompt]
	rd.ids = rd.ids[:0]
	switch {
	case !p.own:
		l.Messages = rd.layoutPieces(p, enc)
	case e == nil:
		return Layout{}, false
	case req.Kind == OpenAIChat:
		if l.Messages, ok = rd.layoutChat(ctx, req, e); !ok {
			return Layout{}, false
		}
	case req.Kind == OpenAICompletions && rd.isPlain(p):
		if !rd.layoutCompletion(p, e) {
			return Layout{}, false
		}
	default:
		return Layout{}, false
	}
	l.IDs = rd.ids
	return l, true
}

// layoutPieces appends the ids of a prompt's pieces.
func (rd *Reader) layoutPieces(p *Prompt, enc Encoder) (messages []Message) {
	for i := p.first; i < p.end; i++ {
		q := &rd.pieces[i]
		// A start behind which nothing comes asks for the answer.
		if i+1 < p.end {
			if role, ok := rd.roleOf(q); ok {
				messages = append(messages, Message{Role: role, Start: len(rd.ids)})
			}
		}
		rd.encode(q, enc)
	}
	if drop := len(rd.ids) - p.keepLast; p.keepLast > 0 && drop > 0 {
		rd.ids = rd.ids[:copy(rd.ids, rd.ids[drop:])]
		for i := range messages {
			messages[i].Start = max(0, messages[i].Start-drop)
		}
	}
	measure(messages, len(rd.ids))
	return messages
}

// roleOf gives the role of the message that a piece opens. Of the pieces of as
// many ids, only those of tools and documents open none.
func (rd *Reader) roleOf(q *piece) (role string, ok bool) {
	if q.kind != syntheticPiece || q.end != startTokens ||
		q.seed == rd.hash(tagTools, nil) || q.seed == rd.hashString(tagArgument, documentsArgument) {
		return "", false
	}
	for _, known := range knownRoles {
		if q.seed == rd.hashString(tagMessage, known) {
			return known, true
		}
	}
	return otherRole, true
}

// measure fills in the tokens of messages from where they start.
func measure(messages []Message, end int) {
	for i := len(messages) - 1; i >= 0; i-- {
		messages[i].Start = min(messages[i].Start, end)
		messages[i].Tokens = end - messages[i].Start
		end = messages[i].Start
	}
}

// layoutCompletion appends the ids of a plain prompt.
func (rd *Reader) layoutCompletion(p *Prompt, e *Exact) bool {
	framed, ok := rd.framesCompletions(e)
	if !ok {
		return false
	}
	q := &rd.pieces[p.first]
	if q.kind != textPiece {
		for i := p.first; i < p.end; i++ {
			rd.encode(&rd.pieces[i], e.tokenizer)
		}
		return true
	}
	before, after := framing(e, framed)
	rd.ids = append(rd.ids, before...)
	rd.ids = e.tokenizer.AppendSpecial(rd.ids, rd.plain(rd.scanner.body[q.start:q.end], q.flags))
	rd.ids = append(rd.ids, after...)
	return true
}

func framing(e *Exact, framed bool) (before, after []uint32) {
	if !framed {
		return nil, nil
	}
	return e.tokenizer.Frame()
}

// layoutChat appends the ids of a chat as its template renders it.
func (rd *Reader) layoutChat(ctx context.Context, req *Request, e *Exact) (messages []Message, ok bool) {
	memory := new(exactMemory)
	begins, framed, _, ok := rd.renderExact(ctx, req, e, memory)
	if !ok {
		return nil, false
	}
	text, apart := memory.text, []byte(nil)
	if memory.apart > 0 {
		text, apart = text[:memory.apart], text[memory.apart:]
	}
	before, after := framing(e, framed)
	rd.ids = append(rd.ids, before...)
	c := textChaining{segments: segments{rd: rd}, e: e, memory: memory}
	starts, known := rd.appendFrom(e, text, begins)
	if len(memory.images) > 0 {
		rd.moveBehindImages(starts, e.images.token, memory.images)
		if !c.expand(0, memory.images) {
			return nil, false
		}
	}
	if apart != nil {
		c.encodeApart(apart)
	}
	if known {
		messages = rd.rolesOf(starts)
	}
	rd.ids = append(rd.ids, after...)
	measure(messages, len(rd.ids))
	return messages, true
}

// moveBehindImages moves places among the ids, which are in order, to where they
// are once each image token is as many as its image has.
func (rd *Reader) moveBehindImages(starts []int, token uint32, images []exactImage) {
	from, moved, next := 0, 0, 0
	for i, at := range starts {
		for ; from < at; from++ {
			if rd.ids[from] == token && next < len(images) {
				moved += int(images[next].tokens) - 1
				next++
			}
		}
		starts[i] = at + moved
	}
}

// rolesOf gives the messages of a chat, which start at these tokens.
func (rd *Reader) rolesOf(starts []int) (messages []Message) {
	var f fields
	rd.collect(0, &f)
	for m, end := rd.elements(f[keyMessages]); m < end && len(messages) < len(starts); m = rd.scanner.nodes[m].next {
		messages = append(messages, Message{
			Role:  knownRole(string(rd.stringOf(rd.member(m, keyRole)))),
			Start: starts[len(messages)],
		})
	}
	return messages
}

// appendFrom appends the ids of a rendering and finds the first token of each
// message in them. Not known is where messages begin that the Jinja engine
// rendered, or of which too many would have to be encoded over and over.
func (rd *Reader) appendFrom(e *Exact, text []byte, begins []int) (starts []int, known bool) {
	left := 4*len(text) + 1<<16 // bytes to encode a second time
	known = len(begins) > 0
	from, first := 0, len(rd.ids)
	var inside []int // offsets between from and the next safe place
	var again []uint32
	part := func(to int) {
		rd.ids = e.tokenizer.AppendSpecial(rd.ids, text[from:to])
		for _, at := range inside {
			if left -= at - from; left < 0 {
				known = false
				break
			}
			// The tokens that are the same without the message come before it.
			again = e.tokenizer.AppendSpecial(again[:0], text[from:at])
			starts = append(starts, first+commonPrefix(again, rd.ids[first:]))
		}
		from, first, inside = to, len(rd.ids), inside[:0]
	}
	for _, at := range begins {
		switch {
		case at > from && e.cuts.allows(text, at):
			part(at)
			starts = append(starts, first)
		case at == from:
			starts = append(starts, first)
		default:
			inside = append(inside, at)
		}
	}
	part(len(text))
	return starts, known
}

// allows tells whether a place inside a text is safe. It looks no further than
// the longest token reaches.
func (x *specialCuts) allows(text []byte, at int) bool {
	if at >= len(text) {
		return false
	}
	return x.find(text[:min(len(text), at+max(x.longest, utf8.UTFMax))], at) == at
}

func commonPrefix(a, b []uint32) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
