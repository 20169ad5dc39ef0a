// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/follow"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/residency"
)

// following is one upstream that is followed. It is the follower's sink.
type following struct {
	of        *followers
	up        *upstream
	follower  *follow.Follower
	holder    *residency.Holder
	endpoint  string
	log       eventsLog
	forget    []func() // what to undo when it stops
	withdrawn awaited
	cancel    context.CancelFunc
	done      chan struct{}
	adapter   string // the last one that blocks were told of; the follower's own

	complete atomic.Bool

	// Under the follower's lock: how many blocks the engine is seen to have room for,
	// 0 if that is not known, and how many it had evicted when it was last forgotten.
	room    int
	evicted uint64
}

// start follows an upstream, if anything says where.
func (f *followers) start(ctx context.Context, u *upstream) {
	fo := &following{of: f, up: u, done: make(chan struct{})}
	fo.log.logger, fo.log.upstream, fo.log.quiet = &f.logger, u.address, f.unusable[u]
	opt := follow.Options{Sink: fo, Rank: -1, Notify: fo.log.notice}
	if f.conf.ranks > 1 {
		opt.Rank = u.rank
	}
	if !fo.source(&opt) {
		f.unusable[u] = true
		return
	}
	delete(f.unusable, u)
	fo.holder = f.index.Open(int(u.slot))
	fo.holder.SetRules(residency.Rules{LastRemoval: f.conf.lastRemoval, ClearsAll: f.conf.clearsAll})
	fo.follower = follow.New(opt)
	fo.forget = append(fo.forget, u.onInvalidate(fo.withdraw))
	ctx, fo.cancel = context.WithCancel(ctx)
	f.mu.Lock()
	f.running[u] = fo
	f.mu.Unlock()
	go fo.run(ctx)
}

// source sets where an upstream publishes and replays; false if nothing says where.
func (fo *following) source(opt *follow.Options) bool {
	conf, u := fo.of.conf, fo.up
	if replay, ok, err := conf.endpointOf(u.engine.address, u.rank, true); err != nil {
		fo.log.unusable(err)
	} else if ok {
		opt.Replay = follow.Requests(replay, conf.sockets())
	}
	if fo.of.listener != nil {
		topic, ok := conf.topics[u.engine.address]
		if !ok {
			fo.log.unusable(fmt.Errorf("listen %s: no topic is said to be of this upstream", conf.listen))
			return false
		}
		var forget func()
		opt.Source, forget = fo.of.listener.topics.Topic(topic)
		fo.forget = append(fo.forget, forget)
		fo.endpoint = conf.listen.String()
		return true
	}
	at, ok, err := conf.endpointOf(u.engine.address, u.rank, false)
	if err != nil {
		fo.log.unusable(err)
	}
	if !ok {
		return false
	}
	fo.endpoint = at.String()
	if other := fo.of.followedAt(fo.endpoint); other != nil {
		fo.log.unusable(fmt.Errorf("%s is where the events of %s come from: give each an endpoint of its own", fo.endpoint, other.address))
		return false
	}
	opt.Source = follow.Subscribe(at, conf.topic, conf.sockets())
	return true
}

// repairPause is how long an upstream is not followed after a panic.
const repairPause = 10 * time.Second

func (fo *following) run(ctx context.Context) {
	defer close(fo.done)
	defer func() {
		if val := recover(); val != nil {
			panics.WithLabelValues("follow").Inc()
			fo.log.panicked(debug.Stack())
			go fo.of.stop(fo)
			time.AfterFunc(repairPause, fo.of.changed)
		}
	}()
	fo.follower.Run(ctx)
}

// withdraw has what was reported count no more. Giving it back takes time in its
// blocks, so no request waits for it; who asks through the admin API does.
func (fo *following) withdraw(reason string) {
	if reason == withdrawnByAdmin {
		fo.follower.Invalidate(withdrawal(reason))
		return
	}
	fo.withdrawn.begin(func() {
		defer func() {
			if val := recover(); val != nil {
				panics.WithLabelValues("follow").Inc()
				fo.log.panicked(debug.Stack())
			}
		}()
		fo.follower.Invalidate(withdrawal(reason))
	})
}

// awaited are goroutines that withdraw what was reported. None begins once they have
// ended.
type awaited struct {
	running sync.WaitGroup
	mu      sync.Mutex // guards ended
	ended   bool
}

