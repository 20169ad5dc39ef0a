// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kvaware/caddy-kvaware/tokenize"
	"github.com/kvaware/caddy-kvaware/tokenize/chattemplate"
)

// renderTime bounds the rendering of one chat by its template. Beyond it the
// request is rendered in our own way.
const renderTime = 50 * time.Millisecond

// maxModelFile bounds a file of a model besides its tokenizer, in bytes; a
// tokenizer_config.json has a few megabytes at most.
const maxModelFile = 64 << 20

// readModelFile reads such a file whole. One that is no regular file, which could
// have no end, is an error, and so is a longer one.
func readModelFile(path string) ([]byte, error) {
	// Opening a pipe would wait for who writes to it.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := os.Open(path) //nolint:gosec // the operator names the file, or the one beside it
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxModelFile+1))
	if err == nil && len(b) > maxModelFile {
		err = fmt.Errorf("more than %d bytes", maxModelFile)
	}
	return b, err
}

// loadExact reads a chat template, and the image processor beside it if there is
// one that is known and goes with the tokenizer: without, images are not exact.
// Unused says why those that are there are not taken.
func loadExact(tokenizer *tokenize.HFTokenizer, path string, form chattemplate.Form) (exact *tokenize.Exact, unused, err error) {
	template, err := loadTemplate(path, form)
	if err != nil {
		return nil, nil, err
	}
	exact = tokenize.NewExact(tokenizer, template)
	for _, name := range [...]string{"preprocessor_config.json", "processor_config.json"} {
		file := filepath.Join(filepath.Dir(path), name)
		config, err := readModelFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		var images *chattemplate.ImageProcessor
		if err == nil {
			images, err = chattemplate.LoadImageProcessor(config)
		}
		if err == nil {
			err = exact.TakeImages(images)
		}
		if err == nil {
			return exact, nil, nil
		}
		unused = errors.Join(unused, fmt.Errorf("%s: %w", file, err))
	}
	return exact, unused, nil
}

// loadTemplate reads a chat template: a tokenizer_config.json, or a .jinja file
// with the tokenizer_config.json beside it for the special tokens.
func loadTemplate(path string, form chattemplate.Form) (*chattemplate.Template, error) {
	file, err := readModelFile(path)
	if err != nil {
		return nil, err
	}
	config, text := file, ""
	beside := "chat_template.jinja"
	if filepath.Ext(path) != ".json" {
		config, text = nil, string(file)
		beside = "tokenizer_config.json"
	}
	other, err := readModelFile(filepath.Join(filepath.Dir(path), beside))
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, err
	case config == nil:
		config = other
	default:
		text = string(other)
	}
	return chattemplate.Load(config, text, chattemplate.Options{Form: form, MaxTime: renderTime})
}
