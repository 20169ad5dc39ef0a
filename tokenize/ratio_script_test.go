// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// chatOf is a chat of which each text is a message.
func chatOf(texts ...string) []byte {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	var chat struct {
		Model    string    `json:"model"`
		Messages []message `json:"messages"`
	}
	for _, text := range texts {
		chat.Messages = append(chat.Messages, message{"user", text})
	}
	body, _ := json.Marshal(chat)
	return body
}

func scriptOf(t *testing.T, body []byte) Script {
	t.Helper()
	rd := AcquireReader()
	defer rd.Release()
	if _, err := rd.Read(OpenAIChat, "/v1/chat/completions", body); err != nil {
		t.Fatal(err)
	}
	return rd.Script()
}

func TestTheScriptIsThatOfMostOfTheText(t *testing.T) {
	english, chinese := string(corpus(t, "english.txt")), string(corpus(t, "cjk.txt"))
	for _, c := range []struct {
		name string
		body []byte
		want Script
	}{
		{"english", chatOf(english), ASCIIScript},
		{"code", chatOf(string(corpus(t, "code.txt"))), ASCIIScript},
		{"accents", chatOf(string(corpus(t, "european.txt"))), ASCIIScript},
		{"chinese", chatOf(chinese), OtherScript},
		{"arabic", chatOf(string(corpus(t, "arabic_hebrew.txt"))), OtherScript},
		{"hindi", chatOf(string(corpus(t, "indic_thai.txt"))), OtherScript},
		{"a short question", chatOf("几点了?"), OtherScript},
		{"chinese system prompt, long english chat", chatOf(append([]string{chinese}, strings.SplitAfter(strings.Repeat(english, 10), ".")...)...), ASCIIScript},
		{"english system prompt, long chinese chat", chatOf(append([]string{english}, strings.SplitAfter(strings.Repeat(chinese, 10), "。")...)...), OtherScript},
		{"nothing", chatOf(""), ASCIIScript},
		{"escaped", []byte(fmt.Sprintf(`{"messages":[{"role":"user","content":%s}]}`, strconv.QuoteToASCII(strings.Repeat(`中文怎么说`, 100)))), OtherScript},
		{"escaped ascii", chatOf(strings.Repeat("<>&", 1000)), ASCIIScript},
		{"image", []byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"这张图片里有什么？"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
			strings.Repeat("iVBORw0K", 10_000) + `"}}]}]}`), OtherScript},
		{"ids", []byte(`{"messages":[{"role":"user","content":"x"}],"tools":[]}`), ASCIIScript},
	} {
		if got := scriptOf(t, c.body); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func BenchmarkScript(b *testing.B) {
	texts := make([]string, 200)
	for i := range texts {
		texts[i] = string(corpus(b, "english.txt"))[:2000]
	}
	rd := NewReader()
	if _, err := rd.Read(OpenAIChat, "/v1/chat/completions", chatOf(texts...)); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		rd.Script()
	}
}
