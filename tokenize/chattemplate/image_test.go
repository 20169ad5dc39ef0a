// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"strings"
	"testing"
)

// The counts are those of transformers 5.24's own functions for these sizes.
func TestImageTokensAreThoseOfTheModelsProcessors(t *testing.T) {
	for _, c := range []struct{ width, height, qwen2, pixtral, llavaNext int }{
		{1, 1, 4, 2, 1176},
		{28, 28, 4, 6, 1176},
		{42, 70, 4, 20, 936},
		{224, 224, 64, 210, 1176},
		{640, 480, 391, 1230, 2340},
		{480, 640, 391, 1240, 2352},
		{1024, 768, 999, 3120, 2340},
		{1920, 1080, 2691, 2340, 1948},
		{4000, 3000, 15301, 3120, 2340},
		{9000, 9000, 16384, 4160, 2928},
		{3000, 20, 107, 65, 576},
		{336, 672, 288, 924, 1776},
		{1000, 333, 432, 1344, 2328},
		{799, 801, 841, 2601, 2928},
	} {
		for family, want := range map[ImageFamily]int{
			Qwen2VL: c.qwen2, Pixtral: c.pixtral, LlavaNext: c.llavaNext, Gemma3: 257, Llava15: 576,
		} {
			if got, exact := ImageTokens(family, c.width, c.height); got != want || !exact {
				t.Errorf("%s, %d by %d: %d (exact: %v), want %d", family, c.width, c.height, got, exact, want)
			}
		}
	}
}

func TestAnImageOfUnknownSizeOrFamilyIsEstimatedAndSaidToBe(t *testing.T) {
	for _, c := range []struct {
		family        ImageFamily
		width, height int
	}{
		{"another", 100, 100}, {Qwen2VL, 0, 0}, {Pixtral, -1, 5}, {Qwen3VL, 1 << 30, 1 << 30}, {Qwen2VL, 60000, 1},
	} {
		if tokens, exact := ImageTokens(c.family, c.width, c.height); exact || tokens != estimatedImageTokens {
			t.Errorf("%+v: %d, exact: %v", c, tokens, exact)
		}
	}
}

func dataURI(kind string, raw []byte) string {
	return "data:image/" + kind + ";base64," + base64.StdEncoding.EncodeToString(raw)
}

func TestImageSizesAreReadFromHeaders(t *testing.T) {
	picture := image.NewGray(image.Rect(0, 0, 321, 123))
	var asPNG, asJPEG, asGIF bytes.Buffer
	if png.Encode(&asPNG, picture) != nil || jpeg.Encode(&asJPEG, picture, nil) != nil || gif.Encode(&asGIF, picture, nil) != nil {
		t.Fatal("encoding failed")
	}
	// A camera's JPEG has large segments before its size.
	long := append([]byte("\xff\xd8\xff\xe1\xff\xff"), make([]byte, 65533)...)
	long = append(long, asJPEG.Bytes()[2:]...)
	webp := func(chunk string) []byte { return []byte("RIFF\x00\x00\x00\x00WEBP" + chunk) }
	for name, uri := range map[string]string{
		"png": dataURI("png", asPNG.Bytes()), "jpeg": dataURI("jpeg", asJPEG.Bytes()),
		"long jpeg": dataURI("jpeg", long), "gif": dataURI("gif", asGIF.Bytes()),
		"webp, lossy":    dataURI("webp", webp("VP8 \x00\x00\x00\x00\x00\x00\x00\x9d\x01\x2a\x41\x01\x7b\x00")),
		"webp, lossless": dataURI("webp", webp("VP8L\x00\x00\x00\x00\x2f\x40\x81\x1e\x00\x00\x00\x00\x00\x00")),
		"webp, extended": dataURI("webp", webp("VP8X\x00\x00\x00\x00\x00\x00\x00\x00\x40\x01\x00\x7a\x00\x00")),
	} {
		if w, h, ok := ImageSize(uri); !ok || w != 321 || h != 123 {
			t.Errorf("%s: %d by %d, %v", name, w, h, ok)
		}
	}
	for _, uri := range []string{"", "https://a/b.png", "data:image/png;base64,", "data:image/png,AAAA", "data:image/png;base64,////", dataURI("jpeg", bytes.Repeat([]byte("\xff\xd8"), 99))} {
		if w, h, ok := ImageSize(uri); ok {
			t.Errorf("%.40q has a size: %d by %d", uri, w, h)
		}
	}
}

func FuzzImageSize(f *testing.F) {
	f.Add("data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAUEAAAB7")
	f.Add("data:image/jpeg;base64,/9j/4AAQSkZJRgABAQAAAQABAAD/wAALCAB7AUEBAREA")
	f.Add("data:image/webp;base64," + strings.Repeat("UklG", 10))
	f.Fuzz(func(t *testing.T, uri string) {
		w, h, ok := ImageSize(uri)
		if ok && (w <= 0 || h <= 0 || w > maxImageSide || h > maxImageSide) {
			t.Fatalf("%d by %d", w, h)
		}
		for _, family := range []ImageFamily{Qwen2VL, Qwen3VL, Gemma3, Llava15, LlavaNext, Pixtral, ""} {
			if tokens, _ := ImageTokens(family, w, h); tokens <= 0 || tokens > 1<<25 {
				t.Fatalf("%s: %d tokens for %d by %d", family, tokens, w, h)
			}
		}
	})
}
