// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// conversationBody is a chat of so many messages of English, in all about size
// bytes of text, with a last message that no other n has.
func conversationBody(b *testing.B, messages, size, n int) []byte {
	b.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		b.Skip("no Go source tree: ", err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "src", "testdata", "Isaac.Newton-Opticks.txt"))
	if err != nil {
		b.Skip("no Go source tree: ", err)
	}
	text = bytes.ToValidUTF8(text[len(text)/8:], nil)
	each := size / messages
	chat := []any{map[string]any{"role": "system", "content": "You explain optics."}}
	for i := range messages {
		role := [...]string{"user", "assistant"}[i%2]
		chat = append(chat, map[string]any{"role": role, "content": string(text[i*each : (i+1)*each])})
	}
	chat = append(chat, map[string]any{"role": "user", "content": fmt.Sprintf("Question %d: %s", n, text[:each])})
	return marshal(b, map[string]any{"model": "m", "stream": true, "messages": chat})
}

func cachedEncoding(b *testing.B, name string) (*Cache, *CachedEncoder) {
	b.Helper()
	c := NewCache(256 << 20)
	return c, c.Encoder(encodingOf(b, name))
}

// readAndChain is the whole way from a body to its blocks.
func readAndChain(b testing.TB, rd *Reader, enc Encoder, kind Kind, body []byte) *Request {
	req, err := rd.Read(kind, "", body)
	if err != nil {
		b.Fatal(err)
	}
	rd.Chain(req, enc, 16)
	return req
}

// A conversation of about 105k tokens in 200 messages, the last of them new each
// time. Best is the fastest run, as other programs disturb the mean.
func BenchmarkConversation(b *testing.B) {
	const variants = 64
	bodies := make([][]byte, variants)
	for i := range bodies {
		bodies[i] = conversationBody(b, 200, 440<<10, i)
	}
	for _, name := range []string{"cl100k_base", "o200k_base"} {
		b.Run(name+"/uncached", func(b *testing.B) {
			rd, enc := NewReader(), encodingOf(b, name)
			req := readAndChain(b, rd, enc, OpenAIChat, bodies[0])
			b.ReportAllocs()
			best := fastest{b: b}
			for i := 0; b.Loop(); i++ {
				best.begin()
				req = readAndChain(b, rd, enc, OpenAIChat, bodies[i%variants])
				best.end()
			}
			best.report(req)
		})
		b.Run(name+"/cold", func(b *testing.B) {
			rd := NewReader()
			c, enc := cachedEncoding(b, name)
			req := readAndChain(b, rd, enc, OpenAIChat, bodies[0])
			b.ReportAllocs()
			best := fastest{b: b}
			for i := 0; b.Loop(); i++ {
				c.secret[0]++ // all that is known is forgotten, and room must be made
				best.begin()
				req = readAndChain(b, rd, enc, OpenAIChat, bodies[i%variants])
				best.end()
			}
			best.report(req)
		})
		b.Run(name+"/warm", func(b *testing.B) {
			rd := NewReader()
			c, enc := cachedEncoding(b, name)
			req := readAndChain(b, rd, enc, OpenAIChat, bodies[0])
			b.ReportAllocs()
			best := fastest{b: b}
			for i := 0; b.Loop(); i++ {
				best.begin()
				req = readAndChain(b, rd, enc, OpenAIChat, bodies[i%variants])
				best.end()
			}
			best.report(req)
			b.ReportMetric(float64(c.Stats().Bytes), "cache-bytes")
		})
		b.Run(name+"/warm_parallel", func(b *testing.B) {
			_, enc := cachedEncoding(b, name)
			readAndChain(b, NewReader(), enc, OpenAIChat, bodies[0])
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				rd := NewReader()
				for i := 0; pb.Next(); i++ {
					readAndChain(b, rd, enc, OpenAIChat, bodies[i%variants])
				}
			})
		})
	}
	b.Run("read_only", func(b *testing.B) {
		rd := NewReader()
		best := fastest{b: b}
		for i := 0; b.Loop(); i++ {
			best.begin()
			if _, err := rd.Read(OpenAIChat, "", bodies[i%variants]); err != nil {
				b.Fatal(err)
			}
			best.end()
		}
		best.report(nil)
	})
}

// One message grows to 420 KB in steps of 4 KB, each of them a request.
func BenchmarkGrowingMessage(b *testing.B) {
	const step, steps = 4 << 10, 105
	whole := conversationBody(b, 1, 420<<10, 0)
	begin := bytes.Index(whole, []byte(`"content":"You`)) // the fields are in order of their names
	begin = begin + bytes.Index(whole[begin:], []byte(`},{"content":"`)) + len(`},{"content":"`)
	var bodies [][]byte
	for i := 1; i <= steps; i++ {
		end := begin + i*step
		for whole[end-1] == '\\' || whole[end-2] == '\\' {
			end++
		}
		bodies = append(bodies, append(bytes.Clone(whole[:end]), `","role":"user"}]}`...))
	}
	for _, name := range []string{"cl100k_base", "o200k_base"} {
		b.Run(name, func(b *testing.B) {
			rd := NewReader()
			c, enc := cachedEncoding(b, name)
			req := readAndChain(b, rd, enc, OpenAIChat, bodies[steps-1])
			b.ReportAllocs()
			best := fastest{b: b}
			for b.Loop() {
				c.secret[0]++
				best.begin()
				for _, body := range bodies {
					req = readAndChain(b, rd, enc, OpenAIChat, body)
				}
				best.end()
			}
			best.report(req)
			b.ReportMetric(float64(best.best.Microseconds())/steps, "best-µs/step")
		})
	}
}

// Prompts that have nothing in common must not pay for a cache.
func BenchmarkUnrelatedPrompts(b *testing.B) {
	text := encodeTexts(b)[0].text
	for _, each := range []int{300, 8 << 10} {
		var prompts []string
		for n := 0; n+each <= len(text); n += each {
			prompts = append(prompts, string(text[n:n+each]))
		}
		body := marshal(b, map[string]any{"prompt": prompts})
		for _, cached := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d_bytes/cached=%v", each, cached), func(b *testing.B) {
				rd := NewReader()
				c, with := cachedEncoding(b, "o200k_base")
				var enc Encoder = with
				if !cached {
					enc = with.Encoder
				}
				req := readAndChain(b, rd, enc, OpenAICompletions, body)
				b.ReportAllocs()
				best := fastest{b: b}
				for b.Loop() {
					c.secret[0]++
					best.begin()
					req = readAndChain(b, rd, enc, OpenAICompletions, body)
					best.end()
				}
				best.report(req)
			})
		}
	}
}

// fastest keeps the shortest time of a benchmark's runs.
type fastest struct {
	b     *testing.B
	start time.Time
	best  time.Duration
}

func (f *fastest) begin() { f.start = time.Now() }

func (f *fastest) end() {
	if d := time.Since(f.start); f.best == 0 || d < f.best {
		f.best = d
	}
}

func (f *fastest) report(req *Request) {
	f.b.ReportMetric(float64(f.best.Microseconds()), "best-µs")
	if req == nil {
		return
	}
	tokens := 0
	for _, p := range req.Prompts {
		tokens += p.Tokens
	}
	f.b.ReportMetric(float64(tokens), "tokens")
}
