// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestTheDrawingHasADotForEachScoreAndABarForEachMean(t *testing.T) {
	r := example(2)
	for _, result := range r.Results {
		result.Policy = strings.Replace(result.Policy, "kv_aware", "<kv&aware>", 1)
	}
	r.Ours = ""
	var b bytes.Buffer
	if err := r.SVG(&b); err != nil {
		t.Fatal(err)
	}
	dots, bars := 0, 0
	for d := xml.NewDecoder(&b); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok {
			for _, a := range e.Attr {
				switch {
				case a.Name.Local == "class" && a.Value == "d":
					dots++
				case a.Name.Local == "class" && a.Value == "m":
					bars++
				case a.Name.Local == "href":
					t.Errorf("it refers to %q", a.Value)
				}
			}
		}
	}
	a := analyse(r)
	want := 0
	for _, c := range a.cells {
		for _, row := range c.Rows {
			if row.Score.Ratio > 0 {
				want++
			}
		}
	}
	if dots != want || bars != len(a.totals) || dots == 0 {
		t.Errorf("%d dots and %d bars, want %d and %d", dots, bars, want, len(a.totals))
	}
}
