// SPDX-License-Identifier: Apache-2.0

// Package remote asks engines what token ids they make of a prompt.
//
// Two ways of asking are known, which take the same body:
//
//   - Render: POST /v1/chat/completions/render or /v1/completions/render, which
//     vLLM answers with what it would compute: one object with the list
//     "token_ids" for each prompt. It goes the way of the request itself. Source:
//     vllm/entrypoints/scale_out/render of 0.32 and, before it, serve/render.
//   - Tokenize: POST /tokenize, which vLLM and SGLang answer with one object with
//     the list "tokens". vLLM takes no notice here of what changes a prompt
//     besides messages, tools and chat_template_kwargs, and in messages none of
//     reasoning_content. Source:
//     vllm/entrypoints/serve/tokenize/protocol.py and SGLang's
//     srt/entrypoints/openai/serving_tokenize.py.
//
// Nothing here waits longer than the deadline, no more than so many questions
// are under way, and an engine that fails time after time is left alone for a
// while. A question is an attempt: whoever asks must be able to do without.
package remote
