// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"
)

// small is an engine of which everything can be counted by hand: blocks of 4
// tokens and steps of a second.
func small(change func(*Params)) Params {
	p := Params{Pace: Pace{Step: 1}, Speed: 1, BlockSize: 4, Blocks: 100, MaxSeqs: 8, MaxBatchedTokens: 64}
	if change != nil {
		change(&p)
	}
	return p
}

// journal records what happens, one line an event.
type journal struct {
	names map[*Sequence]string
	lines []string
	mute  bool // of tokens
}

func (j *journal) add(what string, s *Sequence, at time.Duration) {
	j.lines = append(j.lines, fmt.Sprintf("%v %s %s", at, j.names[s], what))
}
func (j *journal) Admitted(s *Sequence, at time.Duration)  { j.add("admitted", s, at) }
func (j *journal) Preempted(s *Sequence, at time.Duration) { j.add("preempted", s, at) }
func (j *journal) Started(s *Sequence, at time.Duration)   { j.add("started", s, at) }
func (j *journal) Finished(s *Sequence, at time.Duration)  { j.add("finished", s, at) }
func (j *journal) Generated(s *Sequence, at time.Duration) {
	if !j.mute {
		j.add(fmt.Sprintf("token %d", s.Generated()), s, at)
	}
}

func newEngine(t testing.TB, p Params, sink Sink) *Engine {
	t.Helper()
	e, err := New(p, sink)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func submit(t testing.TB, e *Engine, now time.Duration, seqs ...*Sequence) {
	t.Helper()
	for _, s := range seqs {
		if err := e.Submit(now, s); err != nil {
			t.Fatal(err)
		}
	}
}

// drain runs the engine until it is idle and returns when that is.
func drain(e *Engine, now time.Duration) time.Duration {
	for {
		next, busy := e.Advance(now)
		if !busy {
			return now
		}
		now = next
	}
}

// chain returns the hashes of n blocks of a text of its own.
func chain(text, n int) []uint64 {
	hashes := make([]uint64, n)
	for i := range hashes {
		hashes[i] = uint64(text)<<32 | uint64(i+1)
	}
	return hashes
}

func prompt(text, tokens, output, blockSize int) *Sequence {
	return &Sequence{Prompt: tokens, Output: output, Blocks: chain(text, tokens/blockSize)}
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		var g, w string
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Fatalf("event %d is %q, want %q\nall: %q", i, g, w, got)
		}
	}
}

func TestEachTokenAppearsAtTheEndOfItsStep(t *testing.T) {
	s := prompt(1, 10, 3, 4)
	j := &journal{names: map[*Sequence]string{s: "a"}}
	e := newEngine(t, small(nil), j)
	submit(t, e, seconds(5), s)
	drain(e, seconds(5))
	wantLines(t, j.lines,
		"5s a admitted", "6s a started", "6s a token 1", "7s a token 2", "8s a token 3", "8s a finished")
	if s.Arrived != seconds(5) || s.Admitted != seconds(5) || s.First != seconds(6) || s.Finished != seconds(8) {
		t.Errorf("reported %v %v %v %v", s.Arrived, s.Admitted, s.First, s.Finished)
	}
	if s.Generated() != 3 {
		t.Errorf("generated %d", s.Generated())
	}
}

func TestAStepTakesTheTimeOfTheFormula(t *testing.T) {
	p := Default()
	e := newEngine(t, p, nil)
	s := prompt(1, 20_000, 4, p.BlockSize)
	submit(t, e, 0, s)

	want := 0.0
	step := func(prefilled, decodes, context int, pairs float64) time.Duration {
		want += 12e-3 + 50e-6*float64(prefilled+decodes) + 30e-9*float64(context) + 1e-9*pairs
		return time.Duration(want * 1e9)
	}
	ends := []time.Duration{
		step(8192, 0, 0, 8192*8192/2.),
		step(8192, 0, 0, 8192*(8192+16384)/2.),
		step(3616, 0, 0, 3616*(16384+20000)/2.),
		step(0, 1, 20_001, 0),
		step(0, 1, 20_002, 0),
		step(0, 1, 20_003, 0),
	}
	now := time.Duration(0)
	for i, end := range ends {
		next, busy := e.Advance(now)
		if diff := next - end; !busy || diff < -time.Microsecond || diff > time.Microsecond {
			t.Fatalf("step %d ends at %v (busy %v), want %v", i, next, busy, end)
		}
		now = next
	}
	if _, busy := e.Advance(now); busy {
		t.Error("busy after the last token")
	}
	if s.First != ends[2].Round(0) && math.Abs(float64(s.First-ends[2])) > 1000 {
		t.Errorf("first token at %v, want %v", s.First, ends[2])
	}
}

