// SPDX-License-Identifier: Apache-2.0

package tokenize

import "strings"

// standIn is the encoding for models whose own is unknown. Of those embedded it
// is the newest and the evenest across scripts.
const standIn = "o200k_base"

// nameForm says how a row of modelEncodings is compared with a model's name.
type nameForm uint8

const (
	wholeName  nameForm = iota
	familyName          // the name, or the name and a hyphen before anything else
	namePrefix          // whatever follows
)

// modelEncodings follows the tables of OpenAI's tiktoken (tiktoken/model.py),
// with its aliases resolved: gpt2 is r50k_base, p50k_edit is p50k_base and
// o200k_harmony is o200k_base but for their special tokens (openai_public.py).
// No two rows match one name.
var modelEncodings = []struct {
	name, encoding string
	form           nameForm
	anywhere       bool // open weights: known by the name whoever publishes them
}{
	{"gpt-oss", "o200k_base", familyName, true},
	{"gpt-5", "o200k_base", namePrefix, false},
	{"gpt-4.5", "o200k_base", familyName, false},
	{"gpt-4.1", "o200k_base", familyName, false},
	{"gpt-4o", "o200k_base", familyName, false},
	{"chatgpt-4o", "o200k_base", familyName, false},
	{"o1", "o200k_base", familyName, false},
	{"o3", "o200k_base", familyName, false},
	{"o4-mini", "o200k_base", familyName, false},

	{"gpt-4", "cl100k_base", familyName, false},
	{"gpt-3.5", "cl100k_base", wholeName, false},
	{"gpt-3.5-turbo", "cl100k_base", familyName, false},
	{"gpt-35-turbo", "cl100k_base", familyName, false}, // as Azure spells it
	{"davinci-002", "cl100k_base", wholeName, false},
	{"babbage-002", "cl100k_base", wholeName, false},
	{"text-embedding-ada-002", "cl100k_base", wholeName, false},
	{"text-embedding-3-small", "cl100k_base", wholeName, false},
	{"text-embedding-3-large", "cl100k_base", wholeName, false},

	{"text-davinci-003", "p50k_base", wholeName, false},
	{"text-davinci-002", "p50k_base", wholeName, false},
	{"text-davinci-edit-001", "p50k_base", wholeName, false},
	{"code-davinci-edit-001", "p50k_base", wholeName, false},
	{"code-davinci-002", "p50k_base", wholeName, false},
	{"code-davinci-001", "p50k_base", wholeName, false},
	{"code-cushman-002", "p50k_base", wholeName, false},
	{"code-cushman-001", "p50k_base", wholeName, false},
	{"davinci-codex", "p50k_base", wholeName, false},
	{"cushman-codex", "p50k_base", wholeName, false},

	{"text-davinci-001", "r50k_base", wholeName, false},
	{"text-curie-001", "r50k_base", wholeName, false},
	{"text-babbage-001", "r50k_base", wholeName, false},
	{"text-ada-001", "r50k_base", wholeName, false},
	{"davinci", "r50k_base", wholeName, false},
	{"curie", "r50k_base", wholeName, false},
	{"babbage", "r50k_base", wholeName, false},
	{"ada", "r50k_base", wholeName, false},
	{"text-similarity-davinci-001", "r50k_base", wholeName, false},
	{"text-similarity-curie-001", "r50k_base", wholeName, false},
	{"text-similarity-babbage-001", "r50k_base", wholeName, false},
	{"text-similarity-ada-001", "r50k_base", wholeName, false},
	{"text-search-davinci-doc-001", "r50k_base", wholeName, false},
	{"text-search-curie-doc-001", "r50k_base", wholeName, false},
	{"text-search-babbage-doc-001", "r50k_base", wholeName, false},
	{"text-search-ada-doc-001", "r50k_base", wholeName, false},
	{"code-search-babbage-code-001", "r50k_base", wholeName, false},
	{"code-search-ada-code-001", "r50k_base", wholeName, false},
	{"gpt2", "r50k_base", wholeName, false},
	{"gpt-2", "r50k_base", wholeName, false},
}

// publishers are those under whose names OpenAI's own models are offered, as
// in "openai/gpt-4o". Under any other, a name such as gpt-4-x is somebody's
// model that is merely called so.
var publishers = []string{"openai", "azure", "openai-community"}

// EncodingForModel returns the name of the tiktoken encoding for a model, as
// [LoadEncoding] takes it. With exact, it is the one that OpenAI's model of that
// name uses; else it is a stand-in, o200k_base, whose counts [Ratios] can
// correct. An engine may serve any model under any name, so exact tells what the
// name means and not what answers to it.
//
// Letter case is ignored, and so are a path before the name if it ends in a
// publisher of OpenAI's models ("openrouter/openai/gpt-4o"), the mark of a
// fine-tuned model ("ft:gpt-4o:acme::1") and a tag behind it ("gpt-oss:20b").
func EncodingForModel(model string) (encoding string, exact bool) {
	path, name := cutLast(model)
	if foldedPrefix(name, "ft:") {
		name = name[len("ft:"):]
	}
	if i := strings.IndexByte(name, ':'); i >= 0 {
		name = name[:i]
	}
	known := path == "" || published(path)
	for i := range modelEncodings {
		m := &modelEncodings[i]
		if !foldedPrefix(name, m.name) || !known && !m.anywhere {
			continue
		}
		rest := name[len(m.name):]
		if rest == "" || m.form == namePrefix || m.form == familyName && rest[0] == '-' {
			return m.encoding, true
		}
	}
	return standIn, false
}

// published tells whether the last element of path is a publisher.
func published(path string) bool {
	_, last := cutLast(path)
	for _, p := range publishers {
		if len(last) == len(p) && foldedPrefix(last, p) {
			return true
		}
	}
	return false
}

// foldedPrefix tells whether s begins with prefix, which is in lower case,
// whatever the case of s's ASCII letters.
func foldedPrefix(s, prefix string) bool {
	if len(s) < len(prefix) {
		return false
	}
	for i := range len(prefix) {
		c := s[i]
		if c-'A' < 26 {
			c |= 0x20
		}
		if c != prefix[i] {
			return false
		}
	}
	return true
}
