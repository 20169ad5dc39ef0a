// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/engine"
)

// TestTheRealClockKeepsThePaceOfTheVirtualOne sends the same requests to a
// replica, whose goroutine waits for timers, and to a bare engine that jumps from
// step to step.
func TestTheRealClockKeepsThePaceOfTheVirtualOne(t *testing.T) {
	params := engine.Default()
	params.Blocks, params.MaxSeqs, params.MaxBatchedTokens = 70, 8, 256
	const requests = 60
	gap := func(i int) time.Duration { return time.Duration(37+i*i%91) * time.Millisecond }
	read := func(i int) *call {
		body := fmt.Sprintf(`{"prompt":"%s","max_tokens":%d}`, fmt.Sprint(1000+i%7)+strings.Repeat("text", 20+i*53%700), 1+i*29%90)
		c, err := reading{blockSize: params.BlockSize}.readCall(completions, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	report := func(s *engine.Sequence) string {
		return fmt.Sprint(s.Arrived, s.Admitted, s.First, s.Finished, s.Cached, s.Preemptions)
	}

	var timed []string
	synctest.Test(t, func(t *testing.T) {
		r, err := newReplica(poolKey{params: params})
		if err != nil {
			t.Fatal(err)
		}
		h := &Handler{MaxModelLen: 3000, Output: 50, replica: r, now: time.Now}
		var jobs []*job
		for i := range requests {
			j, err := h.newJob(read(i), failure{})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.submit(j); err != nil {
				t.Fatal(err)
			}
			jobs = append(jobs, j)
			<-time.After(gap(i))
		}
		for _, j := range jobs {
			for !j.choices[0].done() {
				if !j.wait(t.Context()) {
					t.Fatal("interrupted")
				}
			}
			timed = append(timed, report(&j.choices[0].seq))
		}
		synctest.Wait()
		if r.stepping {
			t.Error("an idle engine has a goroutine")
		}
	})

	var virtual []string
	e, err := engine.New(params, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := &Handler{MaxModelLen: 3000, Output: 50, now: time.Now}
	var jobs []*job
	now := time.Duration(0)
	for i := range requests {
		j, err := h.newJob(read(i), failure{})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Submit(now, &j.choices[0].seq); err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, j)
		for end := now + gap(i); ; {
			next, busy := e.Advance(now)
			if !busy || next > end {
				now = end
				break
			}
			now = next
		}
	}
	for busy := true; busy; {
		now, busy = e.Advance(now)
	}
	preempted := 0
	for _, j := range jobs {
		virtual = append(virtual, report(&j.choices[0].seq))
		preempted += j.choices[0].seq.Preemptions
	}
	if !slices.Equal(timed, virtual) {
		t.Errorf("real    %v\nvirtual %v", timed, virtual)
	}
	if preempted == 0 {
		t.Error("memory was never short: the test shows little")
	}
}

func TestCancellingTheLastRequestEndsTheGoroutineBeforeTheStep(t *testing.T) {
	params := engine.Default()
	params.Speed = 1e-6 // a step takes hours
	synctest.Test(t, func(t *testing.T) {
		r, err := newReplica(poolKey{params: params})
		if err != nil {
			t.Fatal(err)
		}
		h := &Handler{MaxModelLen: 3000, Output: 50, replica: r, now: time.Now}
		c, err := reading{blockSize: params.BlockSize}.readCall(chat, strings.NewReader(hello))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			j, err := h.newJob(c, failure{})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.submit(j); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if !r.stepping {
				t.Fatal("an engine at work has no goroutine")
			}
			start := time.Now()
			r.cancel(j)
			synctest.Wait()
			if r.stepping || time.Since(start) != 0 {
				t.Fatalf("still stepping %v after the last request left", time.Since(start))
			}
		}
	})
}

func TestAJobOfWhichOnePartDoesNotFitIsNotTaken(t *testing.T) {
	params := engine.Default()
	params.Blocks = 4
	r, err := newReplica(poolKey{params: params})
	if err != nil {
		t.Fatal(err)
	}
	h := &Handler{MaxModelLen: 1000, Output: 8, replica: r, now: time.Now}
	c, err := reading{blockSize: params.BlockSize}.readCall(completions, strings.NewReader(`{"prompt":["a","`+strings.Repeat("word", 100)+`"]}`))
	if err != nil {
		t.Fatal(err)
	}
	j, err := h.newJob(c, failure{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.submit(j); err == nil || r.stepping || r.engine.Busy() {
		t.Errorf("%v, stepping %v", err, r.stepping)
	}
}