func (w *awaited) begin(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.running.Go(f)
	}
}

func (w *awaited) end() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	w.running.Wait()
}

// stop ends following, and what was reported counts no more.
func (f *followers) stop(fo *following) {
	fo.cancel()
	<-fo.done
	f.mu.Lock()
	was := f.running[fo.up] == fo
	if was {
		delete(f.running, fo.up)
	}
	f.mu.Unlock()
	if !was {
		return
	}
	for _, undo := range fo.forget {
		undo()
	}
	fo.withdrawn.end()
	fo.Trust(false)
	fo.holder.Close()
}

// Apply implements follow.Sink.
func (fo *following) Apply(b *kvevents.Batch) {
	fo.holder.Apply(b)
	fo.measure()
	cleared := false
	for i := range b.Events {
		e := &b.Events[i]
		cleared = cleared || e.Kind == kvevents.Cleared
		if len(e.LoRA) > 0 && string(e.LoRA) != fo.adapter {
			fo.adapter = string(e.LoRA)
			fo.of.adapters.add(fo.adapter)
		}
	}
	if cleared {
		fo.unpredict()
	}
}

// Forget implements follow.Sink.
func (fo *following) Forget(why follow.Reason) {
	fo.evicted = fo.holder.Stats().Evicted[kvevents.GPU]
	fo.holder.Forget()
	if why == follow.Restarted || why == follow.Refused {
		fo.unpredict()
		fo.setRoom(0, 0)
	}
}

// Evictions that show the engine's memory to be full: so many, and such a part of
// what it holds.
const (
	leastEvictions = 64
	evictedPart    = 8
)

// measure learns how many blocks the engine has room for: the most that it held, once
// it evicts. That is known only where all that it holds is.
func (fo *following) measure() {
	if !fo.complete.Load() {
		return
	}
	s := fo.holder.Stats()
	if s.BlockSize > 0 && fo.counts() {
		fo.up.routed.SetEngineBlock(s.BlockSize)
	}
	most := s.Peak[kvevents.GPU]
	if s.Evicted[kvevents.GPU]-fo.evicted < uint64(max(leastEvictions, most/evictedPart)) {
		return
	}
	if most > fo.room+fo.room/64 {
		fo.setRoom(most, s.BlockSize)
	}
}

func (fo *following) setRoom(blocks, blockSize int) {
	fo.room = blocks
	if fo.counts() && !fo.up.removed.Load() {
		fo.of.pool.observedCapacity(fo.up, int64(blocks)*int64(blockSize))
	}
}

// unpredict drops what is predicted of an engine whose cache is gone.
func (fo *following) unpredict() {
	if fo.counts() {
		fo.of.pool.forget(fo.up)
	}
}

// Trust implements follow.Sink.
func (fo *following) Trust(complete bool) {
	fd := &fo.of.pool.followed
	fd.mu.Lock()
	defer fd.mu.Unlock()
	fo.complete.Store(complete)
	if fo.counts() {
		fo.of.pool.setReported(fo.up, complete)
	}
}

// counts reports whether the followers are those that count.
func (fo *following) counts() bool { return fo.of.pool.followed.current.Load() == fo.of }

// setReported tells the index whether an upstream reports all that it holds. The
// pool's lock keeps the upstream's slot its own.
func (pl *pool) setReported(u *upstream, on bool) {
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	if !u.removed.Load() {
		pl.index.SetReported(u.slot, on)
	}
}

// Room implements follow.Sink: how many blocks the engine is seen to have room for,
// else what is known of its capacity.
func (fo *following) Room() int {
	size := fo.holder.Stats().BlockSize
	if fo.room > 0 || size == 0 {
		return fo.room
	}
	pl := fo.of.pool
	pl.mu.RLock()
	defer pl.mu.RUnlock()
	tokens, _ := pl.params.capacityOf(fo.up)
	return int(tokens / int64(size))
}

// withdrawal gives a follower's reason for one of an upstream.
func withdrawal(reason string) follow.Reason {
	switch reason {
	case withdrawnByAdmin:
		return follow.Asked
	case withdrawnRefused:
		return follow.Refused
	}
	return follow.Reset
}

// Interface guard
var _ follow.Sink = (*following)(nil)
