// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Options change what is read of a file.
type Options struct {
	// MaxIdle cuts the think times of a file of sessions, some of which go on after
	// a night; 0 stands for 5 minutes, negative for no limit.
	MaxIdle time.Duration
	// Requests is how many a run has, 0 if as many as the file. Only a file of
	// sessions, which is read over and over, has more.
	Requests int
}

// Load finds out which format a file has, reads it once, which tells what is wrong
// with it, and returns it as a trace named after it.
func Load(path string, o Options) (*Trace, error) {
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	open := func() (io.ReadCloser, error) {
		return os.Open(path) //nolint:gosec // the file that the caller names is what is wanted
	}
	return load(name, open, o)
}

func load(name string, open func() (io.ReadCloser, error), o Options) (*Trace, error) {
	if o.MaxIdle == 0 {
		o.MaxIdle = 5 * time.Minute
	}
	read, endless, err := format(open)
	if err != nil {
		return nil, err
	}
	begin := func(seed uint64, again bool) (Source, error) {
		r, err := open()
		if err != nil {
			return nil, err
		}
		if !again {
			return read(r, seed, o, nil), nil
		}
		return read(r, seed, o, open), nil
	}
	t := &Trace{Name: name, open: func(seed uint64) (Source, error) { return begin(seed, true) }}
	once, err := begin(0, false)
	if err != nil {
		return nil, err
	}
	if err := t.measure(once, 0); err != nil {
		return nil, err
	}
	if !endless {
		t.Life = 0
	}
	if o.Requests > 0 && (endless || o.Requests < t.Requests) {
		t.Requests = o.Requests
	}
	return t, nil
}

type reader func(r io.ReadCloser, seed uint64, o Options, again func() (io.ReadCloser, error)) Source

// format tells by the first line which reader a file needs, and whether that goes on
// without end.
func format(open func() (io.ReadCloser, error)) (_ reader, endless bool, _ error) {
	r, err := open()
	if err != nil {
		return nil, false, err
	}
	defer r.Close()
	head, err := bufio.NewReaderSize(r, 1<<20).Peek(1 << 20)
	if err != nil && err != io.EOF {
		return nil, false, &Error{Problem: "cannot be read", Err: err}
	}
	if head = bytes.TrimSpace(bytes.TrimPrefix(head, byteOrderMark)); len(head) == 0 {
		return nil, false, errNoRequests()
	}
	line, _, _ := bytes.Cut(head, []byte("\n"))
	has := func(key string) bool { return bytes.Contains(line, []byte(`"`+key+`"`)) }
	type again = func() (io.ReadCloser, error)
	switch {
	case bytes.HasPrefix(line, []byte("TIMESTAMP,")):
		return func(r io.ReadCloser, seed uint64, _ Options, _ again) Source { return newAzure(r, seed) }, false, nil
	case has("hash_ids"):
		return func(r io.ReadCloser, seed uint64, _ Options, _ again) Source { return newMooncake(r, seed) }, false, nil
	case has("session") && has("t") && has("blocks"):
		return func(r io.ReadCloser, seed uint64, o Options, open again) Source {
			return newAgentic(r, seed, o.MaxIdle, open)
		}, true, nil
	case has("timestamp") && has("input_length"):
		return func(r io.ReadCloser, seed uint64, _ Options, _ again) Source { return newGeneric(r, seed) }, false, nil
	}
	return nil, false, &Error{Line: 1, Problem: "a format that is not known",
		Remedy: "give a trace of Mooncake's, of agent sessions, Azure's CSV, or " + genericExample[len("a line is "):]}
}
