// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// source counts what it is asked for.
type source struct {
	plain, whole atomic.Int64
	fails        atomic.Bool
	asked        func(question string, q Question) (int, []byte)
}

func (s *source) Snapshot(_ context.Context, history bool) ([]byte, error) {
	if s.fails.Load() {
		return nil, errors.New("no Caddy answers\nat all")
	}
	if history {
		return fmt.Appendf(nil, "{\"whole\": %d,\n\"more\": 1}\n", s.whole.Add(1)), nil
	}
	return fmt.Appendf(nil, "{\"plain\": %d}", s.plain.Add(1)), nil
}

func (s *source) Ask(question string, q Question) (int, []byte) { return s.asked(question, q) }

// next waits for a stream's next event.
func next(t *testing.T, s *stream) string {
	t.Helper()
	select {
	case event := <-s.events:
		return string(event)
	case <-time.After(10 * time.Second):
		t.Fatal("no event")
		return ""
	}
}

func TestAllStreamsShareOneSampleASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := new(source)
		hub := NewHub(src)
		var streams []*stream
		for range 10 {
			s, err := hub.join()
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, s)
		}
		for _, s := range streams {
			if got := next(t, s); got != "event: snapshot\ndata: {\"whole\": 1, \"more\": 1}\n\n" {
				t.Fatalf("the first event is %q", got)
			}
		}
		for second := 1; second <= 5; second++ {
			for _, s := range streams {
				if got := next(t, s); got != fmt.Sprintf("event: snapshot\ndata: {\"plain\": %d}\n\n", second) {
					t.Fatalf("after %d s: %q", second, got)
				}
			}
		}
		for _, s := range streams {
			hub.leave(s)
		}
		synctest.Wait()
		time.Sleep(time.Minute)
		if plain, whole := src.plain.Load(), src.whole.Load(); plain != 5 || whole != 1 {
			t.Errorf("took %d snapshots and %d with a history", plain, whole)
		}
	})
}

func TestWhoComesLaterGetsAHistoryToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := new(source)
		hub := NewHub(src)
		first, _ := hub.join()
		next(t, first)
		second, _ := hub.join() // at once: the same event
		if got := next(t, second); !strings.Contains(got, `"whole": 1`) {
			t.Errorf("got %q", got)
		}
		time.Sleep(5500 * time.Millisecond)
		third, _ := hub.join()
		if got := next(t, third); !strings.Contains(got, `"whole": 2`) {
			t.Errorf("got %q", got)
		}
		for _, s := range []*stream{first, second, third} {
			hub.leave(s)
		}
		again, _ := hub.join() // after nobody was there
		if got := next(t, again); !strings.Contains(got, `"whole": 3`) {
			t.Errorf("got %q", got)
		}
		hub.leave(again)
	})
}

func TestATroubledSourceIsToldAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := new(source)
		src.fails.Store(true)
		hub := NewHub(src)
		s, _ := hub.join()
		if got := next(t, s); got != "event: trouble\ndata: {\"error\":\"no Caddy answers\\nat all\"}\n\n" {
			t.Errorf("got %q", got)
		}
		src.fails.Store(false)
		if got := next(t, s); !strings.Contains(got, `"whole"`) {
			t.Errorf("after the trouble it gets no history: %q", got)
		}
		hub.leave(s)
	})
}

func TestASlowStreamMissesEventsButNotItsHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := NewHub(new(source))
		slow, _ := hub.join()
		fast, _ := hub.join()
		for range 20 {
			next(t, fast)
		}
		if got := next(t, slow); !strings.Contains(got, `"whole"`) {
			t.Errorf("got %q", got)
		}
		hub.leave(slow)
		hub.leave(fast)
	})
}

func TestStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := NewHub(new(source))
		var streams []*stream
		for range maxStreams {
			s, err := hub.join()
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, s)
		}
		if _, err := hub.join(); !errors.Is(err, errFull) {
			t.Errorf("one more gets %v", err)
		}
		hub.leave(streams[0])
		s, err := hub.join()
		if err != nil {
			t.Errorf("after one has left: %v", err)
		}
		streams[0] = s
		for _, s := range streams {
			hub.leave(s)
		}
	})
}
