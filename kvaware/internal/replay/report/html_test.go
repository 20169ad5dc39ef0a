// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

func htmlOf(r *Replay) []byte {
	var b bytes.Buffer
	if err := r.HTML(&b); err != nil {
		panic(err)
	}
	return b.Bytes()
}

var void = []string{"meta", "br", "input"}

// parsed checks that every element is closed in order, and returns the attributes of
// all by name.
func parsed(t *testing.T, page []byte) map[string][]string {
	t.Helper()
	attributes := make(map[string][]string)
	var open []string
	for z := html.NewTokenizer(bytes.NewReader(page)); ; {
		switch z.Next() {
		case html.ErrorToken:
			if z.Err() != io.EOF {
				t.Fatal(z.Err())
			}
			if len(open) > 0 {
				t.Errorf("left open: %v", open)
			}
			return attributes
		case html.StartTagToken, html.SelfClosingTagToken:
			token := z.Token()
			for _, a := range token.Attr {
				attributes[a.Key] = append(attributes[a.Key], a.Val)
			}
			if token.Type == html.StartTagToken && !slices.Contains(void, token.Data) {
				open = append(open, token.Data)
			}
		case html.EndTagToken:
			token := z.Token()
			if len(open) == 0 || open[len(open)-1] != token.Data {
				t.Fatalf("</%s> closes %v", token.Data, open)
			}
			open = open[:len(open)-1]
		}
	}
}

func TestThePageIsWellFormedAndItsLinksLeadSomewhere(t *testing.T) {
	for seeds := range 3 {
		page := htmlOf(example(seeds + 1))
		attributes := parsed(t, page)
		ids := make(map[string]int)
		for _, id := range attributes["id"] {
			if ids[id]++; ids[id] > 1 {
				t.Errorf("two elements are %q", id)
			}
		}
		if len(attributes["href"]) == 0 {
			t.Error("no links")
		}
		for _, target := range slices.Concat(attributes["href"], attributes["aria-labelledby"]) {
			if ids[strings.TrimPrefix(target, "#")] == 0 {
				t.Errorf("%q leads nowhere", target)
			}
		}
	}
}

// A link to what stands in a closed details element opens it, one to the element
// itself does not.
func TestLinksOpenTheirCell(t *testing.T) {
	if page := htmlOf(example(1)); bytes.Contains(page, []byte("<details id")) || bytes.Count(page, []byte(`<div id="cell-`)) != 2 {
		t.Error("a link leads to a cell that stays closed")
	}
}

func TestThePageNeedsNoNetworkAndNoScript(t *testing.T) {
	page := htmlOf(example(2))
	for _, outside := range []string{`https?:`, `url\(`, `@import`, `src=`, `href="[^#]`, `<link`, `<script`, `<iframe`} {
		if found := regexp.MustCompile(outside).Find(page); found != nil {
			t.Errorf("%s in the page", found)
		}
	}
	if bytes.Contains(page, []byte("ZgotmplZ")) {
		t.Error("the template refused a value")
	}
}

func TestNamesAreEscaped(t *testing.T) {
	const evil = `<script>alert("1")</script>'&}</style>`
	r := example(2)
	r.Events = evil
	for i := range r.Policies {
		r.Policies[i].Name += evil
		r.Policies[i].Summary = evil
	}
	r.Ours += evil
	r.Traces[0].Name, r.Fleets[0].Name, r.Fleets[0].Summary = evil, evil, evil
	for _, result := range r.Results {
		result.Policy += evil
		result.Trace, result.Fleet = evil, evil
	}
	page := htmlOf(r)
	parsed(t, page)
	if bytes.Contains(page, []byte("<script")) || bytes.Count(page, []byte("</style>")) != 1 {
		t.Error("a name is markup")
	}
}

