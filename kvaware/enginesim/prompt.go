// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"encoding/binary"
	"encoding/json"
	"slices"

	"github.com/zeebo/xxh3"
)

// A token is a piece of up to 4 bytes of text, the last of 4 being ASCII, so its id
// is below 1<<31 as those of any vocabulary. So a message has the same tokens
// wherever it stands, and an answer sent back in the next turn has those with
// which it was generated. Tokens that stand for no text have a first byte that
// UTF-8 does not know.
const (
	tokenStart = 0xff + iota<<8 // of a message, before its role
	tokenBody                   // between role and content
	tokenEnd                    // of a message; as output, the end of the answer
	tokenTools
	tokenImage // with 15 bits of what was hashed
)

// tokensPerImage is what a part of a message that is not text counts for.
const tokensPerImage = 64

// reading is what a request is read for.
type reading struct {
	blockSize int
	model     string // what a request that names none means
	keepIDs   bool
}

// prompt is a sequence of tokens of which the chained hashes of its whole blocks
// are kept, what is needed to go on, and the ids only if asked for.
type prompt struct {
	tokens int
	ids    []uint32
	keep   bool
	blocks []uint64
	size   int    // bytes of a block with the hash before it
	block  []byte // the hash so far and the tokens of the block begun
}

// newPrompt begins a prompt. Other models and other salts share no prefix.
func (as reading) newPrompt(model, salt string) prompt {
	p := prompt{size: 8 + 4*as.blockSize, keep: as.keepIDs}
	p.block = binary.LittleEndian.AppendUint64(make([]byte, 0, p.size), xxh3.HashString(model+"\x00"+salt))
	return p
}

func (p *prompt) push(token uint32) {
	p.tokens++
	if p.keep {
		p.ids = append(p.ids, token)
	}
	p.block = binary.LittleEndian.AppendUint32(p.block, token)
	if len(p.block) == p.size {
		hash := xxh3.Hash(p.block)
		p.blocks = append(p.blocks, hash)
		p.block = binary.LittleEndian.AppendUint64(p.block[:0], hash)
	}
}

func (p *prompt) text(s string) { pieces(p, s) }

func (p *prompt) bytes(b []byte) { pieces(p, b) }

func pieces[T string | []byte](p *prompt, text T) {
	for len(text) > 0 {
		n := min(4, len(text))
		if n == 4 && text[3] > 0x7f {
			n = 3
		}
		token := uint32(0)
		for i := range n {
			token |= uint32(text[i]) << (8 * i)
		}
		p.push(token)
		text = text[n:]
	}
}

// content renders a message's content: text, null, or a list of parts.
func (p *prompt) content(raw json.RawMessage) error {
	if !given(raw) {
		return nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		p.text(text)
		return nil
	}
	return each(raw, "content", func(next *json.Decoder) error {
		var part json.RawMessage
		if err := next.Decode(&part); err != nil {
			return err
		}
		var text string
		var typed struct {
			Text *string `json:"text"`
		}
		switch {
		case json.Unmarshal(part, &text) == nil:
			p.text(text)
		case json.Unmarshal(part, &typed) == nil && typed.Text != nil:
			p.text(*typed.Text)
		default:
			hash := xxh3.Hash(part)
			for i := range tokensPerImage {
				p.push(tokenImage | uint32(hash>>(8*(i%7))&0x7fff)<<16)
			}
		}
		return nil
	})
}

// identity is what an answer follows from.
func (p *prompt) identity() uint64 { return xxh3.Hash(p.block) }

// output returns the hashes of the blocks that an answer completes.
func (p *prompt) output(a answer) []uint64 {
	with := *p
	with.keep = false
	with.block = slices.Grow(slices.Clone(p.block), p.size)
	with.blocks = nil
	for i := range a.tokens {
		with.push(a.token(i))
	}
	return with.blocks
}
