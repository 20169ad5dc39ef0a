// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"bytes"
	"math"
	"strings"
)

// ImageProcessor says what stands for an image in a prompt, by the model's own
// configuration. It is immutable.
type ImageProcessor struct {
	// Placeholder is what the template writes for an image.
	Placeholder string
	// Text is what the engine puts in its place, with one Mark in it.
	Text string
	// Mark is a token that becomes as many of itself as the image has tokens.
	Mark string

	fixed       int     // tokens, whatever the size; 0: by the size
	factor      float64 // side of the square that is a token, in pixels
	least, most float64 // pixels of the resized image
}

const (
	// estimatedImageTokens stands for an image of an unknown size: about that of a
	// megapixel in most families.
	estimatedImageTokens = 768

	// maxImageSide bounds the sides taken, in pixels.
	maxImageSide = 1 << 16
	// maxImageTokens bounds the tokens of an image.
	maxImageTokens = 1 << 20
)

// LoadImageProcessor reads a preprocessor_config.json, or a processor_config.json,
// which has its members in image_processor. Known are the processors of Qwen2-VL,
// Qwen2.5-VL, Qwen3-VL and what shares them (a token for each square of the
// resized image), and of Gemma 3 without pan and scan (256 tokens between two
// marks). The error, an [*Error], is of [ReasonUnsupported] for any other.
//
// Source: smart_resize of transformers' image_processing_qwen2_vl.py and
// Gemma3Processor, and the image_processor_type and size of these models' files.
func LoadImageProcessor(config []byte) (*ImageProcessor, error) {
	if len(config) > maxConfig {
		return nil, fail(ReasonTooLarge, "preprocessor_config.json")
	}
	c, err := FromJSON(bytes.TrimPrefix(config, []byte("\ufeff")))
	if err != nil {
		return nil, err
	}
	if nested := c.Get("image_processor"); nested.kind == Dict {
		// image_seq_length belongs to the processor.
		c = new(arena).with(&nested, "image_seq_length", c.Get("image_seq_length"))
	}
	name := c.Get("image_processor_type").text
	// The slower and the faster one of a family count alike.
	switch strings.TrimSuffix(strings.TrimSuffix(name, "Fast"), "Pil") {
	case "Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor", "Qwen3VLImageProcessor":
		return qwenImages(c)
	case "Gemma3ImageProcessor":
		return gemmaImages(c)
	}
	return nil, fail(ReasonUnsupported, "image_processor_type")
}

func qwenImages(c Value) (*ImageProcessor, error) {
	p := &ImageProcessor{Placeholder: "<|image_pad|>", Text: "<|image_pad|>", Mark: "<|image_pad|>"}
	size := c.Get("size")
	ok := true
	// The older members win over size, as in transformers. There are no defaults:
	// they differ between its versions.
	number := func(values ...Value) float64 {
		for _, v := range values {
			if n, isNumber := v.number(); isNumber {
				ok = ok && n >= 1 && n == math.Trunc(n) && n <= maxImageSide*maxImageSide
				return n
			}
		}
		ok = false
		return 0
	}
	p.factor = number(c.Get("patch_size")) * number(c.Get("merge_size"))
	p.least = number(c.Get("min_pixels"), size.Get("shortest_edge"))
	p.most = number(c.Get("max_pixels"), size.Get("longest_edge"))
	if resize := c.Get("do_resize"); !ok || p.least > p.most || resize.kind == Bool && !resize.truth {
		return nil, fail(ReasonUnsupported, "size of images")
	}
	if p.most/(p.factor*p.factor) > maxImageTokens {
		return nil, fail(ReasonTooLarge, "max_pixels")
	}
	return p, nil
}

func gemmaImages(c Value) (*ImageProcessor, error) {
	if c.Get("do_pan_and_scan").truthy() {
		return nil, fail(ReasonUnsupported, "pan and scan")
	}
	n := 256.
	if v := c.Get("image_seq_length"); !v.absent() {
		n, _ = v.number()
	}
	if n != math.Trunc(n) || n < 1 || n > maxImageTokens {
		return nil, fail(ReasonUnsupported, "image_seq_length")
	}
	return &ImageProcessor{
		Placeholder: "<start_of_image>",
		Text:        "\n\n<start_of_image><image_soft_token><end_of_image>\n\n",
		Mark:        "<image_soft_token>",
		fixed:       int(n),
	}, nil
}

// number returns the value of an int or a float.
func (v *Value) number() (n float64, ok bool) {
	switch v.kind {
	case Int:
		return parseFloat(v.text), true
	case Float:
		return v.float, true
	}
	return 0, false
}

// Tokens returns how many tokens an image of the given size in pixels becomes,
// at most 2^20. Exact is false where that is an estimate: the count depends on a
// size that is unknown (not positive), or that engines refuse.
func (p *ImageProcessor) Tokens(width, height int) (tokens int, exact bool) {
	if p.fixed > 0 {
		return p.fixed, true
	}
	if width <= 0 || height <= 0 || width > maxImageSide || height > maxImageSide {
		return estimatedImageTokens, false
	}
	w, h := float64(width), float64(height)
	// Images of more than 200 times the length in one direction are refused.
	if math.Max(w, h)/math.Min(w, h) > 200 {
		return estimatedImageTokens, false
	}
	rows, columns := math.RoundToEven(h/p.factor), math.RoundToEven(w/p.factor)
	switch area := rows * columns * p.factor * p.factor; {
	case area > p.most:
		beta := math.Sqrt(h * w / p.most)
		rows = math.Max(1, math.Floor(h/beta/p.factor))
		columns = math.Max(1, math.Floor(w/beta/p.factor))
	case area < p.least:
		beta := math.Sqrt(p.least / (h * w))
		rows = math.Ceil(h * beta / p.factor)
		columns = math.Ceil(w * beta / p.factor)
	}
	if n := rows * columns; n <= maxImageTokens {
		return int(n), true
	}
	return estimatedImageTokens, false
}
