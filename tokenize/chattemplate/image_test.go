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

// What the models' preprocessor_config.json hold.
const (
	qwen2VL = `{"image_processor_type":"Qwen2VLImageProcessor","patch_size":14,"merge_size":2,"min_pixels":3136,"max_pixels":12845056}`
	qwen3VL = `{"image_processor_type":"Qwen2VLImageProcessorFast","patch_size":16,"merge_size":2,"size":{"longest_edge":16777216,"shortest_edge":65536}}`
	gemma3  = `{"image_processor_type":"Gemma3ImageProcessor","image_seq_length":256,"do_pan_and_scan":null,"size":{"height":896,"width":896}}`
)

func processorOf(t testing.TB, config string) *ImageProcessor {
	t.Helper()
	p, err := LoadImageProcessor([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The counts are those of transformers 5.24's own functions for these sizes.
func TestImageTokensAreThoseOfTheModelsProcessors(t *testing.T) {
	older, newer, gemma := processorOf(t, qwen2VL), processorOf(t, qwen3VL), processorOf(t, gemma3)
	for _, c := range []struct{ width, height, qwen2, qwen3 int }{
		{1, 1, 4, 64},
		{28, 28, 4, 64},
		{42, 70, 4, 77},
		{224, 224, 64, 64},
		{640, 480, 391, 300},
		{480, 640, 391, 300},
		{1024, 768, 999, 768},
		{1920, 1080, 2691, 2040},
		{4000, 3000, 15301, 11750},
		{9000, 9000, 16384, 16384},
		{3000, 20, 107, 94},
		{336, 672, 288, 210},
		{1000, 333, 432, 310},
		{799, 801, 841, 625},
	} {
		for p, want := range map[*ImageProcessor]int{older: c.qwen2, newer: c.qwen3, gemma: 256} {
			if got, exact := p.Tokens(c.width, c.height); got != want || !exact {
				t.Errorf("%s, %d by %d: %d (exact: %v), want %d", p.Mark, c.width, c.height, got, exact, want)
			}
		}
	}
}

func TestAnImageOfUnknownSizeIsEstimatedAndSaidToBe(t *testing.T) {
	p := processorOf(t, qwen2VL)
	for _, size := range [][2]int{{0, 0}, {-1, 5}, {1 << 30, 1 << 30}, {60000, 1}} {
		if tokens, exact := p.Tokens(size[0], size[1]); exact || tokens != estimatedImageTokens {
			t.Errorf("%v: %d, exact: %v", size, tokens, exact)
		}
	}
}

func TestAnImageProcessorThatIsNotUnderstoodIsRefused(t *testing.T) {
	for config, want := range map[string]Reason{
		`{`: ReasonJSON, `{}`: ReasonUnsupported, `[]`: ReasonUnsupported, "": ReasonUnsupported,
		`{"image_processor_type":"CLIPImageProcessor"}`:                                                                                    ReasonUnsupported,
		`{"image_processor_type":"Qwen2VLImageProcessor"}`:                                                                                 ReasonUnsupported,
		`{"image_processor_type":"Qwen2VLImageProcessor","patch_size":"x","merge_size":2,"min_pixels":1,"max_pixels":2}`:                   ReasonUnsupported,
		`{"image_processor_type":"Qwen2VLImageProcessor","patch_size":0,"merge_size":2,"min_pixels":1,"max_pixels":2}`:                     ReasonUnsupported,
		`{"image_processor_type":"Qwen2VLImageProcessor","patch_size":NaN,"merge_size":2,"min_pixels":1,"max_pixels":2}`:                   ReasonUnsupported,
		`{"image_processor_type":"Qwen2VLImageProcessor","patch_size":14,"merge_size":2,"min_pixels":9,"max_pixels":2}`:                    ReasonUnsupported,
		`{"image_processor_type":"Qwen2VLImageProcessor","patch_size":1,"merge_size":1,"min_pixels":9,"max_pixels":1e9}`:                   ReasonTooLarge,
		`{"image_processor_type":"Qwen2VLImageProcessor","patch_size":14,"merge_size":2,"min_pixels":9,"max_pixels":99,"do_resize":false}`: ReasonUnsupported,
		`{"image_processor_type":"Gemma3ImageProcessor","do_pan_and_scan":true}`:                                                           ReasonUnsupported,
		`{"image_processor_type":"Gemma3ImageProcessor","image_seq_length":-1}`:                                                            ReasonUnsupported,
	} {
		if _, err := LoadImageProcessor([]byte(config)); reasonOf(err) != want {
			t.Errorf("%s: %v, want %s", config, err, want)
		}
	}
	nested := processorOf(t, `{"processor_class":"Qwen3VLProcessor","image_processor":`+qwen3VL+`}`)
	if n, exact := nested.Tokens(640, 480); n != 300 || !exact {
		t.Errorf("%d tokens, exact: %v", n, exact)
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
		if w, h, ok := ImageSize([]byte(uri)); !ok || w != 321 || h != 123 {
			t.Errorf("%s: %d by %d, %v", name, w, h, ok)
		}
	}
	for _, uri := range []string{"", "https://a/b.png", "data:image/png;base64,", "data:image/png,AAAA", "data:image/png;base64,////", dataURI("jpeg", bytes.Repeat([]byte("\xff\xd8"), 99))} {
		if w, h, ok := ImageSize([]byte(uri)); ok {
			t.Errorf("%.40q has a size: %d by %d", uri, w, h)
		}
	}
}

func FuzzImageSize(f *testing.F) {
	f.Add("data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAUEAAAB7")
	f.Add("data:image/jpeg;base64,/9j/4AAQSkZJRgABAQAAAQABAAD/wAALCAB7AUEBAREA")
	f.Add("data:image/webp;base64," + strings.Repeat("UklG", 10))
	f.Fuzz(func(t *testing.T, uri string) {
		w, h, ok := ImageSize([]byte(uri))
		if ok && (w <= 0 || h <= 0 || w > maxImageSide || h > maxImageSide) {
			t.Fatalf("%d by %d", w, h)
		}
		for _, config := range []string{qwen2VL, qwen3VL, gemma3} {
			if tokens, _ := processorOf(t, config).Tokens(w, h); tokens <= 0 || tokens > maxImageTokens {
				t.Fatalf("%d tokens for %d by %d", tokens, w, h)
			}
		}
	})
}

func FuzzLoadImageProcessor(f *testing.F) {
	for _, config := range []string{qwen2VL, qwen3VL, gemma3, `{"image_processor":[]}`, "{"} {
		f.Add([]byte(config), 640, 480)
	}
	f.Fuzz(func(t *testing.T, config []byte, width, height int) {
		p, err := LoadImageProcessor(config)
		if err != nil {
			if reasonOf(err) == "" {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if tokens, _ := p.Tokens(width, height); tokens <= 0 || tokens > maxImageTokens {
			t.Fatalf("%d tokens for %d by %d", tokens, width, height)
		}
	})
}
