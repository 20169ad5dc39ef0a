// SPDX-License-Identifier: Apache-2.0

//go:build unix

package kvaware

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// Were one of them read, the test would not end, or the machine's memory would.
func TestFilesOfAModelThatHaveNoEndAreNotRead(t *testing.T) {
	tokenizer, template := tinyModel(t)
	text, err := os.ReadFile(template)
	if err != nil {
		t.Fatal(err)
	}
	endless := map[string]func(path string) error{
		"a pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a device":    func(path string) error { return os.Symlink("/dev/zero", path) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"a huge file": func(path string) error {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
			return os.Truncate(path, 1<<40)
		},
	}
	for kind, make := range endless {
		for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "preprocessor_config.json", "processor_config.json"} {
			directory := t.TempDir()
			if err := make(filepath.Join(directory, name)); err != nil {
				t.Skip(kind, ": ", err)
			}
			if name != "chat_template.jinja" {
				if err := os.WriteFile(filepath.Join(directory, "chat_template.jinja"), text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			tk := Tokenizer{File: tokenizer, ChatTemplate: filepath.Join(directory, "chat_template.jinja")}
			if name == "tokenizer.json" {
				tk = Tokenizer{File: filepath.Join(directory, name)}
			}
			_, err := tk.provision(caddy.NewReplacer())
			// Without an image processor, images are not exact and all else is.
			if optional := strings.HasSuffix(name, "processor_config.json"); (err == nil) != optional {
				t.Errorf("%s for %s: %v", kind, name, err)
			}
		}
	}
}

func TestAnImageProcessorThatIsNotTakenIsNamedWithTheReason(t *testing.T) {
	directory := t.TempDir()
	template := filepath.Join(directory, "chat_template.jinja")
	copied := func(from, to string) {
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	copied("../testdata/templates/texts/Qwen3-VL-30B-A3B-Instruct-Q8_0.jinja", template)
	tk := Tokenizer{File: "../testdata/exact/vision.json", ChatTemplate: template}
	reason := func() string {
		made, err := tk.provision(caddy.NewReplacer())
		if err != nil {
			t.Fatal(err)
		}
		if made.inexact == nil {
			return ""
		}
		return made.inexact.Error()
	}
	if got := reason(); got != "" {
		t.Errorf("without a file: %s", got)
	}
	known := `{"image_processor_type":"Qwen2VLImageProcessor","patch_size":14,"merge_size":2,"min_pixels":3136,"max_pixels":12845056}`
	gemma := `{"image_processor_type":"Gemma3ImageProcessor","image_seq_length":256}`
	for _, c := range []struct{ preprocessor, processor, want string }{
		{`{"image_processor_type":"another"}`, "", "preprocessor_config.json: "},
		{`{`, "", "preprocessor_config.json: "},
		{gemma, "", "preprocessor_config.json: "}, // its marks are not in the tokenizer
		{`{"image_processor_type":"another"}`, `{`, "/processor_config.json: "},
		{`{"image_processor_type":"another"}`, known, ""},
		{known, "", ""},
	} {
		for name, content := range map[string]string{"preprocessor_config.json": c.preprocessor, "processor_config.json": c.processor} {
			file := filepath.Join(directory, name)
			_ = os.Remove(file)
			if content == "" {
				continue
			}
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := reason(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s and %s: %q, want %q", c.preprocessor, c.processor, got, c.want)
		}
	}
}
