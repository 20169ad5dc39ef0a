// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/engine"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

// witness sees what the engine's cache holds, and passes it on to the recorder.
type witness struct {
	engine.BlockSink
	held map[uint64]bool
}

func (w *witness) Stored(hash uint64, by *engine.Sequence, i int) {
	w.held[hash] = true
	w.BlockSink.Stored(hash, by, i)
}

func (w *witness) Removed(hash uint64) {
	delete(w.held, hash)
	w.BlockSink.Removed(hash)
}

func (w *witness) Cleared() {
	clear(w.held)
	w.BlockSink.Cleared()
}

// publishing is an engine that publishes at sockets of its own, without a config.
type publishing struct {
	*Handler
	*witness
	dir string
}

func publish(t *testing.T, h Handler, events KVEvents) publishing {
	t.Helper()
	dir, err := os.MkdirTemp("", "kv") // t.TempDir's paths are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	events.Endpoint, events.ReplayEndpoint = "ipc://"+filepath.Join(dir, "pub"), "ipc://"+filepath.Join(dir, "replay")
	settings, err := events.settings()
	if err != nil {
		t.Fatal(err)
	}
	params, err := h.params()
	if err != nil {
		t.Fatal(err)
	}
	h.key = poolKey{params: params, events: settings, model: h.Model}
	h.now = time.Now
	if h.replica, err = newReplica(h.key); err != nil {
		t.Fatal(err)
	}
	w := &witness{&h.replica.recorder, map[uint64]bool{}}
	h.replica.engine.WatchBlocks(w)
	if err := h.replica.publisher.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.replica.publisher.close()
		os.RemoveAll(dir)
	})
	return publishing{&h, w, dir}
}

// published waits until all is published, and returns the number of batches.
func (p publishing) published() uint64 {
	for {
		p.replica.mu.Lock()
		pub := p.replica.publisher
		pub.mu.Lock()
		n := pub.seq
		pub.mu.Unlock()
		p.replica.mu.Unlock()
		if n == 0 {
			return 0
		}
		if last := pub.kept.from(n - 1); len(last) == 1 {
			return n
		}
		<-time.After(time.Millisecond)
	}
}

// holdings returns what the cache holds now.
func (p publishing) holdings() map[uint64]bool {
	p.replica.mu.Lock()
	defer p.replica.mu.Unlock()
	return maps.Clone(p.held)
}

// follower believes what an engine publishes.
type follower struct {
	*testing.T
	held    map[uint64]bool
	next    uint64 // number of the next batch
	topic   string
	decoder kvevents.Decoder
	events  map[kvevents.Kind]int
	// root is what a prompt's first block is chained to.
	root func(lora, salt string) uint64
}

func newFollower(t *testing.T, model, topic string) *follower {
	return &follower{
		T: t, held: map[uint64]bool{}, topic: topic, events: map[kvevents.Kind]int{},
		root: func(lora, salt string) uint64 {
			if lora == "" {
				lora = model
			}
			return xxh3.HashString(lora + "\x00" + salt)
		},
	}
}

// listen subscribes.
func (f *follower) listen(to string) *zmtp.Socket {
	f.Helper()
	at, err := zmtp.ParseEndpoint(to)
	if err != nil {
		f.Fatal(err)
	}
	s, err := zmtp.Dial(f.Context(), at, zmtp.Options{Type: zmtp.SUB, Topics: []string{f.topic}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close() })
	return s
}

// follow takes in batches until so many were published.
func (f *follower) follow(s *zmtp.Socket, until uint64) {
	f.Helper()
	var m zmtp.Message
	s.SetReceiveDeadline(time.Now().Add(20 * time.Second))
	for f.next < until {
		if err := s.Receive(&m); err != nil {
			f.Fatal(err)
		}
		if len(m.Frames) != 3 || string(m.Frames[0]) != f.topic {
			f.Fatalf("message of %d frames, topic %q", len(m.Frames), m.Frames[0])
		}
		f.batch(binary.BigEndian.Uint64(m.Frames[1]), m.Frames[2])
	}
}

