// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// benchText is prose and code with an escape every 80 bytes or so.
const benchText = "The ferry leaves the harbour at seven, and the lantern on the pier is lit by then.\n" +
	"func tide(h int) string { return fmt.Sprintf(\"%d m at the gauge of the old bridge\", h) }\n"

// chatBody makes a chat of about size bytes in messages of about each bytes.
func chatBody(t testing.TB, size, each int) []byte {
	t.Helper()
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := []message{{"system", "You keep a lighthouse log."}}
	text := strings.Repeat(benchText, each/len(benchText)+1)
	for n := 0; n < size; n += each {
		role := "user"
		if len(messages)%2 == 0 {
			role = "assistant"
		}
		messages = append(messages, message{role, fmt.Sprint(n, " ", text[:each])})
	}
	body, err := json.Marshal(map[string]any{
		"model": "qwen3-8b", "messages": messages, "stream": true, "max_tokens": 512,
		"stream_options": map[string]any{"include_usage": true},
	})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func BenchmarkRead(b *testing.B) {
	bodies := []struct {
		name string
		body []byte
	}{
		{"chat_1KB", chatBody(b, 1<<10, 300)},
		{"chat_100KB", chatBody(b, 100<<10, 2000)},
		{"chat_1MB", chatBody(b, 1<<20, 5000)},
		{"chat_1MB_messages_of_2KB", chatBody(b, 1<<20, 2000)},
		{"chat_1MB_messages_of_500B", chatBody(b, 1<<20, 500)},
		{"chat_1MB_messages_of_100B", chatBody(b, 1<<20, 100)},
		{"chat_1MB_one_plain_string", []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat("lantern ", 1<<17) + `"}]}`)},
		{"ids_128k", []byte(`{"prompt":[` + strings.Repeat("15043, ", 128<<10) + `1]}`)},
	}
	for _, bb := range bodies {
		kind := OpenAIChat
		if strings.HasPrefix(bb.name, "ids") {
			kind = OpenAICompletions
		}
		b.Run(bb.name, func(b *testing.B) {
			rd := NewReader()
			read := func() {
				if _, err := rd.Read(kind, "", bb.body); err != nil {
					b.Fatal(err)
				}
			}
			read() // its memory grows once
			b.ReportAllocs()
			b.SetBytes(int64(len(bb.body)))
			for b.Loop() {
				read()
			}
		})
	}
}

// wordEncoder gives an id to each four bytes, as cheaply as can be.
type wordEncoder struct{}

func (wordEncoder) Append(dst []uint32, text []byte) []uint32 {
	for len(text) >= 4 {
		dst = append(dst, uint32(text[0])|uint32(text[1])<<8|uint32(text[2])<<16|uint32(text[3]&0x7f)<<24)
		text = text[4:]
	}
	for _, c := range text {
		dst = append(dst, uint32(c))
	}
	return dst
}

func BenchmarkChain(b *testing.B) {
	for _, size := range []int{1 << 10, 100 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("chat_%dKB", size>>10), func(b *testing.B) {
			body := chatBody(b, size, 2000)
			rd := NewReader()
			req, err := rd.Read(OpenAIChat, "/v1/chat/completions", body)
			if err != nil {
				b.Fatal(err)
			}
			rd.Chain(req, wordEncoder{}, 16)
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				rd.Chain(req, wordEncoder{}, 16)
			}
		})
	}
}

func BenchmarkHashBlocks(b *testing.B) {
	ids := make([]uint32, 128<<10)
	for i := range ids {
		ids[i] = uint32(i * 7)
	}
	var hashes []uint64
	b.ReportAllocs()
	for b.Loop() {
		hashes = appendChain(hashes[:0], ids, 16, 1)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(hashes)), "ns/block")
}
