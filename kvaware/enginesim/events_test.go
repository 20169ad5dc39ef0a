// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/engine"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

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
