// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/follow"
)

// followingNothing gives the followers of a pool with one upstream, whose events are
// at a port where nobody is.
func followingNothing(t *testing.T) (*followers, *upstream) {
	t.Helper()
	conf, err := (&KVEvents{Port: 1}).provision(caddy.NewReplacer(), "")
	if err != nil {
		t.Fatal(err)
	}
	pl := newPool("", poolParams{blockSize: 16, cacheTokens: 1600, maxBuffered: 1}, time.Now)
	f, err := newFollowers(followersKey{pool: pl}, conf, randomKeys())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Destruct() })
	return f, pl.lookup("127.0.0.1:8000", nil)
}

func followPanics(t *testing.T) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(panics); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families[0].Metric {
		if m.Label[0].GetValue() == "follow" {
			return m.Counter.GetValue()
		}
	}
	t.Fatal("there is no such series")
	return 0
}

func TestAPanicWhileFollowingEndsThatAloneAndIsCounted(t *testing.T) {
	f, u := followingNothing(t)
	before := followPanics(t)
	f.start(t.Context(), u)
	fo := f.all()[0]
	f.stop(fo)
	if len(f.all()) != 0 {
		t.Fatal("it is still followed")
	}
	fo = &following{of: f, up: u, done: make(chan struct{}), holder: f.index.Open(int(u.slot))}
	fo.log.logger = &f.logger
	ctx, cancel := context.WithCancel(t.Context())
	fo.cancel = cancel
	fo.follower = follow.New(follow.Options{Sink: fo, Source: follow.Dial("", func(context.Context) (follow.Conn, error) { panic("a bug") })})
	f.mu.Lock()
	f.running[u] = fo
	f.mu.Unlock()
	fo.run(ctx)
	eventually(t, "it is followed no more", func() bool { return len(f.all()) == 0 })
	if got := followPanics(t); got != before+1 {
		t.Errorf("%g panics were counted, then %g", before, got)
	}
}

func TestTheSameIsSaidOnceAMinute(t *testing.T) {
	f, u := followingNothing(t)
	core, seen := observer.New(zapcore.InfoLevel)
	f.logger.Store(zap.New(core))
	l := eventsLog{logger: &f.logger, upstream: u.address}
	for range 100 {
		l.notice(follow.Notice{Kind: follow.Disconnected, Err: errors.New("refused")})
		l.notice(follow.Notice{Kind: follow.Missed, First: 1, Last: 2})
	}
	if n := seen.Len(); n != 2 {
		t.Errorf("%d lines for two kinds of notices", n)
	}
	if leftOut, due := l.due(follow.Missed, time.Now().Add(sayAgain)); !due || leftOut != 99 {
		t.Errorf("after a minute: %v, %d left out", due, leftOut)
	}
}

func TestOnlyUpstreamsThatNoRequestMadeUpAreFollowed(t *testing.T) {
	_, listed := followingNothing(t)
	pl := newPool("", poolParams{blockSize: 16, cacheTokens: 1600, maxBuffered: 1}, time.Now)
	repl := caddy.NewReplacer()
	repl.Set("http.request.header.X", "10.9.9.9")
	if pl.lookup("{http.request.header.X}:80", repl) == nil {
		t.Fatal("not an upstream")
	}
	if us, _ := pl.followable(); len(us) != 0 {
		t.Errorf("%d are followed because a client says so", len(us))
	}
	named := pl.lookup(listed.address, nil)
	if us, _ := pl.followable(); len(us) != 1 || us[0] != named {
		t.Errorf("%d are followed", len(us))
	}
}

func TestEnginesOfOneHostAreNotTakenForEachOther(t *testing.T) {
	f, u := followingNothing(t)
	core, seen := observer.New(zapcore.InfoLevel)
	f.logger.Store(zap.New(core))
	f.pool.lookup("127.0.0.1:8001", nil)
	f.pool.followed.current.Store(f)
	for range 3 {
		f.reconcile(t.Context())
	}
	if all := f.all(); len(all) != 1 || all[0].up != u {
		t.Errorf("%d are followed at one port", len(all))
	}
	if n := seen.FilterMessageSnippet("cannot be followed").Len(); n != 1 {
		t.Errorf("that is said %d times", n)
	}
}