// replay asks for what was published from the next batch on.
func (f *follower) replay(from string) {
	f.Helper()
	at, err := zmtp.ParseEndpoint(from)
	if err != nil {
		f.Fatal(err)
	}
	s, err := zmtp.Dial(f.Context(), at, zmtp.Options{Type: zmtp.DEALER})
	if err != nil {
		f.Fatal(err)
	}
	defer s.Close()
	if err := s.Send(nil, binary.BigEndian.AppendUint64(nil, f.next)); err != nil {
		f.Fatal(err)
	}
	var m zmtp.Message
	s.SetReceiveDeadline(time.Now().Add(20 * time.Second))
	for {
		if err := s.Receive(&m); err != nil {
			f.Fatal(err)
		}
		if len(m.Frames) != 3 || len(m.Frames[0]) != 0 {
			f.Fatalf("answer %q", m.Frames)
		}
		seq := binary.BigEndian.Uint64(m.Frames[1])
		if seq == 1<<64-1 {
			return
		}
		f.batch(seq, m.Frames[2])
	}
}

func (f *follower) batch(seq uint64, payload []byte) {
	f.Helper()
	if seq < f.next {
		return
	}
	if seq > f.next {
		f.Fatalf("batch %d where %d was due", seq, f.next)
	}
	f.next++
	var b kvevents.Batch
	if err := f.decoder.Decode(payload, &b); err != nil {
		f.Fatal(err)
	}
	if age := time.Since(time.UnixMicro(int64(b.Time * 1e6))); age < -time.Second || age > time.Minute || b.Skipped > 0 {
		f.Fatalf("a batch %v old, with %d events of no sense", age, b.Skipped)
	}
	for i := range b.Events {
		f.event(&b.Events[i])
	}
}

// event believes an event if its hashes are those of its tokens.
func (f *follower) event(e *kvevents.Event) {
	f.Helper()
	f.events[e.Kind]++
	switch e.Kind {
	case kvevents.Cleared:
		clear(f.held)
	case kvevents.Removed:
		for _, hash := range e.Blocks {
			if !f.held[hash] {
				f.Fatalf("block %x is removed and was not stored", hash)
			}
			delete(f.held, hash)
		}
	case kvevents.Stored:
		if !e.Whole() || e.Tier != kvevents.GPU {
			f.Fatalf("%d blocks of %d tokens with %d tokens, in tier %d", len(e.Blocks), e.BlockSize, len(e.Tokens), e.Tier)
		}
		h := e.Parent
		if !e.HasParent {
			salt := ""
			if len(e.Extra) > 0 {
				salt = string(e.Extra[0].Salt)
			}
			h = f.root(string(e.LoRA), salt)
		}
		for i, hash := range e.Blocks {
			block := binary.LittleEndian.AppendUint64(nil, h)
			for _, id := range e.Tokens[i*e.BlockSize : (i+1)*e.BlockSize] {
				block = binary.LittleEndian.AppendUint32(block, id)
			}
			if h = xxh3.Hash(block); h != hash {
				f.Fatalf("block %d is %x, and its tokens %x", i, hash, h)
			}
			if f.held[hash] {
				f.Fatalf("block %x is stored twice", hash)
			}
			f.held[hash] = true
		}
	}
}

func (f *follower) agrees(want map[uint64]bool) {
	f.Helper()
	if !maps.Equal(f.held, want) {
		f.Errorf("%d blocks are believed to be held, %d are", len(f.held), len(want))
	}
}

// traffic is random: shared beginnings, salts, models, several choices, clients that
// leave, resets, under a cache that is short.
func (p publishing) traffic(t *testing.T, seed uint64) {
	var running sync.WaitGroup
	for worker := range uint64(4) {
		running.Go(func() {
			rng := rand.New(rand.NewPCG(seed, worker))
			for i := range 40 {
				if rng.IntN(80) == 0 || worker == 0 && i == 10 {
					p.replica.resetPrefixCache()
				}
				prompt := strings.Repeat([]string{"text", "mots", "词语"}[rng.IntN(3)], 1+rng.IntN(300)) + fmt.Sprint(rng.IntN(3))
				body := fmt.Sprintf(`{"prompt":%q,"max_tokens":%d,"n":%d,"cache_salt":%q,"model":%q}`,
					prompt, 1+rng.IntN(60), 1+rng.IntN(2), []string{"", "", "salt"}[rng.IntN(3)], []string{"", "demo", "adapter"}[rng.IntN(3)])
				ctx := t.Context()
				if rng.IntN(10) == 0 {
					canceled, cancel := context.WithTimeout(ctx, time.Duration(rng.IntN(1000))*time.Microsecond)
					defer cancel()
					ctx = canceled
				}
				rec := httptest.NewRecorder()
				if err := p.ServeHTTP(rec, httptest.NewRequestWithContext(ctx, http.MethodPost, completionsPath, strings.NewReader(body)), nil); err != nil || rec.Code != http.StatusOK {
					t.Errorf("status %d, %v: %s", rec.Code, err, rec.Body)
				}
			}
		})
	}
	running.Wait()
}
