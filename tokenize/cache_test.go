// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// newTestCache is a cache with segments so short that small prompts have many.
func newTestCache(maxBytes int64, segment int) *Cache {
	c := NewCache(maxBytes)
	c.segment = segment
	return c
}

// sameChains checks that a request gets from each cached encoder what its own
// encoder gives it.
func sameChains(t testing.TB, path string, body []byte, blockSize int, encoders ...*CachedEncoder) {
	t.Helper()
	rd, plain := NewReader(), NewReader()
	got, err := rd.Read(KindOfPath(path), path, body)
	want, _ := plain.Read(KindOfPath(path), path, body)
	if err != nil {
		return
	}
	for _, e := range encoders {
		plain.Chain(want, e.Encoder, blockSize)
		rd.Chain(got, e, blockSize)
		for i := range want.Prompts {
			w, g := &want.Prompts[i], &got.Prompts[i]
			if g.Tokens != w.Tokens || !slices.Equal(g.Blocks, w.Blocks) {
				t.Fatalf("prompt %d: %d tokens and %d blocks of %d, want %d and %d (same: %v)\n%T %s", i,
					g.Tokens, len(g.Blocks), blockSize, w.Tokens, len(w.Blocks), slices.Equal(g.Blocks, w.Blocks), e.Encoder, body)
			}
		}
	}
}

// testCaches are caches of all sizes, from one that forgets all the time.
func testCaches() []*Cache {
	return []*Cache{
		newTestCache(1<<20, 64), newTestCache(1<<16, 16), newTestCache(3000, 100), newTestCache(600, 32),
		newTestCache(100, 16), newTestCache(0, 16), NewCache(64 << 20),
	}
}

func testEncoders(t testing.TB, caches []*Cache) (encoders []*CachedEncoder) {
	names := Encodings()
	if raceEnabled {
		names = names[:1] // as encoding is slow then
	}
	for _, c := range caches {
		for _, name := range names {
			encoders = append(encoders, c.Encoder(encodingOf(t, name)))
		}
		encoders = append(encoders, c.Encoder(byteEncoder{}), c.Encoder(wordEncoder{}))
	}
	return encoders
}

// A conversation is read turn by turn, edited in the middle, read again under
// another salt, adapter or model.
func TestACacheChangesNoChain(t *testing.T) {
	encoders := testEncoders(t, testCaches())
	g := goldenOf(t)
	r := rand.New(rand.NewPCG(5, 6))
	c := chance(14)
	blockSizes := []int{1, 3, 16, 64, 1000, 0, -1}
	rounds := 14
	if raceEnabled {
		rounds = 3 // as encoding is slow then
	}
	for n := range rounds {
		chat := randomChat(r, 10)
		messages := chat["messages"].([]any)
		for i := range messages {
			if r.IntN(2) == 0 {
				text := strings.ToValidUTF8(fuzzedText(&c, g.Fragments), "\ufffd")
				messages[i].(map[string]any)["content"] = strings.Repeat(text, 1+r.IntN(5))
			}
		}
		check := func() {
			body := marshal(t, chat)
			if r.IntN(3) == 0 {
				var out bytes.Buffer
				respelt(r, &out, chat, false)
				body = out.Bytes()
			}
			sameChains(t, "/v1/chat/completions", body, blockSizes[n%len(blockSizes)], encoders...)
		}
		for turns := 1; turns <= len(messages); turns += 1 + r.IntN(3) {
			chat["messages"] = messages[:turns]
			check()
		}
		messages[r.IntN(len(messages))] = randomMessage(r, "user")
		check()
		chat["cache_salt"] = "other"
		check()
		chat["lora_path"] = "adapter"
		check()
		chat["model"] = "other"
		check()
		chat["truncate_prompt_tokens"] = 1 + r.IntN(50)
		check()
	}
}

func TestACacheChangesNoChainOfAGrowingMessage(t *testing.T) {
	encoders := testEncoders(t, []*Cache{newTestCache(1<<20, 64), newTestCache(2000, 50), NewCache(1 << 20)})
	texts := map[string]string{"base64": strings.Repeat("QUJDREVGR0g", 800)}
	for _, name := range []string{"english.txt", "code.txt", "cjk.txt", "json.txt", "controls.txt"} {
		texts[name] = strings.ToValidUTF8(string(corpus(t, name)), "\ufffd")
	}
	for name, text := range texts {
		text = text[:min(len(text), 9000)]
		for n := 500; n <= len(text); n += 1700 {
			prompt := strings.ToValidUTF8(text[:n], "\ufffd")
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				sameChains(t, "/v1/completions", marshal(t, map[string]any{"prompt": prompt}), 16, encoders...)
				sameChains(t, "/v1/completions", []byte(`{"prompt":"`+escapedASCII(prompt)+`"}`), 7, encoders...)
			})
		}
	}
}

