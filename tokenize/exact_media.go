// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"fmt"

	"github.com/kvaware/caddy-kvaware/tokenize/chattemplate"
)

// maxImageTokens bounds the tokens of all images of a chat. Contexts of engines
// are smaller, and a few bytes of a header can ask for many.
const maxImageTokens = 1 << 20

// imageTokenizer makes tokens of images.
type imageTokenizer struct {
	*chattemplate.ImageProcessor
	token uint32 // what Mark is
}

// newImageTokenizer fails where the tokenizer has no such token, or would not
// find it wherever it stands.
func newImageTokenizer(t *HFTokenizer, p *chattemplate.ImageProcessor) (*imageTokenizer, error) {
	for _, raw := range t.added.raw.tokens {
		if raw.Content == p.Mark && !raw.SingleWord && !raw.LStrip && !raw.RStrip {
			return &imageTokenizer{p, raw.ID}, nil
		}
	}
	return nil, fmt.Errorf("the tokenizer has no token %s for images", p.Mark)
}

// exactImage is an image of a chat.
type exactImage struct {
	seed   uint64 // of what identifies it
	tokens uint32
	at     int // where its token is in the rendering
}

// exactImages appends the images of the messages. Ok is false for content that is
// neither text nor such an image; exact is false if tokens of one are a guess.
func (rd *Reader) exactImages(dst []exactImage, e *Exact, f *fields) (images []exactImage, exact, ok bool) {
	nodes := rd.scanner.nodes
	// What the processor is told otherwise may change the size.
	exact = rd.isNull(f[keyMMProcessorKwargs])
	total := uint32(0)
	for m, end := rd.elements(f[keyMessages]); m < end; m = nodes[m].next {
		for part, end := rd.elements(rd.member(m, keyContent)); part < end; part = nodes[part].next {
			if rd.isText(part) {
				continue
			}
			source := rd.imageSource(part)
			if source == 0 || e.images == nil {
				return dst, false, false
			}
			image, known := rd.exactImage(source, part, e.images)
			exact = exact && known
			if total += image.tokens; total > maxImageTokens {
				return dst, false, false
			}
			dst = append(dst, image)
		}
	}
	return dst, exact, true
}

// onlyText tells whether all content is text, or a list of parts that are.
func (rd *Reader) onlyText(messages uint32) bool {
	nodes := rd.scanner.nodes
	for m, end := rd.elements(messages); m < end; m = nodes[m].next {
		for part, end := rd.elements(rd.member(m, keyContent)); part < end; part = nodes[part].next {
			if !rd.isText(part) {
				return false
			}
		}
	}
	return true
}

// isText tells whether a part is text by its type and names no medium.
func (rd *Reader) isText(part uint32) bool {
	if rd.kindOf(part) == stringValue {
		return true
	}
	// With a uuid, another member than the type tells what it is.
	if !rd.isNull(rd.member(part, keyUUID)) {
		return false
	}
	switch string(rd.stringOf(rd.member(part, keyType))) {
	case "text", "input_text", "output_text", "refusal", "thinking":
		return true
	}
	return false
}

// imageSource returns the member that holds the image of a part; 0 if the part is
// no image by its type.
func (rd *Reader) imageSource(part uint32) uint32 {
	switch string(rd.stringOf(rd.member(part, keyType))) {
	case "image_url", "input_image":
		return rd.member(part, keyImageURL)
	}
	return 0
}

// exactImage reads an image; known tells whether its size is. The image may be
// one that the engine has to fetch, whose size is not to be had here.
func (rd *Reader) exactImage(source, part uint32, images *imageTokenizer) (image exactImage, known bool) {
	identity := source
	if uuid := rd.member(part, keyUUID); !rd.isNull(uuid) {
		identity = uuid
	}
	url := source
	if rd.kindOf(url) == objectValue {
		url = rd.member(url, keyURL)
	}
	width, height, _ := chattemplate.ImageSize(rd.stringOf(url))
	tokens, known := images.Tokens(width, height)
	return exactImage{
		seed:   rd.hashValue(tagMedia, rd.identityOf(identity)),
		tokens: uint32(tokens),
	}, known
}