func TestTwiceTheSpeedTakesHalfTheTime(t *testing.T) {
	ends := make([]time.Duration, 2)
	for i := range ends {
		e := newEngine(t, small(func(p *Params) { p.Speed = float64(i + 1) }), nil)
		submit(t, e, 0, prompt(1, 10, 20, 4))
		ends[i] = drain(e, 0)
	}
	if ends[0] != 2*ends[1] {
		t.Errorf("%v at speed 1, %v at speed 2", ends[0], ends[1])
	}
}

func TestASlowedEngineIsSlowFromItsNextStepOn(t *testing.T) {
	e := newEngine(t, small(nil), nil)
	submit(t, e, 0, prompt(1, 10, 3, 4))
	e.Advance(0)
	e.SetSpeed(0.25)
	if end := drain(e, 0); end != seconds(1+4+4) {
		t.Errorf("ended at %v, want 9s", end)
	}
	e.SetSpeed(0)
	e.SetSpeed(math.NaN())
	if e.Params().Speed != 0.25 {
		t.Errorf("speed %v was taken", e.Params().Speed)
	}
}

func TestAPromptLongerThanTheBudgetIsPrefilledInChunks(t *testing.T) {
	e := newEngine(t, small(nil), nil)
	s := prompt(1, 150, 1, 4) // 64 + 64 + 22
	submit(t, e, 0, s)
	drain(e, 0)
	if s.First != seconds(3) {
		t.Errorf("first token at %v, want 3s", s.First)
	}
}

func TestDecodesGoOnWhileALongPromptIsPrefilled(t *testing.T) {
	early, long, late := prompt(1, 4, 10, 4), prompt(2, 127, 1, 4), prompt(3, 3, 1, 4)
	j := &journal{names: map[*Sequence]string{early: "early", long: "long", late: "late"}}
	e := newEngine(t, small(nil), j)
	submit(t, e, 0, early)
	e.Advance(0)
	submit(t, e, seconds(1), long, late)
	drain(e, seconds(1))
	// Of 64 tokens each step takes one for the decode. The long prompt needs
	// 63 + 63 + 1, and what the third step leaves goes to the late one.
	if long.First != seconds(4) || late.First != seconds(4) || late.Admitted != seconds(3) {
		t.Errorf("long at %v; late admitted at %v, first token at %v", long.First, late.Admitted, late.First)
	}
	if early.Finished != seconds(10) {
		t.Errorf("the decode ended at %v, want 10s: one token a step", early.Finished)
	}
}

func TestRequestsOfOneInstantShareAStep(t *testing.T) {
	e := newEngine(t, small(nil), nil)
	a, b, c := prompt(1, 8, 1, 4), prompt(2, 8, 1, 4), prompt(3, 8, 1, 4)
	submit(t, e, 0, a, b)
	e.Advance(0)
	submit(t, e, seconds(1)/2, c)
	drain(e, seconds(1)/2)
	if a.First != seconds(1) || b.First != seconds(1) || c.First != seconds(2) {
		t.Errorf("first tokens at %v %v %v", a.First, b.First, c.First)
	}
}

func TestNoMoreThanMaxSeqsRunAtOnce(t *testing.T) {
	e := newEngine(t, small(func(p *Params) { p.MaxSeqs = 2 }), nil)
	seqs := []*Sequence{prompt(1, 4, 5, 4), prompt(2, 4, 3, 4), prompt(3, 4, 1, 4)}
	submit(t, e, 0, seqs...)
	e.Advance(0)
	if st := e.Stats(); st.Running != 2 || st.Waiting != 1 {
		t.Errorf("%d run, %d wait", st.Running, st.Waiting)
	}
	drain(e, 0)
	if seqs[2].Admitted != seqs[1].Finished {
		t.Errorf("the third was admitted at %v, the second ended at %v", seqs[2].Admitted, seqs[1].Finished)
	}
}

