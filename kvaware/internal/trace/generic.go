// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
)

// Line is a request in the project's own JSONL, which holds no text.
//
// Lines are in the order of their timestamps. A line with a think_time goes on with
// the session of the line before it, which must have the same session, and comes so
// long after that one's answer has ended, whatever its timestamp; so a file for a
// closed loop holds each session's lines together. A line without one comes at its
// timestamp.
type Line struct {
	Timestamp float64 `json:"timestamp"` // ms since any time
	Session   string  `json:"session,omitempty"`
	Tenant    int     `json:"tenant,omitempty"`
	Input     int     `json:"input_length"`  // prompt tokens
	Output    int     `json:"output_length"` // tokens generated
	// MaxTokens is the client's bound of the output; 0 if it set none.
	MaxTokens int `json:"max_tokens,omitempty"`
	// Stream is false where the client asked for the answer as a whole; absent it
	// is true.
	Stream *bool `json:"stream,omitempty"`
	// BlockSize is the number of prompt tokens that a hash stands for; absent it is
	// that of the line before, and 64 in the first.
	BlockSize int `json:"block_size,omitempty"`
	// Keep says that the prompt begins with so many blocks of the line before it,
	// whose hashes are then left out.
	Keep int `json:"keep,omitempty"`
	// Hashes name the prompt's blocks, each a hash of all up to its end, in at most
	// 16 hexadecimal digits. The last may stand for an incomplete block.
	Hashes []string `json:"block_hashes,omitempty"`
	// ThinkTime is the time in seconds from the end of the session's answer before.
	ThinkTime *float64 `json:"think_time,omitempty"`
	// Update says that new weights are loaded before: caches are cleared.
	Update bool `json:"update,omitempty"`
}

const genericExample = `a line is like {"timestamp":0,"input_length":130,"output_length":9,"block_size":64,"block_hashes":["1f","2e"]}`

func newGeneric(r io.ReadCloser, seed uint64) Source {
	g := &generic{size: 64}
	return &flat{lines: newLines(r), parse: g.parse, link: newLinker(), rng: chance(seed, 1)}
}

type generic struct {
	size   int
	before []uint64
	name   string
	begun  bool
	from   float64
}

func (g *generic) parse(l *lines, line []byte) (*row, error) {
	var m Line
	if err := json.Unmarshal(line, &m); err != nil {
		return nil, l.wrong("not a request", genericExample, err)
	}
	prompt, output, err := l.lengths(m.Input, m.Output)
	if err != nil {
		return nil, err
	}
	r := &row{prompt: prompt, output: output, tenant: m.Tenant, bound: m.MaxTokens, update: m.Update}
	if m.MaxTokens < 0 || m.MaxTokens > maxTokens {
		return nil, l.wrong(fmt.Sprintf("max_tokens of %d", m.MaxTokens), fmt.Sprintf("it must be from 0 to %d", maxTokens), nil)
	}
	r.whole = m.Stream != nil && !*m.Stream
	if m.BlockSize != 0 {
		g.size = m.BlockSize
	}
	if g.size < 1 || g.size > maxTokens {
		return nil, l.wrong(fmt.Sprintf("a block_size of %d tokens", g.size), fmt.Sprintf("it must be from 1 to %d", maxTokens), nil)
	}
	if !g.begun {
		g.from = m.Timestamp
	}
	if r.at, err = l.seconds("a timestamp, since the first,", (m.Timestamp-g.from)/1000); err != nil {
		return nil, err
	}
	if m.ThinkTime != nil {
		if !g.begun || m.Session != g.name {
			return nil, l.wrong("a think_time, but the line before it is of another session", "put a session's lines together, the first without think_time", nil)
		}
		r.follows = true
		if r.think, err = l.seconds("a think_time", *m.ThinkTime); err != nil {
			return nil, err
		}
	}
	g.begun, g.name = true, m.Session
	r.size = g.size
	if most := (prompt + g.size - 1) / g.size; m.Keep < 0 || m.Keep > len(g.before) || m.Keep+len(m.Hashes) > most {
		return nil, l.wrong(fmt.Sprintf("%d blocks kept of the %d of the line before it and %d hashes, for %d prompt tokens", m.Keep, len(g.before), len(m.Hashes), prompt),
			fmt.Sprintf("there may be one for every %d tokens", g.size), nil)
	}
	r.ids = append(make([]uint64, 0, m.Keep+len(m.Hashes)), g.before[:m.Keep]...)
	for _, hash := range m.Hashes {
		id, err := strconv.ParseUint(hash, 16, 64)
		if err != nil {
			return nil, l.wrong("not a hash", "give at most 16 hexadecimal digits", err)
		}
		r.ids = append(r.ids, id)
	}
	g.before = r.ids
	if m.Session != "" {
		r.session = number(m.Session)
	}
	return r, nil
}
