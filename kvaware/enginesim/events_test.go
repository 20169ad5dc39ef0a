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

func TestSubscribersSeeWhatTheCacheHolds(t *testing.T) {
	for shape := range shapes {
		t.Run(shape, func(t *testing.T) {
			p := publish(t, Handler{Model: "demo", Speed: 1e4, KVTokens: 2500, MaxModelLen: 2000, Output: 20}, KVEvents{Shape: shape, Topic: "kv@" + shape})
			early := newFollower(t, "demo", "kv@"+shape)
			s := early.listen("ipc://" + p.dir + "/pub")
			p.traffic(t, 1)
			// What came before the subscription is asked for; the rest follows.
			early.replay("ipc://" + p.dir + "/replay")
			p.traffic(t, 2)
			want, until := p.holdings(), p.published()
			early.follow(s, until)
			early.agrees(want)

			late := newFollower(t, "demo", "kv@"+shape)
			late.replay("ipc://" + p.dir + "/replay")
			late.agrees(want)
			if late.events[kvevents.Removed] == 0 || late.events[kvevents.Cleared] == 0 || len(want) == 0 {
				t.Errorf("seen were %v, held are %d", late.events, len(want))
			}
		})
	}
}

// What is published is what /tokenize tells: a router that asks has the same ids.
func TestEventsHaveTheIDsThatTokenizeTells(t *testing.T) {
	p := publish(t, Handler{Model: "demo", Speed: 1e6, MaxModelLen: 2000, Output: 20}, KVEvents{})
	const body = `{"model":"demo","max_tokens":40,"messages":[{"role":"user","content":"What do the tides do in the month of May?"}]}`
	answers := map[string]string{}
	for _, path := range []string{"/tokenize", chatPath} {
		rec := httptest.NewRecorder()
		if err := p.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)), nil); err != nil {
			t.Fatal(err)
		}
		answers[path] = rec.Body.String()
	}
	p.published()
	var tokens []string
	for _, m := range p.replica.publisher.kept.from(0) {
		var b kvevents.Batch
		if err := new(kvevents.Decoder).Decode(m.payload, &b); err != nil {
			t.Fatal(err)
		}
		for _, e := range b.Events {
			for _, id := range e.Tokens {
				tokens = append(tokens, fmt.Sprint(id))
			}
		}
	}
	told := strings.Join(tokens, ",")
	_, ids, _ := strings.Cut(answers["/tokenize"], `"tokens":[`)
	ids, _, _ = strings.Cut(ids, "]")
	if whole := strings.Split(ids, ","); len(whole) < 16 || !strings.HasPrefix(told+",", strings.Join(whole, ",")+",") {
		t.Errorf("tokenize tells %s\nand events %s", ids, told)
	}
}

func TestAReplayHasTheLastBatchesAndAnEnd(t *testing.T) {
	h := history{limit: 5}
	if got := h.from(0); len(got) != 0 {
		t.Errorf("of nothing %v is kept", got)
	}
	for seq := range uint64(23) {
		if seq != 20 { // was lost
			h.add(seq, nil)
		}
	}
	for from, want := range map[uint64]string{0: "[17 18 19 21 22]", 18: "[18 19 21 22]", 20: "[21 22]", 22: "[22]", 23: "[]", 1 << 63: "[]"} {
		seqs := []uint64{}
		for _, m := range h.from(from) {
			seqs = append(seqs, m.seq)
		}
		if got := fmt.Sprint(seqs); got != want {
			t.Errorf("from %d on %s are kept, want %s", from, got, want)
		}
	}
	if cap(h.last) > 4*h.limit {
		t.Errorf("room for %d batches", cap(h.last))
	}
}

// A question that is none is passed over, as vLLM does.
func TestBadReplayQuestionsAreNotAnswered(t *testing.T) {
	p := publish(t, Handler{}, KVEvents{})
	s, err := zmtp.Dial(t.Context(), p.key.events.replay, zmtp.Options{Type: zmtp.DEALER})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, bad := range [][][]byte{{nil}, {nil, nil}, {nil, []byte("1234567")}, {nil, make([]byte, 8), nil}} {
		if err := s.Send(bad...); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Send(nil, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	var m zmtp.Message
	if err := s.Receive(&m); err != nil || len(m.Frames) != 3 || len(m.Frames[2]) != 0 {
		t.Errorf("%v: %q", err, m.Frames)
	}
}

// An engine that nobody's config has open holds no more than its bound.
func TestEventsThatNobodyPublishesAreBounded(t *testing.T) {
	p := newPublisher(eventSettings{steps: 1})
	for range maxQueued + 10 {
		p.publish([]kvevents.Event{{Kind: kvevents.Cleared}})
	}
	if queued := p.next(); len(queued) != maxQueued || p.seq != maxQueued+10 {
		t.Errorf("%d batches of %d wait", len(queued), p.seq)
	}
}

// A subscriber that stops reading costs itself messages, and the engine nothing.
func TestASubscriberThatDoesNotReadHoldsNoRequestUp(t *testing.T) {
	p := publish(t, Handler{Model: "demo", Speed: 1e6, KVTokens: 30_000, MaxModelLen: 30_000, Output: 20}, KVEvents{HWM: 1})
	f := newFollower(t, "demo", "")
	f.listen("ipc://" + p.dir + "/pub")
	pub := p.replica.publisher.pub
	if err := pub.WaitSubscribers(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for i := 0; pub.Dropped() == 0; i++ {
		body := fmt.Sprintf(`{"max_tokens":1,"prompt":"%d%s"}`, i, strings.Repeat("text", 20_000))
		rec := httptest.NewRecorder()
		if err := p.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, completionsPath, strings.NewReader(body)), nil); err != nil || rec.Code != http.StatusOK {
			t.Fatalf("status %d, %v", rec.Code, err)
		}
		p.published()
	}
}

// BenchmarkPublish is what a prompt of 8,192 tokens that is not cached costs between
// the engine and the subscribers' queues.
func BenchmarkPublish(b *testing.B) {
	const blocks, blockSize = 512, 16
	r := recorder{blockSize: blockSize, model: "demo"}
	c := &choice{job: &job{call: &call{model: "demo", prompts: []prompt{{tokens: blocks * blockSize, ids: make([]uint32, blocks*blockSize)}}}}}
	seq := &engine.Sequence{Owner: c}
	p := newPublisher(eventSettings{steps: 100})
	b.ReportAllocs()
	for b.Loop() {
		for i := range blocks {
			r.Stored(uint64(i), seq, i)
		}
		p.publish(r.take())
		for _, n := range p.next() {
			p.kept.add(n.seq, kvevents.AppendBatch(nil, &n.batch, 0))
		}
	}
	b.ReportMetric(float64(b.N)*blocks/b.Elapsed().Seconds(), "blocks/s")
}
