// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// progress is a bar on a terminal. All of it works on nil, which shows nothing.
type progress struct {
	w     io.Writer
	width func() int
	now   func() time.Time

	// mu guards what follows. Runs on several cores report to it.
	mu      sync.Mutex
	runs    int     // in all
	ended   int     // of these
	parts   float64 // of the runs under way, as shares of a run
	text    string
	began   time.Time
	printed time.Time
}

// newProgress returns nil if w is no terminal.
func newProgress(w io.Writer) *progress {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	return &progress{w: w, now: time.Now, width: func() int {
		wide, _, err := term.GetSize(int(file.Fd()))
		if err != nil {
			return 80
		}
		return wide
	}}
}

func (p *progress) expect(runs int) {
	if p != nil {
		p.runs = runs
	}
}

// say tells what is done now.
func (p *progress) say(text string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = text
	p.print(true)
}

// runProgress is that of a run.
type runProgress struct {
	all  *progress
	part float64
}

func (p *progress) begin(text string) *runProgress {
	if p == nil {
		return &runProgress{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.began.IsZero() { // what was found out before tells nothing of how long runs take
		p.began = p.now()
	}
	p.text = text
	p.print(false)
	return &runProgress{all: p}
}

func (r *runProgress) at(ended, of int) {
	if r.all != nil && of > 0 {
		r.move(min(float64(ended)/float64(of), 1), 0)
	}
}

func (r *runProgress) ended() {
	if r.all != nil {
		r.move(0, 1)
	}
}

func (r *runProgress) move(part float64, runs int) {
	p := r.all
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parts += part - r.part
	r.part = part
	p.ended += runs
	p.print(false)
}

// print is called with mu held. Ten times a second are enough.
func (p *progress) print(now bool) {
	at := p.now()
	if !now && at.Sub(p.printed) < 100*time.Millisecond {
		return
	}
	p.printed = at
	const long = 24
	share := min((float64(p.ended)+p.parts)/float64(max(p.runs, 1)), 1)
	full := int(share * long)
	line := fmt.Sprintf("[%s%s] %3.0f %%  %d of %d runs", strings.Repeat("#", full), strings.Repeat(".", long-full), 100*share, p.ended, p.runs)
	if passed := at.Sub(p.began); !p.began.IsZero() && share > 0.01 && passed > 2*time.Second {
		left := time.Duration(float64(passed) * (1 - share) / share)
		line += fmt.Sprintf(", %v left", left.Round(time.Second))
	}
	line += "  " + shown(p.text)
	for room := p.width() - 1; utf8.RuneCountInString(line) > max(room, 1); {
		_, size := utf8.DecodeLastRuneInString(line)
		line = line[:len(line)-size]
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", line)
}

// clear takes the bar away.
func (p *progress) clear() {
	if p != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
