// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"
)

// mooncakeBlock is the block size of Mooncake's traces, in tokens.
const mooncakeBlock = 512

type mooncakeLine struct {
	Timestamp *float64 `json:"timestamp"` // milliseconds
	Input     *int     `json:"input_length"`
	Output    *int     `json:"output_length"`
	IDs       []uint64 `json:"hash_ids"`
}

// flat reads a file of requests that come at recorded times, in their order.
// Requests of one timestamp are spread at random over the time to the next one:
// the file's clock is coarser than its requests were.
type flat struct {
	lines *lines
	parse func(*lines, []byte) (*row, error)
	link  *linker
	rng   *rand.Rand
	ended bool
	batch []*Session // with their times, to be given out
	last  time.Duration
}

// newMooncake reads the JSONL of Mooncake's traces (github.com/kvcache-ai/Mooncake,
// FAST'25): timestamp in milliseconds, input_length and output_length in tokens, and
// hash_ids, one for each 512 tokens of the prompt, the last of which may be of fewer.
func newMooncake(r io.ReadCloser, seed uint64) Source {
	return &flat{lines: newLines(r), parse: parseMooncake, link: newLinker(), rng: chance(seed, 1)}
}

func parseMooncake(l *lines, line []byte) (*row, error) {
	var m mooncakeLine
	if err := json.Unmarshal(line, &m); err != nil {
		return nil, l.wrong("not a Mooncake request", `a line is like {"timestamp":0,"input_length":600,"output_length":9,"hash_ids":[0,1]}`, err)
	}
	if m.Timestamp == nil || m.Input == nil || m.Output == nil {
		return nil, l.wrong("timestamp, input_length or output_length is missing", "give all of them", nil)
	}
	at, err := l.seconds("a timestamp", *m.Timestamp/1000)
	if err != nil {
		return nil, err
	}
	prompt, output, err := l.lengths(*m.Input, *m.Output)
	if err != nil {
		return nil, err
	}
	if len(m.IDs) > (prompt+mooncakeBlock-1)/mooncakeBlock {
		return nil, l.wrong("more hash_ids than blocks of 512 tokens in the prompt", "give one for each", nil)
	}
	return &row{at: at, prompt: prompt, output: output, ids: m.IDs, size: mooncakeBlock}, nil
}

// maxBatch is how many sessions of one timestamp are spread; where there are more,
// it is not the clock's grain that has them come at once.
const maxBatch = 1024

func (f *flat) Close() error { return f.lines.Close() }

func (f *flat) fill() error {
	for !f.ended && !f.link.full() {
		line, err := f.lines.next()
		if err == io.EOF {
			f.ended = true
			return nil
		}
		if err != nil {
			return err
		}
		r, err := f.parse(f.lines, line)
		if err != nil {
			return err
		}
		if r == nil {
			continue
		}
		if r.at < f.last && !r.follows {
			return f.lines.wrong("earlier than the line before it", "sort the lines by time", nil)
		}
		if !r.follows {
			f.last = r.at
		}
		f.link.add(r)
	}
	return nil
}

func (f *flat) Next() (*Session, error) {
	if len(f.batch) == 0 {
		if err := f.gather(); err != nil {
			return nil, err
		}
	}
	s := f.batch[0]
	f.batch = f.batch[1:]
	return s, nil
}

// gather takes the sessions of one timestamp.
func (f *flat) gather() error {
	f.batch = f.batch[:0]
	for {
		if err := f.fill(); err != nil {
			return err
		}
		if len(f.link.window) == 0 {
			break
		}
		r := f.link.window[0]
		n := len(f.batch)
		if r.follows && n > 0 {
			s := f.batch[n-1]
			if len(s.Turns) == maxTurns {
				return f.lines.wrong("too many turns in a session, some lines before", fmt.Sprintf("it may have %d", maxTurns), nil)
			}
			s.Turns = append(s.Turns, f.link.take().turn())
			continue
		}
		if n > 0 && r.at > f.batch[0].Start {
			f.spread(r.at)
			break
		}
		if n == maxBatch {
			break
		}
		f.link.take()
		f.batch = append(f.batch, &Session{ID: r.session, Tenant: r.tenant, Start: r.at, Update: r.update, Turns: []Turn{r.turn()}})
	}
	if len(f.batch) == 0 {
		return io.EOF
	}
	return nil
}

func (f *flat) spread(until time.Duration) {
	if len(f.batch) < 2 {
		return
	}
	from := f.batch[0].Start
	// A gap of hours is not the clock's grain.
	width := min(until-from, time.Minute)
	offsets := make([]time.Duration, len(f.batch))
	for i := range offsets {
		offsets[i] = time.Duration(f.rng.Float64() * float64(width))
	}
	slices.Sort(offsets)
	for i, s := range f.batch {
		s.Start += offsets[i]
	}
}
