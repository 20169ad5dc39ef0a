// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"
)

// Bounds of what a line may say, so that sums of a whole trace stay exact and no
// line asks for more memory than a long prompt needs.
const (
	maxLine    = 16 << 20 // bytes
	maxTokens  = 1 << 24  // of a prompt or an output
	maxSeconds = 1e8      // of a time
	maxTurns   = 100_000  // of a session
)

// Error says what is wrong with a trace, where, and what to do about it.
type Error struct {
	Line    int    // from 1; 0 if it is of no line
	Problem string // what is wrong
	Remedy  string // what would be right
	Err     error  // its cause, nil if none
}

func (e *Error) Error() string {
	msg := e.Problem
	if e.Line > 0 {
		msg = fmt.Sprintf("line %d: %s", e.Line, msg)
	}
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	if e.Remedy != "" {
		msg += "; " + e.Remedy
	}
	return msg
}

func (e *Error) Unwrap() error { return e.Err }

func errNoRequests() *Error {
	return &Error{Problem: "no requests", Remedy: "give a trace that has some"}
}

// byteOrderMark is what spreadsheets and Windows editors put before UTF-8.
var byteOrderMark = []byte("\xef\xbb\xbf")

// lines reads a file line by line.
type lines struct {
	r  *bufio.Reader
	c  io.Closer
	n  int
	at []byte // scratch of lines longer than the reader's buffer
}

func newLines(r io.ReadCloser) *lines { return &lines{r: bufio.NewReaderSize(r, 64<<10), c: r} }

func (l *lines) Close() error { return l.c.Close() }

// next returns the next line that is not empty, valid until the call after it.
func (l *lines) next() ([]byte, error) {
	for {
		line, err := l.r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			l.at = append(l.at[:0], line...)
			for errors.Is(err, bufio.ErrBufferFull) && len(l.at) <= maxLine {
				line, err = l.r.ReadSlice('\n')
				l.at = append(l.at, line...)
			}
			line = l.at
		}
		l.n++
		if len(line) > maxLine {
			return nil, l.wrong("too long", fmt.Sprintf("a line may have %d bytes", maxLine), nil)
		}
		if err != nil && err != io.EOF {
			return nil, l.wrong("cannot be read", "", err)
		}
		if l.n == 1 {
			line = bytes.TrimPrefix(line, byteOrderMark)
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
		if err == io.EOF {
			return nil, io.EOF
		}
	}
}

func (l *lines) wrong(problem, remedy string, err error) *Error {
	return &Error{Line: l.n, Problem: problem, Remedy: remedy, Err: err}
}

// lengths checks a request's. A prompt or output of no tokens counts as one of one
// token: engines compute at least that.
func (l *lines) lengths(prompt, output int) (int, int, error) {
	if prompt < 0 || prompt > maxTokens || output < 0 || output > maxTokens {
		return 0, 0, l.wrong(fmt.Sprintf("%d prompt and %d output tokens", prompt, output),
			fmt.Sprintf("each must be from 0 to %d", maxTokens), nil)
	}
	return max(prompt, 1), max(output, 1), nil
}

func (l *lines) seconds(what string, s float64) (time.Duration, error) {
	if !(s >= 0 && s <= maxSeconds) { // NaN is neither
		return 0, l.wrong(fmt.Sprintf("%s of %v seconds", what, s), fmt.Sprintf("it must be from 0 to %g", maxSeconds), nil)
	}
	return time.Duration(s * float64(time.Second)), nil
}
