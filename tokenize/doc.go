// SPDX-License-Identifier: Apache-2.0

// Package tokenize turns the body of an LLM request into prompt tokens and a
// chain of block hashes, so that a router can tell how much of the prompt an
// engine already holds.
//
// Reading goes in three steps, each over reusable memory:
//
//  1. A scanner walks the JSON once, iteratively, and records the spans of the
//     values that matter (scan*.go). It accepts what the engines' JSON readers
//     accept (see [Reader.Read]) and refuses the rest with a typed [Error].
//  2. The shape of the request (chat, completions, …) is laid out as pieces in
//     a stable order (shape*.go, render*.go). The order is not that of the
//     engine's chat template, but it has its property that counts: a
//     conversation that grows keeps all its earlier pieces as a prefix.
//  3. [Reader.Chain] encodes the pieces and hashes whole blocks of ids, each
//     hash including the one before it.
//
// Bodies come from outside. Whatever they hold, reading them takes time linear
// in their length, memory of a small multiple of it, never panics and never
// changes them; errors carry an offset and no text.
//
// Ids come from one of tiktoken's encodings ([LoadEncoding]), a Hugging Face
// tokenizer ([LoadHF]) or an [Estimate]. A [Cache] remembers what was encoded,
// and [Ratios] learns how far counts are from the engine's. Where the model's own
// template is known, [Reader.ChainExact] chains the very ids that the engine
// makes (package chattemplate renders the text, and knows what images become).
package tokenize
