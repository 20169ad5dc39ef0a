// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/follow"
)

// eventsLog says in the log what happens to one upstream that is followed, each kind
// of it once in a while.
type eventsLog struct {
	logger   *atomic.Pointer[zap.Logger] // of the configuration that started last
	upstream string
	quiet    bool // that it cannot be followed was said

	mu   sync.Mutex // guards said
	said map[follow.NoticeKind]saying
}

// saying is when something was said, and how often it was left out since.
type saying struct {
	at      time.Time
	leftOut int
}

// sayAgain is when the same is said of the same upstream again.
const sayAgain = time.Minute

// sayings are the levels and texts of what there is to say.
var sayings = map[follow.NoticeKind]struct {
	level zapcore.Level
	text  string
}{
	follow.Connected:    {zapcore.InfoLevel, "following the KV events of an upstream"},
	follow.Disconnected: {zapcore.WarnLevel, "not connected to the KV events of an upstream"},
	follow.Gap:          {zapcore.InfoLevel, "KV events are missing, a replay is asked for"},
	follow.Missed:       {zapcore.WarnLevel, "KV events are lost: what the upstream holds is known in part until it refills"},
	follow.ReplayFailed: {zapcore.WarnLevel, "the replay of KV events is not answered"},
	follow.Forgot:       {zapcore.InfoLevel, "what an upstream reported to hold is forgotten"},
	follow.Partial:      {zapcore.InfoLevel, "what an upstream holds is known in part"},
	follow.Complete:     {zapcore.InfoLevel, "what an upstream holds is known again"},
	follow.Undecodable:  {zapcore.WarnLevel, "KV events cannot be decoded"},
}

// notice says what a follower tells.
func (l *eventsLog) notice(n follow.Notice) {
	s := sayings[n.Kind]
	ce := l.logger.Load().Check(s.level, s.text)
	if ce == nil {
		return
	}
	leftOut, now := l.due(n.Kind, time.Now())
	if !now {
		return
	}
	fields := []zap.Field{zap.String("upstream", l.upstream)}
	switch n.Kind {
	case follow.Gap, follow.Missed:
		fields = append(fields, zap.Uint64("first", n.First), zap.Uint64("last", n.Last))
	case follow.Forgot:
		fields = append(fields, zap.Stringer("reason", n.Why))
	}
	if n.Err != nil {
		fields = append(fields, zap.Error(n.Err))
	}
	if leftOut > 0 {
		fields = append(fields, zap.Int("left_out", leftOut))
	}
	ce.Write(fields...)
}

// due reports whether something is to be said, and how often it was not since it
// was.
func (l *eventsLog) due(kind follow.NoticeKind, now time.Time) (leftOut int, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.said == nil {
		l.said = make(map[follow.NoticeKind]saying)
	}
	s := l.said[kind]
	if !s.at.IsZero() && now.Sub(s.at) < sayAgain {
		s.leftOut++
		l.said[kind] = s
		return 0, false
	}
	l.said[kind] = saying{at: now}
	return s.leftOut, true
}

// unusable says that an endpoint of the upstream cannot be.
func (l *eventsLog) unusable(err error) {
	if l.quiet {
		return
	}
	l.logger.Load().Warn("the KV events of an upstream cannot be followed", zap.String("upstream", l.upstream), zap.Error(err))
}

// panicked says where a panic of ours was caught.
func (l *eventsLog) panicked(stack []byte) {
	l.logger.Load().Error("panic caught while KV events were followed; they are followed anew if it ended that", zap.String("upstream", l.upstream), zap.ByteString("stack", stack))
}