// escapedASCII spells a text as Python's json.dumps does.
func escapedASCII(text string) string {
	var out strings.Builder
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			out.WriteByte('\\')
			out.WriteRune(c)
		case c == '\n':
			out.WriteString(`\n`)
		case c >= 0x10000:
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+(c-0x10000)>>10, 0xdc00+(c-0x10000)&0x3ff)
		case c < ' ' || c > '~':
			fmt.Fprintf(&out, `\u%04x`, c)
		default:
			out.WriteRune(c)
		}
	}
	return out.String()
}

func TestACacheChangesNoChainOfABatchOrOfIDs(t *testing.T) {
	encoders := testEncoders(t, testCaches())
	r := rand.New(rand.NewPCG(7, 8))
	for range 20 {
		var prompts []any
		for range 1 + r.IntN(6) {
			if r.IntN(2) == 0 {
				prompts = append(prompts, strings.Repeat(randomText(r), r.IntN(40)))
				continue
			}
			ids := make([]int, r.IntN(900))
			for i := range ids {
				ids[i] = r.IntN(200_000)
			}
			prompts = append(prompts, ids)
		}
		body := marshal(t, map[string]any{"prompt": prompts})
		sameChains(t, "/v1/completions", body, 1+r.IntN(40), encoders...)
		sameChains(t, "/v1/completions", bytes.ReplaceAll(body, []byte(","), []byte(" ,\n ")), 16, encoders...)
	}
	for _, c := range loadCases(t) {
		sameChains(t, c.Path, c.body, 4, encoders...)
	}
}

func TestRequestsMayShareACacheAtTheSameTime(t *testing.T) {
	encoders := testEncoders(t, []*Cache{newTestCache(1<<20, 64), newTestCache(2000, 64)})
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for turns := 2; turns < 12; turns++ {
				// Each conversation is that of another worker too.
				body := chatBody(t, turns*300, 300+worker/2)
				sameChains(t, "/v1/chat/completions", body, 16, encoders...)
			}
		})
	}
	wg.Wait()
}

// countingEncoder counts the bytes it encodes.
type countingEncoder struct {
	*Encoding
	bytes atomic.Int64
}

func (e *countingEncoder) Append(dst []uint32, text []byte) []uint32 {
	e.bytes.Add(int64(len(text)))
	return e.Encoding.Append(dst, text)
}

// encoded returns how many bytes of text a chat's chain takes to encode.
func (e *countingEncoder) encoded(t *testing.T, with Encoder, path string, body []byte) int {
	t.Helper()
	rd := AcquireReader()
	defer rd.Release()
	req, err := rd.Read(KindOfPath(path), path, body)
	if err != nil {
		t.Fatal(err)
	}
	before := e.bytes.Load()
	rd.Chain(req, with, 16)
	return int(e.bytes.Load() - before)
}

func TestOnlyWhatIsNewIsEncoded(t *testing.T) {
	counting := &countingEncoder{Encoding: encodingOf(t, "cl100k_base")}
	enc := NewCache(1 << 20).Encoder(counting)
	const path = "/v1/chat/completions"
	if n := counting.encoded(t, enc, path, chatBody(t, 60_000, 1000)); n < 60_000 {
		t.Fatalf("%d bytes of the first request", n)
	}
	for _, size := range []int{61_000, 62_000, 65_000, 62_000, 60_000} {
		if n := counting.encoded(t, enc, path, chatBody(t, size, 1000)); n > 5000+segmentBytes+1100 {
			t.Errorf("%d bytes encoded at %d", n, size)
		}
	}
	if n := counting.encoded(t, enc, path, bytes.Replace(chatBody(t, 60_000, 1000), []byte("30000 The ferry"), []byte("30000 A ferry"), 1)); n < 30_000 || n > 32_000+segmentBytes {
		t.Errorf("%d bytes encoded after an edit in the middle", n)
	}
	prompt := strings.Repeat("What the ferry brings goes to the lighthouse. ", 2000)
	for n := 4000; n < len(prompt); n += 4000 {
		body := marshal(t, map[string]any{"prompt": prompt[:n]})
		if got := counting.encoded(t, enc, "/v1/completions", body); got > 4000+segmentBytes+cutWindow {
			t.Errorf("%d bytes encoded of a prompt that grew from %d to %d", got, n-4000, n)
		}
	}
	ids := []byte(`{"prompt":[` + strings.Repeat("15043, ", 20_000) + `1]}`)
	c := enc.cache
	counting.encoded(t, enc, "/v1/completions", ids)
	before := c.Stats()
	counting.encoded(t, enc, "/v1/completions", ids)
	if after := c.Stats(); after.Hits-before.Hits < 30 || after.Misses != before.Misses {
		t.Errorf("a prompt of ids is not remembered: %+v, then %+v", before, after)
	}
}

