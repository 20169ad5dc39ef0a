// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"math"
	"strings"
)

// maxChoices bounds n. Engines refuse more, or far less.
const maxChoices = 1024

// What engines generate when the body sets no limit, in tokens.
const (
	completionsMaxTokens = 16
	sglangMaxNewTokens   = 128
)

// parameters reads all that is not prompt.
func (rd *Reader) parameters(f *fields, path string) {
	req := &rd.req
	req.Pooling = req.Kind == OpenAIEmbeddings
	req.MaxOutput = rd.maxOutput(f)
	req.Choices = rd.choices(f)
	req.Stream = rd.streams(f[keyStream], path)
	req.IncludeUsage = rd.isTrue(rd.member(f[keyStreamOptions], keyIncludeUsage))
	req.NoReuse = req.Pooling || rd.computesAll(f)
	// vLLM's and SGLang's ways to pair a prefill with a decode.
	req.Transfers = !rd.isNull(f[keyKVTransferParams]) || !rd.isNull(f[keyBootstrapRoom])
	rd.keepLast = rd.truncation(f)
}

// maxOutput returns the expected output tokens of a sequence, or −1.
func (rd *Reader) maxOutput(f *fields) int {
	if rd.req.Pooling {
		return 0
	}
	limits := [...]uint32{
		rd.member(rd.member(f[keyNvext], keyAgentHints), keyOSL),
		f[keyMaxCompletionTokens],
		f[keyMaxTokens],
		f[keyMaxOutputTokens],
		rd.samplingMost(f[keySamplingParams], keyMaxNewTokens),
		rd.member(f[keyParameters], keyMaxNewTokens),
		f[keyNPredict],
		rd.member(f[keyOptions], keyNumPredict),
	}
	for _, n := range limits {
		if v, ok := rd.integer(n); ok {
			// llama.cpp's and Ollama's −1 and −2 mean: until the model stops.
			return int(min(max(v, -1), math.MaxInt32))
		}
	}
	switch rd.req.Kind {
	case OpenAICompletions:
		if f[keyMaxTokens] == 0 { // an explicit null lifts the default
			return completionsMaxTokens
		}
	case SGLangGenerate:
		return sglangMaxNewTokens
	}
	return -1
}

// samplingMost returns the node of a sampling parameter. SGLang takes a list
// of parameter objects, one for each prompt: then the largest value stands.
func (rd *Reader) samplingMost(params uint32, k key) (found uint32) {
	if rd.kindOf(params) != arrayValue {
		return rd.member(params, k)
	}
	nodes := rd.scanner.nodes
	most := int64(math.MinInt64)
	for c := params + 1; c < nodes[params].next; c = nodes[c].next {
		n := rd.member(c, k)
		if v, ok := rd.integer(n); ok && v > most {
			found, most = n, v
		}
	}
	return found
}

// choices returns the number of sequences for each prompt.
func (rd *Reader) choices(f *fields) int {
	most := int64(1)
	if rd.req.Pooling {
		return 1
	}
	for _, n := range [...]uint32{
		f[keyN], f[keyBestOf],
		rd.samplingMost(f[keySamplingParams], keyN),
		rd.member(f[keyParameters], keyBestOf),
	} {
		if v, ok := rd.integer(n); ok {
			most = max(most, v)
		}
	}
	return int(min(most, maxChoices))
}

func (rd *Reader) streams(n uint32, path string) bool {
	switch rd.req.Kind {
	case OpenAIEmbeddings:
		return false
	case OllamaChat, OllamaGenerate:
		return !rd.isFalse(n)
	case TGI:
		return strings.HasSuffix(strings.TrimSuffix(path, "/"), "/generate_stream") || rd.isTrue(n)
	}
	return rd.isTrue(n)
}

// computesAll tells whether the engine computes the whole prompt whatever it
// holds: it must where log-probabilities of prompt tokens are asked for.
func (rd *Reader) computesAll(f *fields) bool {
	if !rd.isNull(f[keyPromptLogprobs]) || rd.isFalse(f[keyCachePrompt]) {
		return true
	}
	if rd.isTrue(f[keyEcho]) && !rd.isNull(f[keyLogprobs]) && rd.kindOf(f[keyLogprobs]) != falseValue {
		return true
	}
	if start, ok := rd.integer(f[keyLogprobStartLen]); ok && start >= 0 && rd.isTrue(f[keyReturnLogprob]) {
		return true
	}
	return rd.isTrue(rd.member(f[keyParameters], keyDecoderInputDetails))
}

// truncation returns to how many of its last tokens the engine cuts the
// prompt: vLLM's truncate_prompt_tokens and TGI's parameters.truncate. 0: none.
func (rd *Reader) truncation(f *fields) int {
	for _, n := range [...]uint32{f[keyTruncatePromptTokens], rd.member(f[keyParameters], keyTruncate)} {
		if v, ok := rd.integer(n); ok && v > 0 {
			return int(min(v, math.MaxInt32))
		}
	}
	return 0
}