// placeImages finds the places of images in a rendering, and puts in what the
// engine has there; starts are offsets in it, in order, and follow. Ok is false if
// these are not as many as the images; sure is false if what is put in may become
// one token with what is around it, which not all engines do alike.
func (t *imageTokenizer) placeImages(memory *exactMemory, starts []int) (sure, ok bool) {
	text, images := memory.text, memory.images
	placeholder := []byte(t.Placeholder)
	if bytes.Count(text, placeholder) != len(images) {
		return false, false
	}
	sure = true
	if t.Text != t.Placeholder {
		sure = linesAround(text, placeholder)
		moveStarts(starts, text, placeholder, len(t.Text))
		memory.spare = replaceAll(memory.spare[:0], text, placeholder, t.Text)
		memory.text, memory.spare = memory.spare, text
		text = memory.text
	}
	mark := []byte(t.Mark)
	at := 0
	for i := range images {
		next := bytes.Index(text[at:], mark)
		if next < 0 {
			return false, false
		}
		images[i].at = at + next
		at += next + len(mark)
	}
	return sure, !bytes.Contains(text[at:], mark)
}

// linesAround tells whether so few newlines are around the placeholders that with
// two more on either side vLLM makes the same tokens of them as the tokenizer.
func linesAround(text, placeholder []byte) bool {
	for {
		i := bytes.Index(text, placeholder)
		if i < 0 {
			return true
		}
		before := len(text[:i]) - len(bytes.TrimRight(text[:i], "\n"))
		text = text[i+len(placeholder):]
		after := len(text) - len(bytes.TrimLeft(text, "\n"))
		if before > 2 || after != 0 && after != 2 || bytes.HasPrefix(text, placeholder) {
			return false
		}
	}
}

// replaceAll appends text to dst, with another text for each of a part's places.
func replaceAll(dst, text, old []byte, replacement string) []byte {
	for {
		i := bytes.Index(text, old)
		if i < 0 {
			return append(dst, text...)
		}
		dst = append(append(dst, text[:i]...), replacement...)
		text = text[i+len(old):]
	}
}

// moveStarts moves offsets, which are in order, to where they are once another text
// of that length is in each of a part's places.
func moveStarts(starts []int, text, old []byte, length int) {
	moved, from := 0, 0
	for i, at := range starts {
		for at > from {
			next := bytes.Index(text[from:at], old)
			if next < 0 {
				break
			}
			from += next + len(old)
			moved += length - len(old)
		}
		starts[i] = at + moved
	}
}

// imagesUpTo returns the images before an offset of the rendering that were not
// returned before.
func (c *textChaining) imagesUpTo(offset int) []exactImage {
	n := 0
	for n < len(c.images) && c.images[n].at < offset {
		n++
	}
	here := c.images[:n]
	c.images = c.images[n:]
	return here
}

// expand puts an image's tokens in the place of each of the image token, in the
// ids from first on. They are ids of no encoder, made of what identifies the image:
// as engines key the blocks that an image touches by what it is, these blocks, and
// those behind them, are another image's never.
func (c *textChaining) expand(first int, images []exactImage) bool {
	rd := c.rd
	scratch := append(c.memory.ids[:0], rd.ids[first:]...)
	c.memory.ids = scratch
	rd.ids = rd.ids[:first]
	for _, id := range scratch {
		if id != c.e.images.token {
			rd.ids = append(rd.ids, id)
			continue
		}
		if len(images) == 0 {
			return false
		}
		for i := range images[0].tokens {
			rd.ids = append(rd.ids, syntheticID(images[0].seed, i))
		}
		images = images[1:]
	}
	return len(images) == 0
}
