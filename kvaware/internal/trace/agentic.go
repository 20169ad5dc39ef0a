// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"time"
)

// agenticBlock is the block size of the multi-turn agent traces, in tokens.
const agenticBlock = 64

type agenticLine struct {
	Session string      `json:"session"`
	At      *float64    `json:"t"` // seconds since the session's start
	Input   *int        `json:"input_length"`
	Output  *int        `json:"output_length"`
	Shared  int         `json:"shared_prefix"` // tokens
	Blocks  [][2]uint64 `json:"blocks"`        // runs [first, count]
	API     *float64    `json:"api_time"`      // seconds
}

// agentic reads sessions of agents: the rows of a session stand together, the ids
// of blocks are a session's own, but for those of the first shared_prefix tokens,
// which sessions of an equal shared_prefix have in common. The file does not say
// when sessions start: they come at random, one a second on average.
//
// A turn's think time is what is left of the time since the turn before it when
// that one's api_time is taken off. Where that is not recorded it is taken for the
// time that the output takes at a usual pace.
type agentic struct {
	lines   *lines
	arrive  poisson
	maxIdle time.Duration
	again   func() (io.ReadCloser, error) // opens the file anew; nil if it is read once
	held    *agentTurn                    // read, of the next session
	ended   bool
	serial  uint64
}

type agentTurn struct {
	session string
	at, api time.Duration
	turn    Turn
	ids     []Segment // by block: Seed is the first id, Tokens the number of blocks
	shared  int
}

const usualStart = 2 * time.Second // to the first token of an agent's answer

func newAgentic(r io.ReadCloser, seed uint64, maxIdle time.Duration, again func() (io.ReadCloser, error)) Source {
	return &agentic{lines: newLines(r), arrive: poisson{rng: chance(seed, 1), rate: 1}, maxIdle: maxIdle, again: again}
}

func (a *agentic) Close() error { return a.lines.Close() }

func (a *agentic) reopen() error {
	if err := a.lines.Close(); err != nil {
		return err
	}
	r, err := a.again()
	if err != nil {
		return err
	}
	a.lines, a.ended = newLines(r), false
	return nil
}

func (a *agentic) read() (*agentTurn, error) {
	line, err := a.lines.next()
	if err != nil {
		return nil, err
	}
	l := a.lines
	var m agenticLine
	if err := json.Unmarshal(line, &m); err != nil {
		return nil, l.wrong("not an agent's turn", `a line is like {"session":"a","t":0,"input_length":130,"output_length":9,"shared_prefix":64,"blocks":[[1,2]]}`, err)
	}
	if m.Session == "" || m.At == nil || m.Input == nil || m.Output == nil {
		return nil, l.wrong("session, t, input_length or output_length is missing", "give all of them", nil)
	}
	t := &agentTurn{session: m.Session}
	if t.at, err = l.seconds("a time since the session's start", *m.At); err != nil {
		return nil, err
	}
	if t.turn.Prompt, t.turn.Output, err = l.lengths(*m.Input, *m.Output); err != nil {
		return nil, err
	}
	t.api = usualStart + time.Duration(t.turn.Output)*usualToken
	if m.API != nil {
		if t.api, err = l.seconds("an api_time", *m.API); err != nil {
			return nil, err
		}
	}
	if m.Shared < 0 || m.Shared > maxTokens {
		return nil, l.wrong(fmt.Sprintf("a shared_prefix of %d tokens", m.Shared), fmt.Sprintf("it must be from 0 to %d", maxTokens), nil)
	}
	t.shared = m.Shared / agenticBlock
	blocks := t.turn.Prompt / agenticBlock
	for _, run := range m.Blocks {
		if run[1] > uint64(blocks) || run[0] > 1<<40 {
			return nil, l.wrong("more blocks than 64 tokens each in the prompt", "give the runs as [first, count]", nil)
		}
		blocks -= int(run[1])
		if run[1] == 0 {
			continue
		}
		if n := len(t.ids); n > 0 && t.ids[n-1].Seed+uint64(t.ids[n-1].Tokens) == run[0] {
			t.ids[n-1].Tokens += int(run[1])
		} else {
			t.ids = append(t.ids, Segment{Seed: run[0], Tokens: int(run[1])})
		}
	}
	return t, nil
}

func (a *agentic) Next() (*Session, error) {
	if a.held == nil && a.ended && a.again != nil && a.serial > 0 {
		if err := a.reopen(); err != nil {
			return nil, err
		}
	}
	if a.held == nil && !a.ended {
		t, err := a.read()
		if err == io.EOF {
			a.ended = true
		} else if err != nil {
			return nil, err
		}
		a.held = t
	}
	if a.held == nil {
		return nil, io.EOF
	}
	a.serial++
	turns := []*agentTurn{a.held}
	a.held = nil
	for {
		t, err := a.read()
		if err == io.EOF {
			a.ended = true
			break
		}
		if err != nil {
			return nil, err
		}
		if t.session != turns[0].session {
			a.held = t
			break
		}
		if len(turns) == maxTurns {
			return nil, a.lines.wrong("too many turns in a session", fmt.Sprintf("it may have %d", maxTurns), nil)
		}
		turns = append(turns, t)
	}
	return a.assemble(turns), nil
}

// number stands for a session's name.
func number(name string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, name) // a hash takes all
	return h.Sum64()
}

// assemble makes a session. One that stands in the file twice counts as two.
func (a *agentic) assemble(turns []*agentTurn) *Session {
	salt := mix(number(turns[0].session), a.serial, 2)
	s := &Session{ID: salt, Start: a.arrive.next(), Turns: make([]Turn, 0, len(turns))}
	texts := make([][]Segment, len(turns))
	for i, t := range turns {
		texts[i] = pad(t.text(salt), t.turn.Prompt, mix(salt, uint64(i), 3))
	}
	for i, t := range turns {
		turn := t.turn
		turn.Text = texts[i]
		if i > 0 {
			before := turns[i-1]
			turn.Think = max(0, t.at-before.at-before.api)
			if a.maxIdle > 0 {
				turn.Think = min(turn.Think, a.maxIdle)
			}
		}
		if i+1 < len(turns) && turns[i+1].repeats(t) {
			turn.Text = texts[i+1]
		}
		s.Turns = append(s.Turns, turn)
	}
	return s
}

// text names what the turn's blocks hold.
func (t *agentTurn) text(salt uint64) []Segment {
	text := make([]Segment, 0, len(t.ids)+2)
	left := t.shared
	for _, run := range t.ids {
		if common := min(left, run.Tokens); common > 0 {
			text = append(text, Segment{Seed: mix(uint64(t.shared), run.Seed, 4), Tokens: common * agenticBlock})
			left -= common
			run.Seed += uint64(common)
			run.Tokens -= common
		}
		if run.Tokens > 0 {
			text = append(text, Segment{Seed: mix(salt, run.Seed, 5), Tokens: run.Tokens * agenticBlock})
		}
	}
	return text
}

// repeats tells whether t's prompt begins with all of before's, and is long enough
// to hold its output as well.
func (t *agentTurn) repeats(before *agentTurn) bool {
	if t.turn.Prompt < before.turn.Prompt+before.turn.Output || len(t.ids) < len(before.ids) {
		return false
	}
	for i, run := range before.ids {
		other := t.ids[i]
		if other.Seed != run.Seed || other.Tokens < run.Tokens || other.Tokens > run.Tokens && i < len(before.ids)-1 {
			return false
		}
	}
	return len(before.ids) > 0
}
