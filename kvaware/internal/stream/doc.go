// SPDX-License-Identifier: Apache-2.0

// Package stream watches the response of an LLM engine as its bytes pass to
// the client, and tells when each sequence's first output arrived, how many
// tokens were generated so far, and how the response ended.
//
// An Observer is fed the very pieces that are written to the client. It
// neither keeps nor changes them, starts no goroutine and, once warm,
// allocates nothing per event. A resumable JSON scanner reads events as they
// come, so that a piece may be cut anywhere and no event is ever buffered: an
// answer of a hundred megabytes in one line costs the same few kilobytes of
// state as a short one.
//
// # What is recognised
//
// By shape, whatever path or Content-Type claims:
//
//   - server-sent events (WHATWG HTML, section 9.2), with LF, CR or CRLF;
//   - JSON values one after another, as in NDJSON;
//   - one JSON value, object or array, which is the whole answer.
//
// The fields of these interfaces are understood, also mixed: OpenAI chat,
// completions, responses and embeddings, Anthropic messages, Ollama chat and
// generate, TGI, SGLang's /generate, llama.cpp's /completion.
//
// # How tokens are counted
//
// Each sequence has a base, the engine's own counter when it was last
// reported, and what came since: token ids where the engine sends them, else
// one delta per event and choice that carries text, reasoning, tool-call text
// or a refusal, each worth Options.TokensPerDelta tokens. Counters are running
// totals: they replace what was counted, and zero or null never does. A
// counter that covers several sequences is spread over them in proportion to
// what was counted for each.
//
// The ids themselves are gathered of a single sequence, where they are asked for
// (Options.OutputIDs), since they are needed as a whole at the end.
//
// # When an event counts
//
// Nothing of an event counts before the byte that completes it: the empty line
// after a server-sent event, the line end after a line of NDJSON, the last
// bracket of a JSON answer. An event cut off before that is dropped.
package stream