func TestACacheKeepsToItsBytes(t *testing.T) {
	for _, maxBytes := range []int64{0, 100, 1000, 5000, 100_000, 3 << 20} {
		c := newTestCache(maxBytes, 64)
		enc := c.Encoder(wordEncoder{})
		for n := range 40 {
			sameChains(t, "/v1/chat/completions", chatBody(t, 20_000, 100+n), 1+n%20, enc)
			if s := c.Stats(); s.Bytes > maxBytes {
				t.Fatalf("%d bytes of %d", s.Bytes, maxBytes)
			}
		}
		s := c.Stats()
		if maxBytes >= 1000 && s.Entries == 0 || maxBytes >= 5000 && maxBytes < 1<<20 && s.Evicted == 0 {
			t.Errorf("of %d bytes: %+v", maxBytes, s)
		}
	}
}

func TestAConversationInUseOutlivesAFloodOfOthers(t *testing.T) {
	counting := &countingEncoder{Encoding: encodingOf(t, "cl100k_base")}
	c := NewCache(256 << 10)
	enc := c.Encoder(counting)
	const path = "/v1/chat/completions"
	hot := chatBody(t, 50_000, 1000)
	counting.encoded(t, enc, path, hot)
	for n := range 100 {
		counting.encoded(t, enc, path, bytes.Replace(chatBody(t, 20_000, 1000), []byte("lighthouse log"), fmt.Append(nil, n), 1))
		if n := counting.encoded(t, enc, path, hot); n > segmentBytes+1100 {
			t.Fatalf("%d bytes are encoded again", n)
		}
	}
	if c.Stats().Evicted == 0 {
		t.Error("nothing was forgotten")
	}
}

func TestMemoryIsLinearInAConversationOfManyTurns(t *testing.T) {
	c := NewCache(64 << 20)
	enc := c.Encoder(wordEncoder{})
	for size := 1000; size <= 100_000; size += 1000 {
		sameChains(t, "/v1/chat/completions", chatBody(t, size, 1000), 16, enc)
	}
	// No more entries than the longest of the conversations has segments.
	if s := c.Stats(); s.Entries > 100_000/segmentBytes+2 || s.Bytes > 64<<16 {
		t.Errorf("%+v", s)
	}
}

func TestAWarmRequestAllocatesNothing(t *testing.T) {
	body := chatBody(t, 100<<10, 2000)
	enc := NewCache(16 << 20).Encoder(encodingOf(t, "cl100k_base"))
	rd := NewReader()
	allocs := leastAllocs(func() {
		req, err := rd.Read(OpenAIChat, "/v1/chat/completions", body)
		if err != nil {
			t.Fatal(err)
		}
		rd.Chain(req, enc, 16)
	})
	if allocs != 0 && !raceEnabled {
		t.Errorf("%v allocations", allocs)
	}
}

func TestAnEncoderKeepsItsEntriesWhenConfiguredAnew(t *testing.T) {
	c := NewCache(1 << 20)
	e := encodingOf(t, "cl100k_base")
	first := c.Encoder(e)
	if c.Encoder(e) != first || c.Encoder(first) != first {
		t.Error("one encoder has two identities")
	}
	if other := NewCache(1 << 20).Encoder(first); other == first || other.Encoder != Encoder(e) {
		t.Error("another cache's encoder is taken for one's own")
	}
	if c.Encoder(encodingOf(t, "o200k_base")).id == first.id {
		t.Error("two encoders share one identity")
	}
	a, b := c.Encoder(listEncoder{}), c.Encoder(listEncoder{})
	if a.id == b.id {
		t.Error("encoders that cannot be compared were")
	}
	runtime.KeepAlive(first)
}

// listEncoder cannot be compared.
type listEncoder []byte

func (listEncoder) Append(dst []uint32, text []byte) []uint32 { return byteEncoder{}.Append(dst, text) }

func TestACacheLetsGoOfEncodersThatNobodyHolds(t *testing.T) {
	c := NewCache(1 << 20)
	type encoder struct {
		byteEncoder
		_ int // of no size, all would be at one address
	}
	id := c.Encoder(&encoder{}).id
	for range 1000 {
		runtime.GC()
		runtime.Gosched()
		c.mu.Lock()
		left := len(c.encoders)
		c.mu.Unlock()
		if left == 0 {
			if c.Encoder(&encoder{}).id == id {
				t.Error("an identity was given again")
			}
			return
		}
	}
	t.Error("it is still held")
}