func TestAPromptWaitsUntilItFitsAndNobodyOvertakes(t *testing.T) {
	e := newEngine(t, small(func(p *Params) { p.Blocks = 10 }), nil)
	first, big, tiny := prompt(1, 20, 4, 4), prompt(2, 32, 1, 4), prompt(3, 1, 1, 4)
	submit(t, e, 0, first, big, tiny)
	drain(e, 0)
	if big.Admitted != first.Finished {
		t.Errorf("the big one was admitted at %v, room was made at %v", big.Admitted, first.Finished)
	}
	if tiny.Admitted < big.Admitted {
		t.Errorf("the tiny one overtook: admitted at %v, the big one at %v", tiny.Admitted, big.Admitted)
	}
}

func TestAnImpossibleRequestIsRefused(t *testing.T) {
	e := newEngine(t, small(func(p *Params) { p.Blocks = 10 }), nil)
	for name, c := range map[string]struct {
		s    *Sequence
		want error
	}{
		"too long":        {prompt(1, 30, 11, 4), ErrTooLong},
		"overflow":        {&Sequence{Prompt: 1, Output: math.MaxInt}, ErrTooLong},
		"no prompt":       {&Sequence{Output: 1}, ErrInvalid},
		"no output":       {&Sequence{Prompt: 1}, ErrInvalid},
		"too many blocks": {&Sequence{Prompt: 7, Output: 1, Blocks: chain(1, 2)}, ErrInvalid},
	} {
		if err := e.Submit(0, c.s); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := prompt(1, 30, 10, 4)
	submit(t, e, 0, s)
	if err := e.Submit(0, s); !errors.Is(err, ErrInvalid) {
		t.Errorf("twice: %v", err)
	}
	drain(e, 0)
	submit(t, e, seconds(100), s) // it may come again when it is done
}

func TestACancelledRequestFreesItsRoomAtOnce(t *testing.T) {
	e := newEngine(t, small(func(p *Params) { p.Blocks = 10 }), nil)
	decoding, waiting := prompt(1, 24, 16, 4), prompt(2, 24, 1, 4)
	submit(t, e, 0, decoding, waiting)
	e.Advance(seconds(3))
	e.Cancel(seconds(3)+1, decoding)
	e.Cancel(seconds(3)+1, decoding) // idempotent
	drain(e, seconds(3)+1)
	// The step under way goes on: its other requests are in it.
	if waiting.Admitted != seconds(4) {
		t.Errorf("admitted at %v, want 4s", waiting.Admitted)
	}
	if st := e.Stats(); st.UsedBlocks != 0 || st.Running != 0 || st.Finished != 1 {
		t.Errorf("left over: %+v", st)
	}
	if decoding.Finished != 0 {
		t.Error("the cancelled request is reported as finished")
	}
}

func TestCancellingDuringPrefillOrInTheQueueLeavesNothing(t *testing.T) {
	e := newEngine(t, small(nil), nil)
	chunked, queued := prompt(1, 200, 5, 4), prompt(2, 30, 5, 4)
	submit(t, e, 0, chunked, queued)
	e.Advance(seconds(1))
	e.Cancel(seconds(1), queued)
	e.Cancel(seconds(1), chunked)
	if _, busy := e.Advance(seconds(2)); busy || e.Busy() {
		t.Error("busy with nothing to do")
	}
	if st := e.Stats(); st.UsedBlocks != 0 || st.GenerationTokens != 0 {
		t.Errorf("left over: %+v", st)
	}
	other := newEngine(t, small(nil), nil)
	other.Cancel(0, chunked) // not its own
	other.Cancel(0, &Sequence{})
}

func TestParametersThatMakeNoEngineAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Params){
		"block size":  func(p *Params) { p.BlockSize = 0 },
		"blocks":      func(p *Params) { p.Blocks = 0 },
		"many blocks": func(p *Params) { p.Blocks = math.MaxInt },
		"seqs":        func(p *Params) { p.MaxSeqs = 0 },
		"budget":      func(p *Params) { p.MaxBatchedTokens = p.MaxSeqs - 1 },
		"speed":       func(p *Params) { p.Speed = 0 },
		"speed NaN":   func(p *Params) { p.Speed = math.NaN() },
		"speed Inf":   func(p *Params) { p.Speed = math.Inf(1) },
		"pace":        func(p *Params) { p.Pace.Pair = -1 },
		"pace NaN":    func(p *Params) { p.Pace.Step = math.NaN() },
	} {
		if _, err := New(small(change), nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
}
