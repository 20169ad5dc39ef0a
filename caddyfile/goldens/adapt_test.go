// SPDX-License-Identifier: Apache-2.0

// Package goldens runs the Caddyfile goldens against the whole plugin. It stands
// apart from package caddyfile because it links every standard module of Caddy:
// coverage-guided fuzzing of the readers would then watch all of them, and run
// a hundred times slower.
package goldens

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/kvaware/caddy-kvaware/kvaware"
)

var update = flag.Bool("update", false, "rewrite the JSON of the goldens that adapt; read the diff before it is committed")

const (
	goldens   = "../../testdata/caddyfile/*.caddyfiletest"
	separator = "\n----------\n"
)

// TestCaddyfilesAdaptToTheirGoldens runs each golden of testdata/caddyfile: a
// Caddyfile, a line of dashes, then the JSON that it adapts to, or a part of the
// error that it must end in.
func TestCaddyfilesAdaptToTheirGoldens(t *testing.T) {
	files, err := filepath.Glob(goldens)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("no golden matches %s", goldens)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, found := strings.Cut(string(content), separator)
			want = strings.TrimSpace(want)
			if !found || want == "" {
				t.Fatal("a golden is a Caddyfile, a line of ten dashes, and JSON or a part of an error")
			}
			got, err := adapt(input + "\n")
			if !strings.HasPrefix(want, "{") {
				checkError(t, err, want)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got == want {
				return
			}
			if *update {
				if err := os.WriteFile(file, []byte(input+separator+got+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("%s\nthe whole JSON:\n%s", firstDifference(got, want), got)
		})
	}
}

// adapt returns the JSON as the goldens have it. Warnings count as errors: one
// comes from a Caddyfile that `caddy fmt` would change.
func adapt(input string) (string, error) {
	adapted, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(input), nil)
	if err != nil {
		return "", err
	}
	if len(warnings) > 0 {
		return "", fmt.Errorf("warnings: %v", warnings)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, adapted, "", "\t"); err != nil {
		return "", err
	}
	return indented.String(), nil
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil {
		t.Errorf("it adapts, and should not: want %s", want)
	} else if !strings.Contains(err.Error(), want) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func firstDifference(got, want string) string {
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		g, w := "(end)", "(end)"
		if i < len(gotLines) {
			g = gotLines[i]
		}
		if i < len(wantLines) {
			w = wantLines[i]
		}
		if g != w {
			return fmt.Sprintf("line %d of the JSON\ngot  %s\nwant %s", i+1, g, w)
		}
	}
	return "no difference"
}
