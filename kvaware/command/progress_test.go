// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestTheBarShowsHowFarItIsInOneLine(t *testing.T) {
	var b bytes.Buffer
	now := time.Unix(1000, 0)
	p := &progress{w: &b, now: func() time.Time { return now }, width: func() int { return 60 }}
	p.expect(4)
	p.say("finding out\x1b")
	first, second := p.begin("first"), p.begin("second")
	last := func() string {
		lines := strings.Split(b.String(), "\r\x1b[K")
		return lines[len(lines)-1]
	}
	pass := func(d time.Duration) { now = now.Add(d) }
	pass(10 * time.Second)
	first.at(50, 100)
	if got := last(); !strings.Contains(got, " 12 %") || !strings.Contains(got, "0 of 4 runs, 1m10s left") {
		t.Errorf("half of one of four: %q", got)
	}
	shownBefore := b.Len()
	second.at(1, 100)
	if b.Len() != shownBefore {
		t.Error("printed twice at one time")
	}
	pass(time.Second)
	first.ended()
	pass(time.Second)
	second.ended()
	if got := last(); !strings.Contains(got, " 50 %") || !strings.Contains(got, "2 of 4 runs") {
		t.Errorf("two of four: %q", got)
	}
	for line := range strings.SplitSeq(b.String(), "\r\x1b[K") {
		if n := utf8.RuneCountInString(line); n > 59 || strings.ContainsAny(line, "\n\x1b") {
			t.Errorf("%q is %d wide", line, n)
		}
	}
	p.clear()
	if got := last(); got != "" {
		t.Errorf("left behind: %q", got)
	}
}

func TestWithoutATerminalThereIsNoBar(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b)
	if p != nil {
		t.Fatal("a bar in a buffer")
	}
	p.expect(1)
	p.say("something")
	r := p.begin("it")
	r.at(1, 2)
	r.ended()
	p.clear()
	if b.Len() > 0 {
		t.Errorf("printed %q", b.String())
	}
}
