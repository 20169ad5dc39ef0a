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
