// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"strings"
	"testing"
)

func TestMarkdownHasEveryRowOfTheTable(t *testing.T) {
	r := example(3)
	var b bytes.Buffer
	if err := r.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	columns := 0
	rows := 0
	for _, line := range strings.Split(b.String(), "\n") {
		n := strings.Count(line, "|")
		if n == 0 {
			columns = 0
			continue
		}
		if columns == 0 {
			columns = n
		}
		if rows++; n != columns || !strings.HasPrefix(line, "|") || !strings.HasSuffix(line, "|") {
			t.Errorf("%q is no row of %d columns", line, columns-1)
		}
	}
	a := analyse(r)
	want := len(a.totalRows()) + 1 + len(a.pairRows()) + 1
	for _, c := range a.cells {
		want += len(a.cellRows(c)) + 1
	}
	if rows != want {
		t.Errorf("%d rows, want %d, in\n%s", rows, want, b.String())
	}
}

func TestNamesFromOutsideAreNoMarkup(t *testing.T) {
	r := example(1)
	for _, result := range r.Results {
		result.Trace = "<b>a|b*`_\n# x"
	}
	var b bytes.Buffer
	if err := r.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(b.String(), "\n") {
		if strings.HasPrefix(line, "#") || strings.Contains(line, "<b") && !strings.Contains(line, "\\<b") {
			t.Errorf("%q", line)
		}
	}
}
