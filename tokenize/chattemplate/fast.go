// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// builtin is a renderer that stands for a template.
type builtin struct {
	family string
	// reads are the variables of the template which render leaves at their
	// defaults: a request that sets one is none of its business.
	reads  []string
	render func(w *writer, c *chat) bool
}

// digestOf is the SHA-256 of a template's text, by which its renderer is known.
// The line ends and the last one, which Jinja drops, do not count.
func digestOf(text string) string {
	sum := sha256.Sum256([]byte(normalised(text)))
	return hex.EncodeToString(sum[:])
}

func normalised(text string) string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	text = strings.ReplaceAll(text, "\r", "\n")
	return strings.TrimSuffix(text, "\n")
}

// builtins are the templates that a renderer stands for.
var builtins = map[string]builtin{
	// Qwen2.5 (7B-Instruct and those that share its template)
	"55b2f4a26ac9ee719330a61a0c39d9e538b0e9322212f048326318cff4f8674a": {family: "qwen2.5", render: renderQwen25},
	// Qwen3
	"87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5": {family: "qwen3", render: renderQwen3},
	"a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8": {family: "qwen3", render: renderQwen3Strings},
	// Meta-Llama-3 and the short form that Llama-3.1 first came with
	"b48c47f6443892716176eb200bf4ef108f64e06ca26ed0fa8ebc0a4b3992fcb2": {family: "llama3", render: renderLlama3Always},
	"ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122": {family: "llama3", render: renderLlama3},
	// Llama-3.1 and 3.3, Llama-3.2
	"93c0e9aa3629bbd77e68dbc0f5621f6e6b23aa8d74b932595cdb8d64684526d7": {family: "llama3", reads: llama31Reads, render: renderLlama31},
	"d82792f95932f1c9cef5c4bd992f171225e3bf8c7b609b4557c9e1ec96be819f": {family: "llama3", reads: llama31Reads, render: renderLlama32},
	// Mistral-Nemo (Tekken)
	"e7deee034838db2bfc7487788a3013d8a307ab69f72f3c54a85f06fd76007d4e": {family: "mistral", render: renderMistralNemo},
	// DeepSeek-V3, DeepSeek-R1-Distill-Llama
	"3b8267e54b67df6500f231ffa969955cc9d26b3444a291ced4eb96ca7d3ca1ea": {family: "deepseek", render: renderDeepSeekV3},
	"dd2675619a64a449cdcdd2b93e605a0a50764cee41e344f244752bc93643936c": {family: "deepseek", render: renderDeepSeekR1},
	// gpt-oss
	"a4c9919cbbd4acdd51ccffe22da049264b1b73e59055fa58811a99efbd7c8146": {family: "gpt-oss", reads: []string{"builtin_tools"}, render: renderHarmony},
	// Gemma 2, Gemma 3
	"ecd6ae513fe103f0eb62e8ab5bfa8d0fe45c1074fa398b089c93a7e70c15cfd6": {family: "gemma", render: renderGemma2},
	"8d9e3a3c114fb2053ec500184677af4f7e5f8ec2582443cd535834e68b3ade29": {family: "gemma", render: renderGemma3},
}

// chat is what a template is given.
type chat struct {
	messages  []Value
	tools     Value // Null where there are none
	documents Value
	arguments Value // chat_template_kwargs
	special   []member
	generate  bool // add_generation_prompt
	clock     clock
}

type member struct {
	name  string
	value Value
}

// variable returns what the request or the tokenizer's configuration
// may set a variable to; Undefined if neither does.
func (c *chat) variable(name string) Value {
	if v := c.arguments.Get(name); v.kind != Undefined {
		return v
	}
	for i := range c.special {
		if c.special[i].name == name {
			return c.special[i].value
		}
	}
	return Value{}
}

// globals are the functions of a template; a request that sets one of their
// names is left to the Jinja engine.
var globals = []string{"raise_exception", "strftime_now", "namespace", "dict", "range"}

// takes tells whether a built-in renderer may be tried on a chat.
func (b *builtin) takes(c *chat) bool {
	if b.render == nil {
		return false
	}
	for _, key := range c.arguments.keys {
		if slices.Contains(b.reads, key) || slices.Contains(globals, key) {
			return false
		}
	}
	for i := range c.messages {
		if c.messages[i].kind != Dict || c.messages[i].Get("role").kind != String {
			return false
		}
	}
	return len(c.messages) > 0
}

// writer gathers the text, and where each message begins in it.
type writer struct {
	text   []byte // from base on
	base   int
	starts []int
	most   int // bytes of text at most
	full   bool
}

func (w *writer) begin() { w.starts = append(w.starts, w.written()) }

func (w *writer) written() int { return len(w.text) - w.base }

func (w *writer) add(parts ...string) {
	for _, s := range parts {
		if w.written()+len(s) > w.most {
			w.full = true
			return
		}
		w.text = append(w.text, s...)
	}
}

func (w *writer) addJSON(v Value) {
	w.text = appendJSON(w.text, v, &plainJSON, 0)
	w.full = w.full || w.written() > w.most
}

// addStr writes str(v).
func (w *writer) addStr(v Value) {
	w.text = appendStr(w.text, v)
	w.full = w.full || w.written() > w.most
}

func roleOf(m Value) string { return m.Get("role").text }
