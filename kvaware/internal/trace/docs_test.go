// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

const manual = "../../../docs/traces.md"

// table is the manual's list of generators.
func table() string {
	var b strings.Builder
	b.WriteString("| name | what | parameters and their defaults |\n|---|---|---|\n")
	for _, g := range Generators {
		var params []string
		for _, p := range g.Params {
			params = append(params, fmt.Sprintf("`%s` %g: %s", p.Name, p.Value, p.Meaning))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", g.Name, g.Summary, strings.Join(params, "; "))
	}
	return b.String()
}

func TestTheManualHasEveryFieldAndGenerator(t *testing.T) {
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	if want := table(); !strings.Contains(string(text), want) {
		t.Errorf("the manual's table of generators should be\n%s", want)
	}
	line := reflect.TypeFor[Line]()
	for i := range line.NumField() {
		name, _, _ := strings.Cut(line.Field(i).Tag.Get("json"), ",")
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("the manual does not tell of %s", name)
		}
	}
}
