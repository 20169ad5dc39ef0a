// SPDX-License-Identifier: Apache-2.0

// Package chattemplate renders chat requests into the text an inference engine
// would tokenize, with the model's own chat template.
//
// A template is loaded once with [Load] and is safe for concurrent use. Where
// its text is one that a built-in renderer stands for (told by its SHA-256),
// that renderer writes the text directly; whatever it does not cover, and every
// other template, runs in a Jinja engine that is made to follow Python's Jinja2
// as transformers' apply_chat_template sets it up: trim_blocks, lstrip_blocks,
// loop controls, its tojson, raise_exception, strftime_now and generation tags.
//
// Templates are trusted configuration, chats are not: input, depth, loop
// passes, output and time are bounded, and every failure is an [*Error].
package chattemplate
