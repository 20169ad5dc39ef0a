// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvaware/caddy-kvaware/tokenize/chattemplate"
)

// The same conversation as in BenchmarkConversation, by Qwen3's tokenizer and
// the templates of Qwen.
func BenchmarkExactConversation(b *testing.B) {
	directory := os.Getenv(realTokenizers)
	if directory == "" {
		b.Skip(realTokenizers + " is not set")
	}
	h := loadHF(b, filepath.Join(directory, "qwen3.json"))
	const variants = 64
	bodies := make([][]byte, variants)
	for i := range bodies {
		bodies[i] = conversationBody(b, 200, 440<<10, i)
	}
	tokens := json.RawMessage(`{"eos_token":"<|im_end|>"}`)
	for _, template := range []string{"Qwen-Qwen2.5-7B-Instruct", "qwen3", "Qwen3-Coder"} {
		e := NewExact(h, loadTemplate(b, tokens, templateText(b, template), chattemplate.VLLM))
		run := func(name string, enc Encoder, before func()) {
			b.Run(template+"/"+name, func(b *testing.B) {
				rd := NewReader()
				chain := func(body []byte) *Request {
					req := readExact(b, rd, OpenAIChat, body)
					if !rd.ChainExact(context.Background(), req, e, enc, 16) {
						b.Fatal("not exact")
					}
					return req
				}
				req := chain(bodies[0])
				b.ReportAllocs()
				best := fastest{b: b}
				for i := 0; b.Loop(); i++ {
					before()
					best.begin()
					req = chain(bodies[i%variants])
					best.end()
				}
				best.report(req)
			})
		}
		run("uncached", h, func() {})
		c := NewCache(256 << 20)
		enc := c.Encoder(h)
		run("cold", enc, func() { c.secret[0]++ })
		run("warm", enc, func() {})
		b.Run(template+"/render_only", func(b *testing.B) {
			rd := NewReader()
			req := readExact(b, rd, OpenAIChat, bodies[0])
			in, _, _ := rd.chatInput(req, e, new(exactMemory))
			var text []byte
			b.ReportAllocs()
			best := fastest{b: b}
			for b.Loop() {
				best.begin()
				out, err := e.template.Render(context.Background(), text[:0], in)
				if err != nil {
					b.Fatal(err)
				}
				text = out.Text
				best.end()
			}
			best.report(req)
		})
	}
}
