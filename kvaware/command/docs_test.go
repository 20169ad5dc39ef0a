// SPDX-License-Identifier: Apache-2.0

package command

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestGuidesNameCommandsAndFlagsThatAreThere(t *testing.T) {
	parent := &cobra.Command{Use: "kv-aware"}
	addCommands(parent)
	paths, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Glob("../../examples/*/*")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, path := range append(append(paths, examples...), "../../README.md", "../../CHANGELOG.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // a folder
		}
		// Up to the end of the line or of what is quoted; lines may be continued.
		joined := strings.ReplaceAll(string(text), "\\\n", " ")
		for _, m := range regexp.MustCompile("caddy kv-aware ([a-z]+)([^\n`|<]*)").FindAllStringSubmatch(joined, -1) {
			cmd, _, err := parent.Find([]string{m[1]})
			if err != nil || cmd == parent {
				t.Errorf("%s: there is no caddy kv-aware %s", path, m[1])
				continue
			}
			found++
			for _, flag := range regexp.MustCompile(`(?:^| )--([a-z-]+)`).FindAllStringSubmatch(m[2], -1) {
				if cmd.Flags().Lookup(flag[1]) == nil {
					t.Errorf("%s: %s has no --%s", path, m[1], flag[1])
				}
			}
		}
	}
	if found < 15 {
		t.Errorf("only %d commands found", found)
	}
	// The README's table has a row for each.
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range parent.Commands() {
		if !strings.Contains(string(readme), "\n| `"+cmd.Name()) && !strings.Contains(string(readme), "caddy kv-aware "+cmd.Name()) {
			t.Errorf("%s is not in the README", cmd.Name())
		}
	}
}