func TestThePlotsShowEveryPolicy(t *testing.T) {
	page := htmlOf(example(1))
	for class, want := range map[string]int{"line": 2 * 3 * 4, "bar": 2 * 4, "panel": 2 * 4} {
		if n := bytes.Count(page, []byte(`class="`+class+` `)); n != want {
			t.Errorf("%d of %s, not %d", n, class, want)
		}
	}
	if n := bytes.Count(page, []byte(`class="one"`)); n != 2*4*4 {
		t.Errorf("%d lines of replicas", n)
	}
	if n := bytes.Count(page, []byte(" peer\" d=")); n != 2*3 {
		t.Errorf("%d lines of the best peer", n)
	}
}

func TestOfALargeFleetThreeReplicasAreDrawn(t *testing.T) {
	r := example(1)
	r.Results = r.Results[:0]
	r.Results = append(r.Results, result(Cell{Trace: "chat", Load: 1}, "ours", 1, 1, 100, 50))
	if n := bytes.Count(htmlOf(r), []byte(`class="one"`)); n != 3 {
		t.Errorf("%d lines of 100 replicas", n)
	}
}

// large has so many of everything.
func large(cells, policies, replicas int) *Replay {
	r := &Replay{Ours: "policy0", Seeds: []uint64{1}, BlockSize: 64}
	points := Points(cells, policies, replicas)
	for i := range policies {
		r.Policies = append(r.Policies, Policy{Name: fmt.Sprint("policy", i), Peer: i > 0})
		for c := range cells {
			r.Results = append(r.Results, result(Cell{Trace: fmt.Sprint("trace", c), Load: 1}, r.Policies[i].Name, 1, 1+float64(i)/10, replicas, points))
		}
	}
	return r
}

func TestThePageStaysWithinAFewMegabytes(t *testing.T) {
	for _, n := range [][3]int{{1, 3, 8}, {12, 21, 8}, {36, 21, 32}, {1, 21, 1000}} {
		page := htmlOf(large(n[0], n[1], n[2]))
		t.Logf("%d cells, %d policies, %d replicas: %d points, %d kB", n[0], n[1], n[2], Points(n[0], n[1], n[2]), len(page)/1000)
		if len(page) > 4e6 {
			t.Errorf("%d bytes of %v", len(page), n)
		}
	}
}

func TestPathsLeadThroughTheirPoints(t *testing.T) {
	points := [][2]int{{3, 4}, {3, 4}, {10, -2}, {9, 0}, {0, 100}, {250, -30}}
	var d path
	for _, p := range points {
		d.to(p[0], p[1])
	}
	numbers := regexp.MustCompile(`-?\d+`).FindAllString(d.String(), -1)
	if len(numbers) != 2*len(points) {
		t.Fatalf("%s has %d numbers", d.String(), len(numbers))
	}
	x, y := 0, 0
	for i, p := range points {
		dx, _ := strconv.Atoi(numbers[2*i])
		dy, _ := strconv.Atoi(numbers[2*i+1])
		if x, y = x+dx, y+dy; x != p[0] || y != p[1] {
			t.Errorf("point %d of %s is %d %d", i, d.String(), x, y)
		}
	}
}

func TestStepsAreFewAndRound(t *testing.T) {
	for _, end := range []float64{0.1, 1, 7, 59.9, 100, 1234, 9e6} {
		for _, most := range []int{3, 6} {
			s := steps(end, most)
			if len(s) < 2 || len(s) > most+1 || s[0] != 0 || s[len(s)-1] > end*1.001 {
				t.Errorf("steps to %v are %v", end, s)
			}
		}
	}
}

func TestTicksHaveRoom(t *testing.T) {
	for low := 0.013; low < 1e7; low *= 1.7 {
		for _, span := range []float64{1.5, 3, 10, 100, 1e5} {
			ticks := timeTicks(low, low*span, scale(math.Log(low), math.Log(low*span), 48, 398))
			for i := 1; i < len(ticks); i++ {
				if ticks[i].At-ticks[i-1].At < 40 {
					t.Fatalf("from %v to %v: %v", low, low*span, ticks)
				}
			}
			if span > 1.9 && len(ticks) == 0 {
				t.Errorf("from %v to %v: none", low, low*span)
			}
		}
	}
}

func BenchmarkHTML(b *testing.B) {
	r := large(12, 21, 8)
	b.ReportAllocs()
	for b.Loop() {
		htmlOf(r)
	}
}
