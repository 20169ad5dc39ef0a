// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// conversation is a chat of n messages of about 1 KB.
func conversation(n int) []byte {
	var b strings.Builder
	b.WriteString(`[{"role":"system","content":"You are helpful."}`)
	text := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 23)
	for i := range n - 1 {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		fmt.Fprintf(&b, `,{"role":%q,"content":"%d: %s\n"}`, role, i, text)
	}
	b.WriteByte(']')
	return []byte(b.String())
}

func BenchmarkRender200Messages(b *testing.B) {
	g, _ := goldens(b)
	in := Input{Messages: conversation(200), AddGenerationPrompt: true}
	for _, name := range []string{
		"Qwen-Qwen2.5-7B-Instruct", "qwen3", "meta-llama-Llama-3.1-8B-Instruct", "mistralai-Mistral-Nemo-Instruct-2407",
		"deepseek_v3", "openai-gpt-oss-120b", "gemma3",
	} {
		for _, engine := range []string{"builtin", "jinja"} {
			b.Run(name+"/"+engine, func(b *testing.B) {
				source := textOf(name)
				if source == "" {
					b.Skip("the template was not fetched")
				}
				tmpl, err := Load(g.Templates[name].Tokens, source, Options{NoBuiltin: engine == "jinja"})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.SetBytes(int64(len(in.Messages)))
				var text []byte
				for b.Loop() {
					out, err := tmpl.Render(context.Background(), text[:0], in)
					if err != nil {
						b.Fatal(err)
					}
					text = out.Text
				}
			})
		}
	}
}

func BenchmarkFromJSON(b *testing.B) {
	raw := conversation(200)
	b.ReportAllocs()
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		if _, err := FromJSON(raw); err != nil {
			b.Fatal(err)
		}
	}
}
