// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"
)

// fuzzOptions makes options of a few bits.
func fuzzOptions(bits uint16) Options {
	o := Options{
		Sequences:      int(bits & 3),
		Choices:        int(bits >> 2 & 1),
		Streamed:       bits>>3&1 == 1,
		Pooling:        bits>>4&7 == 7,
		RoleStarts:     bits>>7&1 == 1,
		TokensPerDelta: float64(bits >> 8 & 3),
		OutputIDs:      bits>>14&1 == 1,
	}
	switch bits >> 10 & 15 {
	case 1:
		o.Status = 500
	case 2:
		o.ContentEncoding = "gzip"
	case 3, 4:
		o.ContentType = "application/x-ndjson"
	}
	return o
}

// delivery is a body observed whole, to compare others with.
type delivery struct {
	options Options
	body    []byte
	clean   bool
	summary Summary
	told    string
	ids     []uint32
	o       Observer
}

// observeWhole also requires what must hold for any input.
func observeWhole(t *testing.T, options Options, body []byte, clean bool) *delivery {
	t.Helper()
	d := &delivery{options: options, body: body, clean: clean}
	r := newRecord(t)
	d.o.Reset(options, r)
	d.o.Write(body)
	d.summary, d.told = d.o.End(clean), r.told()
	d.ids = slices.Clone(d.o.OutputIDs())
	s := d.summary
	if r.sum() != s.Generated {
		t.Fatalf("the sink was told of %d tokens, the summary of %d", r.sum(), s.Generated)
	}
	if s.Generated < 0 || s.PromptTokens < -1 || s.CachedTokens < -1 || s.Deltas < s.OutputEvents || s.Events < s.OutputEvents {
		t.Fatalf("%+v", s)
	}
	if s.EndedNormally && s.Failed {
		t.Fatalf("%+v", s)
	}
	held := int(unsafe.Sizeof(d.o)) + cap(d.o.tally.sequences)*int(unsafe.Sizeof(sequence{}))
	if held > 16<<10 {
		t.Fatalf("%d bytes held", held)
	}
	if n := len(d.ids); n > 0 && (!options.OutputIDs || n != s.Generated || !s.Counted) || cap(d.o.ids.ids) > 8+2*len(body) {
		t.Fatalf("%d ids, room for %d: %+v", n, cap(d.o.ids.ids), s)
	}
	return d
}

func (r *record) told() string {
	last := r.sum()
	return fmt.Sprint(r.started, r.finished, last)
}

// same requires that the pieces that cut makes give the same.
func (d *delivery) same(t *testing.T, cut func(rest int) int) {
	t.Helper()
	r := newRecord(t)
	d.o.Reset(d.options, r)
	for rest := d.body; len(rest) > 0; {
		n := min(max(cut(len(rest)), 1), len(rest))
		d.o.Write(rest[:n])
		rest = rest[n:]
	}
	if got := d.o.End(d.clean); got != d.summary {
		t.Fatalf("pieces give %+v\nthe whole %+v", got, d.summary)
	}
	if ids := d.o.OutputIDs(); !slices.Equal(ids, d.ids) {
		t.Fatalf("pieces give the ids %v, the whole %v", ids, d.ids)
	}
	if told := r.told(); told != d.told {
		t.Fatalf("pieces tell %s, the whole %s", told, d.told)
	}
}

// cutInTwo requires that no place to cut the body changes anything.
func (d *delivery) cutInTwo(t *testing.T) {
	t.Helper()
	for at := 1; at < len(d.body); at += 1 + len(d.body)/1000 {
		next := at
		d.same(t, func(rest int) int {
			n := next
			next = rest
			return n
		})
	}
}

func TestACutAtAnyByteChangesNothing(t *testing.T) {
	for _, x := range loadCases(t) {
		observeWhole(t, x.options(), x.body, true).cutInTwo(t)
	}
	for _, x := range shapeTests {
		observeWhole(t, x.options, []byte(x.body), !x.cut).cutInTwo(t)
	}
	for _, x := range outputIDTests {
		observeWhole(t, wantsIDs, []byte(x.body), !x.cut).cutInTwo(t)
	}
}

func FuzzObserver(f *testing.F) {
	for i, x := range loadCases(f) {
		f.Add(x.body, uint64(i), uint16(i), i%2 == 0)
	}
	for i, x := range shapeTests {
		f.Add([]byte(x.body), uint64(i), uint16(x.options.Sequences), !x.cut)
	}
	for i, x := range outputIDTests {
		f.Add([]byte(x.body), uint64(i), uint16(1<<14|1), !x.cut)
	}
	f.Fuzz(func(t *testing.T, body []byte, seed uint64, bits uint16, clean bool) {
		chance := rand.New(rand.NewPCG(seed, 1))
		d := observeWhole(t, fuzzOptions(bits), body, clean)
		d.same(t, func(int) int { return 1 + chance.IntN(1+chance.IntN(40)) })
	})
}

// FuzzSSESplit cuts an event stream in two at every byte, and into single
// bytes.
func FuzzSSESplit(f *testing.F) {
	for _, x := range loadCases(f) {
		f.Add(x.body)
	}
	for _, x := range shapeTests {
		f.Add([]byte(x.body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		body = body[:min(len(body), 1<<9)]
		d := observeWhole(t, Options{Sequences: 2, RoleStarts: true}, body, false)
		d.same(t, func(int) int { return 1 })
		d.cutInTwo(t)
	})
}
