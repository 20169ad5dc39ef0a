// SPDX-License-Identifier: Apache-2.0

package chattemplate

import "math"

// ImageFamily names how a model turns an image into placeholder tokens.
type ImageFamily string

// The families whose counts are known for the settings that their image
// processors come with (preprocessor_config.json).
const (
	// Qwen2VL is Qwen2-VL and Qwen2.5-VL: a token for each 28 by 28 pixels of the
	// image brought to 3,136 to 12,845,056 pixels.
	Qwen2VL ImageFamily = "qwen2-vl"
	// Qwen3VL is Qwen3-VL and what shares its processor (Qwen3.5): 32 by 32
	// pixels, 65,536 to 16,777,216 of them.
	Qwen3VL ImageFamily = "qwen3-vl"
	// Gemma3 is Gemma 3 without pan and scan: 256 tokens between two marks.
	Gemma3 ImageFamily = "gemma3"
	// Llava15 is LLaVA-1.5: 24 by 24 patches, whatever the image.
	Llava15 ImageFamily = "llava-1.5"
	// LlavaNext is LLaVA-NeXT (1.6) with CLIP's 336 pixels and its five grids.
	LlavaNext ImageFamily = "llava-next"
	// Pixtral is Pixtral-12B: 16 by 16 pixels of at most 1,024 on the longer
	// side, and a mark behind each row.
	Pixtral ImageFamily = "pixtral"
)

// estimatedImageTokens stands for an image of an unknown size or family: about
// that of a megapixel in most families.
const estimatedImageTokens = 768

// maxImageSide bounds the sides taken, in pixels.
const maxImageSide = 1 << 16

// ImageTokens returns how many placeholder tokens an image of the given size in
// pixels becomes, the marks around the image that the template does not write
// included. Exact is false where that is an estimate: the family is not one of
// the above, or the count depends on a size that is unknown (not positive).
//
// Source of the formulas: the image processors and processors of these models
// in transformers (smart_resize, _get_num_multimodal_tokens,
// select_best_resolution, get_resize_output_image_size).
func ImageTokens(family ImageFamily, width, height int) (tokens int, exact bool) {
	switch family {
	case Gemma3:
		// The template writes the mark before the image itself; the processor puts
		// blank lines around the marks, which may merge with other text.
		return 256 + 1, true
	case Llava15:
		return 576, true
	}
	if width <= 0 || height <= 0 || width > maxImageSide || height > maxImageSide {
		return estimatedImageTokens, false
	}
	w, h := float64(width), float64(height)
	switch family {
	case Qwen2VL:
		return smartResize(w, h, 28, 56*56, 12845056)
	case Qwen3VL:
		return smartResize(w, h, 32, 65536, 16777216)
	case LlavaNext:
		return llavaNextTokens(width, height), true
	case Pixtral:
		if ratio := math.Max(h/1024, w/1024); ratio > 1 {
			width, height = int(math.Floor(w/ratio)), int(math.Floor(h/ratio))
		}
		if width > 0 && height > 0 {
			columns, rows := (width+15)/16, (height+15)/16
			return (columns + 1) * rows, true
		}
	}
	return estimatedImageTokens, false
}

// smartResize counts the squares of factor pixels of a resized image. Images
// of more than 200 times the length in one direction are refused by engines.
func smartResize(w, h, factor, least, most float64) (tokens int, exact bool) {
	if math.Max(w, h)/math.Min(w, h) > 200 {
		return estimatedImageTokens, false
	}
	rows, columns := math.RoundToEven(h/factor), math.RoundToEven(w/factor)
	switch area := rows * columns * factor * factor; {
	case area > most:
		beta := math.Sqrt(h * w / most)
		rows = math.Max(1, math.Floor(h/beta/factor))
		columns = math.Max(1, math.Floor(w/beta/factor))
	case area < least:
		beta := math.Sqrt(least / (h * w))
		rows = math.Ceil(h * beta / factor)
		columns = math.Ceil(w * beta / factor)
	}
	return int(rows * columns), true
}

// llavaGrids are LLaVA-NeXT's resolutions, in squares of 336 pixels: height
// and width.
var llavaGrids = [...][2]int{{1, 2}, {2, 1}, {2, 2}, {3, 1}, {1, 3}}

// llavaNextTokens counts the patches of the grid that fits best, less those
// that are padding, a mark for each of their rows, and the whole image's 576.
func llavaNextTokens(width, height int) int {
	const side, patches = 336, 24
	best, effective, wasted := llavaGrids[0], 0, math.MaxInt
	w, h := float64(width), float64(height)
	for _, grid := range llavaGrids {
		gh, gw := grid[0]*side, grid[1]*side
		scale := math.Min(float64(gw)/w, float64(gh)/h)
		used := min(int(w*scale)*int(h*scale), width*height)
		if unused := gw*gh - used; used > effective || used == effective && unused < wasted {
			best, effective, wasted = grid, used, unused
		}
	}
	rows, columns := patches*best[0], patches*best[1]
	if w/h > float64(columns)/float64(rows) {
		kept := int(round7(h * (float64(columns) / w)))
		rows -= (rows - kept) / 2 * 2
	} else {
		kept := int(round7(w * (float64(rows) / h)))
		columns -= (columns - kept) / 2 * 2
	}
	return rows*columns + rows + patches*patches
}

func round7(f float64) float64 { return math.RoundToEven(f*1e7) / 1e7 }
